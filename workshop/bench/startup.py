"""How long a reader waits: imports, `make lab` with everything installed, each chapter.

And for a full-scale run on the laptop: its first update, and the first after a trainer's death,
with processes that are forked from one that has imported all they need (as they are), or started.
"""

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rlbook.durable import read_json
from rlbook.paths import ROOT, data_dir
from workshop.bench.timing import alternate, spread

REPEATS = {"smoke": 1, "full": 5}
# How often a run is launched beside so many loops that compete for the cores.
LAUNCHES = {"smoke": {0: 1}, "full": {0: 3, 16: 2}}
IMPORTS = ("rlbook", "rlbook.objectives", "rlbook.training")
TINY_RUN = "steps=400", "generate.engine=builtin", "evaluation.every=0", "checkpoint.every=1"


def run(size: str) -> list[dict]:
    """One row per thing waited for; chapters as `make book` last timed them, not measured again.

    `make lab` is left out where its environment is not set up, and at the smallest size.
    """
    runs = {"python": lambda: _python("pass")}
    runs |= {f"import {name}": lambda n=name: _python(f"import {n}") for name in IMPORTS}
    if size == "full" and lab_is_warm():
        runs["make lab"] = lab_answers
    measured = alternate(runs, REPEATS[size])
    for loops, repeats in LAUNCHES[size].items():
        measured |= launches(repeats, loops)
    rows = [{"what": what} | spread(seconds) for what, seconds in measured.items()]
    return rows + [{"what": name} | spread([s]) for name, s in chapter_seconds().items()]


def chapter_seconds() -> dict[str, float]:
    """Seconds of every chapter, from `data/results/chapter_times.json`."""
    path = data_dir() / "results" / "chapter_times.json"
    times = json.loads(path.read_text()) if path.is_file() else {}
    return {name: entry["seconds"] for name, entry in times.items() if "/" not in name}


def launches(repeats: int, loops: int) -> dict[str, list[float]]:
    """Seconds to the first update of a tiny run, and to the next after its trainer was killed.

    Forked and started processes take turns, beside so many busy loops.
    """
    beside = f", beside {loops} busy loops" if loops else ""
    seconds: dict[str, list[float]] = {}
    with busy(loops):
        for how in ("forked", "started") * repeats:
            first, next_one = tiny_run(how)
            seconds.setdefault(f"first update, {how}{beside}", []).append(first)
            seconds.setdefault(f"update after a death, {how}{beside}", []).append(next_one)
    return seconds


def tiny_run(how: str) -> tuple[float, float]:
    """Of a run in a process of its own, from the call of `launch` on."""
    with TemporaryDirectory() as folder:
        result = Path(folder, "seconds.json")
        argv = [sys.executable, "-m", __spec__.name, how, folder, str(result)]
        subprocess.run(argv, check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
        first, next_one = read_json(result)
    return first, next_one


def run_until_killed_once(how: str, folder: str, result: str) -> None:
    """Launch a tiny run, kill its trainer at the first update, stop it at the next."""
    from rlbook.scale.config import load_config
    from rlbook.scale.launch import processes
    from rlbook.scale.launch.start import Interrupted, launch

    if how == "started":
        processes.FORKED.clear()
    config = load_config(ROOT / "configs/cpu-tiny.yaml", [f"run={folder}/run", *TINY_RUN])
    status, times, reached = config.folder / "status.json", [time.perf_counter()], [1]

    def tick(supervisor) -> None:
        if read_json(status, {}).get("version", 0) < reached[0]:
            return
        times.append(time.perf_counter())
        if len(times) == 3:
            raise Interrupted("enough")
        (trainer,) = (one for one in supervisor.watched if one.name == "trainer")
        trainer.signal(signal.SIGKILL)
        trainer.wait(10)
        reached[0] = read_json(status)["version"] + 1  # it may have made another meanwhile

    try:
        launch(config, tick=tick)
    except Interrupted:
        start, first, after = times
        Path(result).write_text(json.dumps([first - start, after - first]))


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Inside, so many processes do nothing but compute."""
    with ExitStack() as stack:
        for _ in range(loops):
            loop = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


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


if __name__ == "__main__":
    run_until_killed_once(*sys.argv[1:])
