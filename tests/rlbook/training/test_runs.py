"""Runs side by side: equal to one after the other, and nothing left running however they end."""

import os
import signal
import sys
import threading
import time
from multiprocessing import active_children

import pytest
import torch
from torch import nn

from rlbook.training import RunConfig, Trainer, side_by_side
from rlbook.training import runs as module

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux alone")
SMALL = RunConfig(steps=2, prompts=2, group_size=4, max_new_tokens=24, minibatches=1)


def trainers():
    """A critic with moments of its own; a pool, and a sampler that stays behind."""
    stale = SMALL.replace(method="scalerl", steps=3, pool=8, sync_every=2, retire_at=0.9)
    configs = {"ppo": SMALL.replace(method="ppo", steps=1), "stale": stale}
    return {name: Trainer(config) for name, config in configs.items()}


def without_times(metrics):
    """In words: not a number is no number that equals itself."""
    return repr({name: value for name, value in metrics.items() if "second" not in name})


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@needs_fork
def test_trainers_end_as_they_would_one_after_the_other():
    here, beside = trainers(), trainers()
    made = side_by_side(here, at_once=1), side_by_side(beside, at_once=2)
    first, found = (
        [(name, *map(without_times, rows)) for name, rows in several.histories().items()]
        for several in made
    )
    assert found == first
    for name, run in beside.items():
        assert (run.step, run.version) == (here[name].step, here[name].version)
        assert equal(run.state_dict(), here[name].state_dict())
    for a, b in zip(here.values(), beside.values(), strict=True):  # and they go on alike
        assert without_times(a.train_one()) == without_times(b.train_one())


def test_a_state_holds_all_that_a_checkpoint_does(tmp_path):
    run = trainers()["stale"]
    list(run)
    run.save(tmp_path)
    assert equal(Trainer.resume(tmp_path).state_dict(), run.state_dict())


def counted(weight, steps, pause=0.0):
    for step in range(steps):
        time.sleep(pause)
        with torch.no_grad():
            weight.add_(1)
        yield step, os.getpid()


@needs_fork
def test_learners_of_a_loop_come_back_each_from_its_own_process():
    layers = {name: nn.Linear(1, 1) for name in "abc"}
    before = {name: layer.weight.item() for name, layer in layers.items()}
    runs = {name: counted(layer.weight, 3) for name, layer in layers.items()}
    ended = side_by_side(runs, {name: ("words", layer) for name, layer in layers.items()}).last()
    assert [step for step, _ in ended.values()] == [2, 2, 2]
    assert len({pid for _, pid in ended.values()} - {os.getpid()}) == 3
    assert {n: layer.weight.item() - before[n] for n, layer in layers.items()} == dict.fromkeys(
        "abc", pytest.approx(3)
    )


@pytest.mark.parametrize("hindrance", ["no fork", "one place"])
def test_where_forks_are_no_use_runs_are_made_here_in_turn(monkeypatch, hindrance):
    monkeypatch.setattr(module, "can_fork", lambda: hindrance != "no fork")
    monkeypatch.setattr(module, "places", lambda: 1)
    layer, threads = nn.Linear(1, 1), torch.get_num_threads()
    made = side_by_side({n: counted(layer.weight, 2) for n in "ab"}).histories()
    assert made == {n: [(0, os.getpid()), (1, os.getpid())] for n in "ab"}
    assert torch.get_num_threads() == threads


@needs_fork
def test_longest_first_and_as_many_as_there_are_places(monkeypatch):
    begun, most = [], 0
    start = module.Working.start

    def noting(self, name, *rest):
        nonlocal most
        start(self, name, *rest)
        begun.append(name)
        most = max(most, len(active_children()))

    monkeypatch.setattr(module.Working, "start", noting)
    made = {"short": Trainer(SMALL.replace(steps=1)), "long": Trainer(SMALL), "loop": iter([1])}
    assert list(side_by_side(made, at_once=2).histories()) == ["short", "long", "loop"]
    assert begun == ["long", "short", "loop"] and most <= 2


