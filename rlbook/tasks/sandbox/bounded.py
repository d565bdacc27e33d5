"""Run a third-party scorer on model text in its own process, within a time limit.

Alarms (`signal.SIGALRM`) stop Python code only, and only in the main thread; a process can be
killed wherever it hangs, from any thread. The worker also has a memory limit, and pickles nothing.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

START_SECONDS = 60.0


class BoundedWorker:
    """A process that answers JSON requests one at a time and is replaced when it is late.

    `call(request, seconds)` returns the worker's answer or raises `TimeoutError` (late) or
    `RuntimeError` (died, out of memory, or reported an error). Thread-safe: calls queue.
    """

    def __init__(self) -> None:
        self.here: Callable[[dict], dict] | None = None  # in the worker process: it scores itself
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, request: dict, seconds: float) -> dict:
        """Send one request and wait at most `seconds` (the worker's start not counted)."""
        if self.here:
            return self.here(request)
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._start(request)
            reply = self._exchange(process, request, seconds)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def close(self) -> None:
        """Stop the process; the next call starts a fresh one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in pipes(self._process):
                pipe.close()
            self._process = None

    def _start(self, request: dict) -> subprocess.Popen[bytes]:
        self.close()
        # What can be imported here can be imported there: a task may be the reader's own.
        path = os.pathsep.join(filter(None, sys.path))
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "rlbook.tasks.sandbox.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._exchange(process, {**request, "warm_up": True}, START_SECONDS)
        return process

    def _exchange(self, process: subprocess.Popen[bytes], request: dict, seconds: float) -> dict:
        """One line out, one line in; a timer kills the process, which ends the wait."""
        (to_worker, from_worker), late = pipes(process), threading.Event()
        message = json.dumps({**request, "seconds": seconds}).encode() + b"\n"

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            to_worker.write(message)
            to_worker.flush()
            line = from_worker.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n") and not late.is_set():
            return json.loads(line)
        self.close()
        if late.is_set():
            raise TimeoutError(f"scorer did not answer within {seconds:g} s")
        raise RuntimeError("scorer process died (out of memory?)")


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The worker's input and output."""
    assert process.stdin and process.stdout
    return process.stdin, process.stdout


WORKER = BoundedWorker()
