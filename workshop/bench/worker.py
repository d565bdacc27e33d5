"""Two programs in turns: each runs in a process of its own and does one step when it is asked to.

`python -m workshop.bench.worker {rlbook,trl} '<workload as JSON>'` answers every line on its
standard input with one JSON line about the step it then did.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from workshop.bench.workload import Workload

SHOWN = 2000  # characters of what a program said before it ended


class Worker:
    """The parent's end: a context manager around the process; `step()` has it do its next step."""

    def __init__(self, program: str, command: Sequence[str], env: dict[str, str] | None = None):
        self.program = program
        self.errors = TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(command, **pipes, text=True, env=env)

    @classmethod
    def of(cls, program: str, workload: Workload, python: str = sys.executable) -> "Worker":
        """One that runs this module."""
        command = [python, "-m", "workshop.bench.worker", program, json.dumps(asdict(workload))]
        return cls(program, command)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def step(self) -> dict[str, float]:
        """Report of the next step: seconds, cpu_seconds, peak_mib, idle_mib, sequences, accuracy.

        `sequences` are the token ids of every completion's prompt and of the completion itself.
        Raises `RuntimeError` with the last that the program said if it ended instead.
        """
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        if not (line := self.process.stdout.readline()):
            status = self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(
                f"{self.program} ended with status {status} instead of doing its step:\n"
                + self.errors.read()[-SHOWN:]
            )
        return json.loads(line)


class Turns:
    """The process's end: `begin` waits until it is asked for a step, `end` reports it."""

    def __init__(self, output):
        self.output, self.idle_mib = output, None

    def begin(self) -> None:
        self.idle_mib = self.idle_mib or resident_mib("VmRSS")
        if not sys.stdin.readline():
            raise SystemExit
        self.start = time.perf_counter(), time.process_time()

    def end(self, sequences: Sequence[tuple[list[int], list[int]]], accuracy: float) -> None:
        seconds, cpu = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        memory = {"peak_mib": resident_mib("VmHWM"), "idle_mib": self.idle_mib}
        times = {"seconds": seconds, "cpu_seconds": cpu}
        report = times | memory | {"sequences": sequences, "accuracy": accuracy}
        print(json.dumps(report), file=self.output, flush=True)


def resident_mib(field: str) -> float:
    """Resident memory of this process now ("VmRSS") or at its peak ("VmHWM").

    Where the system has no /proc, the peak in both cases.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def run_rlbook(workload: Workload, turns: Turns) -> None:
    from rlbook.training import Trainer

    trainer = Trainer(workload.config)
    if workload.recompute == "both":  # what the sampler gave would do: like with like
        trainer.source.remembers = False
    while True:
        turns.begin()
        rollouts = trainer.collect()
        metrics = trainer.learn(rollouts)
        turns.end([(r.prompt_ids, r.token_ids) for r in rollouts], metrics["accuracy"])


def main(program: str, workload: str) -> None:
    from rlbook.policy import set_threads
    from workshop.bench.trl_program import run_trl

    programs: dict[str, Callable[[Workload, Turns], None]] = {"rlbook": run_rlbook, "trl": run_trl}
    set_threads()
    turns = Turns(sys.stdout)
    with redirect_stdout(sys.stderr):  # standard output belongs to the reports
        programs[program](Workload(**json.loads(workload)), turns)


if __name__ == "__main__":
    main(*sys.argv[1:])
