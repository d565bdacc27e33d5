"""Rows reach the services that a run names; stand-ins for those record what they are told."""

import json
import sys
from types import SimpleNamespace

import pytest

from rlbook.cli import main
from rlbook.jsonl import read_jsonl
from rlbook.training import RunConfig
from rlbook.training.sinks import Sinks

ROW = {"step": 3, "reward": 0.5, "truncated": 1, "kl": float("nan"), "task": "sums"}


class Recorder(SimpleNamespace):
    """A module that notes its calls."""

    def __init__(self, name):
        super().__init__(name=name, calls=[])

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*values, **named):
            self.calls.append((name, *values, named) if named else (name, *values))
            return SimpleNamespace(info=SimpleNamespace(run_id="abc")) if name != "init" else self

        return call


@pytest.fixture
def service(monkeypatch):
    def stand_in(name):
        module = Recorder(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return stand_in


def told(name, folder):
    """What a service hears of two rows of two logs."""
    sinks = Sinks([name], folder)
    sinks("metrics", ROW)
    sinks("eval", {"step": 2, "set": "aime", "pass@1": 0.25})
    sinks.close()


def test_wandb_gets_the_update_as_an_axis_of_its_own(service, tmp_path):
    wandb = service("wandb")
    told("wandb", tmp_path / "lab")
    (_, how), *rest = wandb.calls
    assert how["project"] == "rlbook" and how["resume"] == "allow"
    assert how["id"] == how["name"] and how["id"].startswith("lab-")
    assert rest == [
        ("define_metric", "*", {"step_metric": "update"}),
        ("log", {"metrics/reward": 0.5, "metrics/truncated": 1.0, "update": 3}),
        ("log", {"eval/aime/pass@1": 0.25, "update": 2}),
        ("finish",),
    ]
    told("wandb", tmp_path / "lab")  # as after a restart
    again = [call for call in wandb.calls if call[0] == "init"][1]
    assert again[1]["id"] == how["id"]


def test_trackio_gets_steps(service, tmp_path):
    trackio = service("trackio")
    told("trackio", tmp_path / "lab")
    (_, how), *rest = trackio.calls
    assert how["project"] == "rlbook" and how["resume"] == "allow"
    assert rest == [
        ("log", {"metrics/reward": 0.5, "metrics/truncated": 1.0}, {"step": 3}),
        ("log", {"eval/aime/pass@1": 0.25}, {"step": 2}),
        ("finish",),
    ]


def test_mlflow_gets_names_that_it_allows_and_goes_on_with_its_run(service, tmp_path):
    mlflow = service("mlflow")
    told("mlflow", tmp_path)
    assert mlflow.calls[0] == ("set_experiment", "rlbook")
    assert mlflow.calls[1][0] == "start_run" and "run_name" in mlflow.calls[1][1]
    assert mlflow.calls[2:] == [
        ("log_metrics", {"metrics/reward": 0.5, "metrics/truncated": 1.0}, {"step": 3}),
        ("log_metrics", {"eval/aime/pass_1": 0.25}, {"step": 2}),
        ("end_run",),
    ]
    Sinks(["mlflow"], tmp_path)
    assert mlflow.calls[-1] == ("start_run", {"run_id": "abc"})


def test_tensorboard_writes_events(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("metrics/reward")] == [(3, 0.5)]
    assert [(e.step, e.value) for e in events.Scalars("eval/aime/pass@1")] == [(2, 0.25)]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="wandb is not installed: pip install wandb"):
        Sinks(["wandb"], tmp_path)


def test_the_old_switch_says_what_to_write():
    with pytest.raises(ValueError, match=r"write sinks: \[tensorboard\]"):
        RunConfig(tensorboard=True)


def test_a_run_tells_its_sinks_what_it_logs(service, tmp_path):
    trackio = service("trackio")
    settings = "steps=2 prompts=2 group_size=2 minibatches=1 max_new_tokens=8 sinks=[trackio]"
    main(["train", *settings.split(), "--out", str(tmp_path / "run")])
    logged = [call for call in trackio.calls if call[0] == "log"]
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [how["step"] for *_, how in logged] == [row["step"] for row in rows] == [1, 2]
    assert logged[0][1]["metrics/accuracy"] == rows[0]["accuracy"]
    assert trackio.calls[-1] == ("finish",)
    assert json.loads(json.dumps(logged[0][1])) == logged[0][1]
