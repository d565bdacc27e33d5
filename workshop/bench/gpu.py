"""What one GPU makes of this package: `python -m workshop bench gpu`.

An H200 has run seven stages, without vLLM (data/results/gpu); CPUs run all, with `--tiny`.

Every stage is a process of its own that writes its table and its manifest when it is done. One
that fails, hangs or runs out of the time left costs its own table only, and a bench that is killed
keeps what it has. `stages.json` says what became of each. No stage takes more than eight minutes,
those that need no vLLM come first, and `--stages`, `--seconds` and `--folder` cut the half hour
into as many calls as a loan of a GPU needs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from threading import Thread

import torch
from torch import Tensor

from rlbook.durable import read_json, write_json
from rlbook.extras import require
from rlbook.jsonl import read_jsonl
from rlbook.paths import ROOT, data_dir
from rlbook.policy import load_policy, load_tokenizer, set_threads, token_stats
from rlbook.policy.continuous import ContinuousSampler
from rlbook.policy.logprobs import chunked_head
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import CPU_ENVIRONMENT, check_version, vllm_python
from rlbook.scale.layout import Layout
from rlbook.tasks import Problem
from rlbook.training import Rollout
from rlbook.training.step import full_tensor
from workshop.bench.record import Skipped, record
from workshop.bench.timing import alternate, spread, timed

SECONDS = 1500.0  # of the whole bench
LEAST = 20.0  # seconds left that a stage is begun with
QWEN3_06B = {  # its published config.json, for a model of its sizes with random weights
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
SIZES = {
    "0.6B": QWEN3_06B,
    "1.5B": {
        **{"model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 1536},
        **{"intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
        **{"num_key_value_heads": 2, "max_position_embeddings": 32_768},
        "tie_word_embeddings": True,
    },
}
Case = tuple[str, int, int, int, bool]  # size, completions, their tokens, micro-batch, recomputed
SWEEP: tuple[Case, ...] = (
    ("0.6B", 64, 900, 32_768, True),
    ("0.6B", 64, 900, 16_384, True),
    ("0.6B", 64, 900, 16_384, False),
    ("1.5B", 64, 900, 32_768, True),
    ("1.5B", 16, 4000, 16_384, True),
)
KERNELS = 25  # lines of a table of kernels


@dataclass(frozen=True)
class Setting:
    """What is measured, and how much of it. `heads`: positions, vocabulary and width of a head."""

    policy: str
    device: str = "cuda"
    dtype: str = "bfloat16"
    heads: tuple[tuple[int, int, int], ...] = ((8192, 151_936, 1024), (8192, 151_936, 4096))
    rollouts: int = 64
    prompt: int = 100
    new_tokens: int = 900
    micro_batch_tokens: int = 32_768
    slots: tuple[int, ...] = (16, 64, 256)
    repeats: int = 3
    peak_tflops: float = 989.0
    sweep: tuple[Case, ...] = SWEEP
    learning: int = 40

    def config(self, run: str, **changes) -> ScaleConfig:
        """A run of one trainer process on this device."""
        settings = {
            "run": run,
            "model": {"policy": self.policy, "device": self.device},
            "rollout": {"max_new_tokens": self.new_tokens},
            "optimizer": {"minibatches": 1, "micro_batch_tokens": self.micro_batch_tokens},
            "train": {
                "dtype": self.dtype,
                "activation_checkpointing": self.device == "cuda",
            },
            "budget": {"peak_tflops": self.peak_tflops},
        }
        return ScaleConfig(**settings | changes)


TINY = Setting(
    "tiny", "cpu", "float32", heads=((64, 1000, 16),), rollouts=8, prompt=8, new_tokens=24,
    micro_batch_tokens=256, slots=(4,), repeats=1, peak_tflops=0.1,
    sweep=(("tiny", 8, 24, 256, True), ("tiny", 8, 24, 128, False)), learning=4,
)  # fmt: skip


def head(setting: Setting) -> list[dict]:
    """The language-model head, forward and backward: seconds, memory, errors against float64."""
    return [row for shape in setting.heads for row in compare_heads(setting, *shape)]


def compare_heads(setting: Setting, positions: int, vocabulary: int, width: int) -> list[dict]:
    """bfloat16 operands three ways: logits rounded, float32 copies, float32 sums alone."""
    torch.manual_seed(0)
    on = {"device": setting.device, "dtype": torch.bfloat16}
    hidden = torch.randn(positions, width, **on).requires_grad_()
    weight = (torch.randn(vocabulary, width, **on) / width**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (positions,), device=setting.device)
    upstream = torch.randn(positions, device=setting.device)

    def rounded(chunk: int = 1024) -> Tensor:
        parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
        logits = [((h @ weight.T).float().log_softmax(-1), t) for h, t in parts]
        return torch.cat([z.gather(-1, t[:, None]).squeeze(-1) for z, t in logits])

    forms = {
        "rounded logits": rounded,
        "float32 copies": lambda: chunked_head(hidden.float(), weight.float(), targets)[0],
        "float32 sums": lambda: chunked_head(hidden, weight, targets)[0],
    }

    def gradients(form: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(form(), (hidden, weight), upstream)

    seconds = alternate({n: lambda f=f: gradients(f) for n, f in forms.items()}, setting.repeats)
    some = slice(0, 64)
    exact = (hidden[some].double() @ weight.double().T).log_softmax(-1)
    exact = exact.gather(-1, targets[some, None]).squeeze(-1).detach()
    reference = gradients(forms["float32 copies"])
    return [
        {"positions": positions, "vocabulary": vocabulary, "width": width, "form": name}
        | spread(seconds[name])
        | {
            "peak_gb": peak_gb(setting.device, lambda form=form: gradients(form)),
            "logp_error": float((form()[some].detach() - exact).abs().max()),
            "gradient_error": max(
                float((a - b).float().norm() / b.float().norm())
                for a, b in zip(gradients(form), reference, strict=True)
            ),
        }
        for name, form in forms.items()
    ]


def update(setting: Setting) -> list[dict]:
    """Updates of the full-scale trainer: seconds, tokens per second, MFU, memory and budget."""
    return [updates(setting)]


def sweep(setting: Setting) -> list[dict]:
    """The same by sizes, micro-batches and checkpointing: where does the MFU go?"""
    rows = []
    for case, one in cases(setting):
        try:
            row = updates(one, case["checkpointing"])
        except torch.OutOfMemoryError:  # a result, too
            row = dict.fromkeys(rows[0] if rows else (), float("nan"))
        rows.append(row | case)
        torch.cuda.empty_cache()
    return rows


def kernels(setting: Setting) -> list[dict]:
    """Of one update of each case, the kernels that take longest."""
    rows = []
    for case, one in cases(setting):
        learner, rollouts = prepared(one, case["checkpointing"])
        activity = torch.profiler.ProfilerActivity
        seen = [activity.CUDA] if setting.device == "cuda" else [activity.CPU]
        with torch.profiler.profile(activities=seen) as profile:
            learner.learn(rollouts)
        key = f"self_{'device' if setting.device == 'cuda' else 'cpu'}_time_total"
        events = {e.key: (getattr(e, key) / 1e3, e.count) for e in profile.key_averages()}
        total = sum(milliseconds for milliseconds, _ in events.values())
        for name in sorted(events, key=events.__getitem__, reverse=True)[:KERNELS]:
            ms, calls = events[name]
            own = {"kernel": name[:160], "calls": calls, "milliseconds": ms, "share": ms / total}
            rows.append(case | own)
        del learner  # two would not fit
    return rows


def cases(setting: Setting) -> Iterator[tuple[dict, Setting]]:
    """What the cases of a sweep are called in its rows, and their settings."""
    with TemporaryDirectory() as folder:
        for size, rollouts, tokens, micro, checkpointing in setting.sweep:
            policy = random_policy(Path(folder) / size, size) if size in SIZES else size
            sizes = {"rollouts": rollouts, "new_tokens": tokens, "micro_batch_tokens": micro}
            case = {"size": size, **sizes, "checkpointing": checkpointing}
            yield case, replace(setting, policy=policy, **sizes)


def prepared(setting: Setting, checkpointing: bool | None = None):
    """A learner that has made its first update, and the rollouts of it."""
    from rlbook.scale.train.learner import ShardedLearner
    from rlbook.scale.train.parallel import Ranks

    config = setting.config("runs/bench")
    if checkpointing is not None:
        config = config.replace(activation_checkpointing=checkpointing)
    learner = ShardedLearner(config, Layout(config.folder), Ranks(setting.device))
    rollouts = made_up(setting, learner.policy.config.vocab_size)
    learner.learn(rollouts)
    return learner, rollouts


def updates(setting: Setting, checkpointing: bool | None = None) -> dict:
    """Figures of some updates on the same rollouts."""
    from rlbook.scale.plan.budget import Budget, Prompts
    from rlbook.scaling.shape import model_shape

    learner, rollouts = prepared(setting, checkpointing)
    config = learner.settings
    seconds = [timed(lambda: learner.learn(rollouts)) for _ in range(setting.repeats)]
    peak = peak_gb(setting.device, lambda: learner.learn(rollouts), whole=True)
    shape = model_shape(setting.policy)
    lengths = [len(r.prompt_ids) + r.length for r in rollouts]
    flops = shape.training_flops(sum(lengths), sum(n * n / 2 for n in lengths))
    budget = Budget(config, shape, Prompts(setting.prompt, setting.prompt))
    return (
        {"rollouts": len(rollouts), "tokens": sum(lengths)}
        | spread(seconds)
        | {
            "tokens_per_second": sum(lengths) / median(seconds),
            "mfu": flops / (median(seconds) * setting.peak_tflops * 1e12),
            "peak_gb": peak,
            "budget_gb": budget.trainer_bytes / 1e9,
        }
    )


def resume(setting: Setting) -> list[dict]:
    """A checkpoint written while training goes on, and a second trainer that goes on from it."""
    from rlbook.scale.train.learner import ShardedLearner
    from rlbook.scale.train.parallel import Ranks

    with TemporaryDirectory() as folder:
        config, layout, ranks = setting.config(folder), Layout(Path(folder)), Ranks(setting.device)
        first = ShardedLearner(config, layout, ranks)
        rollouts = made_up(setting, first.policy.config.vocab_size)
        first.learn(rollouts)
        start = time.perf_counter()
        blocked = timed(partial(first.begin_save, {}))
        went_on = first.learn(rollouts)
        durable = first.checkpoints.settle()
        written = time.perf_counter() - start
        size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        expected = [weight.detach().clone() for weight in first.policy.parameters()]
        del first
        second = ShardedLearner(config, layout, ranks)
        loading = timed(second.load)
        again = second.learn(rollouts)
        pairs = zip(second.policy.parameters(), expected, strict=True)
        gap = max(float((full_tensor(a.detach()) - full_tensor(b)).abs().max()) for a, b in pairs)
    return [
        {
            "durable": bool(durable),
            "seconds_blocked": blocked,
            "seconds_written": written,
            "seconds_loading": loading,
            "gb": size / 1e9,
            "loss": went_on["loss"],
            "loss_resumed": again["loss"],
            "largest_weight_gap": gap,
        }
    ]


def generate(setting: Setting) -> list[dict]:
    """A token of every slot, and the log-probabilities of its tokens beside the trainer's."""
    if not find_spec("vllm") and setting.device == "cuda":
        raise Skipped("no vLLM here, and the built-in sampler's speed says nothing about one")
    engine = VLLMEngine(setting) if find_spec("vllm") else BuiltinEngine(setting)
    model, _ = load_policy(setting.policy, getattr(torch, setting.dtype), setting.device)
    rows = []
    for slots in setting.slots:
        prompts = random_tokens(slots, setting.prompt, model.config.vocab_size)
        engine.complete(prompts, 2)
        start = time.perf_counter()
        completions = engine.complete(prompts, setting.new_tokens)
        seconds = time.perf_counter() - start
        tokens = sum(len(one) for one, _ in completions)
        step = seconds / max(len(one) for one, _ in completions)
        rows.append(
            {"engine": engine.name, "slots": slots, "tokens": tokens, "seconds": seconds}
            | {"tokens_per_second": tokens / seconds, "milliseconds_per_step": 1e3 * step}
            | mismatch(model, prompts[:16], completions[:16])
        )
    return rows


