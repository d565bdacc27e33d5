"""Processes that are forked from one that has imported their module before."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.layout import Layout
from workshop.chaos.victims import status_of

STUB = """
import atexit, json, os, pathlib, subprocess, sys, time
import numpy  # which starts threads
atexit.register(time.sleep, 600)  # large libraries take long to go
from rlbook.scale.process import die_with_parent

fatal = pathlib.Path(__file__).with_name("fatal")
if fatal.exists() and "multiprocessing.forkserver" in " ".join(sys.orig_argv):
    fatal.unlink()
    os.kill(os.getpid(), 9)

def main():
    die_with_parent()
    print("hello", flush=True)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    facts = {
        "argv": sys.argv, "group": os.getpgid(0), "child": child.pid, "cwd": os.getcwd(),
        "name": __name__, "said": os.environ["SAID"], "launcher": os.environ["RLBOOK_LAUNCHER"],
    }
    with open(f"{sys.argv[1]}/{os.getpid()}.json", "w") as file:
        json.dump(facts, file)
    if sys.argv[2] == "exit":
        sys.exit(3)
    time.sleep(600)

if __name__ == "__main__":
    main()
"""
LAUNCHER = """
import sys
from pathlib import Path
from rlbook.scale.config import LaunchConfig
from rlbook.scale.launch import processes
from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout

folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
processes.FORKED[:] = ["stub"]
argv = [sys.executable, "-m", "stub", *sys.argv[1:]]
command = processes.Command("stub", argv, {"SAID": "by the command"})
Supervisor([command], Layout(folder / "run"), LaunchConfig()).watch(lambda: False)
"""  # nothing keeps its main module from being run again by whoever imports it


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def alive(pid):
    return status_of(pid) not in (None, psutil.STATUS_ZOMBIE)


@pytest.fixture
def start(tmp_path):
    """Start a launcher of the stub."""
    (tmp_path / "stub.py").write_text(STUB)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    started = []

    def start(what):
        argv = [sys.executable, tmp_path / "launcher.py", tmp_path, what]
        started.append(subprocess.Popen(argv, cwd=tmp_path))
        return started[0]

    yield start
    for launcher in started:
        launcher.kill()
        launcher.wait()


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "run")


def stub_of(layout, other_than=None):
    """Process id of the stub that runs, and what it says of itself."""

    def found():
        pid = read_json(layout.processes, {}).get("stub")
        facts = read_json(layout.root.parent / f"{pid}.json")
        return pid != other_than and facts and (pid, facts)

    return until(found)


def fork_server(pid):
    """Process id of what a process was forked from."""
    parent = psutil.Process(pid).parent()
    assert "multiprocessing.forkserver" in " ".join(parent.cmdline())
    return parent.pid


def test_it_is_what_its_command_line_would_have_started(start, layout, tmp_path):
    launcher = start("sleep")
    pid, facts = stub_of(layout)
    assert facts["argv"] == ["stub", str(tmp_path), "sleep"] and facts["name"] == "stub"
    assert facts["said"] == "by the command" and facts["launcher"] == str(launcher.pid)
    assert facts["group"] == pid and facts["cwd"] == str(tmp_path)
    assert psutil.Process(pid).name() == "stub"  # as `top` shows it
    server = psutil.Process(fork_server(pid))
    assert server.ppid() == launcher.pid and server.num_threads() == 1
    first, second = (layout.logs / "stub.log").read_text().splitlines()
    assert first.startswith("--- ") and second == "hello"


def test_it_ends_with_its_launcher(start, layout):
    launcher = start("sleep")
    pid, _ = stub_of(layout)
    server = fork_server(pid)
    launcher.kill()
    launcher.wait()
    until(lambda: not (alive(pid) or alive(server)))


@pytest.mark.parametrize("whom", ["it", "what it was forked from"])
def test_it_is_started_again(whom, start, layout):
    """With what it left behind gone."""
    start("sleep")
    pid, facts = stub_of(layout)
    os.kill(pid if whom == "it" else fork_server(pid), signal.SIGKILL)
    again, _ = stub_of(layout, other_than=pid)
    assert not alive(pid) and not alive(facts["child"])
    assert alive(again) and fork_server(again)
    death = next(row for row in read_jsonl(layout.log("events")) if row["event"] == "death")
    assert whom != "it" or death["reason"] == "killed by SIGKILL"


def test_it_is_started_anew_if_what_it_would_be_forked_from_dies_then(start, layout, tmp_path):
    (tmp_path / "fatal").touch()
    launcher = start("sleep")
    pid, facts = stub_of(layout)
    assert facts["name"] == "__main__" and psutil.Process(pid).ppid() == launcher.pid
    os.kill(pid, signal.SIGKILL)
    again, facts = stub_of(layout, other_than=pid)
    assert facts["name"] == "stub" and psutil.Process(fork_server(again)).ppid() == launcher.pid


def test_its_exit_code_is_known(start, layout):
    start("exit")
    until(lambda: '"death"' in (layout.log("events").read_text() if layout.root.exists() else ""))
    death = next(row for row in read_jsonl(layout.log("events")) if row["event"] == "death")
    assert json.dumps(death["code"]) == "3" and death["reason"] == "exit code 3"
