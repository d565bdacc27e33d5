"""Two programs in turns: each runs in a process of its own and does one step when it is asked to.

`python -m rlbook.bench.worker {rlbook,trl} '<workload as JSON>'` answers every line on its standard
input with one JSON line about the step it then did.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from rlbook.bench.workload import Workload


class Worker:
    """The parent's end: a context manager around the process; `step()` has it do its next step."""

    def __init__(self, program: str, workload: Workload, python: str = sys.executable):
        command = [python, "-m", "rlbook.bench.worker", program, json.dumps(asdict(workload))]
        self.program = program
        self.errors = None if os.environ.get("RLBOOK_BENCH_VERBOSE") else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception) -> None:
        self.process.kill()
        self.process.communicate()

    def step(self) -> dict[str, float]:
        """Report of the next step: seconds, cpu_seconds, peak_mib, idle_mib, lengths, accuracy.

        `lengths` are the tokens of every completion's prompt and of the completion itself.
        """
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(
                f"{self.program} ended with status {self.process.wait()} instead of doing its "
                "step: RLBOOK_BENCH_VERBOSE=1 shows what it says"
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

    def end(self, lengths: list[tuple[int, int]], accuracy: float) -> None:
        seconds, cpu = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        memory = {"peak_mib": resident_mib("VmHWM"), "idle_mib": self.idle_mib}
        times = {"seconds": seconds, "cpu_seconds": cpu}
        report = times | memory | {"lengths": lengths, "accuracy": accuracy}
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
    while True:
        turns.begin()
        rollouts = trainer.collect()
        metrics = trainer.learn(rollouts)
        lengths = [(len(r.prompt_ids), r.length) for r in rollouts]
        turns.end(lengths, metrics["accuracy"])


def main(program: str, workload: str) -> None:
    from rlbook.bench.trl_program import run_trl
    from rlbook.policy import set_threads

    programs: dict[str, Callable[[Workload, Turns], None]] = {"rlbook": run_rlbook, "trl": run_trl}
    set_threads()
    turns = Turns(sys.stdout)
    with redirect_stdout(sys.stderr):  # standard output belongs to the reports
        programs[program](Workload(**json.loads(workload)), turns)


if __name__ == "__main__":
    main(*sys.argv[1:])