def push(setting: Setting) -> list[dict]:
    """Weights from the trainer's memory into the generator, through files."""
    from safetensors.torch import save_file

    engine = VLLMEngine(setting) if find_spec("vllm") else BuiltinEngine(setting)
    model, _ = load_policy(setting.policy, torch.float32, setting.device)
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    rows = []
    with TemporaryDirectory(dir=shared) as folder:
        for attempt in range(setting.repeats):
            weights: dict[str, Tensor] = {}

            def gather(into: dict = weights) -> None:
                dtype = getattr(torch, setting.dtype)
                into |= {n: t.to(dtype).cpu().clone() for n, t in model.state_dict().items()}

            gathering = timed(gather)
            file = Path(folder) / "model.safetensors"
            writing = timed(lambda tensors=weights, file=file: save_file(tensors, file))
            loading = timed(lambda: engine.reload(folder))
            rows.append(
                {"engine": engine.name, "transport": "file", "attempt": attempt}
                | {"gb": file.stat().st_size / 1e9, "seconds_gathering": gathering}
                | {"seconds_writing": writing, "seconds_loading": loading}
            )
    return rows


def learn(setting: Setting) -> list[dict]:
    """A run of the tiny policy by the built-in sampler: does it learn its sums on this device?"""
    own = {"engine": "builtin", "dtype": "float32", "max_staleness": 2}
    return [whole_run(setting, setting.learning, **own)]


