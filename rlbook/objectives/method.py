"""A method is a row of choices, and every choice has a name."""

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pydantic import FiniteFloat, InstanceOf

from rlbook.importing import check_call
from rlbook.objectives.aggregation import AGGREGATIONS, Aggregation
from rlbook.objectives.estimators import UNDECLARED, bound, describe, needs_of
from rlbook.objectives.kl import KLPenalty
from rlbook.objectives.options import checked, meant, no_such, told_its_names
from rlbook.objectives.prompts import Filter
from rlbook.objectives.ratios import Ratio, SamplerCorrection
from rlbook.objectives.selection import Selection
from rlbook.objectives.specs import merged, read, write
from rlbook.objectives.trust_regions import NoTrustRegion, Region

__all__ = ["REQUIREMENTS", "Method"]

# What a method may need of a trainer, in words.
REQUIREMENTS = {
    "critic": "a critic",
    "greedy": "a greedy answer to every prompt",
    "lengths": "the lengths of answers for its advantages",
    "reward parts": "the parts of the reward",
    "token rewards": "rewards per token",
    "memory": "an estimator that remembers earlier batches",
    "recomputed": "log-probs recomputed by the trainer",
    "reference": "a reference model",
    "filter": "a prompt filter",
    "groups": "groups in its aggregation",
    "limit": "the generation limit as its constant",
    "top-k": "further tokens for its trust region",
    "sampler's top-k": "the likeliest tokens of the sampler's own policy",
    "selection": "a selection of tokens",
    "entropies": "the entropies of its tokens",
    "right answers": "which answers are right",
    "shaping": "shaped rewards",
}


@told_its_names
@dataclass(frozen=True)
class Method:
    """One row of the table.

    `ratio`: "none", that of each "token", GSPO's mean over the "sequence", or the product over it,
    "sequence_product". `ratio`, `trust_region`, `aggregation`, `advantage`, `selection` and
    `prompt_filter` also take code of your own, the object or its import path.
    `constant` is the normaliser of `aggregation="constant"`; None: the run's generation limit.
    `old_logprobs` says whose log-probs the paper calls π_old: the trainer's, recomputed, or the
    sampler's own. `sampler_correction` then weighs tokens for the difference of the two.
    `selection` picks the tokens that learn; `entropy_bonus` times the entropy of each token's
    distribution is subtracted from its loss, `likelihood` times the mean of log π over all tokens
    of right answers from the loss of a batch that is averaged over tokens.
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
    trust_region: Region = field(default_factory=NoTrustRegion)
    aggregation: Aggregation = "sequence_sum"
    constant: FiniteFloat | None = None
    kl: InstanceOf[KLPenalty] | None = None
    old_logprobs: Literal["recomputed", "sampler"] = "sampler"
    sampler_correction: InstanceOf[SamplerCorrection] | None = None
    selection: Selection | None = None
    entropy_bonus: FiniteFloat = 0.0
    likelihood: FiniteFloat = 0.0
    reward_values: tuple[FiniteFloat, FiniteFloat] = (0.0, 1.0)
    format_bonus: FiniteFloat = 0.0
    reward_shaping: Literal["none", "overlong", "overlong_filter"] = "none"
    overlong_cache: int | None = None
    prompt_filter: Filter | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name, value in fitted({f.name: getattr(self, f.name) for f in fields(self)}).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "advantage", bound(self.advantage))
        check_code(self)
        check_ratio(self)
        if self.sampler_correction is not None and self.old_logprobs != "recomputed":
            raise ValueError(
                'sampler_correction compares two π_old: set old_logprobs="recomputed" '
                "(the sampler's own need no correction)"
            )
        if self.likelihood and self.aggregation in AGGREGATIONS.keys() - {"token_mean"}:
            raise ValueError(
                "likelihood is a mean over the tokens of right answers: it needs "
                f'aggregation="token_mean", got {self.aggregation!r}'
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
    def takes_token_rewards(self) -> bool:
        """Whether the advantage takes rewards (N, T), one per token."""
        return needs_of(self.advantage).token_rewards

    @property
    def resamples(self) -> bool:
        """Whether further prompts are asked in place of those that the filter drops."""
        return bool(getattr(self.prompt_filter, "resample", False))

    @property
    def top_k(self) -> int | None:
        """How many of the likeliest tokens `policy_loss` needs the divergence of, if any."""
        return getattr(self.trust_region, "top_k", None)

    def requirements(self) -> frozenset[str]:
        """What a trainer has to provide besides answers and their rewards: names of `REQUIREMENTS`.

        A trainer that says what it provides refuses the rest by a difference of sets (`lacking`).
        """
        limit = self.aggregation == "constant" and self.constant is None
        shaped = self.reward_shaping != "none" or self.reward_values != (0.0, 1.0)
        wanted = {
            "critic": "values" in self.needs,
            "greedy": "greedy_rewards" in self.needs,
            "lengths": bool(self.needs & {"lengths", "mask"}),
            "reward parts": "parts" in self.needs,
            "token rewards": self.takes_token_rewards,
            "memory": self.new_advantage() is not self.advantage,
            "recomputed": self.old_logprobs == "recomputed",
            "reference": self.kl is not None and self.kl.beta > 0,
            "filter": self.prompt_filter is not None,
            "groups": self.aggregation == "prompt_mean",
            "limit": limit,
            "top-k": self.top_k is not None,
            "sampler's top-k": self.top_k is not None and self.old_logprobs == "sampler",
            "selection": self.selection is not None,
            "entropies": self.entropy_bonus != 0,
            "right answers": self.likelihood != 0,
            "shaping": shaped or self.format_bonus != 0,
        }
        return frozenset(name for name, is_wanted in wanted.items() if is_wanted)

    def lacking(self, provided: Collection[str]) -> list[str]:
        """In words, what the method needs and a trainer that provides only this does not have."""
        missing = self.requirements().difference(provided)
        return [words for name, words in REQUIREMENTS.items() if name in missing]

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
        return {f.name: write(f.name, getattr(self, f.name)) for f in fields(self)}

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
        for key in given:
            if key not in known:
                raise ValueError(no_such("a method", key, known))
        if given.keys() != set(known):  # not all fields: changes to a row
            given = changed_row(given)
        return cls(**fitted(given))


# The rows that `Method.from_dict` knows by name: those of `methods`, then of `field_rows`.
ROWS: ChainMap[str, Method] = ChainMap()


def fitted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a method with their specs read and their types checked."""
    values = {name: read(name, value) for name, value in given.items()}
    for name, none in (("trust_region", NoTrustRegion()), ("ratio", "none")):
        if values.get(name, ...) is None:
            values[name] = none
    return checked(Method, values)


