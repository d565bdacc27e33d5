"""`rlbook fit`: curves of known parameters come back, from any log, and it says when not."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from rlbook.cli import main
from rlbook.scaling import Sigmoid
from rlbook.scaling.own_runs import as_text, fit_own_runs, read_runs

R_0 = 0.3
FAST, SLOW = Sigmoid(0.8, 2.0, 20, R_0), Sigmoid(0.8, 1.4, 30, R_0)
STEPS = np.arange(5, 105, 5)


def noisy(curve, compute, seed, noise=0.005):
    rng = np.random.default_rng([seed, 3])
    return np.clip(curve(compute) + rng.normal(0, noise, len(compute)), 0, 1)


def table_of(folder, arms, seeds=5, steps=STEPS):
    rows = [
        {"arm": arm, "seed": seed, "step": step, "heldout": reward, "tokens": 100, "completions": 4}
        for arm, curve in arms.items()
        for seed in range(seeds)
        for step, reward in zip(steps, noisy(curve, steps, seed), strict=True)
    ]
    pd.DataFrame(rows).to_csv(folder / "runs.csv", index=False)
    return str(folder / "runs.csv")


def run_folder(folder, curve=FAST, seed=0, lr=1e-4, evaluations=STEPS):
    """What `rlbook scale` leaves: 3 seconds, 8 answers and 50 tokens an update, from time 1000."""
    folder.mkdir()
    settings = {
        "seed": seed,
        "run": str(folder),
        "optimizer": {"lr": lr},
        "generate": {"token": seed},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    steps = range(1, 101)
    logs = {
        "events": [{"event": "start", "time": 1000.0}],
        "rollouts": [
            {"step": s, "completions": 8, "tokens": 50, "accuracy": 0.1, "time": 1000.0 + 3 * s}
            for s in steps
        ],
        "metrics": [{"step": s, "loss": 0.0} for s in steps],
        "eval": [
            {"step": int(s), "pass@1": float(r), "time": 1001.0 + 3 * int(s)}
            for s, r in zip([0, *evaluations], [R_0, *noisy(curve, evaluations, seed)], strict=True)
        ],
    }
    for name, rows in logs.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_recipes_of_a_table_come_back_and_differ_where_they_do(tmp_path):
    report = fit_own_runs(read_runs([table_of(tmp_path, {"fast": FAST, "slow": SLOW})]), R_0=R_0)
    assert (report.x, report.y) == ("updates", "heldout")
    for name, true in (("fast", FAST), ("slow", SLOW)):
        curve = report.fits[name].boot.curve
        assert (curve.A, curve.B, curve.C_mid) == pytest.approx(
            (true.A, true.B, true.C_mid), rel=0.06
        )
        assert (len(report.fits[name].runs), report.fits[name].points) == (5, 100)
        assert report.fits[name].open_end is None
        assert report.fits[name].doubled.mean == pytest.approx(float(true(200)), abs=0.02)
    slow = report.comparisons["slow"]
    assert slow.B_difference.high < 0 and slow.B_difference.mean == pytest.approx(-0.6, abs=0.15)
    assert abs(slow.A_difference.mean) < 0.02


def test_compute_of_a_run_folder_in_every_unit(tmp_path):
    path = run_folder(tmp_path / "run")
    table = read_runs([path])
    row = table[(table["step"] == 50) & table["pass@1"].notna()].iloc[0]
    assert (row["updates"], row["answers"], row["tokens"], row["seconds"]) == (50, 400, 2500, 151)
    midpoints = {
        x: fit_own_runs(table, x, gpus=8).fits["run"].boot.curve.C_mid
        for x in ("updates", "answers", "tokens", "seconds", "gpu-hours")
    }
    assert midpoints["updates"] == pytest.approx(20, rel=0.05)
    assert midpoints["answers"] == pytest.approx(8 * midpoints["updates"], rel=1e-3)
    assert midpoints["tokens"] == pytest.approx(50 * midpoints["updates"], rel=1e-3)
    assert midpoints["seconds"] == pytest.approx(61, rel=0.05)
    assert midpoints["gpu-hours"] == pytest.approx(midpoints["seconds"] * 8 / 3600, rel=1e-3)


def test_the_evaluation_before_the_first_update_is_the_start(tmp_path):
    table = read_runs([run_folder(tmp_path / "run")])
    assert fit_own_runs(table).R_0 == R_0
    assert fit_own_runs(table, R_0=0.2).fits["run"].boot.curve.R_0 == 0.2
    table = table[table["step"] > 0]
    report = fit_own_runs(table)
    assert report.R_0 is None and "R_0 is fitted" in as_text(report)
    assert abs(report.fits["run"].boot.curve.R_0 - R_0) < 0.05


def test_folders_that_differ_in_the_seed_alone_are_one_recipe(tmp_path):
    seeds = [run_folder(tmp_path / f"a{i}", seed=i) for i in range(3)]
    other = run_folder(tmp_path / "b", SLOW, lr=2e-4)
    report = fit_own_runs(read_runs([*seeds, other]))
    assert {name: len(fit.runs) for name, fit in report.fits.items()} == {"a0": 3, "b": 1}
    text = as_text(report)
    assert "3 seeds, drawn with replacement in one of 10 ways" in text
    assert "b: one run, intervals from the scatter of its points" in text
    assert "nan" not in text
    named = read_runs([f"all={path}" for path in (*seeds[:1], other)])
    assert set(named["recipe"]) == {"all"}


def test_runs_that_end_before_the_bend_are_told_so(tmp_path):
    early = np.arange(1, 13)
    short = table_of(tmp_path, {"short": FAST}, steps=early)
    assert "asymptote of short is not identified" in as_text(
        fit_own_runs(read_runs([short]), R_0=R_0)
    )
    whole = table_of(tmp_path, {"whole": FAST})
    assert "not identified" not in as_text(fit_own_runs(read_runs([whole]), R_0=R_0))


def test_points_at_the_start_are_dropped_on_request(tmp_path):
    table = read_runs([table_of(tmp_path, {"fast": FAST})])
    table.loc[table["step"] <= 10, "heldout"] = 0.9  # something that no sigmoid explains
    dropped = fit_own_runs(table, R_0=R_0, drop=2).fits["fast"]
    assert dropped.points == 5 * 18
    assert abs(dropped.boot.curve.B - FAST.B) < 0.2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"y": "aime"}, "no column aime; there are .*heldout"),
        ({"x": "seconds"}, "no column seconds; there are .*tokens"),
        ({"x": "gpu-hours"}, "--gpus"),
        ({"drop": 17}, "fast has a run with 3 points of heldout.*needs 5.*--r0"),
    ],
)
def test_what_cannot_be_fitted_is_named(tmp_path, settings, message):
    table = read_runs([table_of(tmp_path, {"fast": FAST}, seeds=2)])
    with pytest.raises(ValueError, match=message):
        fit_own_runs(table, **settings)


def test_what_is_no_run_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    for path, message in {
        "absent": "no run at",
        "empty": "metrics.jsonl and eval.jsonl are missing",
    }.items():
        with pytest.raises(FileNotFoundError, match=message):
            read_runs([str(tmp_path / path)])
    for path, message in {
        "notes.txt": "not a run folder",
        "no.csv": "no column step; it has a, b",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_runs([str(tmp_path / path)])


def test_the_command_prints_and_writes(tmp_path, capsys):
    path, out = table_of(tmp_path, {"fast": FAST, "slow": SLOW}, seeds=2), tmp_path / "out"
    main(["fit", path, "--r0", "0.3", "--out", str(out)])
    assert "heldout against updates" in capsys.readouterr().out
    facts = json.loads((out / "fit.json").read_text())
    estimate, low, high = facts["recipes"]["fast"]["A"]
    assert low <= estimate <= high and estimate == pytest.approx(0.8, abs=0.02)
    assert facts["recipes"]["fast"]["intervals_over"] == "seeds"
    assert facts["against_the_first"]["slow"]["A"] == facts["against_the_first"]["fast"]["A"]
    assert (out / "fit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main(["fit", str(tmp_path / "absent")])
    assert "rlbook: no run at" in capsys.readouterr().err