@pytest.mark.parametrize(("free", "cores", "found"), [(3.5, 8, 3), (9.0, 2, 2), (0.1, 8, 1)])
@needs_fork
def test_places_are_what_cores_and_free_memory_bear(monkeypatch, tmp_path, free, cores, found):
    files = {"/proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {int(free * 400)} kB\n"}
    files["/proc/self/statm"] = f"999 {400 * 1024 // os.sysconf('SC_PAGE_SIZE')} 1"
    monkeypatch.setattr(module.Path, "read_text", lambda path: files[str(path)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert module.places() == found


class Odd(Exception):
    """Cannot be made again from its words."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def failing(error):
    yield 1
    raise error


@needs_fork
@pytest.mark.parametrize("at_once", [1, 2])
def test_what_a_run_raises_is_raised_here_with_its_name(at_once):
    runs = {"good": counted(torch.zeros(1), 500, 0.01), "bad": failing(ValueError("no such key"))}
    runs = runs if at_once > 1 else dict(reversed(runs.items()))
    with pytest.raises(ValueError, match="no such key") as caught:
        side_by_side(runs, at_once=at_once).histories()
    assert "in the run 'bad'" in caught.value.__notes__[0]
    assert at_once == 1 or "in failing" in caught.value.__notes__[0]
    assert active_children() == []


@needs_fork
def test_an_error_that_cannot_be_sent_is_told_in_words():
    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        side_by_side({"a": failing(Odd(1, 2)), "b": iter([])}, at_once=2).last()


@needs_fork
def test_a_process_that_dies_is_missed():
    def dies():
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"'gone' has died, exit code -9"):
        side_by_side({"gone": dies(), "other": iter([1])}, at_once=2).histories()


@pytest.fixture
def on_interrupts():
    """Sets what is done about them: what a shell has put in the background ignores them."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@needs_fork
@pytest.mark.parametrize("where", ["in the wait", "in the loop"])
def test_an_interrupt_ends_all_of_them_in_one_line(where, capfd, on_interrupts):
    """As a notebook's kernel is interrupted: the children get the signal, too."""
    layers = {name: nn.Linear(1, 1) for name in "ab"}
    before = {name: layer.weight.item() for name, layer in layers.items()}
    runs = {name: counted(layer.weight, 10**6, 0.05) for name, layer in layers.items()}
    on_interrupts(signal.default_int_handler)

    def interrupt():
        for child in active_children():
            os.kill(child.pid, signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"as before: '.' after \d+ steps") as caught:
        for _ in side_by_side(runs, layers, at_once=2):
            if where == "in the wait":
                threading.Timer(0.2, interrupt).start()
                where = "begun"
            elif where == "in the loop":
                interrupt()
    assert active_children() == []
    assert len(caught.value._render_traceback_()) == 1
    assert {name: layer.weight.item() for name, layer in layers.items()} == before
    assert capfd.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@needs_fork
def test_where_interrupts_are_ignored_runs_end_as_usual(on_interrupts):
    on_interrupts(signal.SIG_IGN)
    made = {name: [] for name in "ab"}
    for name, item in side_by_side({n: counted(torch.zeros(1), 3) for n in made}, at_once=2):
        os.kill(os.getpid(), signal.SIGINT)
        made[name].append(item)
    assert {name: len(items) for name, items in made.items()} == {"a": 3, "b": 3}
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@needs_fork
def test_a_loop_that_is_left_leaves_nothing_running():
    for _ in side_by_side({n: counted(torch.zeros(1), 10**6) for n in "ab"}, at_once=2):
        break
    assert active_children() == []


@needs_fork
def test_what_runs_print_is_shown_here(capsys):
    def talking(name):
        print(f"{name} begins")
        yield 1

    side_by_side({name: talking(name) for name in "ab"}, at_once=2).last()
    assert sorted(capsys.readouterr().out.splitlines()) == ["a begins", "b begins"]


def test_learners_of_no_run_and_no_place_at_all_are_refused():
    with pytest.raises(ValueError, match=r"learners \['c'\] belong to none"):
        side_by_side({"a": iter([])}, {"c": nn.Linear(1, 1)})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        side_by_side({"a": iter([])}, at_once=0)