def check_code(method: Method) -> None:
    """Require that code of the reader's own can be called as its column is; else `ValueError`."""
    region = getattr(method.trust_region, "weigh", method.trust_region)
    columns: dict[str, tuple[Any, Sequence[str]]] = {
        "trust_region": (region, ["tokens"]),
        "ratio": (method.ratio, ["tokens"]),
        "aggregation": (method.aggregation, ["counts"]),
        "prompt_filter": (method.prompt_filter, ["rollouts"]),
    }
    for column, (function, arguments) in columns.items():
        if callable(function):
            name = getattr(function, "__qualname__", type(function).__name__)
            check_call(f"{column} {name}", function, arguments)
    estimator, wanted = method.advantage, needs_of(method.advantage)
    if not isinstance(getattr(estimator, "func", estimator), type):  # a class is made afresh
        positional = wanted is UNDECLARED  # what its parameters are called is its own affair
        given = wanted.inputs if positional else ()
        named = () if positional else wanted.inputs
        check_call(f"advantage {describe(estimator)}", estimator, given, named)


def check_ratio(method: Method) -> None:
    """Require the ratio that the trust region looks at."""
    region, ratio = method.trust_region, method.ratio
    name = getattr(region, "__name__", type(region).__name__)
    if ratio == "none" and not isinstance(region, NoTrustRegion):
        raise ValueError(f'{name} needs ratio="token" or "sequence"')
    wanted = getattr(region, "needs_ratio", None)
    if wanted and isinstance(ratio, str) and ratio not in wanted:
        needed = " or ".join(f'"{each}"' for each in wanted)
        raise ValueError(f'{name} needs ratio={needed}, and this row has "{ratio}"')


def changed_row(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the row called `name` with the changes merged in."""
    name = changes.get("name")
    if isinstance(name, str) and name in ROWS:
        row = ROWS[name].to_dict()
        return row | {key: merged(row[key], value) for key, value in changes.items()}
    if name and {"advantage", "paper"} <= changes.keys():
        return dict(changes)
    near = meant(name, ROWS) if isinstance(name, str) else ""
    raise ValueError(
        f"no method {name!r}{near}: choose from {', '.join(ROWS)}; one of your own needs name, "
        "advantage and paper"
    )
