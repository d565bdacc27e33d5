"""Chapter 12: what seeds can tell, angles and distances."""

from collections.abc import Callable, Mapping

import pandas as pd
import torch
from torch import Tensor

from rlbook.objectives import Method
from rlbook.stats import t_interval
from rlbook.stats.differences import detectable_difference
from rlbook.training import Trainer
from workshop.ch12.pushes import push


def seeds_can_tell(switches: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Mean difference by switch with its 95 % interval, one seed's scatter, what would be found."""
    rows = {}
    for name, gaps in switches.items():
        rows[name] = t_interval(gaps)._asdict()
        rows[name]["one seed scatters by"] = gaps.std()
        rows[name][f"{len(gaps)} seeds detect"] = detectable_difference(gaps)
    return pd.DataFrame(rows).T


def in_degrees(
    turn: Callable[..., Tensor],
    worlds: Mapping[str, Trainer],
    method: Method,
    switched: Mapping[str, Method],
) -> pd.DataFrame:
    """`turn` of every switch in every world: a row per switch, a column per world."""
    return pd.DataFrame(
        {
            world: {name: float(turn(push, trainer, method, one)) for name, one in switched.items()}
            for world, trainer in worlds.items()
        }
    )


def lengths(worlds: Mapping[str, Trainer]) -> pd.DataFrame:
    """Tokens of the answers of one batch by world: mean, scatter, scatter ÷ mean, least, most."""
    rows = {}
    for world, trainer in worlds.items():
        tokens = pd.Series([float(r.length) for r in trainer.collect(seed=1)])
        rows[world] = {"mean": tokens.mean(), "scatter": tokens.std()}
        rows[world]["scatter ÷ mean"] = tokens.std() / tokens.mean()
        rows[world] |= {"least": tokens.min(), "most": tokens.max()}
    return pd.DataFrame(rows).T


def distances(gradients: Tensor, factors: Mapping[str, Tensor], lr: float = 1e-2) -> pd.DataFrame:
    """How far SGD and Adam go with gradients that are multiplied step by step, a row per factor.

    Relative to the first row. `gradients` are (S, P), a factor is (S,).
    """
    ends: dict[str, dict[str, float]] = {}
    for kind, make in (("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam)):
        for name, scale in factors.items():
            weight = torch.nn.Parameter(torch.zeros(gradients.shape[1]))
            optimizer = make([weight], lr=lr)
            for gradient, c in zip(gradients, scale, strict=True):
                weight.grad = c * gradient
                optimizer.step()
            ends.setdefault(kind, {})[name] = weight.detach().norm().item()
    table = pd.DataFrame(ends)
    return table / table.iloc[0]
