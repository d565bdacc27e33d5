"""The catalogue of experiments, and running one: resumable, complete tables."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from rlbook.evaluation import evaluate_run
from rlbook.jsonl import read_jsonl
from rlbook.manifest import SUFFIX, manifest
from rlbook.objectives import METHODS, RatioClip
from rlbook.paths import data_dir
from rlbook.policy import Sampler, load_policy
from rlbook.training import RunConfig, Trainer
from workshop.experiments import EXPERIMENTS, Arm, Experiment, run
from workshop.experiments.derive import derive
from workshop.shared.design import vary, vary_methods
from workshop.shared.evidence import check_table
from workshop.shared.experiments import AS_PUBLISHED
from workshop.shared.recorded import BESIDE_THE_RUN, Run, recorded_config

RESULTS = data_dir() / "results"
MANIFESTS = sorted(RESULTS.rglob(f"*{SUFFIX}"))


def recorded(path) -> dict:
    return json.loads(path.read_text())


RECORDED = [name for name in EXPERIMENTS if (RESULTS / f"{name}{SUFFIX}").is_file()]
WHOLE = [name for name in RECORDED if "finished" not in recorded(RESULTS / f"{name}{SUFFIX}")]


def config_of(arm: dict) -> RunConfig:
    return recorded_config({k: value for k, value in arm.items() if k not in BESIDE_THE_RUN})


def without_note(config: RunConfig) -> RunConfig:
    """A note says where papers disagree; it decides nothing."""
    return config.replace(method=replace(config.method, note=""))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_differ_in_their_key_their_folder_and_their_settings(name):
    arms = EXPERIMENTS[name].arms
    runs = [Run(name, arm, variant, 0) for arm in arms for variant in arm.tried]
    assert len({json.dumps(run.key) for run in runs}) == len(runs)
    assert len({run.folder for run in runs}) == len(runs)
    assert len({json.dumps(run.variant.config.to_dict()) for run in runs}) == len(runs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_arm_takes_the_samplers_log_probs_and_states_its_constant(name):
    configs = [v.config for arm in EXPERIMENTS[name].arms for v in arm.tried]
    for config in configs:
        corrected = config.method.sampler_correction is not None
        assert config.method.old_logprobs == ("recomputed" if corrected else "sampler")
        assert (config.method.constant is not None) == (config.method.aggregation == "constant")
        assert config.method == config.resolved_method


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_chooses_an_arm_does_not_report_it(name):
    experiment = EXPERIMENTS[name]
    assert not set(experiment.seeds) & set(experiment.tuning_seeds)
    columns = {len(arm.tried[0].values) for arm in experiment.arms}
    assert len(columns) == 1 or experiment.tunes


def test_the_rows_that_were_compared_are_run_five_times_on_as_many_answers():
    methods = EXPERIMENTS["methods"]
    assert [arm.label for arm in methods.arms] == list(AS_PUBLISHED)
    assert set(AS_PUBLISHED) <= set(METHODS)
    assert len(methods.seeds) >= 5
    configs = [variant.config for arm in methods.arms for variant in arm.tried]
    answers = {(c.rollout.prompts * c.rollout.group_size, c.steps) for c in configs}
    assert len(answers) == 1 and all(config.method.kl is None for config in configs)


def test_only_what_is_planned_has_no_table():
    planned = {name for name, experiment in EXPERIMENTS.items() if experiment.planned}
    assert set(EXPERIMENTS) - set(RECORDED) <= planned


@pytest.mark.parametrize("name", RECORDED)
def test_the_manifest_says_what_the_catalogue_trains(name):
    found, experiment = recorded(RESULTS / f"{name}{SUFFIX}"), EXPERIMENTS[name]
    assert found["question"] == experiment.question and found["seeds"] == list(experiment.seeds)
    assert set(found["arms"]) == {arm.label for arm in experiment.arms}
    for arm in experiment.arms:
        trained = found["arms"][arm.label]
        values = trained.get("values", {})
        (chosen,) = [v.config for v in arm.tried if dict(v.values) == values] or [
            arm.tried[0].config
        ]
        assert without_note(config_of(trained)) == without_note(chosen)
        tried = [
            {k: v for k, v in one.items() if k != "method"} for one in trained.get("variants", [])
        ]
        assert tried == [dict(variant.values) for variant in arm.variants]


@pytest.mark.parametrize("name", [name for name in WHOLE if EXPERIMENTS[name].tunes])
def test_the_arm_of_the_record_is_the_best_that_was_tried(name):
    experiment = EXPERIMENTS[name]
    arms = recorded(RESULTS / f"{name}{SUFFIX}")["arms"]
    sweep = pd.read_csv(RESULTS / f"{name}_sweep.csv")
    for arm in experiment.arms:
        mine, values = sweep[sweep["arm"] == arm.label], list(arm.variants[0].values)
        assert set(mine["seed"]) == set(experiment.tuning_seeds)
        scores = mine.groupby(values)[experiment.chosen_by].mean()
        chosen = tuple(arms[arm.label]["values"][value] for value in values)
        best = scores[chosen if len(chosen) > 1 else chosen[0]]
        assert best >= scores.max() - 1e-4  # five digits are written


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
    assert len(tables) >= 2 * len(WHOLE)
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
    experiment = Experiment(
        "Does it run?",
        tuple(arms),
        (0, 1),
        measure=lambda trainer: {"own": 7},
        watch=lambda trainer, rollouts: {"watched": len(rollouts)},
        evaluation={"prompts": 2, "n": 2, "ks": (1, 2)},
    )
    monkeypatch.setitem(EXPERIMENTS, "small", experiment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "data_dir", lambda: tmp_path)
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def runs_of(name: str, seeds=(0, 1)) -> list[Run]:
    return run.reported_runs(name, seeds)


def test_tables_and_manifest_hold_every_run(small):
    for one in runs_of("small"):
        run.train(one)
    path = run.write_tables("small", (0, 1), manifest() | {"seconds": 1.0})
    steps, evaluations = pd.read_csv(path), pd.read_csv(small / "small_eval.csv")
    expected = [(label, seed) for seed in (0, 1) for label in ("reinforce", "reinforce_ema")]
    assert list(steps[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    assert list(evaluations[["arm", "seed"]].itertuples(index=False, name=None)) == expected
    assert {"pass@1", "pass@2", "pass@1_low", "length", "truncated"} <= set(evaluations)
    assert set(evaluations["own"]) == {7} and set(steps["watched"]) == {4}
    found = recorded(small / "small.manifest.json")
    assert found["question"] == "Does it run?" and found["seeds"] == [0, 1]
    assert found["seconds"] == 1.0 and set(found["tables"]) == {"small.csv", "small_eval.csv"}
    for arm in EXPERIMENTS["small"].arms:
        assert config_of(found["arms"][arm.label]) == arm.config
        assert set(found["arms"][arm.label]["seconds"]) == {"0", "1"}
    check_table(small / "small_eval.csv")


def test_an_arm_is_reported_at_what_did_best_on_other_seeds(small, monkeypatch):
    """The measure is the learning rate itself, so the largest is best."""
    arms = [vary(one, lr=(1e-4, 3e-4, 2e-4)) for one in EXPERIMENTS["small"].arms]
    experiment = replace(
        EXPERIMENTS["small"],
        arms=tuple(arms),
        tuning_seeds=(7, 8),
        chosen_by="own",
        measure=lambda trainer: {"own": trainer.config.optimizer.lr},
    )
    monkeypatch.setitem(EXPERIMENTS, "small", experiment)
    tried = run.tuning_runs("small")
    assert len(tried) == 2 * 2 * 3 and {one.seed for one in tried} == {7, 8}
    for one in tried:
        run.train(one)
    reported = runs_of("small")
    assert {one.variant.values["lr"] for one in reported} == {3e-4}
    for one in reported:
        run.train(one)
    run.write_tables("small", (0, 1), manifest() | {"seconds": 1.0})
    sweep = pd.read_csv(small / "small_sweep.csv")
    assert sorted(set(sweep["lr"])) == [1e-4, 2e-4, 3e-4] and set(sweep["seed"]) == {7, 8}
    assert set(pd.read_csv(small / "small_eval.csv")["lr"]) == {3e-4}
    found = recorded(small / "small.manifest.json")
    assert found["tuning_seeds"] == [7, 8] and found["chosen_by"] == "own"
    arm = found["arms"]["reinforce"]
    assert arm["values"] == {"lr": 3e-4} and config_of(arm).optimizer.lr == 3e-4
    assert arm["variants"] == [{"lr": 1e-4}, {"lr": 3e-4}, {"lr": 2e-4}]


def test_the_next_best_rate_and_the_one_beyond_an_edge_are_run_on_all_seeds(
    small, monkeypatch, tmp_path
):
    """The measure is the learning rate: of 1, 2 and 3e-4 the best is the largest."""
    arms = tuple(vary(one, lr=(1e-4, 3e-4, 2e-4)) for one in EXPERIMENTS["small"].arms)
    measure = {"chosen_by": "own", "measure": lambda trainer: {"own": trainer.config.optimizer.lr}}
    experiment = replace(EXPERIMENTS["small"], arms=arms, tuning_seeds=(7, 8), **measure)
    monkeypatch.setitem(EXPERIMENTS, "small", experiment)
    assert run.second_runs("small", (0, 1)) == []
    for one in run.tuning_runs("small"):
        run.train(one)
    wanted = run.second_runs("small", (0, 1))
    mine = [(one.variant.values["lr"], one.seed) for one in wanted if one.arm is arms[0]]
    assert mine == [(2e-4, 0), (2e-4, 1), (4.5e-4, 7), (4.5e-4, 8), (4.5e-4, 0), (4.5e-4, 1)]
    turns = [(one.seed, one.variant.values["lr"]) for one in run.by_rounds(wanted)]
    assert turns == [(s, lr) for s in (0, 1) for lr in (2e-4, 2e-4, 4.5e-4, 4.5e-4)] + [
        (s, 4.5e-4) for s in (7, 7, 8, 8)
    ]
    for one in wanted[:-1]:
        run.train(one)
    run.run_experiment("small", so_far=True)
    assert recorded(small / "small.manifest.json")["second"] == {"runs": 11, "of": 12}
    check_table(small / "small_second.csv")
    shutil.rmtree(tmp_path / "runs")
    run.restore("small", (0, 1))
    assert [one.finished for one in run.second_runs("small", (0, 1))] == [True] * 11 + [False]


def test_another_machine_goes_on_from_the_tables(small, monkeypatch, tmp_path):
    plain = EXPERIMENTS["small"].arms
    arms = tuple(vary(one, lr=(1e-4, 2e-4)) for one in plain)
    experiment = replace(EXPERIMENTS["small"], arms=arms, tuning_seeds=(7,))
    monkeypatch.setitem(EXPERIMENTS, "small", experiment)
    run.train(run.tuning_runs("small")[0])
    assert run.best("small", arms[0]) == () and run.reported_runs("small", (0,)) == []
    run.run_experiment("small", so_far=True)
    assert recorded(small / "small.manifest.json")["finished"] == {"runs": 1, "of": 8}
    for runs in (lambda: run.tuning_runs("small"), lambda: runs_of("small")):
        for one in runs():
            run.train(one)
    path = run.run_experiment("small", so_far=True)
    assert "finished" not in recorded(small / "small.manifest.json")
    written = {table: table.read_bytes() for table in small.glob("*.csv")}
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(run, "train", lambda *_: pytest.fail("ran again"))
    assert run.run_experiment("small", workers=1) == path
    assert {table: table.read_bytes() for table in small.glob("*.csv")} == written
    shutil.rmtree(tmp_path / "runs")
    longer = [replace(one, config=one.config.replace(steps=2)) for one in plain]
    other = tuple(vary(one, lr=(1e-4, 2e-4)) for one in longer)
    monkeypatch.setitem(EXPERIMENTS, "small", replace(experiment, arms=other))
    assert run.restore("small", (0, 1)) == 0


@pytest.mark.parametrize("name", ["methods", "siblings", "lost_answers"])
def test_the_committed_tables_hold_every_run_that_can_be_gone_on_with(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seeds = EXPERIMENTS[name].seeds
    taken = run.restore(name, seeds)
    runs = [*run.tuning_runs(name), *run.reported_runs(name, seeds), *run.second_runs(name, seeds)]
    assert taken == len(runs) and all(one.finished for one in runs)


def test_a_map_runs_everything_with_every_seed(small, monkeypatch):
    arms = tuple(vary(one, lr=(1e-4, 2e-4)) for one in EXPERIMENTS["small"].arms)
    mapped = replace(EXPERIMENTS["small"], arms=arms, chosen_by=None)
    monkeypatch.setitem(EXPERIMENTS, "small", mapped)
    assert run.tuning_runs("small") == []
    assert len(runs_of("small", (0, 1, 2))) == 2 * 2 * 3


def test_a_run_ends_when_its_answers_are_written_resampled_ones_counted():
    class Writer:
        def __init__(self, batches):
            self.batches = iter(batches)

        def collect(self):
            return next(self.batches)

        def learn(self, written):
            return {"completions": written}

    def written(*batches, budget=100, steps=9):
        experiment = Experiment("?", (), answers=budget)
        rows = run.train_steps(Writer(batches), experiment, steps)
        return sum(row["completions"] for row in rows)

    assert written(*[20] * 9) == 100
    assert written(*[30] * 9) == 90  # 120 would be further away
    assert written(60, 90, 90) == 150  # nobody knows how many a batch will want
    assert written(*[20] * 9, budget=None, steps=4) == 80


def test_the_accuracy_of_answers_that_a_teacher_wrote_says_so():
    config = RunConfig(prompts=2, group_size=2, max_new_tokens=8, minibatches=1, steps=1)
    teacher, tokenizer = load_policy("tiny")
    own, taught = Trainer(config), Trainer(config, engine=Sampler(teacher, tokenizer.eos_token_id))
    for trainer, name in ((own, "accuracy"), (taught, "accuracy_of_writer")):
        (row,) = run.of_policy(trainer, trainer)
        assert {k for k in row if k.startswith("accuracy")} >= {name}
        assert ("accuracy" in row) == (name == "accuracy")


def test_widths_are_tried_like_learning_rates():
    widths = {w: replace(METHODS["grpo"], trust_region=RatioClip(w, w)) for w in (0.1, 0.2)}
    arm = vary(vary_methods(Arm("clip", RunConfig()), "width", widths), lr=(1e-4, 2e-4))
    assert [tuple(v.values.values()) for v in arm.variants] == [
        (0.1, 1e-4), (0.1, 2e-4), (0.2, 1e-4), (0.2, 2e-4),
    ]  # fmt: skip
    assert all(v.config.method.trust_region.low == v.values["width"] for v in arm.variants)
    assert all(v.config.optimizer.lr == v.values["lr"] for v in arm.variants)


def test_a_new_evaluation_has_the_columns_of_the_committed_ones(small):
    columns = set(pd.read_csv(RESULTS / "siblings_eval.csv")) - {"arm", "lr", "seed"}
    committed = {name for name in columns if not name.startswith("share_")}  # of what is sampled
    measured = EXPERIMENTS["siblings"].measure
    trainer = Trainer(RunConfig(prompts=1, minibatches=1, max_new_tokens=8))
    row = evaluate_run(trainer, prompts=2, n=16, ks=(1, 4, 8, 16)) | measured(trainer)
    assert committed <= set(row)


def test_held_out_accuracy_joins_the_log_and_leaves_the_training_alone(small, monkeypatch):
    rows = {}
    for name, every in (("with", 2), ("without", 0)):
        evaluation = {"every": every, "prompts": 2, "samples": 2}
        config = EXPERIMENTS["small"].arms[0].config.replace(steps=3, evaluation=evaluation)
        monkeypatch.setitem(EXPERIMENTS, name, Experiment("?", (Arm("a", config),), (0,)))
        (one,) = runs_of(name, (0,))
        run.train(one)
        rows[name] = read_jsonl(one.folder / "metrics.jsonl")
    assert [row["step"] for row in rows["with"] if "heldout" in row] == [2]
    assert 0 <= rows["with"][1].pop("heldout") <= 1
    assert [row["loss"] for row in rows["with"]] == [row["loss"] for row in rows["without"]]


def test_a_finished_run_is_not_repeated_unless_its_arm_has_changed(small, monkeypatch):
    for one in runs_of("small", (0,)):
        run.train(one)
    monkeypatch.setattr(run, "train", lambda *_: pytest.fail("ran again"))
    assert run.run_experiment("small", seeds=(0,), workers=1).is_file()
    first, _ = EXPERIMENTS["small"].arms
    assert Run("small", first, first.tried[0], 0).finished
    changed = replace(first, config=first.config.replace(lr=1e-3))
    assert not Run("small", changed, changed.tried[0], 0).finished


def test_an_unknown_experiment_lists_those_there_are():
    with pytest.raises(ValueError, match="unknown experiment 'smal'; choose from baselines"):
        run.run_experiment("smal")


def test_a_manifest_that_was_complete_from_the_start_is_left_alone(tmp_path):
    path = tmp_path / f"mine{SUFFIX}"
    path.write_text('{"tables": {}}')
    assert not derive(path) and path.read_text() == '{"tables": {}}'
