"""What generators are asked, what they reply, and what can go wrong: a subset of vLLM's format."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Literal, TypeVar, cast

from pydantic import BaseModel, Field

from rlbook.policy import Completion
from rlbook.scale.process import TOKEN_VARIABLE

Result = TypeVar("Result")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before another try: doubled by every failure
CLAMPED = -9999.0  # what vLLM writes for -inf and NaN
RELOAD_ROUTE = "/collective_rpc"
ADAPTER_ROUTE, ADAPTER = "/v1/load_lora_adapter", "policy"  # and what an adapter is called there
TRANSFER = {  # the steps of a transfer between vLLM's engines, and what each is told
    "shutdown_weight_transfer_engine": [],
    "init_weight_transfer_engine": ["init_info"],
    "start_weight_update": [],
    "update_weights": ["update_info"],
    "finish_weight_update": [],
}
WEIGHTS_VARIABLE = "RLBOOK_WEIGHTS"  # names the folder whose subfolders a server may load
PUSH_VARIABLE = "RLBOOK_PUSH_SECONDS"  # how long a trainer waits for a server at most


class GenerationFailed(RuntimeError):
    """A generator could not answer (connection, time limit, HTTP 5xx, malformed reply).

    Asking again, or asking another generator, may help.
    """


class RequestRefused(RuntimeError):
    """A generator refused the request itself (HTTP 4xx); asking again would not help."""


async def all_of(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of all; the first error, if there is one, after all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[Result], results)


def pause_after(failures: int) -> float:
    """Seconds to leave a server in peace after so many failures in a row."""
    return min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)


def weight_label(run_id: str, version: int | None) -> str:
    """The name a server knows its weights by; None stands for an update that is under way."""
    return f"{run_id}:{'updating' if version is None else version}"


def labelled_version(label: str, run_id: str) -> int | None:
    """The version in a label of this run; None for any other label."""
    owner, _, version = label.rpartition(":")
    return int(version) if owner == run_id and version.isdecimal() else None


class Sampling(BaseModel, extra="forbid", strict=True):
    """vLLM's sampling parameters for the whole distribution, with log-probabilities, no seed.

    vLLM's CPU generator cannot continue a seeded request that an update interrupted.
    """

    n: int = Field(ge=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(ge=0, allow_inf_nan=False)
    top_p: Literal[1] = 1
    top_k: Literal[0] = 0
    min_p: Literal[0] = 0
    logprobs: Literal[0] = 0
    detokenize: Literal[False] = False
    skip_special_tokens: Literal[False] = False
    stop_token_ids: list[int] = []


def sampling_params(
    n: int, max_new_tokens: int, temperature: float, stop: Iterable[int] = ()
) -> dict:
    """`Sampling` in a request; `stop` are tokens that end a completion besides the EOS."""
    asked = Sampling(
        n=n, max_tokens=max_new_tokens, temperature=temperature, stop_token_ids=list(stop)
    )
    return asked.model_dump()


def reload_request(folder: str, method: str = "reload_weights") -> dict:
    """What has a server load the safetensors files of a folder, or the adapter in it."""
    return {"method": method, "kwargs": {"weights_path": folder}}


class Reload(BaseModel, extra="forbid"):
    """A `reload_request`. vLLM's route would call any method of its workers."""

    method: Literal["reload_weights", "load_adapter"]
    kwargs: dict[Literal["weights_path"], str] = Field(min_length=1)


def requested_folder(body: bytes) -> str:
    """The folder of a `reload_request`; `ValueError` for another body, or if not of this run."""
    folder = Reload.model_validate_json(body).kwargs["weights_path"]
    root = os.environ.get(WEIGHTS_VARIABLE)
    if root and not Path(folder).resolve().is_relative_to(Path(root).resolve()):
        raise ValueError(f"weights_path: {folder} is not in {root}, the run's folder of weights")
    return folder


def authorized(header: bytes) -> bool:
    """Whether a request's `Authorization` carries this server's secret, if it has one."""
    token = os.environ.get(TOKEN_VARIABLE)
    return not token or secrets.compare_digest(header, f"Bearer {token}".encode())


def read_completions(reply, n: int, limit: int, run_id: str) -> list[Completion]:
    """The `n` completions in a reply, in order; a malformed one raises what is wrong with it."""
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    if [choice["index"] for choice in choices] != list(range(n)):
        raise ValueError(f"{len(choices)} choices instead of {n}")
    return [read_completion(choice, limit, run_id) for choice in choices]


def read_completion(choice: dict, limit: int, run_id: str) -> Completion:
    """One completion of a reply; `ValueError` says what is wrong with it.

    Its versions come as spans [start, end), which must cover all tokens in order.
    """
    tokens, reason = choice["token_ids"], choice["finish_reason"]
    logps = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    if reason not in ("stop", "length"):
        raise ValueError(f"completion ended by {reason!r}")
    if not 0 < len(tokens) <= limit or not all(type(t) is int and t >= 0 for t in tokens):
        raise ValueError(f"token_ids are not 1 to {limit} token ids")
    if len(logps) != len(tokens):
        raise ValueError(f"{len(logps)} log-probabilities for {len(tokens)} tokens")
    if wrong := [logp for logp in logps if not CLAMPED < logp < 1e-3]:  # nor is NaN
        raise ValueError(f"{wrong[0]} is no log-probability: the policy may have diverged")
    versions: list[int] = []
    for span in choice["weight_versions"]:
        if (version := labelled_version(span["version"], run_id)) is None:
            raise ValueError(f"tokens by weights {span['version']!r}, which are not of this run")
        if not len(versions) == span["start"] < span["end"] <= len(tokens):
            raise ValueError(f"weight_versions do not cover the tokens one by one: {span!r:.200}")
        versions += [version] * (span["end"] - span["start"])
    if len(versions) != len(tokens):
        raise ValueError(f"weight_versions cover {len(versions)} of {len(tokens)} tokens")
    return Completion(tokens, logps, reason, versions=versions)
