"""Chapter 13: the vote, eight answers, the end of voting, lucky hits, an even window; the lab."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlbook.policy import load_policy
from rlbook.tasks import get_task
from rlbook.training import RunConfig, Trainer
from workshop.ch13.random_reward import window
from workshop.shared.checks import (
    check_lines,
    check_numbers,
    not_attempted,
    not_yet,
    right,
    same,
    same_weights,
)

TTRL = (1, 1, 0, 1, 0, 0, 1, 0)
EMPO = (0.5, 0.5, 0.25, 0.5, 0.25, 0.125, 0.5, 0)
ENDS_RIGHT, CHANGE = (True, False, True, True), (1 + 0 + 1 + 1) / 4 - (0.9 + 0.4 + 0.4 + 0.2) / 4
KINDS = ((0.9, 0.1), (0.4, 0.6), (0.4, *6 * [0.1]), (0.2, *9 * [0.8 / 9]))
AT_STAKE = ("bracket", "double minus")
BEFORE = {
    "bracket": 0.38,
    "double minus": 0.17,
}  # of the base, which the book prints in many places


@dataclass(frozen=True)
class Said:
    """All that a vote has to know of a rollout, and what it must not look at."""

    answer: str | None
    correct: bool = False


Group = Sequence[Said]
VOTES: tuple[Group, ...] = (
    [Said("49", True), Said("49", True), Said("30"), Said("45")],
    [Said("51"), Said("49", True), Said("51"), Said("43")],
    [Said(None), Said("8"), Said(None), Said("7"), Said(None), Said("7")],
    [Said("3"), Said("5"), Said("3"), Said("5")],
    [Said(None), Said(None)],
)


def elect(group: Group) -> str | None:
    votes = Counter(said.answer for said in group if said.answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def paid(group: Group, elected: str | None) -> list[float]:
    return [float(elected is not None and said.answer == elected) for said in group]


def check_my_vote(mine: Callable[[Group], Sequence[float]]) -> bool:
    """Section 3: the majority vote, as the reader writes it."""

    def counts(group: Group) -> list[float]:
        """How many of the group give an answer; of those that could be read."""
        votes = Counter(said.answer for said in group if said.answer is not None)
        return [float(votes[said.answer]) for said in group]

    def half(group: Group) -> list[float]:
        return [float(2 * count > len(group)) for count in counts(group)]

    return check_lines(
        mine,
        lambda group: paid(group, elect(group)),
        {
            "three answers were cut off, and 'no answer' has won the election: who cannot be read "
            "does not vote": lambda group: paid(
                group, Counter(said.answer for said in group).most_common(1)[0][0]
            ),
            "nobody has answered in the last group, so nobody earns anything: None equals None": (
                lambda group: [float(said.answer == elect(group)) for said in group]
            ),
            "a share of the group for each: that is EMPO's agreement; a vote is all or nothing": (
                lambda group: [count / len(group) for count in counts(group)]
            ),
            "a count for each: a reward of 1 or 0": counts,
            "two answers are equally common, and both are paid: the one given first wins": (
                lambda group: [
                    float(count == max(counts(group)) and count > 0) for count in counts(group)
                ]
            ),
            "of answers equally common the first wins, not the last": (
                lambda group: paid(group, elect(group[::-1]))
            ),
            "more than a half is too much to ask: more than any other is enough": half,
            "you have asked the verifier": lambda group: [float(said.correct) for said in group],
        },
        [(group,) for group in VOTES],
        "the most common answer is paid, and nobody has asked whether it is right",
        "who is the most common of those that could be read? Pay 1.0 to who says so, 0.0 to others",
    )


def same_as_trainer(loop: Callable[..., Iterable[float]], run: RunConfig) -> float:
    """The largest difference of a weight after two batches of habits and after the `Trainer`'s.

    `loop(model, tokenizer, task, steps)` trains by the reader's vote. Raises `ValueError` above a
    hundredth of what the loop has changed.
    """
    policy = "tiny-habits"
    model, tokenizer = load_policy(policy)
    start = [weight.detach().clone() for weight in model.parameters()]
    list(loop(model, tokenizer, get_task("habits"), steps=2))
    trainer = Trainer(run.replace(task="habits", policy=policy, steps=2))
    list(trainer)
    return same_weights(start, model.parameters(), trainer.model.parameters())


def check_eight(ttrl: Sequence[float] | None, empo: Sequence[float] | None) -> None:
    """Exercise 1: what a vote and agreement give to 7, 7, 3, 7, 3, 1, 7 and a cut-off answer."""
    if ttrl is None or empo is None:
        not_attempted()
        return
    ttrl, empo = list(ttrl), list(empo)
    if len(ttrl) != 8 or len(empo) != 8:
        not_yet("eight answers, eight numbers each: the one that was cut off gets its own")
    elif same(ttrl, empo):
        not_yet("TTRL is all or nothing; EMPO pays in proportion")
    elif not same(ttrl, TTRL):
        not_yet("TTRL: who gives the most common answer, and who gives any other?")
    elif same(empo, EMPO):
        right(
            "a group that leads by a little pays little more under EMPO, all or nothing under TTRL"
        )
    elif same(empo, [share * 8 / 7 for share in EMPO]):
        not_yet("EMPO: the share is of the whole group, the one that was cut off included")
    elif same(empo[:7], EMPO[:7]):
        not_yet("EMPO: no answer agrees with nobody, not even with itself")
    elif same(empo, [8 * share for share in EMPO]):
        not_yet("EMPO: a share, not a count")
    else:
        not_yet("EMPO: how many of the eight say the same?")


def check_end(ends_right: Sequence[bool] | None, change: float | None) -> None:
    """Exercise 2: which kinds of problems a vote makes right, and what the mean gains."""
    if ends_right is None or change is None:
        not_attempted()
        return
    given = tuple(map(bool, ends_right))
    halves = tuple(kind[0] > 0.5 for kind in KINDS)
    if len(given) != 4:
        not_yet("four kinds, four answers")
    elif given == halves:
        not_yet("it takes more than any other answer, not more than a half")
    elif given != ENDS_RIGHT:
        not_yet("compare the right answer with the most common mistake, kind by kind")
    elif same(change, sum(ENDS_RIGHT) / 4):
        not_yet("that is the accuracy at the end; where did it begin?")
    elif same(change, -CHANGE):
        not_yet("the sign: the end minus the beginning")
    else:
        check_numbers(
            change,
            CHANGE,
            "the gain is the share of kinds whose right answer leads, minus the mean of p",
            {},
            "at the end every kind is right always or never; what was the mean of p?",
        )


def check_reward_accuracy(answer: Callable[[Tensor], float | None]) -> None:
    """Exercise 3: share of answers that a very large vote rewards as a verifier would."""
    leading = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    if answer(leading) is None:
        not_attempted()
        return
    if not same(answer(leading), 1):
        not_yet("the label is right: whom does it reward falsely?")
        return
    for probs in ([0.2, 0.45, 0.35], [0.1, *6 * [0.15]], [0.0, 0.6, 0.4]):
        p = torch.tensor(probs, dtype=torch.float64)
        given, first, top = float(answer(p)), p[0].item(), p[1:].max().item()
        if same(given, 1 - first - top):
            continue
        if same(given, 0):
            not_yet(
                "a wrong label is not all wrong: what do answers deserve that it does not name?"
            )
        elif same(given, 1 - top):
            not_yet("the right answers get a 0 that they do not deserve, too")
        elif same(given, 1 - first):
            not_yet("the answers that the label names get a 1 that they do not deserve, too")
        else:
            not_yet("count who gets what it deserves: the right, the elected mistake, the others")
        return
    right("scattered mistakes make a wrong label harmless: the one elected is given by few")


def check_even_width(answer: float | None) -> None:
    """Exercise 4: ε_high at which the first edge is equally far above and below p = 0.8."""
    if answer is None:
        not_attempted()
        return
    if same(answer, 0.25):
        not_yet("even in logs of the probability; the question is about its logit")
    elif same(answer, 1.25) or same(answer, 1 + even_width(), 5e-3):
        not_yet("ε_high, not 1 + ε_high")
    elif same(answer, 0.2):
        not_yet("try window(0.8): below is nearer than above")
    elif same(answer, even_width(), 3e-3):
        right("the rare answer decides, and its odds move a little more than its probability")
    else:
        below, above = window(0.8, 0.2, float(answer))
        side = "nearer below" if below < above else "nearer above"
        not_yet(f"with that width the first edge is {side}")


def even_width() -> float:
    """By bisection: the wider ε_high, the farther the first edge below."""
    low, high = 0.2, 0.4
    for _ in range(50):
        middle = (low + high) / 2
        below, above = window(0.8, 0.2, middle)
        low, high = (middle, high) if below < above else (low, middle)
    return low


def check_lab(
    passing: Mapping[str, float] | None,
    passing_right: Mapping[str, float] | None,
    after: Mapping[str, float] | None,
    rescued: bool | None,
) -> None:
    """The lab: which groups pass a bar of agreement, and what training on them does.

    Judged is whether the prediction looks at who passes and is right, and whether the conclusion
    follows from what was measured.
    """
    if passing is None or passing_right is None or after is None or rescued is None:
        not_attempted()
        return
    families = ("plain", *AT_STAKE, "precedence", "power", "square")
    if missing := [name for name in families if name not in passing]:
        not_yet(f"what about {missing[0]}? six families are asked")
    elif any(not 0 <= share <= 1 for share in (*passing.values(), *after.values())):
        not_yet("a share lies between 0 and 1")
    elif not any(share >= 0.5 for name, share in passing.items() if name != "plain"):
        not_yet("no family but plain passes? Agreement is about sameness, not about truth")
    elif any(passing_right.get(name, 0) > 0.5 for name in ("precedence", "power", "square")):
        not_yet("look again at whose majority is right among those that pass")
    elif not set(AT_STAKE) <= set(after):
        not_yet("measure both bracket and double minus after training")
    elif bool(rescued) != all(after[name] >= BEFORE[name] for name in AT_STAKE):
        not_yet("your conclusion contradicts what you measured")
    elif rescued:
        not_yet(
            "rescued? Check that groups below the bar earn nothing, not that they leave the run"
        )
    else:
        right("the bar keeps what is unanimous, and this base is unanimous in its mistakes")
