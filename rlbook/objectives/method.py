"""A method is a row of choices, and every choice has a name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_type_hints

from rlbook.objectives.aggregation import Aggregation
from rlbook.objectives.estimators import bound, needs_of
from rlbook.objectives.kl import KLPenalty
from rlbook.objectives.ratios import SamplerCorrection
from rlbook.objectives.selection import Selection
from rlbook.objectives.specs import (
    build,
    check_keys,
    check_types,
    merged,
    read_estimator,
    read_region,
    read_selection,
    settings,
    write_estimator,
    write_region,
    write_selection,
)
from rlbook.objectives.trust_regions import NoTrustRegion, TrustRegion

Ratio = Literal["none", "token", "sequence", "sequence_product"]


@dataclass(frozen=True)
class Method:
    """One row of the table.

    `ratio`: of each token, GSPO's mean over the sequence, or the product over the sequence.
    `constant` is the normaliser of `aggregation="constant"`; None: the run's generation limit.
    `old_logprobs` says whose log-probs the paper calls π_old: the trainer's, recomputed, or the
    sampler's own. `sampler_correction` then weighs tokens for the difference of the two.
    `selection` picks the tokens that learn; `entropy_bonus` times the entropy of each token's
    distribution is subtracted from its loss.
    `reward_values` are the rewards of a (wrong, right) answer, `format_bonus` is added where the
    format is right. `reward_shaping` and `prompt_filter` name what happens to rewards and prompts
    before the objective; the trainer does it ("overlong": DAPO's ramp over the last
    `overlong_cache` tokens, None: a fifth of the limit; "overlong_filter": truncated completions
    count in the baseline but are not trained on).
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
    old_logprobs: Literal["recomputed", "sampler"] = "sampler"
    sampler_correction: SamplerCorrection | None = None
    selection: Selection | None = None
    entropy_bonus: float = 0.0
    reward_values: tuple[float, float] = (0.0, 1.0)
    format_bonus: float = 0.0
    reward_shaping: Literal["none", "overlong", "overlong_filter"] = "none"
    overlong_cache: int | None = None
    prompt_filter: Literal["none", "drop_zero_variance", "resample_zero_variance"] = "none"
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "advantage", bound(self.advantage))
        check_types({f.name: getattr(self, f.name) for f in fields(self)}, hints())
        if self.ratio == "none" and not isinstance(self.trust_region, NoTrustRegion):
            region = type(self.trust_region).__name__
            raise ValueError(f'{region} needs ratio="token" or "sequence"')
        if self.sampler_correction is not None and self.old_logprobs != "recomputed":
            raise ValueError(
                'sampler_correction compares two π_old: set old_logprobs="recomputed" '
                "(the sampler's own need no correction)"
            )
        if self.constant is not None and not self.constant > 0:
            raise ValueError(f"constant divides the loss: it must be > 0, got {self.constant}")
        if self.overlong_cache is not None and self.overlong_cache < 1:
            raise ValueError(f"overlong_cache counts tokens, at least 1, got {self.overlong_cache}")

    @property
    def needs(self) -> frozenset[str]:
        """Names of what the advantage is computed from, e.g. {"rewards", "groups"}."""
        return frozenset(needs_of(self.advantage).inputs)

    @property
    def needs_token_rewards(self) -> bool:
        """Whether the advantage takes rewards (N, T), one per token."""
        return needs_of(self.advantage).token_rewards

    @property
    def needs_critic(self) -> bool:
        return "values" in self.needs

    @property
    def needs_greedy(self) -> bool:
        return "greedy_rewards" in self.needs

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None and self.kl.beta > 0

    @property
    def needs_topk(self) -> int | None:
        """How many of the likeliest tokens `policy_loss` needs the divergence of, if any."""
        return getattr(self.trust_region, "top_k", None)

    def new_advantage(self) -> Callable[..., Any]:
        """The estimator for one run: a stateful one is made afresh."""
        makes_one = isinstance(getattr(self.advantage, "func", self.advantage), type)
        return self.advantage() if makes_one else self.advantage

    def resolved(self, max_new_tokens: int) -> "Method":
        """The row for a run with this generation limit: `constant` filled where none is given."""
        if self.aggregation != "constant" or self.constant is not None:
            return self
        return replace(self, constant=float(max_new_tokens))

    def to_dict(self) -> dict[str, Any]:
        """Every field, as JSON and YAML hold it; `from_dict` gives an equal method back.

        Raises `ValueError` for a choice that no file can name, such as a lambda.
        """
        return {f.name: WRITE.get(f.name, as_it_is)(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, spec: "str | Mapping[str, Any] | Method") -> "Method":
        """A method from the name of a row, a row's name with changes, or all of its fields.

        {"name": "grpo", "trust_region": {"high": 0.28}} is the row with one change: settings
        merge into the row's unless `type` is another; null removes. A name that is no row needs
        at least `advantage` and `paper`. Own functions: `rlbook.objectives.specs`.
        Raises `ValueError` for an unknown row, key or option, and for a value that does not fit.
        """
        if isinstance(spec, Method):
            return spec
        if not isinstance(spec, str | Mapping):
            raise ValueError(f"a method is a name or a dictionary, got {spec!r}")
        given = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
        known = [f.name for f in fields(cls)]
        check_keys(given, known, "a method")
        if given.keys() != set(known):  # not all fields: changes to a row
            given = changed_row(given)
        return cls(**{key: READ.get(key, as_it_is)(value) for key, value in given.items()})


# The rows that `Method.from_dict` knows by name; `methods`, the table, fills it.
ROWS: dict[str, Method] = {}


def changed_row(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the row called `name` with the changes merged in."""
    name = changes.get("name")
    if isinstance(name, str) and name in ROWS:
        row = ROWS[name].to_dict()
        return row | {key: merged(row[key], value) for key, value in changes.items()}
    if name and {"advantage", "paper"} <= changes.keys():
        return dict(changes)
    raise ValueError(
        f"no method {name!r}: choose from {', '.join(ROWS)}; one of your own needs name, "
        "advantage and paper"
    )


def read_settings(cls: type, where: str) -> Callable[[Any], Any]:
    """Reader of a dataclass's settings; anything but a dictionary stays as it is."""
    return lambda spec: build(cls, spec, where) if isinstance(spec, Mapping) else spec


def write_settings(choice: Any) -> dict[str, Any] | None:
    return None if choice is None else settings(choice)


def as_it_is(value: Any) -> Any:
    return value


@cache
def hints() -> dict[str, Any]:
    return get_type_hints(Method)


WRITE: dict[str, Callable[[Any], Any]] = {
    "advantage": write_estimator,
    "trust_region": write_region,
    "kl": write_settings,
    "sampler_correction": write_settings,
    "selection": write_selection,
    "reward_values": list,
}
READ: dict[str, Callable[[Any], Any]] = {
    "reward_values": lambda values: tuple(values) if isinstance(values, list) else values,
    "advantage": read_estimator,
    "trust_region": read_region,
    "kl": read_settings(KLPenalty, "kl"),
    "sampler_correction": read_settings(SamplerCorrection, "sampler_correction"),
    "selection": read_selection,
}
