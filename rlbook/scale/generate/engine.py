"""What the orchestrator asks of a generator, and what can go wrong with one."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar, cast

Result = TypeVar("Result")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before another try: doubled by every failure


def pause_after(failures: int) -> float:
    """Seconds to leave a server in peace after so many failures in a row."""
    return min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)


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
    return cast(list[Result], results)


def weight_label(run_id: str, version: int | None) -> str:
    """The name a server knows its weights by; None stands for an update that is under way."""
    return f"{run_id}:{'updating' if version is None else version}"


def labelled_version(label: str, run_id: str) -> int | None:
    """The version in a label of this run; None for any other label."""
    owner, _, version = label.rpartition(":")
    return int(version) if owner == run_id and version.isdecimal() else None
