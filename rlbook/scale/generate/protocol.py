"""The wire format of what generators are asked, and of their replies: a subset of vLLM's."""

import math
from pathlib import Path

from rlbook.policy import Completion
from rlbook.scale.generate.engine import labelled_version

CLAMPED = -9999.0  # what vLLM writes for -inf and NaN
RELOAD_ROUTE, RELOAD = "/collective_rpc", "reload_weights"
WEIGHTS_VARIABLE = "RLBOOK_WEIGHTS"  # names the folder whose subfolders a server may load
PUSH_VARIABLE = "RLBOOK_PUSH_SECONDS"  # how long a trainer waits for a server at most


def sampling_params(n: int, max_new_tokens: int, temperature: float) -> dict:
    """vLLM's sampling parameters for the whole distribution, with log-probabilities, no seed.

    vLLM's CPU generator cannot continue a seeded request that an update interrupted.
    """
    return {
        "n": n,
        "max_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "logprobs": 0,
        "detokenize": False,
        "skip_special_tokens": False,
    }


def reload_request(folder: str) -> dict:
    """What has a server load the safetensors files of a folder."""
    return {"method": RELOAD, "kwargs": {"weights_path": folder}}


def requested_folder(body: object, root: str | None) -> str:
    """The folder of a `reload_request`. `ValueError` for any other body, or if not under `root`.

    vLLM's route would call any method of its workers, and load any folder.
    """
    folder = body.get("kwargs", {}).get("weights_path") if isinstance(body, dict) else None
    if not isinstance(folder, str) or body != reload_request(folder):
        raise ValueError(f"body: {RELOAD_ROUTE} serves {reload_request('<folder>')} alone")
    if root and not Path(folder).resolve().is_relative_to(Path(root).resolve()):
        raise ValueError(f"weights_path: {folder} is not in {root}, the run's folder of weights")
    return folder


def read_completions(reply, n: int, limit: int, run_id: str) -> list[Completion]:
    """The `n` completions in a reply, in order; `ValueError` for a malformed one."""
    try:
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        if [choice["index"] for choice in choices] != list(range(n)):
            raise ValueError(f"{len(choices)} choices instead of {n}")
        return [read_completion(choice, limit, run_id) for choice in choices]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def read_completion(choice: dict, limit: int, run_id: str) -> Completion:
    """One completion of a reply; `ValueError` says what is wrong with it."""
    tokens, reason = choice["token_ids"], choice["finish_reason"]
    logps = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    if reason not in ("stop", "length"):
        raise ValueError(f"completion ended by {reason!r}")
    if not 0 < len(tokens) <= limit or not all(type(t) is int and t >= 0 for t in tokens):
        raise ValueError(f"token_ids are not 1 to {limit} token ids")
    if len(logps) != len(tokens):
        raise ValueError(f"{len(logps)} log-probabilities for {len(tokens)} tokens")
    for logp in logps:
        if not (math.isfinite(logp) and CLAMPED < logp < 1e-3):
            raise ValueError(f"{logp} is no log-probability: the policy may have diverged")
    versions = read_versions(choice["weight_versions"], len(tokens), run_id)
    return Completion(tokens, logps, reason, versions=versions)


def read_versions(spans: list[dict], length: int, run_id: str) -> list[int]:
    """One version per token from spans [start, end) that must cover all tokens in order."""
    versions: list[int] = []
    for span in spans:
        version = labelled_version(span["version"], run_id)
        if version is None:
            raise ValueError(f"tokens by weights {span['version']!r}, which are not of this run")
        if span["start"] != len(versions) or not span["start"] < span["end"] <= length:
            raise ValueError(f"weight_versions do not cover the tokens one by one: {spans!r:.200}")
        versions += [version] * (span["end"] - span["start"])
    if len(versions) != length:
        raise ValueError(f"weight_versions cover {len(versions)} of {length} tokens")
    return versions