def pipeline(setting: Setting) -> list[dict]:
    """The whole asynchronous run with generator and trainer on one device."""
    return [whole_run(setting)]


def restart(setting: Setting) -> list[dict]:
    """The same, its generator killed in the middle: another one has to start beside the trainer."""
    row = whole_run(setting, steps=6, kill="generator0", max_staleness=1)
    if not row["deaths"]:
        raise RuntimeError("the generator was to be killed, and the run was over before")
    return [row]


def nccl(setting: Setting) -> list[dict]:
    """The same on three GPUs, weights going to two generators by NCCL."""
    if (found := torch.cuda.device_count()) < 3:
        raise Skipped(f"a trainer and two generators want 3 GPUs of their own, here are {found}")
    return [whole_run(setting, transport="nccl", count=2, colocated=False)]


def whole_run(
    setting: Setting, steps: int = 4, kill: str | None = None, **generate: object
) -> dict[str, object]:
    """Figures of a run of the tiny policy, one of whose processes is killed after the first update.

    The tiny policy has right answers to learn from, so that every process has work; its seconds
    are those of starting and of messages.
    """
    from rlbook.scale.launch.start import launch

    engine = engine_of_a_run(setting)
    servers = {
        "engine": engine,
        "dtype": "float32" if engine == "builtin" else setting.dtype,
        "colocated": setting.device == "cuda",
        "gpu_memory": 0.4,
        "slots": 32,
    }
    with TemporaryDirectory() as folder:
        config = replace(setting, policy="tiny", new_tokens=64).config(
            f"{folder}/run",
            steps=steps,
            rollout={"prompts": 8, "group_size": 4, "max_new_tokens": 64},
            data={"pool": 200},
            generate=servers | generate,
        )
        layout, start = Layout(config.folder), time.time()
        if kill:
            Thread(target=kill_after_an_update, args=(layout, kill), daemon=True).start()
        launch(config)
        rows, events = read_jsonl(layout.log("metrics")), read_jsonl(layout.log("events"))
        right = [row["accuracy"] for row in read_jsonl(layout.log("rollouts"))]
        ends = fmean(right[:5]), fmean(right[-5:])
        seconds = time.time() - start
    return (
        {"engine": engine, "updates": len(rows), "seconds": seconds}
        | {"deaths": sum(row["event"] == "death" for row in events)}
        | {"push_seconds": median(row["push_seconds"] for row in rows)}
        | {"train_seconds": median(row["train_seconds"] for row in rows)}
        | {"mismatch_fresh": max(row["mismatch_fresh"] for row in rows)}
        | {"first_loss": rows[0]["loss"], "last_loss": rows[-1]["loss"]}
        | {
            f"{name}_accuracy": accuracy
            for name, accuracy in zip(("first", "last"), ends, strict=True)
        }
    )


