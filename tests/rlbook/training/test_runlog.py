import json
import math

from rlbook.jsonl import last_row, read_jsonl
from rlbook.training import RunLog, write_csv


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


def test_the_last_row_is_the_last_that_was_written_whole(tmp_path):
    log = tmp_path / "metrics.jsonl"
    assert last_row(log) == {}
    for text, step in (("", None), ('{"st', None), ('{"step": 1}\n{"step": 2}\n{"step": 3', 2)):
        log.write_text(text)
        assert last_row(log).get("step") == step


def test_a_number_that_is_none_is_null_in_every_line_and_nan_again(tmp_path):
    log = RunLog(tmp_path)
    log({"step": 1, "loss": math.nan, "grad_norm": math.inf, "reward": 0.5})
    log.close()

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    (line,) = log.path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["loss"] is None
    (row,) = read_jsonl(log.path)
    assert math.isnan(row["loss"]) and row["reward"] == 0.5


def test_csv_has_the_union_of_columns(tmp_path):
    write_csv(tmp_path / "log.csv", [{"step": 1, "a": 2}, {"step": 2, "b": 3}])
    assert (tmp_path / "log.csv").read_text() == "step,a,b\n1,2,\n2,,3\n"


def test_one_bad_line_costs_one_row_and_the_old_log_is_kept(tmp_path):
    log = RunLog(tmp_path)
    for step in range(1, 6):
        log({"step": step})
    log.close()
    lines = log.path.read_text().splitlines()
    lines[2] = '{"step": 3'
    log.path.write_text("\n".join(lines) + "\n")
    RunLog(tmp_path, resume_step=9).close()
    assert [row["step"] for row in read_jsonl(log.path)] == [1, 2, 4, 5]
    assert (tmp_path / "metrics.jsonl.bak").read_text().splitlines() == lines
