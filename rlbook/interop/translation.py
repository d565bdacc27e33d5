"""A row in another trainer's words, and what those words leave out."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlbook.objectives import Method
from rlbook.objectives.table import filter_text

BIG = 1e9  # a bound that nothing reaches, where a trainer has no word for "none"
OFFERED = {"rewards", "groups", "mask", "lengths"}  # what a plug-in computes advantages from
Settings = dict[str, Any]


def table(peer: str) -> tuple[str, Settings]:
    """The version that a trainer's names are of, and its defaults, from `peers.yaml`."""
    known = yaml.safe_load(Path(__file__).with_name("peers.yaml").read_text())[peer]
    return known["version"], known["defaults"]


@dataclass(frozen=True)
class Run:
    """What a translation needs to know of the run: completions per prompt and the limit, tokens.

    `plugin`: whether the trainer gets `rlbook.interop`'s advantages where its own do not reach.
    `updates`: that a batch makes, where somebody chose them.
    """

    group_size: int = 8
    max_new_tokens: int = 1024
    plugin: bool = False
    updates: int = 1

    @property
    def leave_one_out(self) -> float:
        """What a centred reward is multiplied by; `ValueError` where nothing is left out."""
        if self.group_size < 2:
            raise ValueError("leave_one_out compares answers of a prompt: rollout.group_size=2")
        return self.group_size / (self.group_size - 1)

    def one_update(self, settings: str) -> str:
        """That a loss without a ratio is said by one with it where a batch makes one update."""
        made = f"; here are {self.updates}, and π/π_old counts from the second on: "
        made += "optimizer.minibatches=1 optimizer.epochs=1 make one"
        return f"one update per batch: {settings}" + (made if self.updates > 1 else "")


@dataclass
class Translation:
    """A method as settings of a trainer, by dotted name.

    By column of the table: `carried` is what the plug-in brings because the settings cannot say
    it, `lost` what nobody brings, `notes` what is meant a little differently. `base` names the
    average that the trainer takes, on which a plug-in folds the row's own (`folded`).
    """

    peer: str
    settings: Settings = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    base: str = "token_mean"

    @property
    def exact(self) -> bool:
        """Whether the settings alone say the row."""
        return not (self.carried or self.lost)

    def say(self, settings: Mapping[str, Any], prefix: str = "") -> None:
        """Add settings; of two of one name the later counts."""
        self.settings |= {prefix + name: value for name, value in settings.items()}

    def estimates(self, method: Method, words: Mapping[str, "Words"], prefix: str = "") -> None:
        """Say the row's advantages, or what of them is lost or a little different."""
        name, options = estimator(method)
        word = words.get(name)
        if word is None or any(options[option] != value for option, value in word.only.items()):
            self.lost["advantage"] = f"no {name}" + (f" with {options}" if word else "")
            return
        self.say(word.settings, prefix)
        if word.otherwise:
            self.lost["advantage"] = word.otherwise
        if word.nearly:
            self.notes["advantage"] = word.nearly

    def averages(self, method: Method, words: Mapping[str, Any], fixed: str = "") -> Any:
        """The trainer's word for the row's average; None, and a loss, where it has none.

        `fixed` is the average that a loss takes whatever is set.
        """
        wanted = str(method.aggregation)
        if wanted == fixed or (not fixed and wanted in words):
            self.base = wanted
            return words.get(wanted)
        self.base = fixed or self.base
        self.lost["aggregation"] = f"{fixed} instead of {wanted}" if fixed else f"no {wanted}"
        return words.get(self.base)

    def carry(self, method: Method) -> bool:
        """Let the plug-in bring advantage and average where they would be lost, if it can.

        It has rewards, prompts and lengths, but no critic, greedy answer or teacher.
        """
        if method.needs - OFFERED or estimator(method)[0] == "reward_to_go":
            return False
        for column in ("advantage", "aggregation"):
            if column in self.lost:
                self.carried[column] = self.lost.pop(column)
        return bool(self.carried)


class Words(NamedTuple):
    """How a trainer says an estimator: settings, and the options that are fixed there.

    `nearly` says what makes a factor near 1, `otherwise` what makes another number of it.
    """

    settings: Settings
    only: Mapping[str, Any] = {}
    nearly: str = ""
    otherwise: str = ""


def estimator(method: Method) -> tuple[str, dict[str, Any]]:
    """Name of a row's advantage estimator and all its options, defaults among them."""
    chosen = method.advantage
    bound = chosen.keywords if isinstance(chosen, partial) else {}
    function = chosen.func if isinstance(chosen, partial) else chosen
    given = inspect.signature(function).parameters.values()
    defaults = {p.name: p.default for p in given if p.default is not p.empty}
    return getattr(function, "__name__", type(function).__name__), defaults | bound


def region(method: Method) -> str:
    """Name of a row's trust region, with the ratio it looks at where that is not the token's."""
    name = getattr(method.trust_region, "__name__", type(method.trust_region).__name__)
    return name if method.ratio == "token" else f"{name}/{method.ratio}"


def unsaid(method: Method, settled: Mapping[str, bool]) -> dict[str, str]:
    """Columns that a row uses and that are not settled, with what the row has there."""
    used = {
        "KL": method.kl and f"{method.kl.kind} in the {method.kl.where}",
        "old log-probs": method.ratio != "none" and method.old_logprobs,
        "sampler correction": method.sampler_correction and method.sampler_correction.level,
        "selection": method.selection and type(method.selection).__name__,
        "entropy bonus": method.entropy_bonus,
        "likelihood": method.likelihood and f"{method.likelihood:g} log π of right answers",
        "shaping": method.reward_shaping != "none" and method.reward_shaping,
        "prompts": method.prompt_filter
        and f"keeping only groups that {filter_text(method.prompt_filter)}".removesuffix(
            ", resampled"
        ),
    }
    return {
        column: f"no setting for {value}"
        for column, value in used.items()
        if value and not settled.get(column, False)
    }
