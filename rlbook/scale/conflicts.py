"""Settings that are valid one by one and cannot work together."""

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rlbook.objectives import METHODS, Method

if TYPE_CHECKING:
    from rlbook.scale.config import ScaleConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def conflicts(config: "ScaleConfig") -> list[str]:
    """What cannot work together: each line names the fields and the fix."""
    generator, trainer, rollout = config.generator, config.trainer, config.rollout
    found = []
    if trainer.method not in METHODS:
        found.append(f"trainer.method: unknown {trainer.method!r}; one of {sorted(METHODS)}")
    elif needs := unsupported(METHODS[trainer.method]):
        found.append(
            f"trainer.method: {trainer.method} needs {needs}; train it with `rlbook train`"
        )
    elif trainer.truncate_weight and METHODS[trainer.method].old_logprobs == "sampler":
        found.append(
            f"trainer.truncate_weight: {trainer.method} takes its ratio to the sampler's own "
            "log-probabilities, there is nothing to correct: leave it out"
        )
    if generator.transport in ("nccl", "ipc") and trainer.device != "cuda":
        found.append(
            f"generator.transport {generator.transport} moves GPU memory: set trainer.device to "
            "cuda, or the transport to file or gloo"
        )
    found += placement_conflicts(config)
    if generator.engine == "builtin" and generator.tensor_parallel > 1:
        found.append("generator.tensor_parallel needs engine vllm")
    if generator.engine == "builtin" and generator.dtype != "float32":
        found.append("generator.engine builtin computes in float32: set generator.dtype to float32")
    if generator.engine == "builtin" and generator.transport in ("nccl", "ipc"):
        found.append("generator.engine builtin gets weights by file or gloo: set the transport")
    together = max(rollout.group_size, config.eval.samples if config.eval.every else 0)
    if generator.slots < together:
        found.append(
            f"generator.slots {generator.slots}: the {together} completions of one prompt are one "
            "request (rollout.group_size, eval.samples): give a server at least as many slots"
        )
    if rollout.interruption and (
        rollout.interruption.after + rollout.interruption.answer_tokens > rollout.max_new_tokens
    ):
        found.append(
            "rollout.interruption: after + answer_tokens exceed rollout.max_new_tokens "
            f"({rollout.max_new_tokens})"
        )
    return found


def placement_conflicts(config: "ScaleConfig") -> list[str]:
    """What cannot work in where processes run and how they reach each other."""
    generator, trainer = config.generator, config.trainer
    found = []
    if generator.host not in LOOPBACK and not generator.token:
        found.append(
            f"generator.host {generator.host} is reachable from other machines: set "
            "generator.token, or bind 127.0.0.1"
        )
    for url in generator.servers:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            found.append(f"generator.servers: {url!r} is no URL: write http://host:port")
        elif address.hostname not in LOOPBACK and not generator.token:
            found.append(f"generator.servers: {url} is another machine: set generator.token")
    if not generator.count and not generator.servers:
        found.append("generator.count is 0: name running servers in generator.servers")
    if generator.port + generator.count > 65536:
        found.append(f"generator.port {generator.port}: {generator.count} ports do not fit above")
    if generator.transport == "ipc" and not generator.colocated:
        found.append("generator.transport ipc shares GPUs: set generator.colocated to true")
    if generator.colocated and generator.count * generator.tensor_parallel > trainer.processes:
        found.append(
            f"generator.colocated: {generator.count} servers of {generator.tensor_parallel} GPUs "
            f"do not fit on trainer.processes {trainer.processes}: lower generator.count"
        )
    if not re.fullmatch(r"\S+:\d{1,5}", trainer.rendezvous):
        found.append(f"trainer.rendezvous {trainer.rendezvous!r}: write host:port")
    return found


def unsupported(method: Method) -> str:
    """What a method needs that the full-scale trainer does not carry; empty if nothing."""
    needs = {
        "a critic": method.needs_critic,
        "greedy completions": method.needs_greedy,
    }
    return " and ".join(name for name, needed in needs.items() if needed)
