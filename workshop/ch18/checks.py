"""Chapter 18: who may start, crashes, GPUs for the state, files, the lab; its data audited."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from rlbook.scale.rollout.staleness import in_time
from rlbook.tasks import Problem, Task, Verdict
from rlbook.tasks.audit import Audit, audit
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right

Recovery = Callable[[int, Sequence[int], int], tuple[Sequence[int], int, int] | None]
Rule = Callable[[int, int, int, int, int], bool]
LAB_CASES = (("wait", 2), ("drop", 2), ("wait", 8), ("drop", 8))


def check_in_time(rule: Rule) -> bool:
    """Who may start: `rule(batch, place, version, prompts, bound)`, judged on 864 cases."""
    twins: dict[str, Rule] = {
        "with K = 0 nothing may ever start: is a token of the weights that train it too old?": (
            lambda batch, place, version, prompts, bound: batch + place // prompts < version + bound
        ),
        "it forgets how far the server's weights are behind the next batch": (
            lambda batch, place, version, prompts, bound: place // prompts <= bound
        ),
        "who waits in front? The new group comes after all of them": (
            lambda batch, place, version, prompts, bound: batch <= version + bound
        ),
        "that many groups are no batch yet: `prompts` of them make one": (
            lambda batch, place, version, prompts, bound: batch + place <= version + bound
        ),
        "the places 0 to prompts - 1 are all in the next batch: count whole batches": (
            lambda batch, place, version, prompts, bound: batch + place / prompts <= version + bound
        ),
        "at the last place that you allow stands the first group of a batch that is too late": (
            lambda batch, place, version, prompts, bound: (
                batch * prompts + place <= (version + bound + 1) * prompts
            )
        ),
        "the bound holds for a batch, and a batch of version b comes one update before b + 1": (
            lambda batch, place, version, prompts, bound: (
                batch + place // prompts <= version + bound + 1
            )
        ),
    }
    return check_lines(
        rule,
        in_time,
        twins,
        product(range(4), range(12), range(3), (1, 4), range(3)),
        "it will be trained in time, so nothing that was begun is ever thrown away",
        "number the batches; which of them takes the group, and how many updates after `version`?",
        lambda function, *probe: float(function(*probe)),
    )


def check_credit(answer: Sequence[float] | None) -> None:
    """Exercise 1: B = 8, K = 2, version 5, 17 groups on their way; then one is rejected."""
    check_numbers(
        answer,
        (7, 8),
        "40 groups are trained and 17 on their way, and whoever leaves gives its place back",
        {
            (7, 7): "what becomes of the place of a rejected group? Look at nano's `group`",
            (-1, 0): "K batches ahead of the weights, and the one being formed besides",
            (-1, -1): "K batches ahead of the weights, and the one being formed besides",
            (47, 48): "the groups already trained count too: the credit has paid for them",
            (7, 6): "a rejected group takes no further place, it gives one back",
        },
        "trained + started < (v + K + 1) B, and trained are the batches 0 to 4",
    )


def check_recovery(answer: Recovery) -> None:
    """Exercise 2: what a trainer replays, waits for and saves: (checkpoint, batches, every)."""
    if answer(6, [6, 7, 8], 6) is None:
        not_attempted()
        return
    replayed, waits, saves = answer(6, [6, 7, 8], 6)
    if list(replayed) == [7, 8]:
        not_yet("which batches made the checkpoint of version 6? Count from batch 0")
    elif (list(replayed), waits) != ([6, 7, 8], 9):
        not_yet("it replays every batch that its weights have not seen, and waits for the next")
    elif answer(0, [], 6)[1] != 0:
        not_yet("without any batches it waits for the batch of its own version")
    elif list(answer(10, [8, 9, 10], 4)[0]) != [10]:
        not_yet("a crash may leave batches that the checkpoint has made superfluous")
    elif saves == 9 or saves % 6:
        not_yet("checkpoints are made at multiples of `every`, wherever the replay ends")
    elif (saves, answer(0, [], 6)[2], answer(8, [8, 9, 10, 11], 4)[2]) != (12, 6, 16):
        not_yet("the next checkpoint comes after the replay's last version, and is not that one")
    else:
        right("the batch log and one checkpoint say all of it: the trainer remembers nothing else")


def check_least_gpus(answer: float | None) -> None:
    """Exercise 3: GPUs of 80 GB for the training state of 32.8 billion parameters."""
    check_numbers(
        answer,
        7,
        "16 bytes a parameter, and the activations still want a place",
        {
            2: "that is enough for the weights alone",
            4: "8 bytes a parameter: where are the two moments of AdamW?",
            5: "12 bytes a parameter: the gradients live at the same time",
            6: "rounded down, it does not fit",
            6.56: "there are no parts of GPUs",
        },
        "weights, gradients and two moments, all in float32",
        tolerance=0.01,
    )


def check_save(save: Callable[[Path, str], object]) -> None:
    """Exercise 4: a reader sees the old text or the new one, and a crash leaves the old one."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "status.json"
        path.write_text("old")
        save(path, "new")
        if path.read_text() == "old":
            not_attempted()
            return
        path.write_text("old")
        crash = OSError("killed")
        with (
            patch("os.replace", side_effect=crash),
            patch("os.rename", side_effect=crash),
            suppress(OSError),
        ):
            save(path, "new")
        text = path.read_text() if path.exists() else None
    if text is None:
        not_yet("for a moment there is no file at all: a reader may look just then")
    elif text != "old":
        not_yet(
            "you write into the file that somebody may be reading: write beside it, then rename"
        )
    else:
        right("whoever reads sees one of the two; a machine that dies needs a sync to disk besides")


