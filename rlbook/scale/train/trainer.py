"""The trainer process: waits for batches, trains them, brings the weights to the generators.

`python -m rlbook.scale.train.trainer <run folder>`, once for every rank. Rank 0 decides what all do
next.
Killed at any moment, it starts again from its newest checkpoint and trains the batches since then
once more, from the log.
"""

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from rlbook.durable import read_json, write_json
from rlbook.policy import set_threads
from rlbook.scale.batch_log import has_batch, log_end, prune, read_batch, saved_state
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.layout import Layout
from rlbook.scale.process import Heartbeat, die_with_parent
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.weight_sync import WeightSync
from rlbook.scaling.shape import model_shape
from rlbook.training import Rollout, RunLog

POLL_SECONDS = 0.05
SILENCE = 600.0  # hung: no micro-batch, no tensor on its way, no look around for so many seconds
FILE_SYSTEM_SECONDS = 60.0  # a batch that rank 0 sees has to be seen by all nodes within


class ScaleTrainer:
    """The loop. State is in files and in the generators; what is here may be lost. Chapter 17."""

    def __init__(self, layout: Layout, config: ScaleConfig):
        self.layout, self.config = layout, config
        self.ranks = Ranks(config.model.device, config.train.accumulate)
        self.learner = ShardedLearner(config, layout, self.ranks)
        self.learner.load()
        self.orchestrator = saved_state(layout) or {}  # its state after the last batch trained
        self.reached = read_json(layout.status, {}).get("version", 0)  # before a restart
        self.saved = self.version  # of the last checkpoint begun
        self.save_again, self.failed_saves = False, 0
        self.weight_sync = WeightSync(config, layout, self.learner)
        self.watch = Stopwatch()
        self.heartbeat = Heartbeat(layout.alive("trainer"), SILENCE)
        if self.ranks.first:
            self.ranks.alive = self.heartbeat
            self.shape = model_shape(config.model.policy)
            self.log = RunLog(layout.root, self.version)

    def run(self) -> None:
        """Until the last version is trained, saved and delivered, or no further batch will come."""
        while True:
            with self.watch("wait"):
                order = self.ranks.share(self.decide() if self.ranks.first else None)
            if order == "stop":
                return self.finish()
            getattr(self, order)()
            self.settle(wait=False)

    def decide(self) -> Literal["train", "push", "wait", "stop"]:
        """Rank 0's choice.

        Generators may be ahead of a trainer that replays batches: they are left alone until it
        has caught up. Its last version is delivered only once no generator is pinned.
        """
        self.heartbeat()
        ready = has_batch(self.layout, self.version)
        replaying = ready and self.version < self.reached
        pinned = read_json(self.layout.pinned)
        if not replaying and self.weight_sync.is_due(pinned):
            return "push"
        last = (log_end(self.layout) or {}).get("version", math.inf)
        if self.version >= min(self.config.steps, last):
            return "stop" if pinned is None else "wait"
        return "train" if ready else "wait"

    def train(self) -> None:
        """The updates of one batch; a checkpoint if it is time for one."""
        with self.watch("train"):
            rollouts, self.orchestrator = self.read()
            metrics = self.learner.learn(rollouts)
        if self.ranks.first:
            self.report(rollouts, metrics)
        last = self.version == self.config.steps
        if self.save_again or last or self.version % self.config.checkpoint.every == 0:
            self.save()
        if self.ranks.first and self.version >= self.reached:
            self.tell(done=False)

    def push(self) -> None:
        """Bring the newest weights to all generators."""
        with self.watch("push"):
            self.weight_sync.deliver()

    def wait(self) -> None:
        """Nothing to train: all that is known of this trainer is its status, which may be lost."""
        if self.ranks.first and read_json(self.layout.status, {}).get("version") != self.version:
            self.reached = self.version
            self.tell(done=False)
        with self.watch("wait"):
            time.sleep(POLL_SECONDS)

    def read(self) -> tuple[list[Rollout], dict]:
        """The batch of this version, which every rank reads for itself."""
        deadline = time.monotonic() + FILE_SYSTEM_SECONDS
        while not has_batch(self.layout, self.version) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return read_batch(self.layout, self.version)

    def save(self) -> None:
        """Begin a checkpoint, once the one before is settled."""
        self.settle(wait=True)
        with self.watch("save"):
            self.learner.begin_save(self.orchestrator)
        self.saved, self.save_again = self.version, False

    def settle(self, wait: bool) -> None:
        """See to the checkpoint that is being written; if it fails, again after the next update."""
        with self.watch("save"):
            durable = self.learner.checkpoints.settle(wait)
        if durable is not None:
            self.save_again = not durable
            self.failed_saves += not durable
            if self.ranks.first:
                prune(self.layout, self.learner.checkpoints.oldest or 0)

    def finish(self) -> None:
        """Leave a checkpoint of the last version, and say that the run is done."""
        self.settle(wait=True)
        if self.save_again or self.saved != self.version:
            self.save()
            self.settle(wait=True)
        if self.save_again:
            raise OSError(
                f"the checkpoint of version {self.version}, the last one, cannot be written to "
                f"{self.layout.checkpoints}: make room there; the run then goes on by itself"
            )
        if self.ranks.first:
            self.tell(done=True)
            self.log.close()
        self.weight_sync.close()

    def report(self, rollouts: Sequence[Rollout], metrics: dict[str, float]) -> None:
        """The update's row of metrics."""
        seconds = self.watch.lap()
        lengths = [len(r.prompt_ids) + r.length for r in rollouts]
        passes = self.config.optimizer.epochs
        flops = passes * self.shape.training_flops(sum(lengths), sum(n * n / 2 for n in lengths))
        peak = self.ranks.count * self.config.budget.peak_tflops * 1e12
        self.log(
            {
                "step": self.version,
                **metrics,
                "tokens_per_second": sum(r.length for r in rollouts) / seconds["total"],
                "trainer_idle": seconds["wait"] / seconds["total"],
                "train_seconds": seconds["train"],
                "push_seconds": seconds["push"],
                "mfu": flops / (seconds["train"] * peak),
                "checkpoint_failures": self.failed_saves,
            }
        )

    def tell(self, done: bool) -> None:
        """Let the other processes know."""
        write_json(self.layout.status, {"version": self.version, "done": done, "time": time.time()})

    @property
    def version(self) -> int:
        """Batches learned."""
        return self.learner.step


class Stopwatch:
    """Seconds by what they were spent on: `with watch("train"): …`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap, `total` being all of them."""
        now = time.perf_counter()
        lap, lap["total"] = self.seconds, now - self.start
        self.seconds, self.start = defaultdict(float), now
        return lap


def main(arguments: Sequence[str]) -> None:
    """A rank of the trainer of the run folder named on the command line."""
    die_with_parent()
    layout = Layout(Path(arguments[0]))
    config = load_config(layout.config)
    if config.model.device == "cpu":
        set_threads()
    ScaleTrainer(layout, config).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
