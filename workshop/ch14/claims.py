"""What chapter 14 claims: of its runs, and in its scorecard."""

from collections.abc import Iterator

from workshop.shared.runs import Column
from workshop.shared.told import HABITS, OWN, SUMS, Told, recorded, there
from workshop.shared.verdict import Claim

EACH_FAMILY = Column("pass@1_habits")


def efficiency(told: Told) -> Iterator[Claim]:
    how, alone = ("habits, own rates", "distillation"), {"null": None, "unit": "pass@1"}
    teacher, opd = "SFT on the teacher", "on-policy distillation"
    yield told("imitating a teacher, against RL", *how, teacher, "RL", EACH_FAMILY, **alone)
    yield told("on-policy distillation, against RL", *how, opd, "RL", EACH_FAMILY, **alone)
    if there(told.load, "teacher_null"):
        null = ("habits, own rates", "teacher_null")
        yield told("RL at its best", *null, "RL, MaxRL", "RL", EACH_FAMILY, **alone)
        yield told("48 examples by themselves, for RL", *null, "48 examples", "RL", EACH_FAMILY,
                   collapse=True, **alone)  # fmt: skip
    if there(told.load, "late_price"):
        for arm in ("at once", "after 12 batches"):
            yield told(f"a price {arm}, for no price", SUMS + OWN, "late_price", arm, "no price",
                       collapse=True)  # fmt: skip
    if there(told.load, "length_padded"):
        arms = told.load("length_padded_eval").arm.unique()
        for arm in (arm for arm in arms if arm != "no price"):
            padded = ("padded answers" + OWN, "length_padded", arm, "no price")
            yield told(f"{arm}, for accuracy", *padded)
            mean = Column("over_budgets")
            yield told(f"{arm}, over budgets", *padded, mean, unit="right")
    if recorded(told.load, "pupils", arms=7):
        habits = ("habits" + OWN, "pupils")
        yield told("γ = 1, for γ = 0", *habits, "γ = 1", "γ = 0", EACH_FAMILY, unit="pass@1")
        for arm in ("distilled, then RL", "imitated, then RL", "squares begun, RL"):
            yield told(f"{arm}, for RL", *habits, arm, "RL", EACH_FAMILY, beside="teacher_null",
                       **alone)  # fmt: skip
        shown = "48 examples, then RL"
        yield told("RL behind 48 examples, for them alone", *habits, shown, "48 examples",
                   EACH_FAMILY, collapse=True, **alone)  # fmt: skip
    small = ("habits, a student of a sixth", "small_student")
    for text, arm, lr in (("imitation", teacher, 2e-3), ("on-policy distillation", opd, 2e-3)):
        yield told(
            f"{text}, against RL", *small, arm, "RL", EACH_FAMILY, lr=lr, against_lr=1.2e-3, **alone
        )
    for lr in (1.5e-4, 3e-4):
        for arm in ("0.005 a token", "0.02 a token", "L1-Max, 32 tokens", "Kimi, among siblings"):
            yield told(f"{arm}, for accuracy", SUMS, "length_control", arm, "no price", lr=lr,
                       collapse=True)  # fmt: skip
    for lr in (3e-4, 6e-4):
        data = {"lr": lr, "unit": "pass@1"}
        for arm in ("easy first", "brackets only", "four problems"):
            yield told(f"{arm}, for all families", HABITS, "data_choice", arm, "all families",
                       EACH_FAMILY, **data)  # fmt: skip
        yield told("a window of pass rates", HABITS, "data_choice", "pass rate 0.2 to 0.8",
                   "as many, any", EACH_FAMILY, **data)  # fmt: skip
        for arm in ("LIMR's third", "the third of most variance", "all 96"):
            yield told(f"{arm}, for any third", HABITS, "chosen_after_a_run", arm, "any third",
                       EACH_FAMILY, **data)  # fmt: skip
        for arm in ("cold start, then RL", "R1's four stages"):
            yield told(f"{arm}, for RL alone", HABITS, "r1_stages", arm, "RL alone", EACH_FAMILY,
                       lr=lr, null=None, unit="pass@1")  # fmt: skip
    for lr in (1e-5, 2e-5):
        yield told("right or wrong, for the form alone", "SmolLM2", "smollm2", "verifier",
                   "format only", Column("after_*"), lr=lr, unit="of 8")  # fmt: skip


WORLD = "habits, own rates"
SCORECARD = (  # numbers: `verdicts.table.scored`
    {
        "claim": "a price above what a token buys elects guesses, if it comes first",
        "exact": "c* = Δp / Δn",
        "pressing": "at once, minus no price: {a price at once, for no price | plain sums, own "
        "rates}",
        "control": "after twelve batches: {a price after 12 batches, for no price | plain sums, "
        "own rates}",
        "paper": "Kimi k1.5 warms up without its length reward",
    },
    {
        "claim": "a teacher passes on with an eighth of the answers what RL found",
        "pressing": f"imitated {{imitating a teacher, against RL | {WORLD}}}, on-policy "
        f"{{on-policy distillation, against RL | {WORLD}}}",
        "control": "with the teacher's training counted RL is cheaper",
        "paper": "R1: distilled 32B beats RL on 32B",
    },
    {
        "claim": "48 worked examples by themselves, minus RL",
        "pressing": f"{{48 examples by themselves, for RL | {WORLD}}}",
        "paper": "R1's first stage; R1-Zero does without",
    },
    {
        "claim": "MaxRL is RL at its best where rules are rare",
        "pressing": f"no: {{RL at its best | {WORLD}}}",
    },
    {
        "claim": "γ = 0 descends each state's KL where the student comes by, not the KL",
        "exact": "the gap is Σ KL_s ∇d(s)",
        "paper": "GKD, Thinking Machines: γ = 0; MiniLLM: the return",
    },
)
