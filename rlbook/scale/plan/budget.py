"""What a run needs before it is started: memory, seconds, staleness, GPU-hours.

Memory is counted. Times follow from arithmetic and memory bandwidth, with shares and floors that
were set so that published runs come out (appendix Operations compares); five updates on an H200
took 0.7 to 1.05 of their planned seconds. Measure a decode step and an update early in a run and
put them into `budget.decode_seconds` and `budget.update_seconds`. Chapter 18.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlbook.policy.logprobs import chunk_rows
from rlbook.scale.config import ScaleConfig
from rlbook.scaling.shape import ModelShape
from rlbook.scaling.simulator import Cluster, Lengths, PipelineRun, pipeline_rl, simulate

GB = 1e9
ITEMSIZE: Mapping[str | None, int] = {"float32": 4, "bfloat16": 2}
MFU = ((0.6e9, 0.26), (4e9, 0.28), (8e9, 0.35))  # by parameters: of the layers, without the head
FILE_LEGS = 3  # of a push by files: gathered, written, read
PUSH_BUFFER = 2**30  # bytes: vLLM sends what it has collected once it is more than that
HOST_SPEED = 20e9  # bytes per second between a GPU and its host: an assumption
UNCOUNTED = 1.3  # layers kept for the backward pass took 1.27 times what is counted, on an H200
LOGIT_TRAFFIC = 90  # bytes moved per float32 logit, forward and backward
ENOUGH = 0.99  # of the throughput at the bound: a target that reaches it costs nothing
SIMULATED = 20_000  # completions at most, so that the dry run takes seconds
# What every process and every step costs, however small the model: assumptions. Bytes on the device
# (context, kernels, fragmentation; of a server the activations of a prefill and CUDA graphs too)
# and on its host (interpreter, libraries); seconds of an update (optimizer, clipping, collectives,
# reading the batch), of a decode step (kernel launches, scheduler), per completion in it (sampling,
# prefill, detokenizing, HTTP).
FLOORS = {
    "cuda": {
        **{"memory": 2e9, "server": 3e9, "host": 3e9},
        **{"update": 1.0, "decode": 2e-3, "completion": 5e-5},
    },
    "cpu": {
        **{"memory": 0.6e9, "server": 0.6e9, "host": 0.6e9},
        **{"update": 0.0, "decode": 0.0, "completion": 0.0},
    },
}


@dataclass(frozen=True)
class Prompts:
    """Prompt lengths in tokens."""

    mean: float
    longest: int


@dataclass(frozen=True)
class Budget:
    """What a run needs, as far as it can be known before. Bytes, seconds, tokens."""

    config: ScaleConfig
    shape: ModelShape
    prompts: Prompts

    @property
    def floors(self) -> dict[str, float]:
        """What every process and step costs on this kind of device."""
        return FLOORS[self.config.model.device]

    @property
    def ranks(self) -> int:
        """Processes of the trainer."""
        return self.config.train.processes

    @property
    def shards(self) -> int:
        """Processes of the trainer that hold its weights once."""
        return self.config.train.shard or self.ranks

    @property
    def reference(self) -> bool:
        """Whether the method compares with a frozen policy."""
        return "reference" in self.config.method.requirements()

    @property
    def adapter(self) -> int:
        """Parameters of the run's adapter; 0 where all weights learn."""
        return adapter_of(self.config, self.shape)

    @property
    def learning(self) -> int:
        """Parameters that have gradients and moments."""
        return self.adapter or self.shape.parameters

    @property
    def sent(self) -> int:
        """Parameters of a push: vLLM takes an adapter alone."""
        builtin = self.config.generate.engine == "builtin"
        return self.shape.parameters if builtin else self.learning

    # Memory and disk, part by part

    @property
    def trainer_memory(self) -> dict[str, float]:
        """Of one rank: its share of the state, and what it holds whole while it works."""
        shape, train, itemsize = self.shape, self.config.train, ITEMSIZE[self.config.train.dtype]
        outside = shape.embedding * (2 - shape.tied)
        alone = self.ranks == 1 and itemsize == 4
        as_counted = train.activation_checkpointing or self.config.model.device == "cpu"
        kept = shape.activation_bytes(itemsize, train.activation_checkpointing)
        per_token = kept if as_counted else UNCOUNTED * kept
        longest = self.prompts.longest + self.config.rollout.max_new_tokens
        tokens = max(self.config.optimizer.micro_batch_tokens, longest)
        rows = min(tokens, chunk_rows(shape.vocabulary, self.config.model.device))
        layer = self.adapter / shape.layers or shape.layer
        state = 16 * self.adapter or shape.state.total
        working = {
            "gathered parameters": 0 if alone else itemsize * (outside + 2 * shape.layer),
            "gradients on their way": 4 * layer * (1 + 1 / self.shards),
            "activations": per_token * tokens,
            "head": 4 * (2 * rows * shape.vocabulary + (not self.adapter) * shape.embedding),
        }
        return {
            "frozen base": bool(self.adapter) * itemsize * shape.parameters / self.shards,
            "weights, gradients, AdamW": state / self.shards,
            "summed gradients": 4 * self.learning * self.kept_gradients,
            "reference": self.reference * (not self.adapter) * 4 * shape.parameters / self.shards,
            **working,
            "push beyond these": max(0.0, self.push_memory - sum(working.values())),
            "everything else": self.floors["memory"],
        }

    @property
    def kept_gradients(self) -> float:
        """The share of them that a rank keeps until the last micro-batch: all, or its part."""
        accumulate = self.config.train.accumulate and self.ranks > 1
        return accumulate / (self.shards if self.shards < self.ranks else 1)

    @property
    def push_memory(self) -> float:
        """Of the first rank while it sends weights, when it does not work on an update.

        A tensor at a time, whole and this rank's rows of it; for vLLM's NCCL engine one buffer of
        them on its way, one being filled, and the tensors that it is filled from.
        """
        itemsize, shape = ITEMSIZE[self.config.generate.dtype], self.shape
        largest = max(shape.embedding, shape.hidden * shape.intermediate) * itemsize
        model = self.sent * itemsize
        if self.config.generate.transport == "file":
            return largest * (1 + 1 / self.shards)
        return 3 * min(PUSH_BUFFER + largest, model)

    @property
    def trainer_bytes(self) -> float:
        """Of one rank, all parts together."""
        return sum(self.trainer_memory.values())

    @property
    def resting(self) -> float:
        """Bytes of one rank between two updates."""
        memory = self.trainer_memory
        kept = ("frozen base", "weights, gradients, AdamW", "reference", "everything else")
        return sum(memory[name] for name in kept)

    @property
    def generator_memory(self) -> dict[str, float]:
        """Of one GPU, all slots in use at their mean length."""
        cache = self.config.generate.slots * self.mean_context * self.cache_bytes_per_token
        weights, floor = served_weights(self.config, self.shape), self.floors["server"]
        return {"weights": weights, "keys and values": cache, "everything else": floor}

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token on one GPU; KV heads are not cut further than to one."""
        generate = self.config.generate
        parts = min(generate.tensor_parallel, self.shape.kv_heads)
        return self.shape.cache_bytes(ITEMSIZE[generate.dtype]) / parts

    @property
    def cache_room(self) -> float:
        """What is left for the cache of the memory a generator may take."""
        return cache_room(self.config, self.shape, self.config.budget.gpu_memory_gb)

    @property
    def host_memory(self) -> float:
        """Of the first rank as it saves: it copies all weights, and the moments of its rows."""
        return (4 + 8 / self.shards) * self.learning + self.floors["host"]

    @property
    def disk(self) -> dict[str, float]:
        """Checkpoints kept and the one being written, weights on their way, batches not pruned."""
        checkpoint, generate = self.config.checkpoint, self.config.generate
        batches = (checkpoint.keep + 1) * checkpoint.every
        versions = 2 if generate.transport == "file" else 0
        return {
            "checkpoints": (checkpoint.keep + 1) * 12 * self.learning,
            "weights": versions * self.sent * ITEMSIZE[generate.dtype],
            "batches": batches * self.tokens_per_update * 21,  # ids, versions, log-probabilities
        }

    # Work and time

    @property
    def lengths(self) -> Lengths:
        """Completion lengths that the settings assume."""
        limit, budget = self.config.rollout.max_new_tokens, self.config.budget
        return Lengths(budget.mean_tokens or limit / 2, budget.length_sigma, limit)

    @cached_property
    def lengths_sampled(self) -> np.ndarray:
        """4,096 completion lengths, in tokens."""
        return self.lengths.sample(4096).astype(float)

    @property
    def mean_context(self) -> float:
        """Keys that a completion being written sees on average: long ones are seen more often."""
        written = self.lengths_sampled
        return self.prompts.mean + (written**2).sum() / (2 * written.sum())

    @property
    def tokens_per_update(self) -> float:
        """Sampled tokens of a batch."""
        return self.config.batch_size * self.lengths.expected

    @property
    def flops_per_update(self) -> float:
        """Model FLOPs of one pass over a batch; a token sees half of its sequence on average."""
        sequences = self.prompts.mean + self.lengths_sampled
        scale = self.config.batch_size / len(sequences)
        seen = scale * sequences.sum(), scale * (sequences**2).sum() / 2
        return self.shape.training_flops(*seen, self.adapter)

    @property
    def mfu(self) -> float:
        """Share of the peak that the layers reach: as set, or as models of this size do."""
        sizes, shares = np.transpose(MFU)
        size = np.log(self.shape.parameters)
        return self.config.budget.mfu or float(np.interp(size, np.log(sizes), shares))

    @property
    def update_seconds(self) -> float:
        """All updates on a batch: its passes, and what every update costs however small.

        The head makes logits, again in the backward pass, and two gradients, of sampled tokens. On
        tensor cores with float32 results, so that passing over the logits costs as much. A
        reference adds a forward pass. Beside an adapter weights and head have no gradient.
        """
        budget, shape, optimizer = self.config.budget, self.shape, self.config.optimizer
        logits = self.tokens_per_update * shape.vocabulary
        tokens = self.config.batch_size * (self.prompts.mean + self.lengths.expected)
        speed = self.ranks * budget.peak_tflops * 1e12 * self.mfu
        traffic = self.ranks * budget.bandwidth_tb * 1e12 * budget.decode_share
        products = 4 if self.adapter else 6  # of a weight and a token, without recomputation
        layers = (self.flops_per_update - products * shape.embedding * tokens) / speed
        head = (2 + products) * logits * shape.hidden / speed + LOGIT_TRAFFIC * logits / traffic
        passes = (1 + self.reference / 3) * layers + (1 + self.reference / 4) * head
        planned = optimizer.epochs * (passes + optimizer.minibatches * self.floors["update"])
        return budget.update_seconds or planned

    @property
    def traffic(self) -> tuple[float, float]:
        """Bytes that each rank sends in an update: among those that share a copy, to other copies.

        Weights are gathered for each micro-batch's forward and backward pass, float32 gradients
        summed after it, or, between copies and with `accumulate`, once.
        """
        train, shards, copies = self.config.train, self.shards, self.ranks // self.shards
        tokens = self.config.batch_size * (self.prompts.mean + self.lengths.expected)
        micro = self.config.optimizer.micro_batch_tokens
        rounds = max(1.0, tokens / self.config.optimizer.minibatches / self.ranks / micro)
        sums = 1.0 if train.accumulate else rounds
        gathered = 2 * rounds * ITEMSIZE[train.dtype] * self.shape.parameters
        reduced = 4 * self.learning * (rounds if copies > 1 else sums)
        between = 2 * sums * 4 * self.learning / shards * (copies - 1) / copies
        return (gathered + reduced) * (shards - 1) / shards, between

    @property
    def decode_costs(self) -> tuple[float, float]:
        """Seconds of a decode step: fixed, and per completion. Weights and cache are read once."""
        budget, memory = self.config.budget, self.generator_memory
        speed, slots = budget.bandwidth_tb * 1e12 * budget.decode_share, self.config.generate.slots
        fixed = self.floors["decode"] + memory["weights"] / speed
        each = self.floors["completion"] + memory["keys and values"] / (slots * speed)
        planned = fixed + slots * each
        scale = (budget.decode_seconds or planned) / planned
        return scale * fixed, scale * each

    @property
    def decode_seconds(self) -> float:
        """One token for every slot."""
        fixed, each = self.decode_costs
        return fixed + self.config.generate.slots * each

    @property
    def push_seconds(self) -> float:
        """New weights on their way to all generators at once: the trainer waits."""
        return push_seconds(self.config, self.sent)

    @property
    def sleep_seconds(self) -> float:
        """Weights to the host's memory and back around an update, where generators sleep."""
        weights = self.generator_memory["weights"] if self.config.generate.sleep else 0.0
        return 2 * weights / HOST_SPEED

    @property
    def trainer_seconds(self) -> float:
        """From one update to the next if the trainer never waits."""
        return self.update_seconds + self.push_seconds + self.sleep_seconds

    @property
    def cluster(self) -> Cluster:
        """The run for the simulator. Side by side on shared GPUs, both go at half their speed."""
        generate = self.config.generate
        slower = 2 if generate.colocated and generate.max_staleness else 1
        fixed, each = (slower * seconds for seconds in self.decode_costs)
        update = slower * self.update_seconds * self.ranks / self.tokens_per_update
        return Cluster(
            generate.count,
            self.ranks,
            generate.slots,
            fixed,
            each,
            update_per_token=update,
            sync=self.push_seconds + self.sleep_seconds,
        )

    @cached_property
    def simulation(self) -> PipelineRun:
        """The pipeline, settled; without a target, at the smallest that costs no throughput."""
        target, bound = self.config.generate.target_staleness, self.config.generate.max_staleness
        size, warmup = self.config.batch_size, 2 * bound + 4
        updates = warmup + max(4, min(24, SIMULATED // size - warmup))
        counts = {"warmup": warmup, "group_size": self.config.rollout.group_size}

        def run(ahead: int) -> PipelineRun:
            schedule = pipeline_rl(bound, ahead)
            return simulate(schedule, self.cluster, self.lengths, size, updates, **counts)

        if target is not None:
            return run(target)
        enough = ENOUGH * run(bound).completions_per_second
        runs = map(run, range(bound + 1))
        return next(run for run in runs if run.completions_per_second >= enough)

    @property
    def step_seconds(self) -> float:
        """From one update to the next."""
        return self.config.batch_size / self.simulation.completions_per_second

    @property
    def evaluation_seconds(self) -> float:
        """All evaluations of the run, if all generators wrote for them and for nothing else.

        One writes them while the others go on: where there is one, trainers wait as long at most.
        """
        evaluation, usual = self.config.evaluation, self.lengths
        rounds = self.config.steps // evaluation.every if evaluation.every else 0
        tokens = evaluation.prompts * evaluation.samples * usual.expected
        for one in evaluation.sets.values():
            lengths = replace(usual, max_tokens=one.max_new_tokens or usual.max_tokens)
            tokens += one.prompts * (one.samples or evaluation.samples) * lengths.expected
        return rounds * tokens / self.cluster.peak

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.config.steps * self.step_seconds + self.evaluation_seconds

    @property
    def gpu_hours(self) -> float:
        """Of the whole run, all GPUs together."""
        return self.seconds * self.config.gpus / 3600


def adapter_of(config: ScaleConfig, shape: ModelShape) -> int:
    """Parameters of a run's adapter, 0 if it has none."""
    lora = config.model.lora
    return shape.adapter(lora.rank, lora.targets) if lora else 0


def served_weights(config: ScaleConfig, shape: ModelShape) -> float:
    """Bytes of a generator's weights, and of an adapter beside them, on one of its GPUs."""
    count, generate = shape.parameters + adapter_of(config, shape), config.generate
    return count * ITEMSIZE[generate.dtype] / generate.tensor_parallel


def cache_room(config: ScaleConfig, shape: ModelShape, memory_gb: float) -> float:
    """Bytes that a generator has for keys and values on a GPU of so many GB.

    The plan and the server that is started both ask this, so they cannot disagree.
    """
    taken = served_weights(config, shape) + FLOORS[config.model.device]["server"]
    return config.generate.gpu_memory * memory_gb * GB - taken


def push_seconds(config: ScaleConfig, parameters: int) -> float:
    """Until generators have so many weights: three legs by files, one by NCCL."""
    legs = FILE_LEGS if config.generate.transport == "file" else 1
    return legs * parameters * ITEMSIZE[config.generate.dtype] / (config.budget.push_gb * GB)
