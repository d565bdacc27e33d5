"""Chapter 13: rewards without labels in two opposite worlds, and the base against RL at large k."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rlbook.evaluation import held_out_rollouts, right_counts
from rlbook.policy import load_policy
from rlbook.rewards.label_free import vote_metrics
from rlbook.training import Rollout, RunConfig, Trainer, derive_seed
from rlbook.training.metrics import rollout_metrics
from workshop.ch13.self_confidence import EntropyInference, SelfCertainty
from workshop.shared.design import Arm, arm, vary
from workshop.shared.evidence import by_level, level_columns
from workshop.shared.experiments import FEW, RLOO, bounded
from workshop.shared.worlds import HABITS

UNBOUNDED, CLIPPED = bounded("no trust region"), bounded("clip 0.2")
ONE_UPDATE = {"prompts": 8, "group_size": 16, "minibatches": 1, "steps": 20}
EIGHT_UPDATES = ONE_UPDATE | {"minibatches": 8}
FIVE = (0, 1, 2, 3, 4)
RATES = (1.5e-4, 3e-4)
LABEL_FREE = {
    "verifier": None,
    "majority vote": "majority_vote",
    "agreement": "semantic_agreement",
    "confidence": "confidence",
}


def rewarded(label: str, reward: str | None, method=RLOO, **settings: Any) -> Arm:
    """An arm whose answers are worth what a function of `rewards.label_free` says."""
    path = reward and f"rlbook.rewards.label_free:{reward}"
    return arm(label, method, reward=path, **settings)


def label_free(**world: Any) -> Iterator[Arm]:
    """A verifier and three rewards that never ask one, one update a step."""
    for label, reward in LABEL_FREE.items():
        yield rewarded(label, reward, **ONE_UPDATE, **world)


def at_both_rates(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    return tuple(vary(one, lr=RATES) for one in arms)


def coins(**world: Any) -> Iterator[Arm]:
    """Coins with one update and with eight, clipped and not."""
    coin = "random_reward"
    yield rewarded("coin, one update", coin, **ONE_UPDATE, **world)
    yield rewarded("coin, 8 updates, no clip", coin, UNBOUNDED, **EIGHT_UPDATES, **world)
    yield rewarded("coin, 8 updates, clip", coin, CLIPPED, **EIGHT_UPDATES, **world)


def published_coins() -> Iterator[Arm]:
    """Coins in batches of the published size: 64 prompts, 16 answers each, eight updates."""
    settings = EIGHT_UPDATES | {"prompts": 64, "steps": 10}
    for name in ("no trust region", "clip 0.2", "clip-higher 0.28"):
        yield rewarded(f"coin, {name}", "random_reward", bounded(name), **settings)


def spurious() -> Iterator[Arm]:
    """Coins, the format, the favourite mistake."""
    yield from coins(**HABITS)
    yield rewarded("format only", "format_only", **ONE_UPDATE, **HABITS)
    yield rewarded("wrong labels", "wrong_labels", **ONE_UPDATE, **HABITS)


def entropy_tuning() -> Iterator[Arm]:
    """Gradient descent on the entropy of one's own answers in both worlds; the reward is logged."""
    for label, world in (("EM-FT, habits", HABITS), ("EM-FT, sums", {})):
        yield rewarded(label, "negative_entropy", **ONE_UPDATE, **world)


def many_tries(**settings: Any) -> Iterator[Arm]:
    """A verifier and a majority vote, trained for long enough to lose or to find something."""
    settings = ONE_UPDATE | {"lr": 3e-4} | settings
    for label in ("verifier", "majority vote"):
        yield rewarded(label, LABEL_FREE[label], **settings)


def votes(trainer: Trainer, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What a vote on the rollouts looks like from inside, and what it is worth."""
    return vote_metrics(rollouts)


def coverage(trainer: Trainer) -> dict[str, int]:
    """Right answers of 256 to each of twelve held-out problems of every level."""
    return {
        f"right_{level}_{i}": int(count)
        for level in trainer.task.levels
        for i, count in enumerate(coverage_counts(trainer, level))
    }


def coverage_counts(trainer: Trainer, level: int) -> Sequence[int]:
    policy, asked = (trainer.model, trainer.tokenizer), {"prompts": 12, "n": 256}
    return right_counts(held_out_rollouts(policy, trainer.task, levels=(level,), **asked))


LOGGED = ("reward", "accuracy", "completions", "entropy", "clip_fraction")  # by step
VOTED = (*LOGGED, "agreement", "label_accuracy", "reward_accuracy")
SEEN = {"chosen_by": None, "watch": votes, "measure": by_level, "evaluation": FEW}
SEEN |= {"columns": VOTED}
TRIED = {"chosen_by": None, "measure": coverage, "evaluation": FEW, "columns": LOGGED}

WORLDS: dict[str, dict[str, Any]] = {"habits": HABITS, "sums": {}}
TEMPERATURES = (0.7, 0.5, 0.3)


class Untrained(Trainer):
    """A trainer whose policy stays as it was; its answers are only logged."""

    def learn(self, rollouts: list[Rollout]) -> dict[str, float]:
        self.step += 1
        return {"step": self.step, **rollout_metrics(rollouts, self.version)}


def cold() -> Iterator[Arm]:
    """The base as it is, at lower temperatures and by EM-INF."""
    for world, settings in WORLDS.items():
        few: dict[str, Any] = {"prompts": 2, "group_size": 2, "minibatches": 1, "steps": 1}
        for t in TEMPERATURES:
            yield arm(f"T = {t:g}, {world}", RLOO, temperature=t, **few, **settings)
        yield arm(f"EM-INF, {world}", replace(RLOO, name="em_inf"), **few, **settings)


def as_it_is(trainer: Trainer) -> dict[str, float]:
    """Held-out pass@1 of each level, drawn with the run's own seed."""
    how: dict[str, Any] = {"temperature": trainer.config.rollout.temperature}
    if trainer.config.method.name == "em_inf":
        how["engine"] = EntropyInference(trainer.model, trainer.tokenizer.eos_token_id)
    seed = derive_seed(trainer.config.seed, "cold")
    return level_columns(trainer, ("pass@1",), 24, 8, seed=seed, **how)


def one_prompt() -> Iterator[Arm]:
    """Entropy fine-tuning on a single prompt without a label, in ten steps."""
    settings = {"prompts": 1, "group_size": 64, "pool": 1, "minibatches": 1, "steps": 10}
    for world, where in WORLDS.items():
        yield vary(arm(f"one prompt, {world}", RLOO, **settings, **where), lr=(1e-4, 3e-4, 1e-3))


def certain() -> Iterator[Arm]:
    """Self-certainty as the reward."""
    for world, where in WORLDS.items():
        one = arm(f"self-certainty, {world}", RLOO, **ONE_UPDATE, **where)
        yield vary(one, lr=(1.5e-4, 3e-4, 6e-4))


def self_certain(config: RunConfig) -> Trainer:
    policy = load_policy(config.model.policy)
    return Trainer(config, policy, reward=SelfCertainty(policy[0]))
