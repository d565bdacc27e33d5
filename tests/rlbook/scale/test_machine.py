"""What the dry run says of this machine: what is wrong with it and what to do."""

import shutil
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch

from rlbook.scale import layout as run_folder
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch import dry_run as machine
from rlbook.scale.launch.dry_run import measure_shape
from rlbook.scale.plan.budget import Budget, Prompts

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def looked_at(tmp_path):
    def look(**settings):
        config = ScaleConfig(run=str(tmp_path / "run"), **settings)
        rows = machine.this_machine(Budget(config, measure_shape(config), Prompts(5.0, 10)))
        return {name.strip(): seen for name, seen in rows}

    return look


def test_a_small_run_on_this_machine_is_fit(looked_at, tmp_path):
    found = looked_at(generate={"engine": "builtin"})
    assert not any("→" in seen for seen in found.values())
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_gpus_that_are_not_there_or_too_few_or_too_small(monkeypatch):
    config = ScaleConfig(model={"device": "cuda"}, train={"processes": 2})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert machine.gpus(config).startswith("none → model.device is cuda and this machine has 0")
    assert machine.gpus(ScaleConfig()) == "none needed"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(machine, "gpu_memory_gb", lambda config: 25.0)
    assert "2 GPUs for 1 of generators and 2 of trainers" in machine.gpus(config)
    shared = config.replace(generate={"colocated": True})
    assert "set budget.gpu_memory_gb to 25" in machine.gpus(shared)
    fitting = shared.replace(budget={"gpu_memory_gb": 24})
    assert machine.gpus(fitting) == "2 of 25 GB (a GPU)"
    spread = config.replace(launch={"engine": "ray"}, budget={"gpu_memory_gb": 24})
    assert "→" not in machine.gpus(spread)


def test_too_little_room_is_said_with_both_sizes(looked_at, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 1000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    found = looked_at()
    for subject in ("disk", "host memory"):
        assert "0.0 GB free, the run needs" in found[subject]


def test_a_folder_that_cannot_lock(looked_at, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    assert "Function not implemented → it has to lock" in looked_at()["run folder"]


def test_a_slow_disk(looked_at, monkeypatch):
    monkeypatch.setattr(machine, "SLOW_SYNC", -1.0)
    assert "→ every batch waits" in looked_at()["run folder"]


@pytest.mark.parametrize(("device", "target"), [("cpu", "vllm-cpu"), ("cuda", "gpu")])
def test_without_vllm(monkeypatch, device, target):
    monkeypatch.setattr(machine, "vllm_python", lambda python, device: None)
    config = ScaleConfig(model={"device": device}, generate={"engine": "vllm"})
    assert machine.engine(config) == f"no vLLM → `make {target}` for vLLM"
    auto = config.replace(generate={"engine": "auto"})
    assert machine.engine(auto).startswith("the book's own sampler →")


def test_an_environment_with_another_vllm_is_named(monkeypatch):
    def refuse(python):
        raise ValueError(f"{python} has vLLM 0.1; install another")

    monkeypatch.setattr(machine, "vllm_python", lambda python, device: "/opt/python")
    monkeypatch.setattr(machine, "check_version", refuse)
    found = machine.engine(ScaleConfig(generate={"engine": "vllm"}))
    assert found == "→ /opt/python has vLLM 0.1; install another"


def test_missing_libraries_name_their_extras(looked_at, monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    task = "reasoning_gym:chain_sum"
    config = ScaleConfig(launch={"engine": "ray"}, data={"task": task})
    assert machine.missing_extras(config) == ["scale", "tasks", "cluster"]
    hub = config.replace(data={"task": "dataset:a/b"}, launch={"engine": "local"})
    assert machine.missing_extras(hub) == ["scale", "tasks", "datasets"]
    assert looked_at()["packages"] == "→ pip install -e '.[scale]'"
