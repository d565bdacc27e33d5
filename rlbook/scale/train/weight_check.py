"""Does a generator compute with the weights it was sent? Its log-probabilities tell."""

from collections.abc import Sequence
from typing import Any

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.train.parallel import Ranks, ScoredPolicy
from rlbook.tasks import Problem
from rlbook.training import Rollout, collate

PROMPT_TOKENS, TOKENS, COPIES = 16, 16, 4
TOLERANCE: dict[str | None, float] = {
    "float32": 1e-3,
    "bfloat16": 0.15,
}  # mean |Δ log π|; of other weights 1 and more
Probe = dict[str, Any]  # JSON: url, prompt, and the completions' tokens and logps


class Prober:
    """Asks for completions of a prompt of arbitrary tokens: there, two policies differ most."""

    def __init__(self, config: ScaleConfig, vocabulary: int):
        self.temperature = config.rollout.temperature
        self.copies = min(COPIES, config.generate.slots)
        self.prompt = [7919 * (i + 1) % vocabulary for i in range(PROMPT_TOKENS)]

    async def __call__(self, client: GeneratorClient, version: int) -> Probe:
        limits: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": self.temperature}
        written = await client.complete_at(version, self.prompt, self.copies, **limits)
        tokens, logps = [c.token_ids for c in written], [c.logps for c in written]
        return {"url": client.url, "prompt": self.prompt, "tokens": tokens, "logps": logps}


def gaps_of(
    probes: Sequence[Probe], ranks: Ranks, policy: ScoredPolicy, config: ScaleConfig
) -> dict[str, float]:
    """Mean |log π_trainer − log π_generator| of rank 0's probes by URL, scored on all ranks."""
    temperature, most = config.rollout.temperature, config.optimizer.micro_batch_tokens
    problem, gaps = Problem("probe", "", ""), {}
    for probe in ranks.share(list(probes)):
        rollouts = [
            Rollout(problem, 0, probe["prompt"], tokens, logps, [0] * len(tokens), "length", "")
            for tokens, logps in zip(probe["tokens"], probe["logps"], strict=True)
        ]
        batch = collate(rollouts).to(ranks.device)
        logp = ranks.logprobs(policy, batch, temperature, most)
        gaps[probe["url"]] = float((logp - batch.logp_sampler)[batch.mask].abs().mean())
    return gaps


def tolerance(config: ScaleConfig) -> float:
    """Rounding that the coarser of the two dtypes excuses."""
    return max(TOLERANCE[config.train.dtype], TOLERANCE[config.generate.dtype])
