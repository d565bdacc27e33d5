"""What the dry run says of this machine: what is amiss and what to do."""

import fcntl
import shutil
import sys
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch

from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.launch import dry_run as machine
from rlbook.scale.launch.dry_run import dry_run, measure_shape
from rlbook.scale.launch.start import launch
from rlbook.scale.plan.budget import Budget, Prompts

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def looked_at(tmp_path):
    def look(**settings):
        config = ScaleConfig(run=str(tmp_path / "run"), **settings)
        return dict(machine.amiss(Budget(config, measure_shape(config), Prompts(5.0, 10))))

    return look


def test_a_small_run_on_this_machine_is_fit(looked_at, tmp_path):
    assert looked_at(generate={"engine": "builtin"}) == {}
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    text = dry_run(ScaleConfig(engine="builtin", pool=32, run=str(tmp_path / "run")))
    assert text.endswith("on this machine\nnothing that the run needs is missing")


def test_gpus_that_are_not_there_or_too_few_or_too_small(monkeypatch, looked_at):
    cuda = {"model": {"device": "cuda"}, "train": {"processes": 2}}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "model.device is cuda and this machine has 0 GPUs of 3" in looked_at(**cuda)["GPUs"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine, "gpu_memory_gb", lambda config: 25.0)
    assert "2 GPUs of 3: lower generate.count" in looked_at(**cuda)["GPUs"]
    shared = cuda | {"generate": {"colocated": True}}
    assert "set budget.gpu_memory_gb to 25" in looked_at(**shared)["GPUs"]
    assert "GPUs" not in looked_at(**shared, budget={"gpu_memory_gb": 24})
    assert "GPUs" not in looked_at(**cuda, launch={"engine": "ray"})


def test_too_little_room_is_said_with_both_sizes(looked_at, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 1000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    found = looked_at()
    for subject in ("disk", "host memory"):
        assert "0.0 GB free, the run needs" in found[subject]


def test_without_a_compiler_nothing_is_begun_that_needs_one(looked_at, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))  # of earlier ones
    compiled = {"run": str(tmp_path / "run"), "train": {"compile_head": True}}
    with pytest.raises(
        ValueError, match=r"train\.compile_head: .* install a C\+\+ compiler .*false"
    ):
        launch(ScaleConfig(**compiled))
    assert not (tmp_path / "run").exists()
    both = {"compile_layers": True, "compile_head": True}
    assert "train.compile_layers and train.compile_head: " in looked_at(train=both)["compiler"]
    assert "compiler" not in looked_at()
    assert "compiler" not in looked_at(train=both, launch={"engine": "ray"})


def test_a_folder_that_cannot_lock(looked_at, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    found = looked_at()["run folder"]
    assert "cannot be locked ([Errno 38] Function not implemented): take another" in found


def test_without_vllm(monkeypatch, looked_at):
    monkeypatch.setattr(vllm_adapter, "vllm_python", lambda python, device: None)
    found = looked_at(generate={"engine": "vllm"})["generators"]
    assert "no vLLM" in found and "`make gpu`" in found and "generate.python" in found
    assert "generators" not in looked_at(generate={"engine": "auto"})


def test_an_environment_with_another_vllm_is_named(monkeypatch, looked_at):
    def refuse(python):
        raise ValueError(f"{python} has vLLM 0.1; install another")

    monkeypatch.setattr(vllm_adapter, "vllm_python", lambda python, device: "/opt/python")
    monkeypatch.setattr(vllm_adapter, "check_version", refuse)
    found = looked_at(generate={"engine": "vllm"})
    assert found["generators"] == "/opt/python has vLLM 0.1; install another"


@pytest.mark.parametrize(
    ("settings", "where", "extra"),
    [
        ({"data": {"task": "reasoning_gym:chain_sum"}}, "task", "tasks"),
        ({"data": {"task": "dataset:a/b"}}, "task", "tasks"),
        ({"launch": {"engine": "ray"}}, "GPUs", "cluster"),
    ],
)
def test_missing_libraries_name_their_extras(looked_at, monkeypatch, settings, where, extra):
    monkeypatch.setattr("rlbook.extras.importlib.util.find_spec", lambda name: None)
    found = looked_at(generate={"engine": "builtin"}, **settings)
    assert found[where].endswith(f"not found: pip install -e '.[{extra}]'")


def test_the_library_for_data_of_the_hub_is_named(looked_at, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = looked_at(generate={"engine": "builtin"}, data={"task": "dataset:a/b"})
    assert "pip install -e '.[datasets]'" in found["task"]
