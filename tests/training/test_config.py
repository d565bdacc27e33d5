import subprocess
import sys

import pytest
from pydantic import ValidationError

from rlbook.training import RunLog, TrainConfig, read_jsonl, write_csv


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"steps": 0}, "steps"),
        ({"temperature": 0}, "temperature"),
        ({"retire_at": 0.9}, "retire_at needs a finite pool"),
        ({"learning_rate": 1e-4}, "learning_rate"),
        ({"anchor": "old"}, "'sampler' or 'recomputed'"),
        ({"minibatches": 32}, r"minibatches \(32\) cannot exceed prompts \(16\)"),
        (
            {"reward_right": 0.0, "reward_wrong": 0.0},
            r"reward_right \(0.0\) must exceed reward_wrong",
        ),
    ],
)
def test_bad_values_name_the_field(settings, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**settings)


def rlbook(*arguments):
    command = [sys.executable, "-m", "rlbook", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_shell_names_the_field_and_the_fix():
    result = rlbook("train", "--lr", "-1")
    assert result.returncode == 2
    assert "lr: Input should be greater than 0" in result.stderr
    assert "Traceback" not in result.stderr


def test_shell_help_lists_the_settings():
    result = rlbook("train", "--help")
    assert result.returncode == 0
    assert "--group-size" in result.stdout
    assert "completions per prompt" in result.stdout


def test_run_log_survives_a_killed_run(tmp_path):
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        log({"step": step, "reward": step / 2})
    log.close()
    with log.path.open("a") as file:
        file.write('{"step": 4, "rew')
    assert [row["step"] for row in read_jsonl(log.path)] == [1, 2, 3]
    resumed = RunLog(tmp_path, resume_step=2)
    resumed({"step": 3, "reward": 9.0})
    resumed.close()
    assert [row["reward"] for row in read_jsonl(log.path)] == [0.5, 1.0, 9.0]
    assert (tmp_path / "metrics.csv").read_text().splitlines()[-1] == "3,9.0"


def test_csv_has_the_union_of_columns(tmp_path):
    write_csv(tmp_path / "log.csv", [{"step": 1, "a": 2}, {"step": 2, "b": 3}])
    assert (tmp_path / "log.csv").read_text() == "step,a,b\n1,2,\n2,,3\n"
