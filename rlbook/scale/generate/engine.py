"""What the orchestrator asks of a generator, and what can go wrong with one."""

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rlbook.policy import Completion

Result = TypeVar("Result")


@dataclass(frozen=True)
class VersionedCompletion(Completion):
    """A completion sampled while weights may have changed: `versions[t]` wrote `token_ids[t]`."""

    versions: list[int]


class GenerationFailed(RuntimeError):
    """A generator could not answer (connection, time limit, HTTP 5xx, malformed reply).

    Asking again, or asking another generator, may help. The message names server and reason.
    """


class RequestRefused(RuntimeError):
    """A generator refused the request itself (HTTP 4xx); asking again would not help."""


async def all_of(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of all; the first error, if there is one, after all have ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class AsyncEngine(Protocol):
    """Completes token prompts with the newest weights it has; many requests at a time."""

    async def complete(
        self,
        prompt: list[int],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float,
        version: int | None = None,
    ) -> list[VersionedCompletion]:
        """`n` completions of one prompt, begun by weights of `version` if one is named.

        Raises `GenerationFailed`, also if nobody has those, or `RequestRefused`.
        """

    async def versions(self) -> set[int]:
        """Of the weights in use; empty if there are none yet, or those of another run."""


def weight_label(run_id: str, version: int | None) -> str:
    """The name a server knows its weights by; None stands for an update that is under way."""
    return f"{run_id}:{'updating' if version is None else version}"


def labelled_version(label: str, run_id: str) -> int | None:
    """The version in a label of this run; None for any other label."""
    owner, _, version = label.rpartition(":")
    return int(version) if owner == run_id and version.isdecimal() else None
