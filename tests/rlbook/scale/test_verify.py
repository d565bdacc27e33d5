import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from rlbook.scale.generate.protocol import GenerationFailed
from rlbook.scale.rollout.groups import Verifiers
from rlbook.tasks import Problem, SumsTask

PROBLEM = Problem("1+1", "1+1=?", "2", level=2)
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"


def tagged(answer):
    return f"<think>x</think><answer>{answer}</answer>"


@pytest.fixture
def verifiers():
    made = []

    def make(task, **limits):
        made.append(Verifiers(task, **limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


def judge(verifiers, *completions, problem=PROBLEM):
    async def all_of_them():
        return await asyncio.gather(*(verifiers.verify(problem, text) for text in completions))

    return asyncio.run(all_of_them())


def test_the_verdict_is_the_tasks_own(verifiers):
    answers = [tagged("2"), tagged("3"), "2", "", "<answer>2</answer>" * 2, "π\0\ud800"]
    expected = [SumsTask().verify(PROBLEM, text) for text in answers]
    several = verifiers("sums", count=2, seconds=30)
    assert judge(several, *answers) == expected
    assert several.events == Counter()
    assert judge(several, tagged("2"), problem=PROBLEM)[0].correct


def test_a_verifier_that_dies_is_replaced(verifiers):
    one = verifiers("sums", seconds=30)
    assert judge(one, tagged("2"))[0].correct
    one.workers[0]._process.kill()
    one.workers[0]._process.wait()
    assert judge(one, tagged("2"))[0].correct


def failing(worker, *errors):
    """A worker's `call` that raises these first."""
    answer, waiting = worker.call, list(errors)

    def call(request, seconds):
        if waiting:
            raise waiting.pop(0)
        return answer(request, seconds)

    return call


def test_late_twice_is_wrong_and_counted(verifiers, monkeypatch):
    one = verifiers("sums", seconds=30)
    monkeypatch.setattr(
        one.workers[0], "call", failing(one.workers[0], *[TimeoutError("late")] * 2)
    )
    (verdict,) = judge(one, tagged("2"))
    assert (verdict.correct, verdict.reason) == (False, "timeout")
    assert one.events == {"verify_timeouts": 1}  # the verdict says the other


@pytest.mark.parametrize(
    ("error", "counted"),
    [(TimeoutError("late"), "verify_timeouts"), (RuntimeError("died"), "verify_errors")],
)
def test_after_one_failure_the_verdict_is_the_tasks_own(verifiers, error, counted, monkeypatch):
    one = verifiers("sums", seconds=30)
    monkeypatch.setattr(one.workers[0], "call", failing(one.workers[0], error))
    assert judge(one, tagged("2"))[0].correct
    assert one.events == {counted: 1}


def test_a_verifier_that_fails_gives_no_verdict(verifiers, monkeypatch):
    one = verifiers("sums", seconds=30)
    died = [RuntimeError("scorer process died")] * 2
    monkeypatch.setattr(one.workers[0], "call", failing(one.workers[0], *died))
    with pytest.raises(GenerationFailed, match=r"an answer to 1\+1: scorer process died"):
        judge(one, tagged("2"))
    assert judge(one, tagged("2"))[0].correct


@pytest.fixture
def arithmetic(tmp_path):
    """A task whose verifier can be made to hang."""
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} + 0?", "answer": str(n)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset:{path}"


@pytest.mark.slow
def test_a_hanging_verifier_is_killed_and_the_next_completion_judged(verifiers, arithmetic):
    one, problem = verifiers(arithmetic, seconds=2), Problem("p", "2+3", "5")
    verdicts = judge(one, r"\boxed{5}", ENDLESS, r"\boxed{5}", problem=problem)
    assert [(v.correct, v.reason) for v in verdicts] == [
        (True, "ok"),
        (False, "timeout"),
        (True, "ok"),
    ]
    assert one.events == {"verify_timeouts": 1}  # asked once more


@pytest.mark.slow
def test_a_slow_host_never_makes_a_right_answer_wrong(verifiers):
    """The worker gets no processor for longer than a verdict may take: nothing is lost."""
    one = verifiers("sums", seconds=0.5)
    assert judge(one, tagged("2"))[0].correct  # loaded
    process = one.workers[0]._process
    process.send_signal(signal.SIGSTOP)
    wakes = threading.Timer(2.0, process.send_signal, (signal.SIGCONT,))
    wakes.start()
    assert judge(one, tagged("2"))[0].correct
    wakes.join()
    assert one.events == Counter() and one.workers[0]._process is process


@pytest.mark.slow
def test_a_worker_that_stands_still_for_ever_gives_no_verdict(verifiers):
    one = verifiers("sums", seconds=30)
    assert judge(one, tagged("2"))[0].correct
    one.workers[0]._process.send_signal(signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="stood still"):
        one.workers[0].call({"scorer": "task", "task": "sums"}, 0.3, waiting=0.2)


@pytest.mark.slow
def test_a_worker_whose_caller_was_killed_does_not_hang_on(arithmetic):
    """Nobody is left to kill it: it has to end by itself."""
    request = {
        "scorer": "task",
        "task": arithmetic,
        "problem": {"id": "p", "prompt": "", "answer": "5"},
        "completion": ENDLESS,
        "finished": True,
        "seconds": 0.5,
        "waiting": 10,
    }
    worker = [sys.executable, "-m", "rlbook.tasks.sandbox.worker"]
    with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            for extra in ({"warm_up": True, "seconds": 60}, {}):
                process.stdin.write(json.dumps(request | extra).encode() + b"\n")
                process.stdin.flush()
            assert process.wait(timeout=120) == -signal.SIGPROF
        finally:
            process.kill()