def kill_after_an_update(layout: Layout, name: str) -> None:
    """Wait for a row of metrics, then kill a process of the run."""
    while not read_jsonl(layout.log("metrics")):
        time.sleep(0.1)
    os.kill(read_json(layout.processes)[name], signal.SIGKILL)


def trl(setting: Setting) -> list[dict]:
    """A step of TRL and one of ours on the same prompts, as in `python -m workshop bench trl`."""
    from workshop.bench import rl_step

    return rl_step.run("smoke" if setting == TINY else "full")


STAGES: dict[str, tuple[Callable[[Setting], list[dict]], float]] = {
    "resume": (resume, 240.0),
    "head": (head, 180.0),
    "update": (update, 240.0),
    "sweep": (sweep, 420.0),
    "kernels": (kernels, 300.0),
    "learn": (learn, 240.0),
    "generate": (generate, 360.0),
    "push": (push, 300.0),
    "pipeline": (pipeline, 300.0),
    "restart": (restart, 400.0),
    "nccl": (nccl, 400.0),
    "trl": (trl, 300.0),
}  # with the most seconds of each; first what all runs rest on
IN_VLLM = ("generate", "push", "nccl")  # stages for the interpreter that has vLLM


class BuiltinEngine:
    """The book's own sampler, in float32."""

    name = "builtin"

    def __init__(self, setting: Setting):
        self.model, _ = load_policy(setting.policy, device=setting.device)
        self.slots = max(setting.slots)

    def complete(self, prompts: Sequence[list[int]], tokens: int) -> list[tuple[list, list]]:
        """Tokens and log-probabilities; no token ends a completion."""
        sampler = ContinuousSampler(self.model, stop_ids=(), slots=self.slots)
        numbers = [sampler.add(prompt, tokens) for prompt in prompts]
        finished = {}
        while sampler.busy:
            finished |= sampler.step()
        return [(finished[number].token_ids, finished[number].logps) for number in numbers]

    def reload(self, folder: str) -> None:
        from rlbook.scale.generate.builtin_server import read_folder

        ContinuousSampler(self.model, stop_ids=()).load_weights(read_folder(Path(folder)), 1)


