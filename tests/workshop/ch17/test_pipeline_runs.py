"""The runs of chapter 17's pipeline: arms that differ in one thing, rows that add up."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from rlbook.manifest import SUFFIX
from rlbook.paths import data_dir
from rlbook.scale.config import ScaleConfig
from rlbook.scaling.own_runs import fit_own_runs, read_runs
from rlbook.training import write_csv
from rlbook.training.resume import differences
from workshop.ch17 import pipeline

ONE_SETTING = {
    "PipelineRL-0": {"generate.max_staleness", "generate.target_staleness"},
    "PipelineRL-1": {"generate.max_staleness", "generate.target_staleness"},
    "PipelineRL-2": set(),
    "PipelineRL-8": {"generate.max_staleness", "generate.target_staleness"},
    "PipelineRL-0, half the rate": {
        "generate.max_staleness",
        "generate.target_staleness",
        "optimizer.lr",
    },
    "PipelineRL-8, half the rate": {
        "generate.max_staleness",
        "generate.target_staleness",
        "optimizer.lr",
    },
    "σ per prompt": {"method.advantage"},
    "mean per answer": {"method.aggregation"},
    "all prompts": {"method.prompt_filter"},
    "solved prompts again": {"data.retire_at"},
}


def test_every_arm_exchanges_one_thing():
    arms = {arm.label: arm for arm in pipeline.arms()}
    base = pipeline.recipe().to_dict()
    for label, settings in ONE_SETTING.items():
        assert set(differences(base, arms[label].config.to_dict())) == settings, label
    limited = arms["limit 40"].config.to_dict()
    for label, settings in {
        "limit 30": {"rollout.max_new_tokens"},
        "limit 40, interrupted": {"generate.interruption"},
        "limit 40, length penalty": {"method.reward_shaping", "method.prompt_filter.by"},
    }.items():
        assert set(differences(limited, arms[label].config.to_dict())) == settings, label
    clipped, late = (
        arms[label].config.to_dict() for label in ("DAPO's clip", "DAPO's clip, k = 8")
    )
    changed = {setting.rsplit(".", 1)[0] for setting in differences(base, clipped)}
    assert changed == {"method.trust_region"}
    assert set(differences(clipped, late)) == ONE_SETTING["PipelineRL-8"]
    old, low = (arms[label].config.to_dict() for label in ("PipelineRL-8", "cap 1.26, k = 8"))
    assert set(differences(old, low)) == {"method.trust_region.max"}
    slow = {label: arm for label, arm in arms.items() if label.endswith(", half the rate")}
    assert len(slow) == 9
    for label, arm in slow.items():
        full = arms[label.removesuffix(", half the rate")].config.to_dict()
        assert set(differences(full, arm.config.to_dict())) == {"optimizer.lr"}
        assert arm.config.optimizer.lr == base["optimizer"]["lr"] / 2
    alone = {label for label, arm in arms.items() if arm.one_process}
    assert alone == {label for label in arms if "off-policy" in label or "one process" in label}


def test_rows_add_up_compute_and_average_what_lies_between():
    updates = [
        {"completions": 4, "tokens": 10 * s, "seconds": 2.0, "accuracy": s / 10}
        for s in range(1, 6)
    ]
    for trained in updates[1:]:  # the first update was skipped
        trained["grad_norm"] = trained["accuracy"] * 10
        trained["ratio_max"] = trained["accuracy"] * 15  # above 5 in the last two
    rewards = {0: {"pass@1": 0.1}, 2: {"pass@1": 0.2}, 5: {"pass@1": 0.5}}
    start, second, fifth = pipeline.evaluation_rows(updates, rewards)
    assert start == {"step": 0, "pass@1": 0.1, "answers": 0, "tokens": 0, "seconds": 0}
    assert (second["answers"], second["tokens"], second["seconds"]) == (8, 30, 4.0)
    assert (fifth["answers"], fifth["tokens"], fifth["seconds"]) == (20, 150, 10.0)
    assert fifth["accuracy"] == pytest.approx(0.4) and fifth["pass@1"] == 0.5
    assert (second["grad_norm"], fifth["grad_norm"]) == pytest.approx((2, 4))
    assert (second["above_cap"], fifth["above_cap"]) == pytest.approx((0, 2 / 3))


def test_the_table_can_be_fitted(tmp_path):
    rows = [
        {"arm": "a", "seed": 0, "step": s, "answers": 64 * s, "tokens": 9 * s, "pass@1": r}
        for s, r in ((0, 0.3), (5, 0.35), (10, 0.5), (20, 0.65), (30, 0.7), (40, 0.73))
    ]
    write_csv(tmp_path / "pipeline.csv", rows)
    table = read_runs([str(tmp_path / "pipeline.csv")])
    assert table["tokens"].tolist() == [9 * row["step"] for row in rows]
    fits = [fit_own_runs(table, x).fits["a"].boot.curve for x in ("answers", "tokens")]
    assert fits[0].C_mid == pytest.approx(fits[1].C_mid * 64 / 9, rel=1e-3)


def small(label, **changes):
    arm = next(arm for arm in pipeline.arms(2) if arm.label == label)
    config = arm.config.replace(rollout={"prompts": 2, "group_size": 4}, **changes)
    return replace(arm, config=config)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(pipeline, "HELD_OUT", {"prompts": 4, "n": 2, "ks": (1,)})
    pipeline.before.cache_clear()
    yield
    pipeline.before.cache_clear()


@pytest.mark.parametrize("label", ["PPO-off-policy-2", "one process, rounded but for the head"])
def test_a_run_in_one_process_is_not_repeated_unless_its_settings_change(label, tmp_path, quick):
    arm = small(label)
    first = pipeline.run_arm(arm, 3, tmp_path)
    assert [row["step"] for row in first["rows"]] == [0, 2]
    assert first["rows"][-1]["answers"] == 16
    assert pipeline.run_arm(arm, 3, tmp_path) == first
    changed = replace(arm, config=arm.config.replace(optimizer={"lr": 1e-4}))
    assert pipeline.run_arm(changed, 3, tmp_path)["config"] != first["config"]


@pytest.mark.slow
def test_a_run_of_real_processes_is_evaluated_and_cleared_away(tmp_path, quick):
    record = pipeline.run_arm(small("PipelineRL-1"), 0, tmp_path)
    start, end = record["rows"]
    assert start["seconds"] == 0 < end["seconds"]
    assert end["answers"] >= 16 and end["answers"] % 8 == 0  # silent batches are asked anew
    assert 0 <= end["staleness"] <= 1
    left = {path.name for path in (tmp_path / "PipelineRL-1" / "seed0").iterdir()}
    assert {"run.json", "updates.json", "metrics.jsonl"} <= left
    assert not {name for name in left if name.startswith("step_")} | left & {"batches", "weights"}


def test_an_unknown_arm_is_named():
    with pytest.raises(ValueError, match="no arm PipelineRL-3; there are PipelineRL-0"):
        next(pipeline.run_arms(["PipelineRL-3"]))


def test_the_committed_table_is_of_these_arms():
    table = data_dir() / "results" / f"{pipeline.NAME}.csv"
    found = json.loads(table.with_name(f"{pipeline.NAME}{SUFFIX}").read_text())
    arms = {arm.label: arm for arm in pipeline.arms()}
    assert found["arms"].keys() == arms.keys()
    for label, trained in found["arms"].items():
        how = trained.pop("run by")
        assert (ScaleConfig(**trained), how) == (arms[label].config, arms[label].how)
    runs = pd.read_csv(table).groupby(["arm", "seed"])["step"].agg(list)
    assert set(runs.index) == {(arm, seed) for arm in found["arms"] for seed in range(10)}
    assert all(steps == list(range(0, 81, pipeline.EVERY)) for steps in runs)
