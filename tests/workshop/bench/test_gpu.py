"""`bench gpu --tiny`: every stage runs, on a CPU; tests/rlbook/gpu says what holds on a GPU."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from rlbook.paths import data_dir
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scaling.shape import model_shape
from workshop.__main__ import bench
from workshop.bench import gpu
from workshop.shared.evidence import check_table


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", range(len(gpu.SWEEP)))
def test_the_plan_holds_what_updates_on_an_h200_took(row, tmp_path):
    """Its memory is enough and not half as much again; its seconds are within a factor of 1.5."""
    path = data_dir() / "results/gpu/sweep.csv"
    check_table(path)
    measured = table(path)[row]
    size, rollouts, tokens, micro, checkpointing = gpu.SWEEP[row]
    (tmp_path / "config.json").write_text(json.dumps(gpu.SIZES[size]))
    setting = replace(gpu.Setting(str(tmp_path)), new_tokens=tokens, micro_batch_tokens=micro)
    config = setting.config("runs/bench").replace(
        activation_checkpointing=checkpointing,
        rollout={"prompts": rollouts // 4, "group_size": 4},
        budget={"bandwidth_tb": 4.8, "mean_tokens": tokens, "length_sigma": 0.01},
    )
    prompts = Prompts(setting.prompt, setting.prompt)
    budget = Budget(config, model_shape(str(tmp_path)), prompts)
    assert 1.0 < budget.trainer_bytes / 1e9 / float(measured["peak_gb"]) < 1.5
    assert 1 / 1.5 < budget.update_seconds / float(measured["seconds"]) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("stage", [name for name in gpu.STAGES if name not in ("trl", "nccl")])
def test_a_stage_writes_its_table_and_manifest(stage, tmp_path):
    became = gpu.main(tiny=True, folder=tmp_path, stages=[stage])
    path = tmp_path / f"{stage}.csv"
    assert became == {stage: f"wrote {path}"}
    assert json.loads((tmp_path / "stages.json").read_text()) == became
    rows = table(path)
    assert rows and all(value != "" for row in rows for value in row.values())
    assert json.loads(check_table(path).read_text())["policy"] == "tiny"
    CHECKS.get(stage, lambda rows: None)(rows)


def sums_are_exact(rows):
    errors = {row["form"]: float(row["logp_error"]) for row in rows}
    assert errors["float32 sums"] < 1e-5 < errors["rounded logits"]
    assert all(float(row["gradient_error"]) < 2**-6 for row in rows)


def goes_on_where_it_was(rows):
    assert rows[0]["durable"] == "True" and rows[0]["loss"] == rows[0]["loss_resumed"]
    assert float(rows[0]["largest_weight_gap"]) == 0


def same_policy(rows):
    assert all(float(row["mismatch_mean"]) < 1e-4 for row in rows)


def another_took_over(rows):
    assert int(rows[0]["deaths"]) >= 1 and rows[0]["updates"] == "6"


def says_where_the_time_goes(rows):
    shares = [float(row["share"]) for row in rows]
    assert len({row["micro_batch_tokens"] for row in rows}) == 2 and 0.5 < sum(shares) / 2 <= 1


CHECKS = {
    "kernels": says_where_the_time_goes,
    "head": sums_are_exact,
    "resume": goes_on_where_it_was,
    "generate": same_policy,
    "restart": another_took_over,
}


def test_what_all_runs_rest_on_comes_first_then_what_needs_no_vllm():
    names = list(gpu.STAGES)
    assert names[0] == "resume" and max(most for _, most in gpu.STAGES.values()) <= 480
    assert names.index("learn") < min(map(names.index, gpu.IN_VLLM))


def test_the_shell_chooses_stages_time_and_folder(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(gpu, "main", lambda *given: seen.append(given))
    words = ["gpu", "--tiny", "--stages", "head", "sweep", "--seconds", "60", "--folder"]
    bench([*words, str(tmp_path)])
    bench(["gpu"])
    usual = (False, None, None, tuple(gpu.STAGES), gpu.SECONDS)
    assert seen == [(True, None, tmp_path, ["head", "sweep"], 60.0), usual]


def test_stages_keep_packages_that_are_given_by_path_and_what_earlier_calls_found(
    tmp_path, monkeypatch
):
    program = "import os; print(os.environ['PYTHONPATH'])"
    original = gpu.subprocess.run

    def run(argv, **how):
        return original([argv[0], "-c", program], **how)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "/wheels")
    for stage in ("head", "update"):
        became = gpu.main(tiny=True, folder=tmp_path, stages=[stage])
        assert became[stage].endswith(":/wheels") and str(gpu.ROOT) in became[stage]
    assert json.loads((tmp_path / "stages.json").read_text()).keys() == {"head", "update"}


@pytest.mark.skipif(torch.cuda.device_count() > 2, reason="there are enough GPUs")
def test_nccl_asks_for_gpus():
    with pytest.raises(gpu.Skipped, match="3 GPUs of their own"):
        gpu.nccl(gpu.TINY)


def test_a_failing_stage_costs_its_own_table_only(tmp_path, monkeypatch):
    program = "import sys; print('reason'); sys.exit(sys.argv[2] == 'head')"
    original = gpu.subprocess.run

    def run(argv, **how):
        return original([argv[0], "-c", program, *argv[2:]], **how)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    became = gpu.main(tiny=True, folder=tmp_path, stages=["head", "update"])
    assert became["head"].startswith("failed: reason") and became["update"] == "reason"
    assert (tmp_path / "head.log").exists() and not (tmp_path / "update.log").exists()


def test_no_stage_begins_without_time(tmp_path):
    became = gpu.main(tiny=True, folder=tmp_path, stages=["head"], seconds=gpu.LEAST / 2)
    assert became == {"head": "no time"} and not (tmp_path / "head.csv").exists()


def test_what_cannot_be_measured_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"unknown stage.*speed"):
        gpu.main(tiny=True, folder=tmp_path, stages=["speed"])
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device here: --tiny"):
            gpu.main(folder=tmp_path)
