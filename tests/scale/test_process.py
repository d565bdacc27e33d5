"""Processes that end with their parent, and that say that they are alive.

A pipe tells of the end: it closes when its last holder has ended.
"""

import os
import subprocess
import sys

import pytest

from rlbook.scale.process import Pulse, silent_too_long

CHILD = (
    "import time; from rlbook.scale.process import {0}; {1}; print('up', flush=True); "
    "time.sleep(20); print('survived')"
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


@pytest.mark.parametrize(
    ("started", "now", "silence"),
    [
        (0, 1030, None),  # allowed
        (0, 1031, 31),
        (1001, 1201, None),  # it has shown no life since it started: it loads
        (1001, 1202, 201),
    ],
)
def test_silence_counts_from_the_last_sign_of_life(started, now, silence, tmp_path):
    path = tmp_path / "alive" / "trainer"
    assert silent_too_long(path, now - 200, now, 200) is None
    assert silent_too_long(path, now - 201, now, 200) == 201
    path.parent.mkdir()
    path.write_text("")  # being written
    assert silent_too_long(path, now - 201, now, 200) is None
    Pulse(path, 30)()
    os.utime(path, (1000, 1000))
    assert silent_too_long(path, started, now, 200) == silence


def test_a_pulse_survives_a_full_disk_and_says_what_it_allows(tmp_path, monkeypatch):
    path, clock = tmp_path / "trainer", iter(range(0, 100, 10))
    monkeypatch.setattr("rlbook.scale.process.time.monotonic", lambda: next(clock) + 1.0)
    pulse = Pulse(path, 600)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        pulse()
    assert not path.exists()
    pulse()
    pulse.silence = 900
    pulse()
    assert path.read_text() == "900"
