"""Logs as other trainers leave them: what is read, and what the doctor says of it first."""

import gzip
import json
import math
from pathlib import Path

import pytest

from rlbook.doctor import askable, diagnose, report
from rlbook.logs import our_name, read_log

STEPS = range(1, 21)


def wave(i):
    return 1 + 0.1 * math.sin(2.3 * i + 0.7)


def trl(i, **changed):
    return {
        "loss": 0.012 * wave(i), "grad_norm": 0.3 * wave(i), "learning_rate": 1e-6,
        "completions/mean_length": 300 * wave(i), "completions/clipped_ratio": 0.08 * wave(i),
        "rewards/accuracy_reward/mean": 0.4 * wave(i), "rewards/format_reward/mean": 0.9,
        "reward": 1.3 * wave(i), "reward_std": 0.3, "frac_reward_zero_std": 0.3 * wave(i),
        "entropy": 0.5 * wave(i), "clip_ratio/region_mean": 0.001, "epoch": 0.01 * i,
    } | changed  # fmt: skip


def old_trl(i, **changed):
    return {
        "loss": 0.001 * i, "grad_norm": 0.4 * wave(i), "learning_rate": 1e-6,
        "rewards/accuracy_reward": 0.3 * wave(i), "rewards/format_reward": 0.8 * wave(i),
        "reward": 1.1 * wave(i), "reward_std": 0.4, "completion_length": 240.0, "kl": 0.02 * i,
    } | changed  # fmt: skip


def verl(i, **changed):
    return {
        "training/global_step": i, "actor/entropy": 0.4 * wave(i), "actor/pg_loss": 0.001,
        "actor/kl_loss": 1e-4 * i * i, "actor/ppo_kl": 2e-4, "actor/pg_clipfrac": 0.001,
        "actor/grad_norm": 0.2 * wave(i), "actor/lr": 1e-6, "critic/score/mean": 0.4 * wave(i),
        "critic/advantages/max": 2.0, "critic/advantages/min": -2.0, "prompt_length/mean": 99.0,
        "response_length/mean": 500 * wave(i), "response_length/clip_ratio": 0.1,
    } | changed  # fmt: skip


def openrlhf(i, **changed):
    return {
        "policy_loss": 0.01 * wave(i), "actor_lr": 5e-7, "ppo_kl": 1e-4, "kl": 2.9e-4 * i * i,
        "reward": 0.4 * wave(i), "response_length": 400 * wave(i), "truncated": 0.05,
        "group_reward_std": 0.3, "grad_norm": 0.5 * wave(i),
    } | changed  # fmt: skip


def under(prefix, row):
    return {prefix + name: value for name, value in row.items()}


def lines(rows):
    return "\n".join(map(json.dumps, rows)) + "\n"


def table(rows, mark=","):
    rows = list(rows)
    return "\n".join(mark.join(map(str, row)) for row in (rows[0], *(r.values() for r in rows)))


def console(rows):
    said = (" - ".join(f"{k}:np.float64({v})" for k, v in row.items()) for row in rows)
    return "\n".join(f"(TaskRunner pid=7) step:{i} - {line}" for i, line in enumerate(said, 1))


def history(**changed):
    return [{"_step": i, "_runtime": 3.0 * i} | under("train/", trl(i, **changed)) for i in STEPS]


