"""What "Train it here" needs besides its scripts: methods, problems, numbers, its places."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rlbook.objectives import METHODS, Method
from rlbook.objectives.specs import write
from rlbook.tasks import Problem, get_task, held_out_problems
from workshop.shared import live
from workshop.shared.masks.lab import DRAWN, lean
from workshop.shared.masks.rules import MASKS, Mask

MODEL = "tiny-habits-small"
SHOWN = "34--6+5"  # the problem whose eight answers are seen
HELD, TRAINED = 24, 400  # problems
LABELS = {
    "reinforce": "REINFORCE",
    "reinforce_batch_mean": "REINFORCE, mean of the batch",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "opo": "OPO",
    "dr_grpo": "Dr. GRPO",
    "dapo": "DAPO",
    "cispo": "CISPO",
    "gspo": "GSPO",
    "maxrl": "MaxRL",
    "dppo": "DPPO",
    "dppo_kl": "DPPO, by KL",
    "scalerl": "ScaleRL",
    "lite_ppo": "Lite PPO",
    "gpg": "GPG",
}
ADVANTAGES = {
    "no_baseline": "the reward itself",
    "batch_mean_baseline": "reward − mean of the batch",
    "group_center": "reward − mean of its group",
    "group_normalize": "… divided by the group's spread",
    "batch_normalize": "… divided by the batch's spread",
    "batch_normalize_raw": "… by that of the batch's rewards",
    "leave_one_out": "reward − mean of its siblings",
    "length_weighted_baseline": "reward − mean weighted by length",
    "max_rl": "… divided by the group's mean",
    "gpg": "… times groups / mixed groups",
}
AGGREGATIONS = {
    "sequence_mean": "mean over answers of their mean",
    "token_mean": "mean over all tokens",
    "prompt_mean": "mean over prompts of their mean",
    "constant": "sum over a constant",
    "sequence_sum": "mean over answers of their sum",
}
SETTINGS = {"rate": 3e-4, "prompts": 4, "parts": 2}
# Where it stands: the two methods, and the section of a chapter before which.
PLACES = {
    "index": (("reinforce", "grpo"), ""),
    "02_reinforce": (("reinforce", "reinforce_batch_mean"), "Why is this the gradient"),
    "05_grpo": (("grpo", "dr_grpo"), "Can GRPO change what a model believes?"),
    "08_dapo": (("grpo", "dapo"), "Train it where it hurts"),
}
TEXT = """\
Two copies of a small language model, of 86,464 weights each, learn in this page, with full
backpropagation. Both are asked the same sums and are told which of their answers are right, nothing
else. Choose two methods, or put one together from an advantage, a mask and a way of averaging. What
a row has besides (a KL penalty, a filter of prompts, a penalty on length) is left out here."""
FILM_TEXT = (
    "A run that was recorded: eight answers to one sum, blue if right. "
    "With JavaScript you can train here yourself."
)
EXPORTS = ("applyRegion", "advantagesOf")


def methods() -> dict[str, Any]:
    """Rows, masks, advantages and aggregations as `train.js` offers them.

    A row names its mask, which is a ratio and a trust region. Rows need nothing but rewards and
    lengths, and a region that the browser can calculate; penalties and filters are left out.
    """
    masks = {"plain": mask_as_data("no ratio, no mask", METHODS["rloo"])}
    masks |= {key: mask_as_data(mask.label, mask) for key, mask in MASKS.items()}
    rows = {}
    for key, method in selectable():
        mask = mask_as_data("", method)
        rows[key] = {
            "label": LABELS[key],
            "advantage": advantage_of(method),
            "rewards": method.reward_values,
            "mask": next(k for k, each in masks.items() if each | {"label": ""} == mask),
            "aggregation": method.aggregation,
        }
    return {"rows": rows, "masks": masks, "advantages": ADVANTAGES, "aggregations": AGGREGATIONS}


def mask_as_data(label: str, of: Method | Mask) -> dict[str, Any]:
    """Ratio and trust region of a method, or of a mask of the lab."""
    region = of.region if isinstance(of, Mask) else of.trust_region
    return {"label": label, "ratio": of.ratio, "region": write("trust_region", region)}


def selectable() -> Iterator[tuple[str, Method]]:
    """The rows of the table that the page can train."""
    for key, method in METHODS.items():
        if advantage_of(method) in ADVANTAGES and isinstance(method.trust_region, DRAWN):
            yield key, method


def advantage_of(method: Method) -> str:
    """The name of a row's advantage, with "_raw" for the spread of raw rewards."""
    estimator: Any = method.advantage
    if isinstance(estimator, partial):
        raw = estimator.keywords.get("population") == "raw"
        return estimator.func.__name__ + "_raw" * raw
    return getattr(estimator, "__name__", type(estimator).__name__)


def problems() -> dict[str, list[str]]:
    """Sums to train on, and sums that are kept from training."""
    task = get_task("habits")
    held = held_out_problems(task, HELD)
    kept = {*map(text_of, held), SHOWN}
    drawn = dict.fromkeys(map(text_of, task.sample(seed=1, n=2 * TRAINED)))
    return {"held": [*map(text_of, held)], "train": [t for t in drawn if t not in kept][:TRAINED]}


def text_of(problem: Problem) -> str:
    """A problem as `model.js` takes it."""
    return problem.prompt.removesuffix("=?")


def write_scripts(folder: Path) -> None:
    """Write numbers.js, of the mask lab and the group lab, and what `train.js` reads."""
    parts = (live.SHARED / "numbers.js", live.HERE / "estimators.js")
    code = [lean(part.read_text(encoding="utf-8")) for part in parts]
    export = f"export {{ {', '.join(EXPORTS)} }};\n"
    (folder / "numbers.js").write_text("\n".join([*code, export]), encoding="utf-8")
    told = {
        "model": MODEL,
        "shown": SHOWN,
        "settings": SETTINGS,
        **methods(),
        "problems": problems(),
    }
    data = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    (folder / "train.json").write_text(data, encoding="utf-8")
