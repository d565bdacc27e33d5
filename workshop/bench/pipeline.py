"""The simulator of chapter 17 against real asynchronous runs on this machine.

What the simulator is given: the seconds that the run needed for an update, for a push and for a
group from request to verdict; how a decode step grows with its load, measured in the sampler alone;
lengths sampled beforehand, from the policy that the run hardly changes. What it has to find out:
who waits for whom and how long, how many updates a minute that makes, how old the tokens get.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import nnls

from rlbook.jsonl import read_jsonl
from rlbook.paths import ROOT
from rlbook.policy import load_policy, sample
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.start import launch
from rlbook.scale.layout import Layout
from rlbook.scale.rollout.orchestrator import ASKED_PER_SLOT
from rlbook.scaling.simulator import Cluster, PipelineRun, pipeline_rl, simulate
from rlbook.tasks import get_task
from rlbook.training.chat import encode
from rlbook.training.pool import training_pool
from workshop.bench.timing import timed

CONFIG = ROOT / "configs" / "cpu-tiny.yaml"
SLOTS = {"smoke": (128,), "full": (128, 16)}  # with few of them the generator is the slower side
STALENESS = {"smoke": (1,), "full": (0, 1, 2, 4, 8)}
UPDATES = {"smoke": 3, "full": 100}
WARMUP = {"smoke": 1, "full": 40}  # updates until the pipeline has settled: not counted
LOADS = {"smoke": (8, 16), "full": (8, 16, 32, 64, 128)}
ROUNDS = {"smoke": 1, "full": 8}  # completions per slot when a decode step is timed
ADJUSTMENTS = 4  # of the decode step to the run's groups: its load changes with it
OF_UPDATES = {
    "update_seconds": "train_seconds",
    "push_seconds": "push_seconds",
    "trainer_idle": "trainer_idle",
    "mean_staleness": "staleness_mean",
}
OF_BATCHES = {
    "group_seconds": "group_seconds",
    "generator_idle": "generator_idle",
    "seconds": "batch_seconds",
}


def run(size: str) -> list[dict]:
    """Per number of slots and bound on staleness, a row "measured" and a row "simulated".

    Given to the simulator: seconds of an update, a push and a group. Compared: seconds from one
    update to the next, shares of the time in which generator and trainer wait, mean staleness of a
    trained token in updates.
    """
    rows, sampling = [], _Sampling(size)
    lengths, decode = sampling.lengths(), sampling.decode_costs(LOADS[size], ROUNDS[size])
    with TemporaryDirectory() as folder:
        for slots in SLOTS[size]:
            for staleness in STALENESS[size]:
                config = _config(slots, staleness, size, Path(folder) / f"{slots}-{staleness}")
                measured = _measure(config, WARMUP[size])
                simulated = measured | _predict(config, lengths, decode, measured, WARMUP[size])
                setting = {"slots": slots, "max_staleness": staleness}
                rows.append(setting | {"source": "measured"} | measured)
                rows.append(setting | {"source": "simulated"} | simulated)
    return rows


def _config(slots: int, staleness: int, size: str, folder: Path) -> ScaleConfig:
    """The laptop's configuration with the built-in sampler, fixed weights, nothing on the side."""
    changes = {
        "run": folder,
        "steps": UPDATES[size],
        "optimizer.minibatches": 1,
        "generate.max_staleness": staleness,
        "generate.target_staleness": staleness,
        "generate.engine": "builtin",
        "generate.slots": slots,
        "optimizer.lr": 1e-12,
        "data.retire_at": "null",
        "evaluation.every": 0,
        "checkpoint.every": UPDATES[size],
    }
    return load_config(CONFIG, tuple(f"{name}={value}" for name, value in changes.items()))


def _measure(config: ScaleConfig, warmup: int) -> dict[str, float]:
    """Means over the updates of a real run, after the first `warmup`."""
    launch(config)
    layout = Layout(config.folder)
    sampled, trained = (read_jsonl(layout.log(name))[warmup:] for name in ("rollouts", "metrics"))
    figures = {name: fmean(row[column] for row in trained) for name, column in OF_UPDATES.items()}
    return figures | {
        name: fmean(row[column] for row in sampled) for name, column in OF_BATCHES.items()
    }


