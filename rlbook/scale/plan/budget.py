"""The dry run: memory, time, staleness and GPU-hours of a run before it is started.

Memory is counted, times are assumptions made explicit (`budget` in the settings): a decode step
is limited by memory bandwidth, an update by arithmetic. Measure both early in a run and put the
results into `budget.decode_seconds` and `budget.update_seconds`. Chapter 17.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlbook.policy.logprobs import CHUNK_ELEMENTS, CHUNK_ROWS
from rlbook.scale.config import ScaleConfig
from rlbook.scale.plan.shape import ModelShape
from rlbook.scaling.compute_curves import Sigmoid
from rlbook.scaling.pipeline import Cluster, Lengths, PipelineRun, pipeline_rl, simulate, split

ITEMSIZE = {"float32": 4, "bfloat16": 2}
FIXED_BYTES = {"cuda": 2e9, "cpu": 0.6e9}  # context, kernels, fragmentation: an assumption
SIMULATED = 40_000  # completions at most, so that the dry run takes seconds
GB = 1e9


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
    def ranks(self) -> int:
        return self.config.train.processes

    @property
    def servers(self) -> int:
        return self.config.generate.count

    @property
    def gpus(self) -> int:
        """GPUs of trainers and generators, shared ones once."""
        generate = self.config.generate
        own = 0 if generate.colocated else self.servers * generate.tensor_parallel
        return self.ranks + own

    # Memory of one trainer rank

    @property
    def state_bytes(self) -> float:
        """float32 weights, gradients, two moments: divided among the ranks."""
        return self.shape.state.total / self.ranks

    @property
    def gathered_bytes(self) -> float:
        """Parameters a rank holds whole: embedding and head, the layer at work and the next."""
        itemsize = ITEMSIZE[self.config.train.dtype]
        if self.ranks == 1 and itemsize == 4:
            return 0.0
        outside = self.shape.embedding * (2 - self.shape.tied)
        return itemsize * (outside + 2 * self.shape.layer)

    @property
    def activation_bytes(self) -> float:
        """What the layers keep of one micro-batch: at least one whole rollout."""
        longest = self.prompts.longest + self.config.rollout.max_new_tokens
        tokens = max(self.config.optimizer.micro_batch_tokens, longest)
        train = self.config.train
        per_token = self.shape.activation_bytes(
            ITEMSIZE[train.dtype], train.activation_checkpointing
        )
        return tokens * per_token

    @property
    def head_bytes(self) -> float:
        """Two buffers of float32 logits, the head's gradient, its float32 copy if it needs one."""
        train, vocabulary = self.config.train, self.shape.vocabulary
        rows = max(CHUNK_ROWS, CHUNK_ELEMENTS // vocabulary)
        copies = 1 + (train.fp32_head and train.dtype != "float32")
        return 4.0 * (2 * rows * vocabulary + copies * self.shape.embedding)

    @property
    def trainer_bytes(self) -> float:
        parts = self.state_bytes + self.gathered_bytes + self.activation_bytes + self.head_bytes
        return parts + FIXED_BYTES[self.config.model.device]

    # Memory of one generator GPU

    @property
    def generator_weight_bytes(self) -> float:
        generate = self.config.generate
        return self.shape.parameters * ITEMSIZE[generate.dtype] / generate.tensor_parallel

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token on one GPU; KV heads are not cut further than to one."""
        generate = self.config.generate
        parts = min(generate.tensor_parallel, self.shape.kv_heads)
        return self.shape.cache_bytes(ITEMSIZE[generate.dtype]) / parts

    @property
    def mean_context(self) -> float:
        """Keys that a completion being written sees on average: long ones are seen more often."""
        written = self.lengths_sampled
        return self.prompts.mean + (written**2).sum() / (2 * written.sum())

    @property
    def cache_bytes(self) -> float:
        """Cache of all slots in use at their mean length."""
        return self.config.generate.slots * self.mean_context * self.cache_bytes_per_token

    @property
    def cache_room(self) -> float:
        """What is left for the cache of the memory a generator may take."""
        share = self.config.generate.gpu_memory * self.config.budget.gpu_memory_gb * GB
        fixed = FIXED_BYTES[self.config.model.device]
        return share - self.generator_weight_bytes - fixed

    # Work and time

    @property
    def lengths(self) -> Lengths:
        """Completion lengths that the settings assume."""
        limit, budget = self.config.rollout.max_new_tokens, self.config.budget
        return Lengths(budget.mean_tokens or limit / 2, budget.length_sigma, limit)

    @cached_property
    def lengths_sampled(self) -> np.ndarray:
        return self.lengths.sample(4096).astype(float)

    @property
    def tokens_per_update(self) -> float:
        """Sampled tokens of a batch."""
        return self.config.batch_size * self.lengths.expected

    @property
    def flops_per_update(self) -> float:
        """Model FLOPs of one update; a token sees half of its sequence on average."""
        sequences = self.prompts.mean + self.lengths_sampled
        scale = self.config.batch_size / len(sequences)
        return self.shape.training_flops(scale * sequences.sum(), scale * (sequences**2).sum() / 2)

    @property
    def update_seconds(self) -> float:
        budget = self.config.budget
        speed = self.ranks * budget.peak_tflops * 1e12 * budget.mfu
        return budget.update_seconds or self.flops_per_update / speed

    @property
    def decode_seconds(self) -> float:
        """One token for every slot: weights and cache are read once."""
        budget = self.config.budget
        speed = budget.bandwidth_tb * 1e12 * budget.decode_share
        return budget.decode_seconds or (self.generator_weight_bytes + self.cache_bytes) / speed

    @property
    def push_seconds(self) -> float:
        """New weights on their way: the generators stand still."""
        itemsize = ITEMSIZE[self.config.generate.dtype]
        return self.shape.parameters * itemsize / (self.config.budget.push_gb * GB)

    @property
    def cluster(self) -> Cluster:
        """The run for the simulator. On shared GPUs both sides go at half their speed."""
        slower = 2 if self.config.generate.colocated else 1
        slots = self.config.generate.slots
        cache = self.cache_bytes / (self.generator_weight_bytes + self.cache_bytes)
        return Cluster(
            generators=self.servers,
            trainers=self.ranks,
            slots=slots,
            decode_fixed=slower * self.decode_seconds * (1 - cache),
            decode_per_sequence=slower * self.decode_seconds * cache / slots,
            update_per_token=slower * self.update_seconds * self.ranks / self.tokens_per_update,
            sync=self.push_seconds,
        )

    @cached_property
    def simulation(self) -> PipelineRun:
        """The pipeline once it has settled."""
        generate, batch = self.config.generate, self.config.batch_size
        warmup = 2 * generate.max_staleness + 4
        counted = max(4, min(24, SIMULATED // batch - warmup))
        return simulate(
            pipeline_rl(generate.max_staleness),
            self.cluster,
            self.lengths,
            batch,
            warmup + counted,
            warmup,
            group_size=self.config.rollout.group_size,
        )

    @property
    def best_split(self) -> Cluster | None:
        """The division of the GPUs that the simulator's ceilings favour; None if there is none."""
        generate = self.config.generate
        if self.gpus < 2 or generate.colocated or generate.tensor_parallel > 1:
            return None
        schedule = pipeline_rl(self.config.generate.max_staleness)
        return split(schedule, self.cluster, self.lengths, self.config.batch_size, self.gpus)

    @property
    def step_seconds(self) -> float:
        """From one update to the next."""
        return self.config.batch_size / self.simulation.completions_per_second

    @property
    def evaluation_seconds(self) -> float:
        """All evaluations of the run, if the generators did nothing else meanwhile."""
        evaluation = self.config.evaluation
        rounds = self.config.steps // evaluation.every if evaluation.every else 0
        tokens = rounds * evaluation.prompts * evaluation.samples * self.lengths.expected
        return tokens / self.cluster.peak

    @property
    def seconds(self) -> float:
        return self.config.updates * self.step_seconds + self.evaluation_seconds

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.gpus / 3600

    @property
    def curve(self) -> Sigmoid | None:
        """The predicted reward over GPU-hours, if the settings name its parameters."""
        parameters = self.config.budget.curve
        return Sigmoid(*parameters) if parameters else None
