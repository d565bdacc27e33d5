"""How far a step that shares prefixes is from one that computes whole rows: rounding, by row."""

from itertools import product
from typing import Any

from torch import Tensor

from rlbook.objectives import METHODS
from rlbook.training import RunConfig, Trainer
from workshop.bench.sharing import gradient, whole_rows

WORLDS: dict[str, dict[str, Any]] = {
    "sums": {},
    "habits": {"policy": "tiny-habits", "task": "habits"},
}
ROWS = {"smoke": ("grpo",), "full": tuple(name for name in METHODS if name != "opd")}


def run(size: str) -> list[dict]:
    """Of every row in both worlds: relative distance of gradients, largest of log-probabilities.

    The batch has been used for one pass, so that ratios have left 1. The reference are whole rows
    in float64: `shared` and `whole` say how far the two float32 ways are from it.
    """
    return [
        {"method": name, "world": world} | gaps(name, world)
        for name, world in product(ROWS[size], WORLDS)
    ]


def gaps(method: str, world: str) -> dict[str, float]:
    trainer = Trainer(RunConfig(method=method, prompts=8, steps=1, **WORLDS[world]))
    batch = trainer.learner.prepare(trainer.collect())
    trainer.learner.updates(batch)

    def computed() -> tuple[Tensor, Tensor]:
        return gradient(trainer, batch), trainer.learner.logprobs(batch)

    ways = {"shared": computed()}
    with whole_rows(trainer.model.get_decoder()):
        ways["whole"] = computed()
        trainer.model.double()
        exact, logp = computed()
    return {
        f"{name}_{what}": value
        for name, (found, chances) in ways.items()
        for what, value in {
            "gradient": ((found - exact).norm() / exact.norm()).item(),
            "logp": (chances - logp)[batch.mask].abs().max().item(),
        }.items()
    }