class VLLMEngine:
    """vLLM in this process."""

    name = "vllm"

    def __init__(self, setting: Setting):
        options: dict = {"gpu_memory_utilization": 0.5}
        if setting.device == "cpu":
            os.environ |= CPU_ENVIRONMENT
            options = {"enforce_eager": True, "kv_cache_memory_bytes": 2**28}
            options["distributed_executor_backend"] = "uni"
        if setting.dtype != "float32":
            options["hf_overrides"] = {"head_dtype": "float32"}
        from vllm import LLM

        from rlbook.policy.loading import policy_source

        self.llm = LLM(
            str(policy_source(setting.policy)),
            dtype=setting.dtype,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            max_num_seqs=max(setting.slots),
            max_model_len=setting.prompt + setting.new_tokens,
            **options,
        )

    def complete(self, prompts: Sequence[list[int]], tokens: int) -> list[tuple[list, list]]:
        """Tokens and log-probabilities; no token ends a completion."""
        from vllm import SamplingParams

        how = SamplingParams(max_tokens=tokens, logprobs=0, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        answers = [a.outputs[0] for a in self.llm.generate(asked, how, use_tqdm=False)]
        return [
            (
                list(one.token_ids),
                [entry[t].logprob for entry, t in zip(one.logprobs, one.token_ids, strict=True)],
            )
            for one in answers
        ]

    def reload(self, folder: str) -> None:
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})


@torch.no_grad()
def mismatch(model, prompts: Sequence[list[int]], completions: Sequence[tuple]) -> dict[str, float]:
    """Between the generator's log-probabilities and the trainer's, of tokens of the same weights.

    `mismatch_kl` is the mean of r - 1 - log r with r = π_trainer / π_generator.
    """
    gaps = []
    for prompt, (tokens, logps) in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt + tokens], device=model.device)
        mask = torch.arange(ids.shape[1], device=model.device)[None] >= len(prompt)
        scored = token_stats(model, ids, mask).logp[mask].double().cpu()
        gaps.append(scored - torch.tensor(logps, dtype=torch.float64))
    gap = torch.cat(gaps)
    return {
        "mismatch_mean": float(gap.abs().mean()),
        "mismatch_kl": float((gap.exp() - 1 - gap).mean()),
        "ratio_max": float(gap.exp().max()),
    }


def made_up(setting: Setting, vocabulary: int) -> list[Rollout]:
    """Rollouts of random tokens in groups of four, half of them right."""
    prompts = random_tokens(setting.rollouts, setting.prompt, vocabulary)
    answers = random_tokens(setting.rollouts, setting.new_tokens, vocabulary, seed=1)
    rewards = [{"answer": 1.0}, {"answer": -1.0}]
    return [
        Rollout(
            Problem(f"p{i // 4}", "", ""), i // 4, prompt, tokens, [-8.0] * len(tokens),
            [0] * len(tokens), "stop", "", correct=i % 2 == 0, rewards=rewards[i % 2],
        )
        for i, (prompt, tokens) in enumerate(zip(prompts, answers, strict=True))
    ]  # fmt: skip


