"""What has to be alike on all nodes of a run is looked at before it starts, and named where it is
not. Two processes of this machine stand for two nodes."""

import re
import sys
from copy import deepcopy

import pytest

from rlbook.cli import main
from rlbook.scale.launch.check_nodes import MENDS, PROGRAM, here, judged, table
from rlbook.scale.launch.processes import Report, visit

NEEDED = {"memory": 20e9, "disk": 50e9}
SOUND = {
    "python": "3.12.3",
    "packages": {"torch": "2.13.0", "rlbook": "ab12cd34"},
    "environment": {"HF_HUB_OFFLINE": "1"},
    "folder": "/shared/book",
    "run folder": "shared",
    "model": "903fb2 65 GB",
    "GPU": {"GPUs": "8 × H100", "driver": "570.1", "CUDA": "12.8"},
    "memory": 900e9,
    "disk": 4000e9,
    "clock": [100.0, 101.0, 102.0],
    "all-reduce": 41.5,
}


def nodes(**changed):
    """Three nodes, the last of them with other values; `None` takes one away."""
    reports = [Report(f"10.0.0.{i}", deepcopy(SOUND)) for i in (1, 2, 3)]
    reports[2].values |= changed
    return reports


def test_nothing_is_said_of_nodes_that_are_alike():
    assert [*judged(nodes(), NEEDED)] == []
    shown = table(nodes(), [])
    assert "✗" not in shown and shown.count("41.50 GB/s") == 3


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        ("python", "3.11.9", "python 3.11.9, elsewhere 3.12.3"),
        ("packages", {"torch": "2.11.0", "rlbook": "ab12cd34"}, "torch 2.11.0, elsewhere 2.13.0"),
        ("packages", {"torch": "2.13.0"}, "rlbook None, elsewhere ab12cd34"),
        ("environment", {"NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1"}, "NCCL_DEBUG INFO, .* None"),
        ("environment", {}, "HF_HUB_OFFLINE None, elsewhere 1"),
        ("model", "000000 65 GB", "model 000000 65 GB, elsewhere 903fb2 65 GB"),
        ("GPU", {"GPUs": "8 × H100", "driver": "535.1", "CUDA": "12.8"}, "driver 535.1, .* 570.1"),
        ("memory", 3e9, "3.0 GB free, the run needs 20"),
        ("disk", 0.0, "0.0 GB free, the run needs 50"),
        ("clock", [160.0, 161.0, 162.0], r"\+60.0 s beside"),
        ("clock", [95.0, 96.0, 97.0], r"-5.0 s beside"),
    ],
)
def test_the_node_that_differs_is_named_and_marked(check, value, said):
    reports = nodes(**{check: value})
    ((node, found, what),) = judged(reports, NEEDED)
    assert (node, found) == ("10.0.0.3", check) and re.search(said, what) and MENDS[check]
    _, *rows = table(reports, [(node, check, what)]).splitlines()
    assert [row.count("✗") for row in rows] == [0, 0, 1]


def test_a_clock_that_is_read_late_once_is_no_wrong_clock():
    assert [*judged(nodes(clock=[130.0, 101.0, 109.0]), NEEDED)] == []


def test_a_head_without_gpus_is_not_compared():
    assert [*judged(nodes(GPU=None, **{"all-reduce": None}), NEEDED)] == []


def test_a_node_that_cannot_start_the_runs_processes_says_why(tmp_path):
    no_folder = visit([sys.executable], str(tmp_path / "gone"), {})
    no_python = visit([str(tmp_path / "python")], str(tmp_path), {"RANK": "1"})
    no_package = visit([sys.executable, "-m", "no_such_package"], str(tmp_path), {})
    found = [judged([one], {}) for one in (no_folder, no_python, no_package)]
    ((_, where, gone),), ((node, which, missing),), ((_, what, lacking),) = map(list, found)
    assert where == "folder" and gone.startswith("there is no ")
    assert which == "python" and missing.startswith("there is no ") and node.endswith("(1)")
    assert what == "packages" and "No module named no_such_package" in lacking


@pytest.mark.slow
def test_two_processes_that_are_alike_sum_64_mb_and_leave_nothing(tmp_path, capsys):
    words = "train.processes=2", f"run={tmp_path / 'run'}"
    main(["scale", "configs/cpu-tiny.yaml", "--check-nodes", *words])  # no exit: none is wrong
    said = capsys.readouterr().out
    assert len(re.findall(r"^\S+ \([01]\) .* shared .* GB/s$", said, re.M)) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_disk_without_room_for_the_run_ends_with_an_error(tmp_path, capsys):
    words = "checkpoint.keep=1000000000", f"run={tmp_path / 'run'}"
    with pytest.raises(SystemExit) as ended:
        main(["scale", "configs/cpu-tiny.yaml", "--check-nodes", *words])
    assert ended.value.code == 1
    assert re.search(
        r"\(0\): disk: .* GB free, the run needs .*: free some", capsys.readouterr().out
    )


@pytest.mark.slow
def test_a_folder_that_is_another_one_on_each_node_is_found_out(tmp_path):
    """Both are there, and both can be written; the nodes meet, and their clocks are one."""
    folders = [tmp_path / name / "scratch" for name in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
    reports = here([[sys.executable, "-m", PROGRAM, str(f), "tiny", "cpu"] for f in folders])
    for report, folder in zip(reports, folders, strict=True):
        assert report.wrong == {
            "run folder": f"only 1 of 2 nodes' files are seen in {folder.parent}"
        }
        assert report.values["all-reduce"] > 0 and report.values["packages"]["torch"]
    assert {check for _, check, _ in judged(reports, {})} == {"run folder"}
