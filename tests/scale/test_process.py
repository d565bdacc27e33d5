"""Processes that end with their parent. A pipe tells: it closes when its last holder has ended."""

import subprocess
import sys

import pytest

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
