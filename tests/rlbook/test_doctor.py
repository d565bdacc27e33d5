"""The doctor: one table of symptoms, rules that need their columns, logs of three trainers."""

import json
import math
from pathlib import Path

import pytest

from rlbook.cli import main
from rlbook.doctor import RULES, Log, diagnose, in_our_words, read_log, report, row_of, symptoms

HEALTHY = [
    {
        "step": step,
        "reward": 0.3,
        "accuracy": 0.3,
        "length": 36.0,
        "truncated": 0.1,
        "entropy": 0.2,
        "kl": 3e-4,
        "kl_ref": 0.0 if step == 1 else 0.02,
        "clip_fraction": 0.001,
        "mean_weight": 1.0,
        "ratio_min": 0.8,
        "ratio_max": 1.3,
        "grad_norm": 0.4,
        "loss": 0.01,
        "updates": 2,
        "skipped_updates": 0,
        "staleness": 0.0,
        "mismatch": 1e-7,
        "mismatch_max": 1e-6,
        "mismatch_kl": 1e-14,
        "mismatch_correlation": 1.0,
        "surprise": 0.01 * (-1) ** step,
        "surprise_z": 0.5 * (-1) ** step,
        "equal_rewards": 0.2,
        "advantage_by_reward": 0.9,
        "untrained": 0.0,
        "answered": 0.8,
        "format_ok": 0.8,
        "groups": 8,
        "completions": 64,
        "reward_wrong": 0.0,
        "reward_cut": 0.0,
        "reward_by_length": 0.0,
        "rewards/teacher/mean": -0.1,
    }
    for step in range(1, 7)
]


def with_columns(**columns):
    return Log([row | columns for row in HEALTHY])


def names(log):
    return [one.name for one in diagnose(log)]


def test_every_symptom_has_a_rule_and_every_rule_its_words():
    assert list(symptoms()) == list(RULES)
    assert len(RULES) == 25
    for one in symptoms().values():
        assert all([one.seen, one.cause, one.fix, one.look, one.family, one.chapter, one.thread])


def test_a_healthy_log_has_no_symptom():
    assert names(Log(HEALTHY)) == []
    assert "no symptom" in report(Log(HEALTHY))


@pytest.mark.parametrize(
    ("columns", "symptom"),
    [
        ({"skipped_updates": 1}, "overflow"),
        ({"grad_norm": math.nan}, "overflow"),
        ({"step": 3}, "resume_jumps"),
        ({"groups": 64, "grad_norm": 0.0}, "group_of_one"),
        ({"truncated": 1.0}, "all_truncated"),
        ({"answered": 0.0}, "answers_unread"),
        ({"untrained": 1.0}, "ends_untrained"),
        ({"surprise": 0.1, "surprise_z": 4.0}, "temperature"),
        ({"surprise": 0.1, "surprise_z": 4.0, "mismatch_max": 9.0}, "retokenised"),
        ({"mismatch": 0.12, "mismatch_kl": 0.011}, "mismatch"),
        ({"mismatch": 0.01, "mismatch_kl": 0.01}, "routers"),
        ({"kl_ref": 0.1}, "wrong_reference"),
        ({"rewards/teacher/mean": 0.1}, "wrong_divergence"),
        ({"advantage_by_reward": -0.9}, "wrong_sign"),
        ({"reward_by_length": 0.99}, "gamed"),
        ({"reward_cut": 1.0}, "gamed"),
        ({"equal_rewards": 1.0}, "silent_groups"),
        ({"ratio_min": 1.0, "ratio_max": 1.0}, "policy_stands_still"),
        ({"mean_weight": 0.3, "clip_fraction": 0.0}, "ratio_explodes"),
        ({"kl": 0.5}, "collapse"),
        ({"clip_fraction": 0.2}, "region_too_narrow"),
        ({"updates": 1, "clip_fraction": 0.0}, "nothing_clipped"),
        ({"updates": 1, "clip_fraction": 0.0, "loss": 0.0}, "loss_is_zero"),
    ],
)
def test_a_column_out_of_bounds_is_named_first(columns, symptom):
    assert names(with_columns(**columns))[0] == symptom


