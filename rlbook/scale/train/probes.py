"""Does a generator compute with the weights it was sent? Its log-probabilities tell."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.train.parallel import Ranks, ScoredPolicy
from rlbook.tasks import Problem
from rlbook.training import Rollout, collate
from rlbook.training.batch import Collated

PROMPT_TOKENS, TOKENS, COPIES = 16, 16, 4
TOLERANCE = {
    "float32": 1e-3,
    "bfloat16": 0.15,
}  # mean |Δ log π|; other weights differ by 1 and more


class WrongWeights(RuntimeError):
    """A generator's log-probabilities are not those of the weights it was sent."""


@dataclass(frozen=True)
class Probe:
    """Completions of one prompt by the generator at `url`, with its log-probabilities."""

    url: str
    prompt: list[int]
    tokens: list[list[int]]
    logps: list[list[float]]


class Prober:
    """Asks for completions of a prompt of arbitrary tokens: there, two policies differ most."""

    def __init__(self, config: ScaleConfig, vocabulary: int):
        self.temperature = config.rollout.temperature
        self.copies = min(COPIES, config.generate.slots)
        self.prompt = [7919 * (i + 1) % vocabulary for i in range(PROMPT_TOKENS)]

    async def __call__(self, client: GeneratorClient, version: int) -> Probe:
        limits = {"max_new_tokens": TOKENS, "temperature": self.temperature}
        written = await client.complete_at(version, self.prompt, self.copies, **limits)
        tokens, logps = [c.token_ids for c in written], [c.logps for c in written]
        return Probe(client.url, self.prompt, tokens, logps)


def verify(
    probes: Sequence[Probe], ranks: Ranks, policy: ScoredPolicy, config: ScaleConfig
) -> None:
    """Score rank 0's probes on all ranks. Raises `WrongWeights` naming the generators that fail."""
    wrong = []
    for probe in [Probe(**fields) for fields in ranks.share([asdict(p) for p in probes])]:
        gap = mean_gap(probe, ranks, policy, config)
        if not gap <= tolerance(config):
            wrong.append(f"{probe.url} (mean |Δ log π| {gap:.2g})")
    if wrong:
        raise WrongWeights(
            f"{', '.join(wrong)}: log-probabilities are not those of the weights that were sent "
            f"(tolerance {tolerance(config):g}): check model.policy, dtypes and versions there"
        )


def mean_gap(probe: Probe, ranks: Ranks, policy: ScoredPolicy, config: ScaleConfig) -> float:
    """Mean |log π_trainer − log π_generator| over the probe's tokens."""
    batch = as_batch(probe).to(ranks.device)
    logp = ranks.logprobs(
        policy, batch, config.rollout.temperature, config.optimizer.micro_batch_tokens
    )
    return float((logp - batch.logp_sampler)[batch.mask].abs().mean())


def as_batch(probe: Probe) -> Collated:
    problem = Problem("probe", "", "")
    return collate(
        [
            Rollout(problem, 0, probe.prompt, tokens, logps, [0] * len(tokens), "length", "")
            for tokens, logps in zip(probe.tokens, probe.logps, strict=True)
        ]
    )


def tolerance(config: ScaleConfig) -> float:
    """Rounding that the coarser of the two dtypes excuses."""
    return max(TOLERANCE[config.train.dtype], TOLERANCE[config.generate.dtype])
