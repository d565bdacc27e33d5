"""The live plot: passes metrics on, draws rarely, ends in a picture without times."""

from types import SimpleNamespace

import pytest

from rlbook.viz import LivePlot
from rlbook.viz import live as module
from rlbook.viz.live import MAX_FRAMES, eta, moving_mean, steps_of


class Run:
    """Looks like a trainer: iterable, with a config that tells the number of steps."""

    def __init__(self, steps):
        self.config, self.step = SimpleNamespace(steps=steps), 0

    def __iter__(self):
        while self.step < self.config.steps:
            self.step += 1
            yield {"step": self.step, "accuracy": self.step / 10}


class Screen:
    """Stands in for the notebook: keeps what is displayed."""

    def __init__(self):
        self.bundles = []

    def display(self, bundle, raw):
        self.bundles.append(bundle)

    update = display


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.DisplayHandle", lambda: screen)
    return screen


def test_without_a_notebook_metrics_pass_and_nothing_is_drawn(monkeypatch):
    live = LivePlot("accuracy")
    monkeypatch.setattr(live, "png", lambda progress="": pytest.fail("drew without a notebook"))
    assert [m["step"] for m in live.watch(Run(5), "ppo")] == [1, 2, 3, 4, 5]
    live.close()
    assert [m["accuracy"] for m in live.history["ppo"]] == [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize("total", [None, 400])
def test_at_most_forty_messages_for_three_runs(screen, monkeypatch, total):
    live = LivePlot("accuracy")
    monkeypatch.setattr(live, "png", lambda progress="": progress)
    for label in ("a", "b", "c"):
        run = Run(400) if total else iter(list(Run(400)))
        assert len(list(live.watch(run, label))) == 400
    live.close()
    assert 3 < len(screen.bundles) <= 40 and MAX_FRAMES < 40


def test_runs_side_by_side_grow_together_in_the_order_they_were_given(screen, monkeypatch):
    live = LivePlot("accuracy")
    monkeypatch.setattr(live, "png", lambda progress="": (progress, str(live)))
    live.side_by_side({"a": Run(24), "b": Run(24)})
    assert {name: [m["step"] for m in rows] for name, rows in live.history.items()} == {
        name: list(range(1, 25)) for name in "ab"
    }
    *during, last = (bundle["image/png"] for bundle in screen.bundles)
    assert len(during) <= 12 and "of 48" in during[-1][0] and last[0] == ""


def test_runs_may_share_a_line_which_breaks_off_between_them():
    live, runs = LivePlot("accuracy"), {("a", 0): Run(2), ("a", 1): Run(3), ("b", 0): Run(1)}
    live.side_by_side(runs, lines={run: run[0] for run in runs})
    steps = {line: [row["step"] for row in rows] for line, rows in live.history.items()}
    assert steps["b"] == [1] and str(steps["a"]) == "[1, 2, nan, 1, 2, 3]"


def test_progress_is_shown_while_running_and_gone_in_the_end(screen, monkeypatch):
    live = LivePlot("accuracy")
    monkeypatch.setattr(live, "png", lambda progress="": progress)
    list(live.watch(Run(24), "ppo"))
    live.close()
    *during, _, last = (bundle["image/png"] for bundle in screen.bundles)
    assert during and all("of 24" in text and "s left" in text for text in during)
    assert last == ""


def test_final_picture_is_the_same_every_time(screen):
    for _ in range(2):
        live = LivePlot("accuracy", title="It learns")
        list(live.watch(Run(3), "ppo"))
        live.close()
    finals = [b for b in screen.bundles if "ppo: 3" in b["text/plain"]]
    assert len({b["image/png"] for b in finals[-1:] + finals[1:2]}) == 1
    assert finals[-1]["text/plain"] == "LivePlot of accuracy (ppo: 3)"
    assert finals[-1]["image/png"].startswith(b"\x89PNG")


def test_interrupted_run_still_leaves_its_picture(screen, monkeypatch):
    live = LivePlot("accuracy")
    monkeypatch.setattr(live, "png", lambda progress="": progress)
    with pytest.raises(KeyboardInterrupt):
        for metrics in live.watch(Run(100), "ppo"):
            if metrics["step"] == 7:
                raise KeyboardInterrupt
    live.close()
    assert "ppo: 7" in screen.bundles[-1]["text/plain"]


def test_missing_and_nan_metrics_do_not_stop_the_plot():
    live = LivePlot("accuracy", "value_loss")
    list(live.watch([{"step": 1, "accuracy": float("nan")}, {"step": 2}], "ppo"))
    fig = live.figure()
    assert [len(ax.lines) for ax in fig.axes] == [0, 0]


def test_two_runs_are_labelled_and_share_the_axis():
    live = LivePlot("accuracy")
    list(live.watch(Run(5), "reinforce"))
    list(live.watch(Run(10), "ppo"))
    (ax,) = live.figure().axes
    assert {t.get_text() for t in ax.texts} == {"reinforce", "ppo"}
    assert ax.get_xlim()[1] >= 10


def test_parts_of_a_run_are_lines_of_their_own(screen, monkeypatch):
    live = LivePlot("share right")
    monkeypatch.setattr(live, "png", lambda progress="": progress)
    rows = [{"step": 1, "easy": 0.9, "hard": 0.1}, {"step": 2, "easy": 0.8}]
    assert list(live.watch(rows, "run", parts={"two": "easy", "seven": "hard"})) == rows
    assert live.history["two"] == [{"step": 1, "share right": 0.9}, {"step": 2, "share right": 0.8}]
    assert live.history["seven"] == [{"step": 1, "share right": 0.1}, {"step": 2}]
    assert set(live.history) == {"two", "seven"}
    (ax,) = live.figure().axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 0.9], [2, 0.8]], [[1, 0.1]]]


def test_progress_line():
    assert eta("ppo", 10, 40, 12.0) == "ppo: step 10 of 40 · 1.2 s a step · 36 s left"
    assert eta("ppo", 10, None, 5.0) == "ppo: step 10 · 0.5 s a step"


def test_steps_left_of_a_resumed_trainer():
    run = Run(10)
    run.step = 4
    assert steps_of(run) == 6
    assert steps_of([1, 2]) == 2 and steps_of(iter([])) is None


def test_moving_mean_looks_back_only():
    assert moving_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]


def test_two_plots_can_share_an_axis():
    live = LivePlot("accuracy", "kl", limits={"kl": (0, 0.2)})
    for _ in live.watch([{"accuracy": 0.1, "kl": 0.001}, {"accuracy": 0.9, "kl": 0.002}], "a run"):
        pass
    accuracy, kl = live.figure().axes
    assert kl.get_ylim() == (0, 0.2)
    assert accuracy.get_ylim()[1] < 1
