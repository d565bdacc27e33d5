"""The processes of a run on the machines of a Ray cluster: `launch.engine: ray`.

Ray chooses machines, notices which are lost, and passes signals on. What the run computes never
goes through it: batches, weights and checkpoints travel as on one machine, by the run folder, HTTP
and NCCL. So all machines see that folder, under the same path.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rlbook.scale.launch.processes import (
    LOST,
    VISIT_SECONDS,
    Command,
    LocalProcess,
    Report,
    Start,
    meeting,
    visit,
)
from rlbook.scale.process import HOST_VARIABLE, free_port, waited

PLACED_WITHIN = 600.0  # seconds for machines to join
SHARED_WITHIN = 60.0  # seconds for a file to be seen by all machines
ANSWER_SECONDS = 2.0  # for an actor that is alive


class NotShared(OSError):
    """A machine does not see the run folder as it was written."""


def bundles(command: Command) -> list[dict[str, int]]:
    """What a command needs reserved: for its processes that are beside each other, on a machine."""
    own = {"CPU": command.cpus} | ({"GPU": command.gpus} if command.gpus else {})
    together = {name: command.beside * count for name, count in own.items()}
    return [together] * (command.ranks // command.beside)


class Host:
    """An actor with one process, on the machine that Ray chose; each dies with the other."""

    def __init__(self, folder: str, config: Path, text: str, patience: float):
        self.folder, self.config, self.text, self.patience = folder, config, text, patience
        self.process: LocalProcess | None = None

    def address(self) -> tuple[str, int]:
        """Of this machine, with a free port."""
        return own_address()

    def run(
        self, command: Command, rank: int, log: Path, first: tuple[str, int], own: tuple[str, int]
    ) -> int:
        """The exit code of a process of the command; `first` is where its ranks meet."""
        self.enter_folder()
        host, node = own[0], ray.get_runtime_context().get_node_id()
        env = command.env | meeting(rank, command.ranks, *first, local_rank=0) | network(host)
        self.process = LocalProcess(command.argv, env, log, f"{host}, node {node}")
        return self.process.wait()

    def enter_folder(self) -> None:
        """Be where the launcher is. Raises `NotShared` if that is another folder here."""

        def entered() -> bool:
            with suppress(OSError):
                os.chdir(self.folder)
                return self.config.read_text() == self.text
            return False

        if not waited(entered, self.patience):
            raise NotShared(
                f"node {ray.util.get_node_ip_address()} does not see {self.config} as the launcher "
                f"wrote it, or has no folder {self.folder}: the run folder has to be on a file "
                "system that all nodes share, and the launcher's folder on all nodes"
            )

    def send_signal(self, number: int) -> None:
        """To its process, if that has been started."""
        if self.process:
            self.process.send_signal(number)


def network(host: str) -> dict[str, str]:
    """The environment in which a process speaks to others from this address of its machine.

    Left alone, gloo takes what the machine's name resolves to, which may be a loopback address.
    """
    names = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - os.environ.keys()
    interface = interface_of(host)
    return {HOST_VARIABLE: host} | ({name: interface for name in names} if interface else {})


def interface_of(host: str) -> str | None:
    """The network interface with this address."""
    known = psutil.net_if_addrs().items()
    return next((name for name, own in known if host in [one.address for one in own]), None)


class RemoteProcess:
    """A process of a `Host`, as the launcher sees it."""

    pid = None

    def __init__(self, host, own, end: ray.ObjectRef, log: Path):
        self.host, self.own, self.end, self.log = host, own, end, log
        self.code: int | None = None

    def begun(self) -> bool:
        """Whether the process has a place and a process id."""
        return answered(self.own, 0.0)

    def poll(self) -> int | None:
        """Its exit code, or `LOST` with Ray's reason in its log; None while it lives."""
        if self.code is None and answered(self.end, 0.0):
            try:
                self.code = int(ray.get(self.end))
            except NotShared as error:
                self.code = LOST  # whoever ends the run is told only once
                raise ValueError(getattr(error, "cause", error)) from None
            except RayError as error:
                self.code = LOST
                with suppress(OSError), self.log.open("a") as log:
                    log.write(f"{error}\n")
        return self.code

    def send_signal(self, number: int) -> None:
        """To the process; SIGKILL ends its actor as well, wherever that is."""
        if placed := answered(self.own, 0.0):
            answered(self.host.send_signal.remote(number), ANSWER_SECONDS)
        if number == signal.SIGKILL or not placed:
            ray.kill(self.host)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; raises `TimeoutExpired` if it still lives after `seconds`."""
        if not answered(self.end, seconds):
            raise subprocess.TimeoutExpired(str(self.log), seconds)
        return self.poll()


def answered(reference: ray.ObjectRef, seconds: float) -> bool:
    """Whether a result is there, or comes in time."""
    return bool(ray.wait([reference], timeout=seconds)[0])


@contextmanager
def cluster(commands: Iterable[Command], config: Path) -> Iterator[Start]:
    """Reserve room for every command; yields what starts one there.

    `config` is the run's file. Raises `ValueError` if there is no cluster, or too small a one.
    """
    with connected():
        yield partial(start_there, reserve(commands), config.absolute())


@contextmanager
def connected() -> Iterator[None]:
    """Be part of the cluster in the block. `ValueError` if there is none."""
    asked_to_stop = signal.getsignal(signal.SIGTERM)
    try:
        address = os.environ.get("RAY_ADDRESS", "auto")
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ValueError(
            "no Ray cluster here: `ray start --head` on this machine, and "
            f"`ray start --address=<this machine>:6379` on the others ({error})"
        ) from None
    signal.signal(signal.SIGTERM, asked_to_stop)  # Ray has a handler of its own
    try:
        yield
    finally:
        ray.shutdown()  # what still runs ends with its actor


def on_every_node(argv: Sequence[str], folder: str, cuda: bool) -> list[Report]:
    """The report of this program on every node; with `cuda` it has a GPU where there is one."""

    def there(visited: str, function: Callable[..., Any], gpus: int = 0) -> Any:
        place = NodeAffinitySchedulingStrategy(visited, soft=False)
        return ray.remote(function).options(
            num_cpus=0, num_gpus=gpus, scheduling_strategy=place, max_retries=0
        )

    with connected():
        nodes = [node for node in ray.nodes() if node["Alive"]]
        host, port = ray.get(there(nodes[0]["NodeID"], own_address).remote())
        asked = []
        for rank, node in enumerate(nodes):
            env = meeting(rank, len(nodes), host, port, local_rank=0)
            gpus = int(cuda and node["Resources"].get("GPU", 0) > 0)
            task = there(node["NodeID"], visit_with_network, gpus)
            asked.append(task.remote(argv, folder, env))
        reports = []
        for node, task in zip(nodes, asked, strict=True):
            try:
                reports.append(ray.get(task, timeout=2 * VISIT_SECONDS))
            except RayError as error:
                wrong = {"python": str(error).splitlines()[-1]}
                reports.append(Report(node["NodeManagerAddress"], wrong=wrong))
    return reports


def own_address() -> tuple[str, int]:
    """Of this machine, with a free port."""
    host = ray.util.get_node_ip_address()
    return host, free_port(host)


def visit_with_network(argv: Sequence[str], folder: str, env: Mapping[str, str]) -> Report:
    """A report of this node, whose program speaks from the node's address."""
    return visit(argv, folder, {**env, **network(ray.util.get_node_ip_address())})