CHART = "qwen - train/frac_reward_zero_std"
LOGS = {  # what the doctor says first, by form of the log and run
    "wandb.jsonl": (lines(history()), ""),
    "wandb.csv": (table(history(**{"completions/clipped_ratio": 1.0})), "all_truncated"),
    "chart.csv": (
        f'"Step","{CHART}","{CHART}__MIN"\n' + "".join(f'"{i}","0.98","0.1"\n' for i in STEPS),
        "silent_groups",
    ),
    "spaces.csv": (
        table(({" step": i, " reward": 1.0, " kl": 0.2, " entropy": 0.4} for i in STEPS), " , "),
        "",
    ),
    "tabs.tsv": (table([trl(i, grad_norm=math.nan) for i in STEPS], "\t"), "overflow"),
    "run-a-tag-train_entropy.csv": (
        table({"Wall time": i, "Step": i, "Value": 0.1 * 1.3**i} for i in STEPS), "entropy"
    ),
    "nan.log": (
        "\n".join(str(trl(i, loss=0.1 if i < 19 else math.nan)) for i in STEPS), "overflow"
    ),
    "inf.log": ("\n".join(str(trl(i, kl=0.0 if i < 9 else math.inf)) for i in STEPS), "overflow"),
    "settings.log": (
        str({"learning_rate": 0.0, "beta": 0.04, "max_steps": 20})
        + "\n" + "\n".join(str({k: str(v) for k, v in trl(i).items()}) for i in STEPS), ""
    ),
    "verl.log": (console([verl(i) for i in STEPS]), ""),
    "verl_nan.log": (console(verl(i, **{"actor/grad_norm": math.nan}) for i in STEPS), "overflow"),
    "verl_critic.log": (
        console([verl(i, **{"critic/vf_explained_var": -0.3, "critic/grad_norm": 0.0})
                 for i in STEPS]), "critic_stands_still"
    ),
    "openrlhf.log": ("\n".join(f"✨ Global step {i}: {openrlhf(i)}" for i in STEPS), ""),
    "openrlhf_bar.log": (
        "\n".join(f"{i}%|▎ | {i}/60 [01:10<10:00,  5.2s/it, "
                  + ", ".join(f"{k}={v:.3g}" for k, v in openrlhf(i, kl=math.nan).items()) + "]"
                  for i in STEPS), "overflow"
    ),
    "old.log": ("\n".join(str(old_trl(i)) for i in STEPS), ""),
    "constant.log": (
        "\n".join(str(old_trl(i, **{"rewards/accuracy_reward": 0.25})) for i in STEPS),
        "accuracy_constant",
    ),
    "swift.jsonl": (
        lines(trl(i, **{"completions/clipped_ratio": 0.05 + 0.045 * i, "reward": 1.5 - 0.05 * i,
                        "global_step/max_steps": f"{i}/20", "percentage": "5%"})
              for i in STEPS), "all_truncated"
    ),
    "prime.log": (
        "\n".join(f"10:00:{i} SUCCESS Step {i} | Time: 8.20s | Loss: -0.0012 | Entropy: {wave(i)}"
                  " | Grad. Norm: 0.21 | LR: 1.00e-06" for i in STEPS), ""
    ),
    "rows.json": (json.dumps([trl(i, learning_rate=0.0) for i in STEPS]), "policy_stands_still"),
    "columns.json": (
        json.dumps({"train/reward": [1.0] * 9, "train/entropy": [0.1 * 1.3**i for i in range(9)]}),
        "entropy",
    ),
    "nested.jsonl": (
        lines({"step": i, "train": {"reward": 0.4, "grad_norm": 0.3 if i != 12 else 4e3}}
              for i in STEPS), "spike"
    ),
    "gamed.json": (
        json.dumps({"log_history": [trl(i, reward=0.9 + 0.03 * i, step=i, **{
            "rewards/accuracy_reward/mean": 0.5 - 0.015 * i}) for i in STEPS]}), "gamed"
    ),
    "notebook.txt": (
        "| Step | Training Loss | reward | completions / clipped_ratio | kl |\n"
        "|---|---|---|---|---|\n"
        + "\n".join(f"| {i} | {0.01 * i:.6f} | 0.4 | 1.000000 | 0.001 |" for i in STEPS),
        "all_truncated",
    ),
    "verl_kl.log": (console(verl(i, **{"actor/kl_loss": 0.001 * i}) for i in STEPS), ""),
    "memory.log": (
        "Traceback (most recent call last):\ntorch.OutOfMemoryError: HIP out of memory.\n",
        "out_of_memory",
    ),
    "lost.tfevents.0": (None, "gradient_lost"),  # by tensorboard itself, half of it as tensors
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_read_in_the_form_it_has(name, tmp_path):
    text, first = LOGS[name]
    path = tmp_path / name
    if text is None:
        path = Path(__file__).with_name("logs") / name
    else:
        path.write_text(text)
    log = read_log(path)
    found = [one.name for one in diagnose(log) if not one.harmless]
    assert found[:1] == ([first] if first else [])
    assert len(log.rows) in ((0,) if first == "out_of_memory" else (8, 9, 20))
    assert f"{len(askable(log))} of" in report(log)


def test_kl_is_what_the_trainer_means_and_nothing_where_none_is_known(tmp_path):
    rows = {
        "kl_ref": old_trl(1), "kl": {"kl": 0.2, "equal_rewards": 0.1, "clip_fraction": 0.0},
        "nothing": {"kl": 0.2, "reward": 0.1},
    }  # fmt: skip
    for name, row in rows.items():
        (tmp_path / name).write_text(lines([row] * 3))
        assert {"kl", "kl_ref"} & read_log(tmp_path / name).rows[0].keys() == {name} - {"nothing"}


def test_measurements_and_critics_are_not_taken_for_the_policy(tmp_path):
    row = under("eval_", trl(1)) | under("val/", trl(1)) | {"critic/kl": 9.0, "reward": 1.0}
    (tmp_path / "log.jsonl").write_text(lines([row]))
    log = read_log(tmp_path / "log.jsonl")
    known = {"reward": 1.0, "heldout/reward": 1.3 * wave(1),
             "heldout/rewards/accuracy_reward": 0.4 * wave(1)}  # fmt: skip
    assert log.rows == [known] and "eval_entropy" in log.unknown


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("weather.csv", "date,temperature\n1,20\n2,21\n", "it has date, temperature"),
        ("tensorboard.csv", "Wall time,Step,Value\n1,2,3\n", "Value of what"),
        ("cut.json", '{"log_history": [', "ends in the middle"),
        ("notes.txt", "nothing here", "no column here"),
        ("empty.jsonl", "", "no row in it"),
        ("empty.csv", "", "no row in it"),
        ("header.csv", "_step,train/reward,train/entropy\n", "no row in it"),
        ("kl.csv", "_step,train/kl\n1,0.5\n2,0.6\n", "KL to the reference, or to the policy"),
        ("early.log", "Traceback\nKeyError: 'answer'\n", "before it ended: KeyError: 'answer'"),
        ("runs.csv", "Name,State,train/reward\na,finished,0.5\n", "table of runs"),
        (
            "three.csv",
            "Step,good - train/reward,good - train/reward__MIN,dead - train/reward\n1,1,1,0\n",
            "2 runs, good, dead",
        ),
        ("odd.csv", "Step;train/reward;train/entropy\n1;1.2x;0.5x\n2;1.3x;0.4x\n", "1.2x"),
        ("run.wandb", "x", "export the run's history"),
    ],
)
def test_what_is_no_log_is_said(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_log(tmp_path / name)


def german(rows, mark):
    return table(rows, mark).replace(".", ",")


def quoted(text):
    return "\n".join(",".join(f'"{cell}"' for cell in row.split(";")) for row in text.split("\n"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("points.csv", table(history()).encode()),
        ("german.csv", german(history(), ";").encode()),
        ("german.tsv", german(history(), "\t").encode()),
        ("german.txt", german(history(), ";").encode()),
        ("quoted.csv", quoted(german(history(), ";")).encode()),
        ("utf16.csv", table(history()).encode("utf-16")),
        ("utf16le.csv", table(history()).encode("utf-16-le")),
        ("zipped.csv.gz", gzip.compress(table(history()).encode())),
        ("zipped.jsonl.gz", gzip.compress(lines(history()).encode())),
    ],
)  # fmt: skip
def test_a_table_is_read_in_whatever_it_is_written(name, data, tmp_path):
    (tmp_path / name).write_bytes(data)
    log = read_log(tmp_path / name)
    assert len(log.rows) == 20 and log.first("learning_rate") == 1e-6
    assert log.all("grad_norm") == [0.3 * wave(i) for i in STEPS]


def test_commas_of_thousands_are_no_decimal_commas(tmp_path):
    (tmp_path / "a.csv").write_text('Step,reward,length\n1,0.5,"1,234"\n2,0.6,"1,300"\n')
    assert read_log(tmp_path / "a.csv").rows[1] == {"step": 2, "reward": 0.6}


def test_charts_of_one_run_and_its_evaluations_are_one_row_a_step(tmp_path):
    for name in ("reward", "entropy"):
        text = f"Step,run - train/{name}\n" + "".join(f"{i},0.{i}\n" for i in range(1, 7))
        (tmp_path / f"{name}.csv").write_text(text)
    log = read_log(tmp_path)
    assert log.rows[2] == {"step": 3, "entropy": 0.3, "reward": 0.3} and len(log.rows) == 6
    rows = [{"step": i, "reward": 0.1 * i, "entropy": 0.5} for i in (1, 2, 3, 2, 3)]
    again = [*rows, {"step": 3, "reward": 0.9, "entropy": 0.5}, {"step": 3, "eval_reward": 0.2}]
    (tmp_path / "log.jsonl").write_text(lines(again))
    assert [row["reward"] for row in read_log(tmp_path / "log.jsonl").rows] == [
        0.1,
        0.2,
        0.1 * 3,
        0.9,
    ]
    assert read_log(tmp_path / "log.jsonl").rows[-1]["heldout/reward"] == 0.2


def test_null_to_the_end_is_a_number_that_json_cannot_write(tmp_path):
    for nulls, first in (((15, 16, 17, 18, 19, 20), "overflow"), ((3, 9, 20), None)):
        rows = [trl(i, step=i, **({"loss": None} if i in nulls else {})) for i in STEPS]
        (tmp_path / "log.jsonl").write_text(lines(rows))
        found = [one.name for one in diagnose(read_log(tmp_path / "log.jsonl"))]
        assert (found or [None])[0] == first


@pytest.mark.parametrize(
    ("column", "ours"),
    [
        ("eval_reward", "heldout/reward"),
        ("eval/rewards/accuracy_reward/mean", "heldout/rewards/accuracy_reward"),
        ("val-core/openai/gsm8k/reward/mean@1", "heldout/openai/gsm8k/reward"),
        ("val/test_score/math", "heldout/test_score/math"),
        ("val-core/openai/gsm8k/reward/best@4/mean", None),
        ("eval_reward_std", None),
        ("eval_rewards/length_reward/mean", None),
        ("val/clipfrac_avg", None),
    ],
)
def test_what_held_out_answers_are_worth_has_a_name(column, ours):
    assert our_name(column, "TRL") == (ours and (ours, ours))


def test_a_folder_of_runs_names_them(tmp_path):
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "slurm-1.out").write_text(console(verl(i) for i in STEPS))
    with pytest.raises(ValueError, match="below it: one, two"):
        read_log(tmp_path)
    assert len(read_log(tmp_path / "one").rows) == 20
