"""The doctor: one table of symptoms, rules that need their columns, logs of TRL and verl."""

import json
import math
from pathlib import Path

import pytest

from rlbook.cli import main
from rlbook.doctor import RULES, Log, askable, diagnose, read_log, report, shown, symptoms
from rlbook.logs import in_our_words, row_of

HEALTHY = [
    {
        "step": step,
        "reward": 0.3,
        "accuracy": 0.3 + 0.01 * (-1) ** step,
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
        "reward_by_correct": 0.9,
        "right_unread": 0.0,
        "mixed_groups": 0.0,
        "asked_again": 0.1,
        "heldout_asked": 0.0,
        "learning_rate": 1e-5,
        "explained_variance": 0.02 * step,
    }
    for step in range(1, 9)
]


def with_columns(**columns):
    return Log([row | columns for row in HEALTHY])


def names(log):
    return [one.name for one in diagnose(log)]


def told(log):
    """Symptoms, or their branches, with the numbers that are shown of them."""
    return {one.sight.branch or one.name: shown(one.sight, log) for one in diagnose(log)}


def columns(n=40, **named):
    """A log of so many rows, each column a function of the step or one number."""
    rows = range(1, n + 1)
    return Log([{"step": i} | {k: f(i) if callable(f) else f for k, f in named.items()}
                for i in rows])  # fmt: skip


def wave(i):
    return (0.01, -0.01, 0.0)[i % 3]


def test_every_symptom_has_a_rule_and_every_rule_its_words():
    assert list(symptoms()) == list(RULES)
    for one in symptoms().values():
        assert all(
            [one.seen, one.cause, one.fix, one.needs, one.look, one.family, one.chapter, one.thread]
        )
        assert all(words["seen"] for words in one.branches.values())


def test_a_healthy_log_has_no_symptom():
    assert names(Log(HEALTHY)) == []
    said = report(Log(HEALTHY))
    assert "no symptom" in said
    assert f"{len(RULES) - 2} of {len(RULES)} questions could be asked" in said  # no text, no other


