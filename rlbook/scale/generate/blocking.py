"""Generators for the single-process `rlbook.training.Trainer(config, engine=…)`. Chapter 17."""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from rlbook.policy import Completion
from rlbook.policy.loading import policy_source
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.protocol import sampling_params


class ServerEngine:
    """A generator server on this machine that receives weights from files.

    Its completions are not a function of the seed. Raises `GenerationFailed` if it fails.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 600.0):
        self.url, self.token, self.timeout = url, token, timeout
        self.run_id, self.version = secrets.token_hex(4), -1

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int | None = None,
    ) -> list[Completion]:
        """`n` completions per prompt, those of one prompt adjacent; all prompts at once."""

        async def ask() -> list[list[Completion]]:
            limits = {"max_new_tokens": max_new_tokens, "temperature": temperature}
            async with self.client() as client:
                return await asyncio.gather(*(client.complete(p, n, **limits) for p in prompts))

        return [completion for group in wait_for(ask()) for completion in group]

    def load_weights(self, model: nn.Module) -> None:
        """Have the server generate with the model's weights from now on."""

        async def send(folder: str) -> None:
            async with self.client() as client, client.new_weights(self.version, True):
                await client.update({"path": folder})

        self.version += 1
        with tempfile.TemporaryDirectory(dir=shared_memory()) as folder:
            save_file(checkpoint_tensors(model), Path(folder) / "model.safetensors")
            wait_for(send(folder))

    def client(self) -> GeneratorClient:
        return GeneratorClient(self.url, self.run_id, self.token, self.timeout)


class InProcessVLLM:
    """vLLM inside this process, on one device; needs the interpreter that has vLLM."""

    def __init__(self, policy: str = "tiny", dtype: str = "float32", **options):
        from rlbook.scale.generate.vllm_adapter import CPU_ENVIRONMENT

        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import LLM

        self.llm = LLM(
            str(policy_source(policy)),
            dtype=dtype,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            distributed_executor_backend="uni",
            **options,
        )

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_new_tokens: int,
        temperature: float,
        seed: int | None = None,
    ) -> list[Completion]:
        """`n` completions per prompt, those of one prompt adjacent."""
        from vllm import SamplingParams

        copies, asked = (n, 1) if temperature == 0 else (1, n)
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(**sampling_params(asked, max_new_tokens, temperature)),
            use_tqdm=False,
        )
        return [
            c for output in outputs for c in copies * [as_completion(o) for o in output.outputs]
        ]

    def load_weights(self, model: nn.Module) -> None:
        """Generate with the model's weights from now on, without anything cached under the old."""
        tensors = list(checkpoint_tensors(model).items())
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        self.llm.reset_prefix_cache()


def as_completion(output) -> Completion:
    """One of vLLM's `CompletionOutput`s."""
    tokens = list(output.token_ids)
    logps = [entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)]
    return Completion(tokens, logps, output.finish_reason)


def checkpoint_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor under its Hugging Face name, a tied head included."""
    return {name: t.detach().cpu().clone() for name, t in model.state_dict().items()}


def shared_memory() -> str | None:
    """A folder in memory, if the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def wait_for(coroutine: Coroutine):
    """The coroutine's result, in a notebook too, where an event loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
