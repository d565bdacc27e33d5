"""Scorers of other libraries: right verdicts, bounded time, no model text evaluated."""

import re
import threading

import pytest

from rlbook.tasks import Problem, get_task
from rlbook.tasks.gym import ReasoningGymTask
from rlbook.tasks.math_answers import verify_math
from rlbook.tasks.sandbox.bounded import LOADING_SECONDS, BoundedWorker

pytest.importorskip("math_verify")
pytest.importorskip("reasoning_gym")

ATTACK = "open({path!r}, 'w').close()"


@pytest.mark.parametrize(
    ("completion", "reference", "reason"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", "ok"),
        (r"\boxed{1/2}", r"\frac{1}{2}", "ok"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", "ok"),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", "ok"),
        (r"\boxed{3}", "4", "wrong"),
        (r"\boxed{3,4}", "3", "wrong"),
        (r"\boxed{2} or \boxed{3}", "3", "ok"),
        (r"\boxed{}", "4", "no_answer"),
        ("the answer is 4", "4", "no_answer"),
        (r"\boxed{4", "4", "no_answer"),
        (r"\boxed{" + "9" * 5_000 + "}", "4", "too_long"),
        ("4" * 200_001, "4", "too_long"),
    ],
)
def test_verify_math(completion, reference, reason):
    verdict = verify_math(completion, reference, seconds=20)
    assert verdict.reason == reason
    assert verdict.correct == (reason == "ok")


def test_what_several_boxes_mean_is_a_choice():
    two = r"\boxed{2} or \boxed{3}"
    assert verify_math(two, "3").answer == "3"
    assert not verify_math(two, "3").format_ok
    assert verify_math(two, "3", several="reject").reason == "two_answers"
    with pytest.raises(ValueError, match="several"):
        verify_math(two, "3", several="first")


def test_truncated_mathematics_is_wrong():
    assert verify_math(r"\boxed{3}", "3", finished=False).reason == "truncated"


def test_an_unreadable_reference_is_the_callers_error():
    with pytest.raises(ValueError, match="reference"):
        verify_math(r"\boxed{3}", r"\text{}")


def test_power_towers_are_stopped_and_the_next_answer_is_judged():
    verify_math(r"\boxed{1}", "1")
    verdict = verify_math(r"\boxed{9^{9^{9^{9}}}}", "5", seconds=1.0)
    assert (verdict.correct, verdict.reason) == (False, "timeout")
    assert verify_math(r"\boxed{5}", "5").correct


def test_loading_a_scorer_is_not_counted_whoever_started_the_worker(monkeypatch):
    worker, asked = BoundedWorker(), []

    def exchange(process, request, seconds, waiting):
        asked.append((request["scorer"], seconds))
        return {}

    monkeypatch.setattr(worker, "_exchange", exchange)
    for scorer in ("math", "gym", "math"):
        worker.call({"scorer": scorer}, 1.0)
    worker.close()
    loading = [("math", LOADING_SECONDS), ("gym", LOADING_SECONDS)]
    assert asked == [loading[0], ("math", 1.0), loading[1], ("gym", 1.0), ("math", 1.0)]


def test_verification_works_outside_the_main_thread():
    """Alarm-based time limits raise in other threads; a worker process does not care."""
    verdicts = []
    threads = [
        threading.Thread(target=lambda n=n: verdicts.append(verify_math(rf"\boxed{{{n}}}", "1")))
        for n in (1, 2, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(v.correct for v in verdicts) == [False, True, True]


def tagged(answer: str) -> str:
    return f"<think>x</think><answer>{answer}</answer>"


GYM = ("chain_sum", "countdown", "spiral_matrix", "n_queens", "simple_integration")


@pytest.mark.parametrize("dataset", GYM)
def test_reference_answers_of_reasoning_gym_are_correct(dataset):
    task = get_task(f"reasoning_gym:{dataset}")
    problems = task.sample(1, 3)
    assert problems == task.sample(1, 3)
    for problem in problems:
        assert problem.prompt.endswith("Assistant: ")
        assert task.verify(problem, tagged(problem.answer)).reason == "ok"
        assert not task.verify(problem, tagged("0")).correct
        assert task.verify(problem, problem.answer).reason == "no_answer"
        assert task.verify(problem, tagged(problem.answer), finished=False).reason == "truncated"


@pytest.mark.parametrize(
    "dataset",
    [
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    ],
)
def test_answers_are_never_executed(dataset, tmp_path):
    """These scorers hand the answer to `eval`, directly or through a parser."""
    task, path = get_task(f"reasoning_gym:{dataset}"), tmp_path / "executed"
    problem = task.sample(0, 1)[0]
    assert not task.verify(problem, tagged(ATTACK.format(path=str(path)))).correct
    assert not path.exists()


def test_every_evaluating_scorer_of_the_library_is_known():
    """A new version of the library may add data sets that evaluate the answer."""
    import inspect
    import re

    from reasoning_gym.factory import DATASETS

    from rlbook.tasks.gym import PARSED_AS_CODE
    from rlbook.tasks.sandbox.worker import EVALUATING_MODULES

    pattern = re.compile(r"\b(eval|exec|sympify|parse_expr|parse_latex)\(([^)]*answer)")
    known = {f"reasoning_gym.{name}" for name in EVALUATING_MODULES}
    found = set()
    for name, (dataset, *_) in DATASETS.items():
        source = inspect.getsource(inspect.getmodule(dataset))
        if any("entry" not in argument for _, argument in pattern.findall(source)):
            found.add(name)
            assert name in PARSED_AS_CODE or dataset.__module__ in known, name
    assert found >= {*PARSED_AS_CODE, "n_queens", "spiral_matrix"}


@pytest.mark.parametrize("answer", ["9**9**9", "1" * 300, "a+b", "(1)(2)x", ""])
def test_countdown_takes_plain_arithmetic_only(answer):
    task = get_task("reasoning_gym:countdown")
    assert task.verify(task.sample(0, 1)[0], tagged(answer)).reason == "unsafe_answer"


def test_unknown_data_sets_and_levels_are_named():
    with pytest.raises(ValueError, match="nonsense"):
        get_task("reasoning_gym:nonsense")
    with pytest.raises(ValueError, match="level"):
        get_task("reasoning_gym:chain_sum").sample(0, 1, levels=[3])


def test_settings_of_a_data_set_are_its_levels():
    task = ReasoningGymTask(
        "chain_sum", levels={k: {"min_terms": k, "max_terms": k} for k in (2, 5)}
    )
    problems = task.sample(4, 12)
    assert {p.level for p in problems} == set(task.levels) == {2, 5}
    for p in problems:
        assert len(re.findall(r"\d+", p.prompt.split("problem:")[-1].split("=")[0])) == p.level
        assert task.verify(p, f"<think></think><answer>{p.answer}</answer>").correct
        assert not task.verify(p, f"<think></think><answer>{p.answer}1</answer>").correct
    assert len({p.id for p in problems}) == 12


def test_a_broken_scorer_is_an_error_not_a_crash():
    task = get_task("reasoning_gym:chain_sum")
    missing = Problem(id="x", prompt="", answer="", meta={"seed": 0, "index": 99, "size": 1})
    assert task.verify(missing, tagged("1")).reason in ("error", "wrong")


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("math_verify", lambda: verify_math(r"\boxed{x}", "y")),
        ("reasoning_gym", lambda: get_task("reasoning_gym:chain_sum")),
    ],
)
def test_a_missing_library_is_named_with_the_fix(module, use, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"{module} not found: pip install -e '\.\[tasks\]'"):
        use()
