"""Run a third-party scorer on model text in its own process, within a time limit.

An exception stops Python code only, and only in the main thread; a process can be ended wherever it
hangs. Its limit is on the seconds that it computes, so a verdict does not depend on what else the
machine has to do. The worker also has a memory limit, and pickles nothing.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

Row = dict[str, Any]  # as JSON writes it

LOADING_SECONDS = 300.0  # that a scorer's libraries may take
WAITING_SECONDS = 300.0  # that a scorer may stand still besides, on a machine that is too busy
OUT_OF_TIME = getattr(signal, "SIGPROF", None)  # ends a worker that has used its seconds up


class BoundedWorker:
    """A process that answers JSON requests one at a time and is replaced when it is late.

    `call(request, seconds)` returns the worker's answer or raises `TimeoutError` (it computed for
    so long without an end) or `RuntimeError` (died, out of memory, stood still for `waiting` more,
    or reported an error). Thread-safe: calls queue.
    """

    def __init__(self) -> None:
        self.here: Callable[[Row], Row] | None = None  # in the worker process: it scores itself
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[tuple[str, str | None]] = set()  # scorers and tasks, by that process

    def call(self, request: Row, seconds: float, waiting: float = WAITING_SECONDS) -> Row:
        """Send one request that may compute for `seconds`; loading its scorer is not counted."""
        if self.here:
            return self.here(request)
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._start()
            if (scorer := (request["scorer"], request.get("task"))) not in self._loaded:
                loading = {**request, "warm_up": True}
                self._exchange(process, loading, LOADING_SECONDS, WAITING_SECONDS)
                self._loaded.add(scorer)
            reply = self._exchange(process, request, seconds, waiting)
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
            self._loaded.clear()

    def _start(self) -> subprocess.Popen[bytes]:
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
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], request: Row, seconds: float, waiting: float
    ) -> Row:
        """One line out, one line in. Its own limit, or a timer here, ends it and so the wait."""
        (to_worker, from_worker), late = pipes(process), threading.Event()
        message = json.dumps({**request, "seconds": seconds, "waiting": waiting}).encode() + b"\n"

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds + waiting * bool(OUT_OF_TIME), kill)
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
            return dict(json.loads(line))
        with suppress(subprocess.TimeoutExpired):  # its code, before `close` kills it
            process.wait(1)
        code = process.poll()
        self.close()
        if OUT_OF_TIME and code == -OUT_OF_TIME:
            raise TimeoutError(f"scorer found no answer in {seconds:g} s")
        if late.is_set():
            raise RuntimeError(f"scorer stood still for more than {seconds + waiting:g} s")
        raise RuntimeError("scorer process died (out of memory?)")


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The worker's input and output."""
    assert process.stdin and process.stdout
    return process.stdin, process.stdout


WORKER = BoundedWorker()