def test_what_needs_the_whole_run():
    stale = Log([row | {"staleness": 2.0 * row["step"]} for row in HEALTHY])
    assert names(stale) == ["stale"]
    bounded = Log([row | {"staleness": 2.0 * (row["step"] % 4)} for row in HEALTHY])
    assert names(bounded) == []
    louder = [row | {"entropy": 0.1 * row["step"]} for row in HEALTHY]
    assert names(Log(louder)) == ["entropy"]
    learning = [row | {"accuracy": 0.1 * row["step"]} for row in louder]
    assert names(Log(learning)) == []


def test_a_second_log_of_the_same_batch_tells_another_gradient():
    other = [row | {"grad_norm": 0.9} for row in HEALTHY]
    assert names(Log(HEALTHY, beside=Log(other))) == ["micro_batches"]
    elsewhere = [row | {"reward": 0.4} for row in other]
    assert names(Log(HEALTHY, beside=Log(elsewhere))) == []


def test_a_rule_without_its_columns_is_silent():
    assert names(Log([{"step": 1.0, "loss": 0.3, "epoch": 0.1}])) == []


def test_the_folder_of_a_run_is_read_with_its_traceback(tmp_path, capsys):
    lines = "".join(json.dumps(row) + "\n" for row in HEALTHY)
    (tmp_path / "metrics.jsonl").write_text(lines)
    (tmp_path / "err.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert names(read_log(tmp_path)) == ["out_of_memory"]
    main(["doctor", str(tmp_path)])
    assert "micro_batch_tokens" in capsys.readouterr().out


TRL = {
    "loss": 0.0, "grad_norm": 0.0, "reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0,
    "completions/mean_length": 256.0, "completions/clipped_ratio": 1.0, "kl": 0.0,
    "clip_ratio/region_mean": 0.0, "entropy": 0.4,
    "sampling/sampling_logp_difference/mean": 0.004, "step": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", json.dumps({"log_history": [TRL, TRL | {"step": 2}]})),
        ("out.log", f"  5%|▌  | 1/20 {TRL}\n  10%|█  | 2/20 { {**TRL, 'step': '2'} }\n"),
        ("rows.jsonl", json.dumps(TRL) + "\n"),
    ],
)
def test_a_log_of_trl_in_all_its_forms(tmp_path, name, text):
    """Its numbers are those of autocontext PR #1067: every answer cut off, nothing learned."""
    (tmp_path / name).write_text(text)
    log = read_log(tmp_path / name)
    assert (log.first("truncated"), log.first("kl_ref"), log.first("mismatch")) == (1, 0, 0.004)
    assert log.all("kl") == []  # TRL means the reference
    assert names(log)[:2] == ["all_truncated", "silent_groups"]


LOGS = Path(__file__).with_name("logs")  # of TRL 1.16, by workshop.symptoms.trl_logs


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("trl_healthy.json", None),
        ("trl_cut.json", "all_truncated"),
        ("trl_cut.txt", "all_truncated"),
        ("trl_paid.json", "silent_groups"),
    ],
)
def test_what_trl_wrote_itself_of_a_healthy_run_and_of_two_faults(file, first):
    """Two updates a batch, so every second row has no completions; the last one is no step."""
    log = read_log(LOGS / file)
    assert len(log.rows) == 12 and len(log.all("truncated")) == 6
    assert len(log.all("clip_fraction")) == len(log.all("grad_norm")) == 12
    assert (names(log) or [None])[0] == first


def test_a_log_of_verl_on_the_console_and_as_lines(tmp_path):
    console = (
        "(TaskRunner pid=71) step:1 - actor/pg_loss:np.float64(0.01) - actor/grad_norm:0.5 - "
        "actor/ppo_kl:-2.5e-05 - training/rollout_actor_probs_pearson_corr:0.91 - "
        "response_length/clip_ratio:0.1 - critic/advantages/max:0.0 - critic/advantages/min:0.0\n"
    )
    (tmp_path / "verl.log").write_text(console)
    log = read_log(tmp_path / "verl.log")
    assert (log.first("loss"), log.first("kl"), log.first("step")) == (0.01, -2.5e-5, 1)
    assert names(log) == ["mismatch", "silent_groups"]
    row = {"step": 3, "data": {"actor/grad_norm": math.inf, "response_length/mean": 9.0}}
    assert in_our_words(row_of(json.dumps(row))) == {
        "step": 3.0, "grad_norm": math.inf, "length": 9.0
    }  # fmt: skip


def test_a_text_without_metrics_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing {here}\n")
    with pytest.raises(ValueError, match=r"no row of metrics .* notes\.txt"):
        read_log(tmp_path / "notes.txt")
