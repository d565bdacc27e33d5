"""Chapter 15: gains of steps, step groups, a soft mean, whose tokens are trained; the lab."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workshop.checks.verdicts import check_numbers, not_attempted, not_yet, numbers, right, same

Turn = tuple[str, Sequence[int]]

DIALOGUES: tuple[tuple[Turn, ...], ...] = (
    (("policy", (7, 8)), ("tool", (9, 9, 9)), ("policy", (4, 2))),
    (("tool", (5,)), ("policy", (6, 1)), ("tool", (3,)), ("tool", (3, 3)), ("policy", (2,))),
    (("policy", (1,)),),
)
# Shares of wrong results in the lab, and what a right rule is then worth: two calls on average.
LAB_WRONG = (0.0, 0.3, 0.6)


def check_gains(answer: Sequence[float] | None) -> None:
    """Exercise 1: the gains of four steps from values .2, .5, .5, .1 and a wrong answer."""
    check_numbers(
        answer,
        (0.3, 0.0, -0.4, -0.1),
        "they sum to r − V(prompt) = −0.2, and the third step has lost most of it",
        {
            (-0.2, -0.5, -0.5, -0.1): "that is r − V: what is to come, not what the step did",
            (-0.3, 0.0, 0.4, 0.1): "the sign: after the step minus before it",
            (0.3, 0.0, -0.4): "four steps have four gains: the reward follows the last value",
            (
                0.2,
                0.3,
                0.0,
                -0.4,
            ): "before the first step stands the prompt, and it has a value too",
            (0.3, 0.0, -0.4, 0.1): "the answer is wrong: what follows the last step is 0",
        },
        "the gain of step j is V after it minus V before it; after the last step V is the reward",
    )


def check_step_groups(answer: Sequence[float] | None) -> None:
    """Exercise 2: both credits of answer A; rewards 1, 0, 1, 0, the last begun otherwise."""
    own = "the answer itself does not belong to its own baseline"
    check_numbers(
        answer,
        (2 / 3, 1 / 2),
        "RLOO says 2/3 twice; but whoever stands at a good place is expected to be right",
        {
            (2 / 3, 2 / 3): "in the second step D is no sibling: it stood elsewhere",
            (1 / 2, 1 / 2): own,
            (1 / 2, 1 / 3): own,
            (2 / 3, 1 / 3): own,
            (1 / 2, 2 / 3): "the steps are the wrong way round, or D is counted in the wrong one",
            (1.0, 1.0): "the rewards of the others at the same place are missing",
        },
        "in each step: the reward less the mean reward of the others that stood at the same place",
    )


def check_soft_mean(answer: float | None) -> None:
    """Exercise 3: β log E[exp(r/β)] of two completions worth log 3 and 0, one in four the first."""
    check_numbers(
        answer,
        0.4055,
        "a soft mean lies above the mean: implicit rewards are optimists, the more the smaller β",
        {
            0.2747: "that is the mean of r; the model's is a mean of exp(r), then the logarithm",
            1.0986: "that is the better completion alone: weigh both with their chance",
            1.5: "now the logarithm",
            0.6931: "one completion in four is the good one, not one in two",
        },
        "the sum of exp(r) over the completions, each with its chance, and then the logarithm",
    )


def check_mask(trained: Callable[[Sequence[Turn]], Any]) -> None:
    """Exercise 4: which tokens of a dialogue are trained, as one list of booleans."""
    if trained(DIALOGUES[0]) is None:
        not_attempted()
        return
    for turns in DIALOGUES:
        given = [bool(x) for x in trained(turns)]
        wanted = [who == "policy" for who, ids in turns for _ in ids]
        if given == wanted:
            continue
        if len(given) != len(wanted):
            not_yet(f"{len(wanted)} tokens need {len(wanted)} booleans, not {len(given)}")
        elif all(given):
            not_yet("the tool's tokens are trained too: the policy did not choose them")
        elif given == [not x for x in wanted]:
            not_yet("the wrong way round: True is what the policy wrote")
        elif given == first_turn_only(turns):
            not_yet("the policy goes on after the tool, and what it writes there it chose as well")
        elif given == last_turn_only(turns):
            not_yet("the call was the policy's choice too, not only the last turn")
        else:
            not_yet(f"the turns are by {', '.join(who for who, _ in turns)}: look at each token")
        return
    right("and the tool's tokens stay in the context of everything after them")


def first_turn_only(turns: Sequence[Turn]) -> list[bool]:
    """The mask of somebody who trains the policy's first turn alone."""
    first = next(i for i, (who, _) in enumerate(turns) if who == "policy")
    return [i == first for i, (_, ids) in enumerate(turns) for _ in ids]


def last_turn_only(turns: Sequence[Turn]) -> list[bool]:
    """The mask of somebody who trains its last turn alone."""
    last = max(i for i, (who, _) in enumerate(turns) if who == "policy")
    return [i == last for i, (_, ids) in enumerate(turns) for _ in ids]


def check_lab(
    predicted: Mapping[float, float] | None,
    measured: Mapping[float, float] | None,
    leads: Mapping[float, float] | None,
) -> None:
    """The lab: the worth of a right rule by the calculator's share of errors, and the leads."""
    if predicted is None or measured is None or leads is None:
        not_attempted()
        return
    if any(set(given) != set(LAB_WRONG) for given in (predicted, measured)):
        not_yet(f"a value for each share of wrong results is asked: {LAB_WRONG}")
        return
    if not {0.0, 0.6} <= set(leads):
        not_yet("the lead of process is asked where the tool is never wrong, and at 0.6")
        return
    worth = [numbers(measured[wrong])[0] for wrong in LAB_WRONG]
    guess = [numbers(predicted[wrong])[0] for wrong in LAB_WRONG]
    if same(guess, [1 - wrong for wrong in LAB_WRONG], 0.03):
        not_yet("that is one call; half of the problems need three, the others two")
    elif not (worth[0] > 0.9 and worth[0] > worth[1] > worth[2]):
        not_yet("measured after the first `=` of a right rule the worth starts near 1 and falls")
    elif not same(guess, worth, 0.12):
        not_yet("prediction and measurement lie apart: do you count the calls still to come?")
    else:
        right(
            f"a right rule is worth {worth[0]:.2f}, {worth[1]:.2f}, {worth[2]:.2f}; process leads "
            f"by {leads[0.0]:+.2f} where nothing goes wrong and {leads[0.6]:+.2f} where most does"
        )
