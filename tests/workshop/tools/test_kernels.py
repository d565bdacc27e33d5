"""Notebooks get forks of one process: each its own, interrupted, ended, and none left behind."""

import os
import subprocess
import sys
import time

import pytest

from rlbook.paths import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kernels are forks")
ASKS = """
from jupyter_client.manager import start_new_kernel

def said(client, code):
    lines = []
    client.execute_interactive(
        code, timeout=60,
        output_hook=lambda m: lines.append(m["content"].get("text", m["content"].get("ename"))))
    return "".join(filter(None, lines)).strip()

kernels = [start_new_kernel(kernel_name="python3", cwd=folder) for folder in ("/", "/tmp")]
pids = []
for manager, client in kernels:
    said(client, "seen = 'graphlib' in __import__('sys').modules; import os, time")
    print(said(client, "print(seen, os.getcwd(), 'mine' in globals())"))
    said(client, "mine = 1")
    pids.append(said(client, "print(os.getpid())"))
manager, client = kernels[0]
asked = client.execute("print('asleep', flush=True); time.sleep(60)")
while client.get_iopub_msg(timeout=60)["content"].get("text") != "asleep\\n": pass
manager.interrupt_kernel()
print(client.get_shell_msg(timeout=60)["content"]["ename"])
kernels[1][0].shutdown_kernel(now=True)
print("one of its own" if len(set(pids)) == 2 else pids)
print(*pids)
"""


def test_every_notebook_gets_a_kernel_of_its_own_and_none_stays(tmp_path):
    program = tmp_path / "asks.py"
    program.write_text(ASKS)
    start = (
        "import sys; from workshop.tools.kernels import run; "
        "sys.exit(run(sys.argv[1:], heavy=['ipykernel.kernelapp', 'graphlib']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", start, sys.executable, str(program)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *lines, pids = done.stdout.splitlines()
    assert lines == [
        "True / False",
        "True /tmp False",
        "KeyboardInterrupt",
        "one of its own",
    ]
    for pid in map(int, pids.split()):
        with pytest.raises(ProcessLookupError):
            for _ in range(600):
                os.kill(pid, 0)
                time.sleep(0.1)


def test_the_status_is_the_commands(tmp_path):
    start = (
        "import sys; from workshop.tools.kernels import run; "
        "sys.exit(run([sys.executable, '-c', 'raise SystemExit(7)'], heavy=[]))"
    )
    assert subprocess.run([sys.executable, "-c", start], cwd=ROOT).returncode == 7
