"""The catalogue of experiments, and running one: resumable, complete tables."""

import json

import pandas as pd
import pytest

from rlbook.experiments import EXPERIMENTS, Arm, Experiment, run
from rlbook.objectives import METHODS
from rlbook.training import TrainConfig, read_jsonl


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_arms_have_labels_and_folders_of_their_own(name):
    arms = EXPERIMENTS[name].arms
    assert len({arm.label for arm in arms}) == len(arms)
    assert len({run.run_folder(name, arm, 0) for arm in arms}) == len(arms)


@pytest.mark.parametrize("name", ["methods", "methods_own"])
def test_every_row_of_the_table_is_run_five_times(name):
    experiment = EXPERIMENTS[name]
    assert [arm.label for arm in experiment.arms] == list(METHODS)
    assert len(experiment.seeds) >= 5


def test_shared_setting_is_shared():
    configs = [arm.config.model_copy(update={"method": ""}) for arm in EXPERIMENTS["methods"].arms]
    assert all(config == configs[0] for config in configs)


@pytest.fixture
def small(monkeypatch, tmp_path):
    settings = {"steps": 1, "prompts": 2, "group_size": 2, "minibatches": 1, "max_new_tokens": 8}
    arms = [
        Arm(label, TrainConfig(method=label, **settings), METHODS[label])
        for label in ("reinforce", "rloo")
    ]
    monkeypatch.setitem(EXPERIMENTS, "small", Experiment("Does it run?", tuple(arms), (0, 1)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "data_dir", lambda: tmp_path)
    monkeypatch.setattr(run, "evaluate", lambda trainer: {"pass@1": 0.5})
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def test_tables_and_manifest_hold_every_run(small):
    for index in (0, 1):
        for seed in (0, 1):
            run.run_arm("small", index, seed)
    path = run.write_tables("small", (0, 1))
    steps, evaluations = pd.read_csv(path), pd.read_csv(small / "small_eval.csv")
    expected = [(label, seed) for label in ("reinforce", "rloo") for seed in (0, 1)]
    assert list(steps[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    assert list(evaluations[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    manifest = json.loads((small / "small.manifest.json").read_text())
    assert manifest["question"] == "Does it run?" and manifest["seeds"] == [0, 1]
    assert set(manifest["arms"]) == {"reinforce", "rloo"}


def test_held_out_accuracy_joins_the_log_and_leaves_the_training_alone(small, monkeypatch):
    plain = EXPERIMENTS["small"]
    longer = [
        Arm(a.label, a.config.model_copy(update={"steps": 3}), a.method) for a in plain.arms[:1]
    ]
    rows = {}
    for name, eval_every in (("with", 2), ("without", None)):
        experiment = Experiment("?", tuple(longer), (0,), eval_every)
        monkeypatch.setitem(EXPERIMENTS, name, experiment)
        run.run_arm(name, 0, 0)
        rows[name] = read_jsonl(run.run_folder(name, longer[0], 0) / "metrics.jsonl")
    assert [row["step"] for row in rows["with"] if "heldout" in row] == [2]
    assert 0 <= rows["with"][1].pop("heldout") <= 1
    assert [row["loss"] for row in rows["with"]] == [row["loss"] for row in rows["without"]]


def test_a_finished_run_is_not_repeated(small, monkeypatch):
    for index in (0, 1):
        run.run_arm("small", index, 0)
    monkeypatch.setattr(run, "run_arm", lambda *_: pytest.fail("ran again"))
    assert run.run_experiment("small", seeds=(0,), workers=1).is_file()


def test_an_unknown_experiment_lists_those_there_are():
    with pytest.raises(ValueError, match="unknown experiment 'smal'; choose from baselines"):
        run.run_experiment("smal")