Case = tuple[str, int]


def check_lab(
    predicted: Mapping[Case, Sequence[float]] | None,
    measured: Mapping[Case, Sequence[float]] | None,
) -> None:
    """The lab: (updates, share of slow groups among the trained) by what is done when late, and K.

    In 600 s, an update every 4 s at best, one group in twenty taking 20 s.
    """
    if predicted is None or measured is None:
        not_attempted()
        return
    if any(set(given) != set(LAB_CASES) for given in (predicted, measured)):
        not_yet(f"a pair is asked for each of {', '.join(map(str, LAB_CASES))}")
        return
    updates = {case: measured[case][0] for case in LAB_CASES}
    shares = {case: measured[case][1] for case in LAB_CASES}
    if not all(0 <= share <= 1 for share in shares.values()):
        not_yet("the second number is a share of the trained groups")
    elif shares["drop", 2] > 0.01:
        not_yet("20 seconds are five updates: who may still train a slow group at K = 2?")
    elif updates["wait", 2] > 0.9 * updates["drop", 2]:
        not_yet("at K = 2 a batch has to wait for a slow group: does your trainer?")
    elif not 0.02 < shares["wait", 2] < 0.12:
        not_yet("whoever waits trains everything: about one group in twenty is slow")
    elif updates["wait", 8] != updates["drop", 8] or shares["wait", 8] != shares["drop", 8]:
        not_yet("at K = 8 nothing is late, so there is nothing to wait for or to drop")
    elif abs(predicted["drop", 2][1] - shares["drop", 2]) > 0.02:
        not_yet("your prediction for drop at K = 2: how old is a slow group when it is done?")
    else:
        right(
            f"at K = 2 dropping makes {updates['drop', 2]:.0f} updates instead of "
            f"{updates['wait', 2]:.0f}, and no slow group is in any of them"
        )


def audited(task: Task, levels: Sequence[int], folder: Path, n: int = 300) -> Audit:
    """`rlbook audit` of problems that a program makes, by the task's own verifier.

    Its spellings come in a box; this task reads tags.
    """

    def in_tags(completion: str, reference: str) -> Verdict:
        answer = completion.removeprefix(r"\boxed{").removesuffix("}")
        text = f"<think></think><answer>{answer}</answer>"
        return task.verify(Problem("", "", reference), text)

    rows = [{"question": p.prompt, "answer": p.answer} for p in task.sample(0, n, levels)]
    data = folder / "problems.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    return audit(str(data), verify=in_tags)
