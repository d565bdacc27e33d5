"""How long a reader waits: imports, `make lab` with everything installed, each chapter."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from rlbook.paths import ROOT, data_dir
from workshop.bench.timing import alternate, spread

REPEATS = {"smoke": 1, "full": 5}
IMPORTS = ("rlbook", "rlbook.objectives", "rlbook.training")


def run(size: str) -> list[dict]:
    """One row per thing waited for; chapters as `make book` last timed them, not measured again.

    `make lab` is left out where its environment is not set up, and at the smallest size.
    """
    runs = {"python": lambda: _python("pass")}
    runs |= {f"import {name}": lambda n=name: _python(f"import {n}") for name in IMPORTS}
    if size == "full" and lab_is_warm():
        runs["make lab"] = lab_answers
    measured = alternate(runs, REPEATS[size])
    rows = [{"what": what} | spread(seconds) for what, seconds in measured.items()]
    return rows + [{"what": name} | spread([s]) for name, s in chapter_seconds().items()]


def chapter_seconds() -> dict[str, float]:
    """Seconds of every chapter, from `data/results/chapter_times.json`."""
    path = data_dir() / "results" / "chapter_times.json"
    times = json.loads(path.read_text()) if path.is_file() else {}
    return {name: entry["seconds"] for name, entry in times.items() if "/" not in name}


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def lab_is_warm() -> bool:
    """Whether `make lab` would have nothing to install."""
    if shutil.which("make") is None:
        return False
    question = ["make", "--question", "--silent", "setup"]
    return subprocess.run(question, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0


def lab_answers(limit: float = 120) -> None:
    """Run `make lab` until JupyterLab answers, then end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lab = subprocess.Popen(
        ["make", "lab", f"PORT={port}"],
        cwd=ROOT,
        env=os.environ | {"BROWSER": "true"},  # a browser that does nothing
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/api"), lab, limit)
    finally:
        os.killpg(lab.pid, signal.SIGKILL)
        lab.wait()


def wait_until(done: Callable[[], bool], process: subprocess.Popen, limit: float) -> None:
    deadline = time.monotonic() + limit
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"`make lab` did not answer within {limit:.0f} s")
        time.sleep(0.02)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