def _predict(
    config: ScaleConfig,
    lengths: Sequence[int],
    decode: Sequence[float],
    measured: Mapping[str, float],
    warmup: int,
) -> dict[str, float]:
    """The same figures from the simulator, its groups taking as long as those of the run."""
    batch, slower = config.batch_size, 1.0
    generate, size = config.generate, config.rollout.group_size
    schedule = pipeline_rl(generate.max_staleness, generate.target_staleness)
    for _ in range(ADJUSTMENTS):
        cluster = Cluster(
            generators=1,
            trainers=1,
            slots=config.generate.slots,
            decode_fixed=slower * decode[0],
            decode_per_sequence=slower * decode[1],
            update_per_token=measured["update_seconds"] / (batch * fmean(lengths)),
            sync=measured["push_seconds"],
        )
        whole = simulate(schedule, cluster, lengths, batch, config.steps, group_size=size)
        slower *= measured["group_seconds"] / _group_seconds(whole, config, warmup)
    run = simulate(schedule, cluster, lengths, batch, config.steps, warmup, group_size=size)
    return {
        "seconds": run.seconds / (config.steps - warmup),
        "generator_idle": run.generator_idle,
        "trainer_idle": run.trainer_idle,
        "mean_staleness": run.mean_staleness,
    }


def _group_seconds(run: PipelineRun, config: ScaleConfig, warmup: int) -> float:
    """Mean time from the request for a group, which may wait at the server, to its last token.

    Group i is asked for when the bound on staleness allows it and few enough others are in flight.
    """
    prompts, size, generate = config.rollout.prompts, config.rollout.group_size, config.generate
    finished = run.finished.reshape(-1, size).max(axis=1)
    groups = np.arange(len(finished))
    allowed = run.clock[np.maximum(0, groups // prompts - generate.max_staleness)]
    most = ASKED_PER_SLOT * generate.slots // size
    room = np.concatenate([np.zeros(most), np.sort(finished)])[groups]
    seconds = finished - np.maximum(allowed, room)
    return float(seconds[warmup * prompts :].mean())


class _Sampling:
    """The policy of the runs with the prompts they ask, in order, each once per completion."""

    def __init__(self, size: str):
        config = load_config(CONFIG)
        self.model, tokenizer = load_policy(config.model.policy)
        self.eos, self.limit = tokenizer.eos_token_id, config.rollout.max_new_tokens
        pool = training_pool(get_task(config.data.task), config, [])
        problems = pool.draw(config.rollout.prompts * UPDATES[size])
        prompts = [encode(tokenizer, problem) for problem in problems]
        self.prompts = [prompt for prompt in prompts for _ in range(config.rollout.group_size)]

    def lengths(self) -> list[int]:
        """Lengths of one completion for each of the prompts."""
        completions = sample(self.model, self.prompts, self.limit, self.eos, seed=1)
        return [len(completion.token_ids) for completion in completions]

    def decode_costs(self, loads: Sequence[int], rounds: int) -> list[float]:
        """Seconds of a decode step, and per completion in it: least squares over loads."""
        counts, seconds = [], []
        for slots in loads:
            prompts = self.prompts[: rounds * slots]
            seconds.append(timed(lambda: counts.append(self.write(prompts, slots))))  # noqa: B023
        relative = np.array(counts) / np.array(seconds)[:, None]
        return nnls(relative, np.ones(len(seconds)))[0].tolist()

    def write(self, prompts: Sequence[list[int]], slots: int) -> tuple[int, int]:
        """Complete the prompts, at most `slots` at a time; decode steps and tokens."""
        sampler = ContinuousSampler(self.model, self.eos, slots)
        for prompt in prompts:
            sampler.add(prompt, self.limit)
        steps = tokens = 0
        while sampler.busy:
            finished = sampler.step()
            steps, tokens = steps + 1, tokens + sum(len(c.token_ids) for c in finished.values())
        return steps, tokens
