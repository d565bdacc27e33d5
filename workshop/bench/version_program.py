"""Steps of whichever rlbook comes first on the path, one for every line on standard input.

`PYTHONPATH=<clone> python version_program.py '{"method": …}'`: run as a file, so that it works
beside versions that have no workshop; it uses nothing but `RunConfig` and `Trainer`.
"""

import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path


def peak_mib() -> float:
    """The process's resident memory at its peak; 0 where the system has no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0.0
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main(settings: str) -> None:
    output = sys.stdout
    with redirect_stdout(sys.stderr):  # standard output belongs to the reports
        from rlbook.policy import set_threads
        from rlbook.training import RunConfig, Trainer

        set_threads()
        trainer = Trainer(RunConfig(**json.loads(settings)))
        for _ in sys.stdin:
            start = time.process_time()
            rollouts = trainer.collect()
            sampled = time.process_time()
            accuracy = trainer.learn(rollouts)["accuracy"]
            report = {
                "sampling": sampled - start,
                "learning": time.process_time() - sampled,
                "tokens": sum(rollout.length for rollout in rollouts),
                "accuracy": accuracy,
                "peak_mib": peak_mib(),
            }
            print(json.dumps(report), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
