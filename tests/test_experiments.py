"""The catalogue of experiments, and running one: resumable, complete tables."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from rlbook.experiments import EXPERIMENTS, Arm, Experiment, run
from rlbook.experiments.derive import derive
from rlbook.manifest import SUFFIX, check_table, manifest
from rlbook.objectives import METHODS
from rlbook.paths import data_dir
from rlbook.training import RunConfig, Trainer, read_jsonl

RESULTS = data_dir() / "results"
MANIFESTS = sorted(RESULTS.rglob(f"*{SUFFIX}"))


def recorded(path) -> dict:
    return json.loads(path.read_text())


def config_of(arm: dict) -> RunConfig:
    return RunConfig(**{name: value for name, value in arm.items() if name != "seconds"})


def without_note(config: RunConfig) -> RunConfig:
    """A note says where papers disagree; it decides nothing."""
    return config.replace(method=replace(config.method, note=""))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_arms_differ_in_label_folder_and_settings(name):
    arms = EXPERIMENTS[name].arms
    assert len({arm.label for arm in arms}) == len(arms)
    assert len({run.run_folder(name, arm, 0) for arm in arms}) == len(arms)
    assert len({json.dumps(arm.config.to_dict()) for arm in arms}) == len(arms)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_arm_takes_the_samplers_log_probs_and_states_its_constant(name):
    for arm in EXPERIMENTS[name].arms:
        method = arm.config.method
        assert method.old_logprobs == "sampler"
        assert (method.constant is not None) == (method.aggregation == "constant")
        assert method == arm.config.resolved_method


@pytest.mark.parametrize("name", ["methods", "methods_own"])
def test_every_row_of_the_table_is_run_five_times(name):
    experiment = EXPERIMENTS[name]
    assert [arm.label for arm in experiment.arms] == list(METHODS), (
        "a row without results: name its settings in catalogue.AS_PUBLISHED and run "
        f"`python -m rlbook experiments {name}`"
    )
    assert len(experiment.seeds) >= 5


def test_shared_setting_is_shared():
    configs = [arm.config.replace(method="grpo") for arm in EXPERIMENTS["methods"].arms]
    assert all(config == configs[0] for config in configs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_manifest_says_what_the_catalogue_trains(name):
    found = recorded(RESULTS / f"{name}{SUFFIX}")
    experiment = EXPERIMENTS[name]
    assert found["question"] == experiment.question and found["seeds"] == list(experiment.seeds)
    assert set(found["arms"]) == {arm.label for arm in experiment.arms}
    for arm in experiment.arms:
        assert without_note(config_of(found["arms"][arm.label])) == without_note(arm.config)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name.removesuffix(SUFFIX))
def test_a_manifest_tells_its_arms_apart_its_date_and_its_tables(path):
    found = recorded(path)
    arms = [json.dumps(arm, sort_keys=True) for arm in found.get("arms", {}).values()]
    assert len(set(arms)) == len(arms)
    assert found["date"].endswith("+00:00") and found["commit"]
    assert found["seconds"] is not None or "not recorded" in found["derived"]["seconds"]
    assert all(check_table(path.with_name(table)) == path for table in found["tables"])


def test_every_committed_table_of_a_run_has_a_manifest():
    tables = sorted(RESULTS.rglob("*.csv"))
    assert len(tables) >= 2 * len(EXPERIMENTS)
    for table in tables:
        check_table(table)


def test_a_table_hashes_alike_with_other_line_ends_and_another_table_is_refused(tmp_path):
    table = tmp_path / "reuse.csv"
    source = RESULTS / "reuse.csv"
    (tmp_path / f"reuse{SUFFIX}").write_bytes((RESULTS / f"reuse{SUFFIX}").read_bytes())
    table.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    check_table(table)
    table.write_text(source.read_text().replace("0,1,", "0,2,", 1))
    with pytest.raises(ValueError, match=r"reuse\.csv is not the table of its manifest.*git check"):
        check_table(table)
    (tmp_path / "mine.csv").write_text("arm\n")
    with pytest.raises(FileNotFoundError, match=r"mine\.csv has no manifest: expected mine\.mani"):
        check_table(tmp_path / "mine.csv")


@pytest.fixture
def small(monkeypatch, tmp_path):
    settings = {"steps": 1, "prompts": 2, "group_size": 2, "minibatches": 1, "max_new_tokens": 8}
    arms = [
        Arm(label, RunConfig(method=label, **settings)) for label in ("reinforce", "reinforce_ema")
    ]
    experiment = Experiment("Does it run?", tuple(arms), (0, 1), measure=lambda trainer: {"own": 7})
    monkeypatch.setitem(EXPERIMENTS, "small", experiment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "data_dir", lambda: tmp_path)
    monkeypatch.setattr(run, "EVALUATION", {"prompts": 2, "n": 2, "ks": (1, 2)})
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def test_tables_and_manifest_hold_every_run(small):
    for index in (0, 1):
        for seed in (0, 1):
            run.run_arm("small", index, seed)
    path = run.write_tables("small", (0, 1), manifest() | {"seconds": 1.0})
    steps, evaluations = pd.read_csv(path), pd.read_csv(small / "small_eval.csv")
    expected = [(label, seed) for label in ("reinforce", "reinforce_ema") for seed in (0, 1)]
    assert list(steps[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    assert list(evaluations[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    assert {"pass@1", "pass@2", "pass@1_low", "length", "truncated"} <= set(evaluations)
    assert set(evaluations["own"]) == {7}
    found = recorded(small / "small.manifest.json")
    assert found["question"] == "Does it run?" and found["seeds"] == [0, 1]
    assert found["seconds"] == 1.0 and set(found["tables"]) == {"small.csv", "small_eval.csv"}
    for arm in EXPERIMENTS["small"].arms:
        assert config_of(found["arms"][arm.label]) == arm.config
        assert set(found["arms"][arm.label]["seconds"]) == {"0", "1"}
    check_table(small / "small_eval.csv")


def test_a_new_evaluation_has_the_columns_of_the_committed_ones(small):
    committed = set(pd.read_csv(RESULTS / "length_eval.csv")) - {"arm", "seed"}
    measured = EXPERIMENTS["length"].measure
    trainer = Trainer(RunConfig(prompts=1, minibatches=1, max_new_tokens=8))
    row = trainer.evaluate(prompts=2, n=16, ks=(1, 4, 8, 16)) | measured(trainer)
    assert committed <= set(row)


def test_held_out_accuracy_joins_the_log_and_leaves_the_training_alone(small, monkeypatch):
    rows = {}
    for name, every in (("with", 2), ("without", 0)):
        evaluation = {"every": every, "prompts": 2, "samples": 2}
        config = EXPERIMENTS["small"].arms[0].config.replace(steps=3, evaluation=evaluation)
        experiment = Experiment("?", (Arm("a", config),), (0,))
        monkeypatch.setitem(EXPERIMENTS, name, experiment)
        run.run_arm(name, 0, 0)
        rows[name] = read_jsonl(run.run_folder(name, experiment.arms[0], 0) / "metrics.jsonl")
    assert [row["step"] for row in rows["with"] if "heldout" in row] == [2]
    assert 0 <= rows["with"][1].pop("heldout") <= 1
    assert [row["loss"] for row in rows["with"]] == [row["loss"] for row in rows["without"]]


def test_a_finished_run_is_not_repeated_unless_its_arm_has_changed(small, monkeypatch):
    for index in (0, 1):
        run.run_arm("small", index, 0)
    monkeypatch.setattr(run, "run_arm", lambda *_: pytest.fail("ran again"))
    assert run.run_experiment("small", seeds=(0,), workers=1).is_file()
    first, _ = EXPERIMENTS["small"].arms
    assert run.is_finished("small", first, 0)
    assert not run.is_finished("small", replace(first, config=first.config.replace(lr=1e-3)), 0)


def test_an_unknown_experiment_lists_those_there_are():
    with pytest.raises(ValueError, match="unknown experiment 'smal'; choose from baselines"):
        run.run_experiment("smal")


def test_a_manifest_that_was_complete_from_the_start_is_left_alone(tmp_path):
    path = tmp_path / f"mine{SUFFIX}"
    path.write_text('{"tables": {}}')
    assert not derive(path) and path.read_text() == '{"tables": {}}'