def reserve(commands: Iterable[Command]) -> dict[str, PlacementGroup]:
    """Room for every command, as soon as there is. Raises `ValueError` if there is too little."""
    commands = sorted(commands, key=lambda command: -command.cpus)  # smaller ones fit later
    reserved = {c.name: placement_group(bundles(c), strategy="PACK") for c in commands}
    deadline = time.monotonic() + PLACED_WITHIN
    for name, group in reserved.items():
        while not group.wait(1):
            if time.monotonic() > deadline:
                cpus = sum(command.ranks * command.cpus for command in commands)
                gpus = sum(command.ranks * command.gpus for command in commands)
                found = ray.cluster_resources()
                raise ValueError(
                    f"no room for {name}: the run needs {cpus} CPUs of {found.get('CPU', 0):g} "
                    f"and {gpus} GPUs of {found.get('GPU', 0):g} in the cluster, each "
                    "process's on one machine: add machines, or lower generate.count, "
                    "generate.tensor_parallel, train.processes or train.shard"
                )
    return reserved


def start_there(
    reserved: Mapping[str, PlacementGroup], config: Path, command: Command, logs: Sequence[Path]
) -> list[RemoteProcess]:
    """Start a command; Ray runs it as soon as there are machines for all its processes."""
    text, group = config.read_text(), reserved[command.name]
    hosts: list[Any] = [  # handles of the actor: Ray has no types for them
        ray.remote(Host)
        .options(
            num_cpus=command.cpus,
            num_gpus=command.gpus,
            max_concurrency=2,  # a signal reaches it while its process runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank // command.beside),
        )
        .remote(os.getcwd(), config, text, SHARED_WITHIN)
        for rank in range(command.ranks)
    ]
    own = [host.address.remote() for host in hosts]
    exits = [
        host.run.remote(command, rank, log.absolute(), own[0], own[rank])
        for rank, (host, log) in enumerate(zip(hosts, logs, strict=True))
    ]
    return [RemoteProcess(*parts) for parts in zip(hosts, own, exits, logs, strict=True)]
