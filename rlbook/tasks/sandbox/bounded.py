"""Run a third-party scorer on model text in its own process, within a time limit.

Alarms (`signal.SIGALRM`) stop Python code only, and only in the main thread; a process can be
killed wherever it hangs, from any thread. The worker also has a memory limit, and pickles nothing.
"""

import atexit
import json
import subprocess
import sys
import threading

START_SECONDS = 60.0


class BoundedWorker:
    """A process that answers JSON requests one at a time and is replaced when it is late.

    `call(request, seconds)` returns the worker's answer or raises `TimeoutError` (late) or
    `RuntimeError` (died, out of memory, or reported an error). Thread-safe: calls queue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def call(self, request: dict, seconds: float) -> dict:
        """Send one request and wait at most `seconds` (the worker's start not counted)."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start(request)
            reply = self._exchange(request, seconds)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def close(self) -> None:
        """Stop the process; the next call starts a fresh one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def _start(self, request: dict) -> None:
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlbook.tasks.sandbox.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._exchange({**request, "warm_up": True}, START_SECONDS)

    def _exchange(self, request: dict, seconds: float) -> dict:
        """One line out, one line in; a timer kills the process, which ends the wait."""
        process, late = self._process, threading.Event()
        message = json.dumps({**request, "seconds": seconds}).encode() + b"\n"

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            process.stdin.write(message)
            process.stdin.flush()
            line = process.stdout.readline()
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


WORKER = BoundedWorker()