def random_tokens(rows: int, length: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(rows)]


def peak_gb(device: str, work: Callable[[], object], whole: bool = False) -> float:
    """Most device memory during `work`, in GB, beyond what was held before unless `whole`.

    Not a number on a CPU, where nobody counts it.
    """
    if device == "cpu":
        work()
        return float("nan")
    held = 0 if whole else torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    return (torch.cuda.max_memory_allocated() - held) / 1e9


def engine_of_a_run(setting: Setting) -> str:
    """vLLM where there is a version that the servers' protocol fits, else the book's own."""
    python = vllm_python(device=setting.device)
    try:
        return (
            "vllm" if python and setting.device == "cuda" and check_version(python) else "builtin"
        )
    except ValueError:
        return "builtin"


def random_policy(folder: Path, size: str = "0.6B") -> str:
    """A folder with a model of published sizes, random weights and the tiny tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = AutoConfig.for_model(**SIZES[size])
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    load_tokenizer().save_pretrained(folder)
    return str(folder)


def main(
    tiny: bool = False,
    policy: str | None = None,
    folder: Path | None = None,
    stages: Sequence[str] = tuple(STAGES),
    seconds: float = SECONDS,
) -> dict[str, str]:
    """Run the stages, within `seconds` in all; what became of each.

    `tiny` takes the book's tiny model and the CPU: it shows that everything runs, and its numbers
    mean nothing. `policy` names another model than one of Qwen3-0.6B's sizes with random weights.
    Tables go to data/results/gpu, those of `tiny` to runs/bench-gpu-tiny, unless `folder` is given.
    Raises `ValueError` where there is no GPU, and for an unknown stage.
    """
    require("scale", "aiohttp", "scipy")
    if unknown := set(stages) - set(STAGES):
        raise ValueError(f"unknown stage {sorted(unknown)}: choose from {', '.join(STAGES)}")
    if not (tiny or torch.cuda.is_available()):
        raise ValueError("no CUDA device here: --tiny runs every stage on the CPU, to see it run")
    folder = folder or (ROOT / "runs/bench-gpu-tiny" if tiny else data_dir() / "results" / "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    deadline, became = time.monotonic() + seconds, {}
    with TemporaryDirectory() as scratch:
        setting = TINY if tiny else Setting(policy or random_policy(Path(scratch) / "policy"))
        for stage in stages:
            left = min(STAGES[stage][1], deadline - time.monotonic())
            became[stage] = run_stage(stage, setting, folder, left) if left > LEAST else "no time"
            print(f"{stage}: {became[stage]}", flush=True)
            write_json(folder / "stages.json", read_json(folder / "stages.json", {}) | became)
    return became


def run_stage(stage: str, setting: Setting, folder: Path, seconds: float) -> str:
    """Run a stage in a process of its own; what became of it."""
    python = vllm_python(device=setting.device) if stage in IN_VLLM else None
    argv = [
        python or sys.executable,
        "-m",
        __name__,
        stage,
        json.dumps(asdict(setting)),
        str(folder),
    ]
    log, given = folder / f"{stage}.log", os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([given] if given else [])])  # packages may be in it
    with log.open("w") as file:
        try:
            done = subprocess.run(
                argv, stdout=file, stderr=file, timeout=seconds,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s: {log}"
    lines = log.read_text().strip().splitlines() or [""]
    if done.returncode:
        return f"failed: {lines[-1][:300]} ({log})"
    log.unlink()
    return lines[-1]


def stage_process(stage: str, described: str, folder: str) -> None:
    """What `run_stage` starts."""
    fields = json.loads(described)
    fields |= {name: tuple(map(as_tuple, fields[name])) for name in ("heads", "slots", "sweep")}
    setting = Setting(**fields)
    if setting.device == "cpu":
        set_threads()
    try:
        facts = {"command": "python -m workshop bench gpu", **asdict(setting)}
        path = record(stage, lambda: STAGES[stage][0](setting), Path(folder), **facts)
    except Skipped as reason:
        print(f"skipped: {reason}")
    else:
        print(f"wrote {path}")


def as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    stage_process(*sys.argv[1:])