@pytest.mark.parametrize(
    ("columns", "symptom"),
    [
        ({"skipped_updates": 1}, "overflow"),
        ({"grad_norm": math.nan}, "overflow"),
        ({"groups": 64, "grad_norm": 0.0}, "group_of_one"),
        ({"truncated": 1.0}, "all_truncated"),
        ({"answered": 0.0}, "answers_unread"),
        ({"right_unread": 0.1}, "right_unread"),
        ({"accuracy": 0.5}, "accuracy_constant"),
        ({"grad_norm": 0.0}, "gradient_lost"),
        ({"reward_by_correct": 0.1}, "reward_elsewhere"),
        ({"mixed_groups": 0.5}, "reward_elsewhere"),
        ({"learning_rate": 0.0}, "policy_stands_still"),
        ({"explained_variance": 0.0}, "critic_stands_still"),
        ({"asked_again": 1.0}, "same_problems"),
        ({"heldout_asked": 0.1}, "heldout_trained"),
        ({"kl_ref": math.inf}, "overflow"),
        ({"groups": 64, "advantage_by_reward": 0.0}, "group_of_one"),
        ({"entropy": 0.01, "equal_rewards": 0.7}, "entropy"),
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


def test_windows_see_what_comes_later():
    cut = [row | {"truncated": min(1.0, 0.1 + 0.2 * max(0, row["step"] - 3))} for row in HEALTHY]
    assert "all_truncated" in names(Log([*cut, cut[-1] | {"step": 9}, cut[-1] | {"step": 10}]))
    one = [row | ({"kl_ref": 3e5} if row["step"] == 5 else {}) for row in HEALTHY]
    assert names(Log(one)) == ["spike"]
    gone = [row | ({"accuracy": 0.0, "reward": 0.0} if row["step"] > 4 else {}) for row in HEALTHY]
    assert names(Log(gone)) == ["collapse"]


def test_a_part_that_rises_while_accuracy_falls_is_named():
    rows = [
        HEALTHY[0] | {"step": n, "accuracy": 0.6 - 0.02 * n, "reward": n / 20} for n in range(20)
    ]
    assert names(Log(rows)) == ["gamed"]
    assert names(Log([row | {"reward": row["accuracy"]} for row in rows])) == []


def test_a_second_log_of_the_same_batch_tells_another_gradient():
    other = [row | {"grad_norm": 0.9} for row in HEALTHY]
    assert names(Log(HEALTHY, beside=Log(other))) == ["micro_batches"]
    elsewhere = [row | {"reward": 0.4} for row in other]
    assert names(Log(HEALTHY, beside=Log(elsewhere))) == []


def test_tokens_of_older_weights_say_nothing_of_the_engine():
    log = Log([row | {"mismatch_correlation": 0.9, "staleness": 3.0} for row in HEALTHY])
    assert names(log) == []


def test_a_rule_without_its_columns_is_silent():
    log = Log([{"step": 1.0, "loss": 0.3}])
    assert names(log) == [] and askable(log) == ["overflow", "resume_jumps"]
    assert "2 of" in report(log) and "stale (staleness)" in report(log, everything=True)
    assert "little" in report(log) and "stale" not in report(log)  # no bill of health
    with pytest.raises(ValueError, match=r"none of \d+ questions"):
        report(Log([{"tokens": 9.0}]))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_no_column_beyond_those_it_needs(name):
    """With these alone it is asked, and without any one of them it is not."""
    needs = [need.split("|")[0] for need in symptoms()[name].needs]
    columns = {"parts": "rewards/teacher/mean"}
    kept = {columns.get(need, need) for need in needs} | {"step"}
    rows = [{k: v for k, v in row.items() if k in kept} for row in HEALTHY]
    text, beside = "x" * ("text" in needs), Log(HEALTHY) if "beside" in needs else None
    log = Log(rows, text, beside)
    assert name in askable(log)
    RULES[name](log)
    for need in set(needs) - {"text", "beside", "step"}:
        less = [{k: v for k, v in row.items() if k != columns.get(need, need)} for row in rows]
        assert name not in askable(Log(less, text, beside))


def test_the_folder_of_a_run_is_read_with_its_traceback(tmp_path, capsys):
    lines = "".join(json.dumps(row) + "\n" for row in HEALTHY)
    (tmp_path / "metrics.jsonl").write_text(lines)
    (tmp_path / "err.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert names(read_log(tmp_path)) == ["out_of_memory"]
    main(["doctor", str(tmp_path)])
    page = capsys.readouterr().out
    assert "log    torch.OutOfMemoryError: CUDA out of memory.\n" in page
    assert "micro_batch_tokens" in page and "Not asked" not in page
    main(["doctor", str(tmp_path), "--all", "--beside", str(tmp_path / "metrics.jsonl")])
    assert "8 rows: 33 of 33 questions" in capsys.readouterr().out


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
    assert in_our_words([row_of(json.dumps(row))]).rows == [
        {"step": 3.0, "grad_norm": math.inf, "length": 9.0}
    ]


def test_a_step_without_an_update_is_no_overflow(tmp_path):
    """It has no loss: bare NaN in logs of earlier versions, null in those of today."""
    healthy = {"step": 1, "loss": 0.1, "grad_norm": 0.3, "updates": 4, "skipped_updates": 0}
    silent = {"step": 2, "loss": math.nan, "grad_norm": math.nan, "updates": 0}
    for second in (silent, silent | {"loss": None, "grad_norm": None}):
        (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(healthy)}\n{json.dumps(second)}\n")
        assert "overflow" not in names(read_log(tmp_path))


def test_a_text_without_metrics_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing {here}\n")
    with pytest.raises(ValueError, match=r"notes\.txt: no column here"):
        read_log(tmp_path / "notes.txt")


def test_a_restart_from_a_checkpoint_is_no_symptom_and_one_from_nothing_is():
    learning = columns(40, accuracy=lambda i: i / 50 + wave(i)).rows
    assert names(Log([*learning[:30], *learning[20:]])) == []
    assert told(Log([*learning[:30], *learning])) == {
        "resume_jumps": "step 30 (step 30), 1 (step 1); accuracy 0.61 (step 30), 0.01 (step 1)"
    }


def test_half_of_what_was_learnt_is_lost_between_two_rows():
    def lost(i):
        return 0.2 + min(i, 20) / 50 + wave(i) - 0.3 * (i > 24)

    assert told(columns(40, accuracy=lost)) == {
        "falls_back": "accuracy 0.61 (step 24), 0.29 (step 25)"
    }
    assert told(columns(40, accuracy=lambda i: 0.2 + i / 50 + wave(i))) == {}
    noise = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8]
    assert told(columns(70, accuracy=lambda i: noise[i % 7])) == {}
    for_now = columns(60, accuracy=lambda i: 0.2 + i / 100 - 0.2 * (30 < i < 42) + wave(i))
    assert told(for_now) == {}


def test_held_out_answers_get_worse_while_reward_rises():
    def held(i):
        return min(0.02 * i, 0.8 - 0.02 * i) if i % 2 == 0 else math.nan

    log = columns(40, reward=lambda i: 0.02 * i + wave(i), **{"heldout/reward": held})
    assert told(log) == {
        "held_out": "heldout/reward 0.4 (step 20), 0 (step 40); "
        "reward 0.4 (step 20), 0.79 (step 40)"
    }
    flat = columns(40, reward=lambda i: 0.02 * i, **{"heldout/reward": lambda i: 0.4 + wave(i)})
    assert told(flat) == {}
    both = columns(40, reward=held, **{"heldout/reward": held})
    assert "held_out" not in told(both)


@pytest.mark.parametrize("name", ["kl_ref", "kl_ref_sum", "grad_norm"])
def test_exponential_growth_is_named_and_no_power_of_the_step(name):
    growing = told(columns(40, **{name: lambda i: 1e-4 * 1.32**i}))
    assert growing == {"runaway": f"{name} 0.000132 (step 1), 0.034 (step 21), 6.65 (step 40)"}
    assert told(columns(40, **{name: lambda i: 1e-4 * i})) == {}
    assert told(columns(40, **{name: lambda i: 1e-4 * i**3})) == {}
    assert told(columns(40, **{name: lambda i: 1e-5 * 1.25**i})) == {}  # and 0.08 is not much


def test_large_steps_are_no_collapse_where_answers_get_better():
    worse = columns(12, kl=0.15, accuracy=0.4)
    assert told(worse)["far_steps"].startswith("kl 0.15 (step 1)")
    assert "accuracy" not in next(o for o in diagnose(worse) if o.sight.branch == "far_steps").seen
    assert told(columns(12, kl=0.15, reward=lambda i: 0.05 * i)) == {}


def test_a_collapse_shows_its_best_and_its_last():
    log = columns(20, reward=lambda i: 0.5 + wave(i) if i < 11 else 0.0)
    assert told(log)["collapse"] == "reward 0.5 (step 2), 0 (step 20)"
    rare = [0.3, 0.0, 0.4, 0.0, 0.1, 0.3, 0.0, 0.0, 0.1]
    assert told(columns(9, accuracy=lambda i: rare[i - 1])) == {}  # two of nine by luck


def test_answers_that_shrink_to_nothing():
    log = columns(40, length=lambda i: 300 * 0.88**i)
    assert told(log) == {"short_answers": "length 264 (step 1), 1.8 (step 40)"}
    assert told(columns(40, length=lambda i: 300 * 0.97**i)) == {}


@pytest.mark.parametrize(
    ("column", "least", "most"),
    [
        ("mismatch", 0.008, 0.7), ("mismatch_kl", 6e-4, 0.24), ("mismatch_prob", 0.003, 0.2),
    ],
)  # fmt: skip
def test_engine_and_trainer_part(column, least, most):
    log = columns(30, **{column: lambda i: least * (most / least) ** ((i - 1) / 29)})
    assert told(log) == {"parted": f"{column} {least:.3g} (step 1), {most:.3g} (step 30)"}
    assert told(columns(30, **{column: most})) == {"mismatch": f"{column} {most} … {most}"}
    assert told(columns(30, **{column: least})) == {}
    assert told(columns(30, **{column: lambda i: most if i % 3 == 0 else least})) == {}


def test_groups_fall_silent_at_last():
    def silent(i):
        return 0.3 if i < 25 else 1.0

    solved = columns(40, equal_rewards=silent, reward=lambda i: min(1.0, i / 25))
    assert told(solved) == {
        "all_solved": "equal_rewards 1 (step 25), 1 (step 40); reward 1 (step 25), 1 (step 40)"
    }
    dead = told(columns(40, equal_rewards=silent, reward=lambda i: 0.4 + wave(i) if i < 25 else 0))
    assert list(dead) == ["collapse", "silent_at_last"]  # what it comes of first
    assert told(columns(40, equal_rewards=lambda i: 1.0 if i > 36 else 0.3, reward=0.4)) == {}


def test_a_spike_is_shown_in_its_rows_and_growth_is_none():
    log = columns(40, grad_norm=lambda i: 6.0 if i in (12, 31) else 0.1 + wave(i))
    assert told(log) == {"spike": "grad_norm 6 (step 12), 6 (step 31)"}
    assert told(columns(40, grad_norm=lambda i: 0.9 if i == 12 else 0.03)) == {}
    assert told(columns(40, grad_norm=lambda i: 4.0 if i < 3 else 0.3)) == {}


def test_what_is_no_number_is_shown_at_its_first_row():
    log = columns(20, loss=lambda i: math.nan if i > 14 else 0.1, grad_norm=0.2)
    assert told(log) == {"overflow": "loss nan (step 15)"}


def test_entropy_that_is_gone_while_nothing_gets_better():
    def entropy(least):
        return lambda i: least + (0.4 - least) * 0.8**i

    assert "no_entropy" in told(columns(60, entropy=entropy(0.02), reward=0.3))
    assert told(columns(60, entropy=entropy(0.06), reward=0.3)) == {}
    learning = columns(60, entropy=entropy(0.02), reward=lambda i: 0.01 * i)
    assert told(learning) == {}


def test_gradients_that_wake_up_are_no_spikes():
    """Nothing to learn in most rows, and a gradient of usual size in the others."""
    assert told(columns(40, grad_norm=lambda i: 2.0 + i / 20 if i % 5 == 0 else 0.01)) == {}


def test_a_third_of_all_tokens_is_clipped():
    assert list(told(columns(9, clip_fraction=0.45))) == ["much_clipped"]
    assert told(columns(9, clip_fraction=0.2)) == {}


def test_logs_of_other_training_are_called_so():
    pairs = in_our_words([{"loss": 0.6, "rewards/chosen": -0.1, "rewards/rejected": -0.2}] * 9)
    assert "preference pairs, no log of reinforcement learning" in report(pairs)
    imitation = in_our_words([{"loss": 1.6, "grad_norm": 1.0, "mean_token_accuracy": 0.6}] * 9)
    assert "imitation, no log of reinforcement learning" in report(imitation)


def test_the_last_error_is_said_of_a_run_that_broke_off(tmp_path):
    (tmp_path / "out.log").write_text(
        "KeyError: a warning before the first step\n"
        + "\n".join(f"step:{i} - actor/grad_norm:0.{3 + i % 2} - actor/lr:1e-6" for i in range(9))
        + "\n(Worker pid=3) Traceback (most recent call last):\n"
        "\x1b[36m(Worker pid=3)\x1b[0m KeyError: 'ground_truth'\n"
    )
    assert "It ends in an error (step 8): KeyError: 'ground_truth'\n" in report(read_log(tmp_path))
    whole = (tmp_path / "out.log").read_text().split("(Worker")[0]
    (tmp_path / "out.log").write_text(whole)
    assert "error" not in report(read_log(tmp_path))
