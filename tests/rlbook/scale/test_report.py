"""The report: what it says, what it leaves out, and that it stands alone."""

import base64
import json
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rlbook.durable import write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.config import ScaleConfig, dump_config
from rlbook.scale.layout import Layout
from rlbook.viz.report import PANELS, figures_of, write_report
from rlbook.viz.run_record import key_figures, read_run


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run(tmp_path):
    """A run of four updates in which the trainer died once and an evaluation was made twice."""
    layout = Layout(tmp_path / "<script>run")
    layout.root.mkdir()
    config = ScaleConfig(steps=4, generate={"token": "s3cret"})
    layout.config.write_text(dump_config(config))
    write_json(layout.status, {"version": 4, "done": True})
    trained = [
        {
            "step": i,
            "time": 60.0 * i,
            "staleness_min": 0,
            "staleness_mean": i / 2,
            "staleness_max": i,
        }
        | {"mismatch_fresh": 1e-6, "mismatch_stale": 0.01 * i, "tokens_per_second": 100.0 * i}
        | {"trainer_idle": 0.25, "entropy": float("nan"), "mfu": 0.1}
        for i in (1, 2, 3, 4)
    ]
    write_rows(layout.log("metrics"), trained)
    sampled = [{"step": i, "reward": 0.1 * i, "accuracy": 0.2 * i} for i in (1, 2, 3, 4, 5)]
    write_rows(layout.log("rollouts"), sampled)
    evaluations = [
        {"step": s, "pass@1": p, "pass@2": p + 0.1, "pass@1_low": p - 0.05, "pass@1_high": p + 0.05}
        for s, p in ((0, 0.2), (4, 0.7))
    ]
    write_rows(layout.log("eval"), evaluations)
    events = [
        {"time": 0.0, "process": "trainer", "event": "start", "pid": 1},
        {"time": 90.0, "process": "trainer", "event": "death", "reason": "killed by SIGKILL"},
        {"time": 91.0, "process": "trainer", "event": "start", "pid": 2},
        {"time": 240.0, "process": "trainer", "event": "end", "code": 0},
    ]
    write_rows(layout.log("events"), events)
    answer = {"step": 4, "prompt": "2+2=?", "answer": "<think>4</think>", "expected": "4"}
    answer |= {"correct": False, "reward": -1.0, "truncated": True, "tokens": 7, "staleness": 0}
    write_rows(layout.log("samples"), [answer])
    return layout


def test_answers_are_shown_as_text(run):
    page = write_report(run.root).read_text()
    assert "update 4, wrong, expected 4, reward -1, 7 tokens, truncated" in page
    assert "2+2=?\n&lt;think&gt;4&lt;/think&gt;" in page


def test_key_figures(run):
    figures = key_figures(read_run(run.root))
    assert figures["Run"].endswith("4 of 4 steps, done")
    assert figures["Time"].startswith("4.0 minutes")
    assert figures["Deaths"] == "1: trainer 1 (killed by SIGKILL)"
    assert figures["Held-out pass@1"] == (
        "0.200 [0.150, 0.250] after 0 steps → 0.700 [0.650, 0.750] after 4 steps"
    )
    assert figures["Tokens per second"].startswith("250 ")  # median of 100, 200, 300, 400
    assert figures["Mean staleness of a trained token"].startswith("1.25 ")
    assert figures["Trainer idle"].startswith("25%")
    assert "Generators idle" not in figures  # nobody reported it


def test_sets_have_figures_of_their_own(run):
    rows = read_jsonl(run.log("eval"))
    hard = [{"step": row["step"], "set": "hard", "pass@1": row["pass@1"] / 2} for row in rows]
    own = key_figures(read_run(run.root))["Held-out pass@1"]
    write_rows(run.log("eval"), [row for pair in zip(rows, hard, strict=True) for row in pair])
    figures = key_figures(read_run(run.root))
    assert figures["Held-out pass@1"] == own
    assert figures["hard pass@1"] == "0.100 after 0 steps → 0.350 after 4 steps"


def test_rows_of_both_logs_meet_by_step(run):
    record = read_run(run.root)
    assert [row["step"] for row in record.steps] == [1, 2, 3, 4, 5]
    assert record.steps[1]["reward"] == 0.2 and record.steps[1]["staleness_max"] == 2
    assert record.column("staleness_max") == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_there_is_a_figure_for_what_was_reported_and_none_for_the_rest(run):
    titles = [title for title, _, _ in figures_of(read_run(run.root))]
    assert titles[0] == "Evaluation" and titles[-1] == "Processes"
    assert {"Reward", "Accuracy", "Mismatch", "Staleness of trained tokens", "Throughput"} <= set(
        titles
    )
    assert not {"Entropy", "Length", "Truncated"} & set(titles)


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.found += [value for name, value in attributes if name in ("src", "href")]


def test_the_report_stands_alone_and_tells_no_secret(run):
    text = write_report(run.root).read_text()
    page = Links()
    page.feed(text)
    assert "script" not in page.tags  # the folder's name is text, not markup
    assert page.found and all(link.startswith("data:image/svg+xml;base64,") for link in page.found)
    images = [base64.b64decode(link.partition(",")[2]).decode() for link in page.found]
    assert "s3cret" not in text + "".join(images)
    for image in images:
        root = ElementTree.fromstring(image)
        assert root.tag.endswith("svg")
        assert not re.search(r'(href|src)="http', image)
    assert "generate.token" in text and '"torch"' in unescape(text)


def test_a_run_that_has_hardly_begun(tmp_path):
    layout = Layout(tmp_path)
    layout.config.write_text(dump_config(ScaleConfig()))
    assert "No update has been made yet" in write_report(tmp_path).read_text()
    write_rows(layout.log("metrics"), [{"step": 1, "accuracy": 0.5}])
    assert "Accuracy" in write_report(tmp_path).read_text()


def test_every_metric_of_a_panel_is_in_the_dictionary_of_metrics():
    import rlbook.training.metrics as metrics

    names = {name for panel in PANELS for name in (*panel.columns, *(panel.band or ()))}
    known = metrics.__doc__.replace("_min/mean/max", "_min staleness_mean staleness_max")
    known += " ".join((*metrics.COMPLETIONS, *metrics.GROUPS))
    assert {name for name in names if not re.search(rf"\b{name}\b", known)} == set()


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run in"):
        write_report(tmp_path)
