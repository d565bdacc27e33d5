"""Processes that end with their parent, and that say that they are alive.

A pipe tells of the end: it closes when its last holder has ended.
"""

import os
import subprocess
import sys
import time

import pytest

from rlbook.scale.process import Heartbeat, LifeSigns

CHILD = (
    "import time; from rlbook.scale.process import {0}; {1}; print('up', flush=True); "
    "time.sleep(120); print('survived')"
)
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.parametrize(
    "code",
    [
        CHILD.format("die_with_parent", "die_with_parent()"),
        CHILD.format(
            "exit_when_orphaned",
            "import os, threading; threading.Thread(target=exit_when_orphaned, "
            "args=(os.getppid(),), daemon=True).start()",
        ),
    ],
    ids=["by the system", "by looking"],
)
def test_a_child_ends_when_its_parent_is_killed(code):
    argv = [sys.executable, "-c", PARENT, code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert parent.stdout.read() == ""


def test_silence_counts_from_the_last_sign_of_life(tmp_path):
    path = tmp_path / "alive" / "trainer"
    life = LifeSigns(path)
    life.look(100.0)
    assert life.silence(since=0.0, now=200.0, loading=200) is None
    assert life.silence(since=0.0, now=201.0, loading=200) == 201
    Heartbeat(path, 30)()
    assert life.look(1000.0) == 1000.0
    path.write_text("")  # being written
    assert life.silence(since=0.0, now=9999.0, loading=200) is None
    path.write_text("30")
    assert life.silence(since=0.0, now=1030.0, loading=200) is None
    assert life.silence(since=0.0, now=1031.0, loading=200) == 31
    # It has shown no life since it was started again: it loads.
    assert life.silence(since=1001.0, now=1201.0, loading=200) is None
    assert life.silence(since=1001.0, now=1202.0, loading=200) == 201


@pytest.mark.parametrize("behind", [-3600, 3600])
def test_the_clock_of_another_machine_does_not_matter(behind, tmp_path):
    """Its files may carry any time: only that it changes is a sign of life."""
    path = tmp_path / "orchestrator"
    Heartbeat(path, 30)()
    os.utime(path, (time.time() + behind,) * 2)
    life = LifeSigns(path)
    assert life.look(5.0) < 5.0  # what was there before the first look is of an earlier process
    for beat in range(1, 5):
        os.utime(path, (time.time() + behind + beat,) * 2)
        assert life.look(100.0 * beat) == 100.0 * beat
    assert life.look(1000.0) == 400.0


def test_a_pulse_survives_a_full_disk_and_says_what_it_allows(tmp_path, monkeypatch):
    path, clock = tmp_path / "trainer", iter(range(0, 100, 10))
    monkeypatch.setattr("rlbook.scale.process.time.monotonic", lambda: next(clock) + 1.0)
    heartbeat = Heartbeat(path, 600)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        heartbeat()
    assert not path.exists()
    heartbeat()
    heartbeat.silence = 900
    heartbeat()
    assert path.read_text() == "900"
