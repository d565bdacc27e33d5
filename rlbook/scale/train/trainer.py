"""The trainer process: waits for batches, trains them, brings the weights to the generators.

`python -m rlbook.scale.train.trainer <run folder>`, once for every rank: rank 0 decides what all do
next. Killed at any moment, it starts again from its newest checkpoint and trains the batches since
then once more, from the log.
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
from rlbook.scale.batch_log import has_batch, log_end, read_batch, saved_state
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import adapter_of
from rlbook.scale.process import Heartbeat, die_with_parent, waited
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.scale.train.weight_sync import WeightSync
from rlbook.scaling.shape import model_shape
from rlbook.training import Rollout, RunLog

POLL_SECONDS = 0.05
SILENCE = 600.0  # hung: no micro-batch, no tensor on its way, no look around for so many seconds
FILE_SYSTEM_SECONDS = 60.0  # a batch that rank 0 sees has to be seen by all nodes within


class ScaleTrainer:
    """The loop. State is in files and in the generators; what is here may be lost. Chapter 18."""

    def __init__(self, layout: Layout, config: ScaleConfig):
        self.layout, self.config = layout, config
        self.ranks = Ranks(config.model.device, config.train.accumulate, config.train.shard)
        self.learner = ShardedLearner(config, layout, self.ranks)
        self.learner.load()
        self.checkpoints = self.learner.checkpoints
        self.orchestrator = saved_state(layout) or {}  # its state after the last batch trained
        self.reached = layout.trained()  # before a restart
        self.weight_sync = WeightSync(config, layout, self.learner)
        self.seconds: dict[str, float] = defaultdict(float)  # since the last update, by what for
        self.lap = time.perf_counter()
        self.heartbeat = Heartbeat(layout.alive("trainer"), SILENCE)
        if self.ranks.first:
            self.ranks.alive = self.heartbeat
            self.shape = model_shape(config.model.policy)
            self.adapter = adapter_of(config, self.shape)
            self.log = RunLog(layout.root, self.version)

    def run(self) -> None:
        """Until the last version is trained, saved and delivered, or no further batch will come."""
        order = ""
        while order != "finish":
            with self.timed("wait"):
                order = self.ranks.share(self.decide() if self.ranks.first else None)
            getattr(self, order)()

    def decide(self) -> Literal["train", "save", "push", "wait", "finish"]:
        """Rank 0's choice.

        A checkpoint that could not be written is tried again after the next update. Generators may
        be ahead of a trainer that replays batches: they are left alone until it has caught up. Its
        last version is delivered only once no generator is pinned, which none may be that sleeps.
        """
        self.heartbeat()
        last = log_end(self.layout).get("version", math.inf)
        ended = self.version >= min(self.config.steps, last)
        due = ended or self.checkpoints.failed or self.version % self.config.checkpoint.every == 0
        if due and self.checkpoints.step != self.version:
            return "save"
        ready = has_batch(self.layout, self.version)
        replaying = ready and self.version < self.reached
        pinned = read_json(self.layout.pinned)
        if not replaying and self.weight_sync.is_due(pinned):
            return "push"
        if ended:
            return "finish" if pinned is None else "wait"
        return "train" if ready and not (pinned and self.config.generate.sleep) else "wait"

    def train(self) -> None:
        """The updates of one batch, which every rank reads for itself."""
        waited(lambda: has_batch(self.layout, self.version), FILE_SYSTEM_SECONDS)
        with self.timed("train"):
            rollouts, self.orchestrator = read_batch(self.layout, self.version)
            with self.weight_sync.asleep():
                metrics = self.learner.learn(rollouts)
        if self.ranks.first:
            self.report(rollouts, metrics)
            if self.version >= self.reached:
                self.tell(done=False)

    def save(self) -> None:
        """Begin a checkpoint; it is written while training goes on."""
        self.learner.begin_save(self.orchestrator)

    def push(self) -> None:
        """Bring the newest weights to all generators."""
        with self.timed("push"):
            self.weight_sync.deliver()

    def wait(self) -> None:
        """Nothing to train: all that is known of this trainer is its status, which may be lost."""
        if self.ranks.first and read_json(self.layout.status, {}).get("version") != self.version:
            self.reached = self.version
            self.tell(done=False)
        with self.timed("wait"):
            time.sleep(POLL_SECONDS)

    def finish(self) -> None:
        """Wait for the checkpoint of the last version, and say that the run is done."""
        if not self.checkpoints.settle():
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
        now = time.perf_counter()
        seconds, total, self.lap = self.seconds, now - self.lap, now
        self.seconds = defaultdict(float)
        lengths = [len(r.prompt_ids) + r.length for r in rollouts]
        passes = self.config.optimizer.epochs
        seen = sum(lengths), sum(n * n / 2 for n in lengths)
        flops = passes * self.shape.training_flops(*seen, self.adapter)
        peak = self.ranks.count * self.config.budget.peak_tflops * 1e12
        self.log(
            {
                "step": self.version,
                **metrics,
                "tokens_per_second": sum(r.length for r in rollouts) / total,
                "trainer_idle": seconds["wait"] / total,
                "train_seconds": seconds["train"],
                "push_seconds": seconds["push"],
                "mfu": flops / (seconds["train"] * peak),
                "checkpoint_failures": self.checkpoints.failures,
            }
        )

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the block's seconds to those of this name."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def tell(self, done: bool) -> None:
        """Let the other processes know."""
        slowest = self.weight_sync.slowest
        status = {"version": self.version, "done": done, "time": time.time()}
        write_json(self.layout.status, {**status, "slowest_push": slowest})

    @property
    def version(self) -> int:
        """Batches learned."""
        return self.learner.step


def main() -> None:
    """A rank of the trainer of the run folder named on the command line."""
    die_with_parent()
    layout = Layout(Path(sys.argv[1]))
    config = load_config(layout.config)
    if config.model.device == "cpu":
        set_threads()
    ScaleTrainer(layout, config).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
