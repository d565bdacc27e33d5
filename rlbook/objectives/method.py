"""A method is a row of choices, and every choice has a name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, get_args

from rlbook.objectives.aggregation import Aggregation
from rlbook.objectives.kl import KLPenalty
from rlbook.objectives.trust_regions import NoTrustRegion, TrustRegion

Ratio = Literal["none", "token", "sequence"]


@dataclass(frozen=True)
class Method:
    """One row of the table.

    `constant` is the normaliser of `aggregation="constant"`. `old_logprobs` says whose log-probs
    the paper calls π_old: the trainer's, recomputed, or the sampler's own. `reward_values` are the
    rewards of a (wrong, right) answer. `reward_shaping` and `prompt_filter` name what happens to
    rewards and prompts before the objective; the trainer does it ("overlong": DAPO's ramp;
    "overlong_filter": truncated completions count in the baseline but are not trained on).
    `note` records where papers and code disagree.
    Raises `ValueError` for an unknown option or a combination that cannot run.
    """

    name: str
    paper: str
    advantage: Callable[..., Any]
    ratio: Ratio = "none"
    trust_region: TrustRegion = field(default_factory=NoTrustRegion)
    aggregation: Aggregation = "token_sum"
    constant: float | None = None
    kl: KLPenalty | None = None
    old_logprobs: Literal["recomputed", "sampler"] = "recomputed"
    reward_values: tuple[float, float] = (0.0, 1.0)
    reward_shaping: Literal["none", "overlong", "overlong_filter"] = "none"
    prompt_filter: Literal["none", "drop_zero_variance", "resample_zero_variance"] = "none"
    note: str = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, options = getattr(self, f.name), get_args(f.type)
            if f.name in CHOICES and value not in options:
                raise ValueError(f"{f.name} must be one of {options}, got {value!r}")
        if self.ratio == "none" and not isinstance(self.trust_region, NoTrustRegion):
            raise ValueError(
                f'{type(self.trust_region).__name__} needs ratio="token" or "sequence"'
            )

    @property
    def needs(self) -> frozenset[str]:
        """Names of what the advantage is computed from, e.g. {"rewards", "groups"}."""
        parameters = inspect.signature(self.new_advantage()).parameters.values()
        return frozenset(p.name for p in parameters if p.name in INPUTS)

    @property
    def needs_critic(self) -> bool:
        return "values" in self.needs

    @property
    def needs_greedy(self) -> bool:
        return "greedy_rewards" in self.needs

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None and self.kl.beta > 0

    def new_advantage(self) -> Callable[..., Any]:
        """The estimator for one run: a stateful one is made afresh."""
        return self.advantage() if isinstance(self.advantage, type) else self.advantage


CHOICES = ("ratio", "aggregation", "old_logprobs", "reward_shaping", "prompt_filter")
INPUTS = ("rewards", "groups", "mask", "lengths", "greedy_rewards", "values", "gamma", "lam")


def compute_advantages(estimator: Callable[..., Any], **inputs: Any) -> Any:
    """Call an estimator with those of the named `inputs` that it takes.

    Raises `ValueError` naming an input it needs and did not get (names: `INPUTS`).
    """
    parameters = inspect.signature(estimator).parameters.values()
    given = {p.name: inputs[p.name] for p in parameters if inputs.get(p.name) is not None}
    for p in parameters:
        if p.default is p.empty and p.name not in given:
            raise ValueError(f"{describe(estimator)} needs {p.name!r}; it got {sorted(inputs)}")
    return estimator(**given)


def describe(choice: object) -> str:
    """A function with its bound arguments, or a trust region with its settings, in one line."""
    if isinstance(choice, NoTrustRegion):
        return "none"
    if isinstance(choice, partial):
        bound = ", ".join(f"{k}={v}" for k, v in choice.keywords.items())
        return f"{choice.func.__name__}({bound})"
    if hasattr(choice, "__name__"):
        return choice.__name__
    settings = {f.name: getattr(choice, f.name) for f in fields(choice)}
    shown = ", ".join(f"{k}={v}" for k, v in settings.items() if v is not None)
    return f"{type(choice).__name__}({shown})"
