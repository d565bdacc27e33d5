"""The processes of a run on the machines of a Ray cluster: `launch.engine: ray`.

Ray chooses machines, notices which are lost, and passes signals on. What the run computes never
goes through it: batches, weights and checkpoints travel as on one machine, by the run folder, HTTP
and NCCL. So all machines see that folder, under the same path.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlbook.scale.generate.registry import HOST_VARIABLE, free_port
from rlbook.scale.launch.processes import LOST, Command, LocalProcess, meeting

PLACED_WITHIN = 600.0  # seconds for machines to join
SHARED_WITHIN = 60.0  # seconds for a file to be seen by all machines
ANSWER_SECONDS = 2.0  # for an actor that is alive


class NotShared(OSError):
    """A machine does not see the run folder as it was written."""


def bundles(command: Command) -> list[dict[str, int]]:
    """What a command needs reserved: for each of its processes, on one machine."""
    own = {"CPU": command.cpus} | ({"GPU": command.gpus} if command.gpus else {})
    return [own] * command.ranks


class Host:
    """An actor with one process, on the machine that Ray chose; each dies with the other."""

    def __init__(self, folder: str, config: Path, text: str):
        self.folder, self.config, self.text = folder, config, text
        self.process: LocalProcess | None = None

    def address(self) -> tuple[str, int]:
        """Of this machine, with a free port."""
        host = ray.util.get_node_ip_address()
        return host, free_port(host)

    def run(
        self, command: Command, rank: int, log: Path, first: tuple[str, int], own: tuple[str, int]
    ) -> int:
        """The exit code of a process of the command; `first` is where its ranks meet."""
        self.enter_folder()
        env = {HOST_VARIABLE: own[0]} | meeting(rank, command.ranks, *first, local_rank=0)
        node = ray.get_runtime_context().get_node_id()
        self.process = LocalProcess(command.argv, command.env | env, log, f"{own[0]}, node {node}")
        return self.process.wait()

    def enter_folder(self) -> None:
        """Be where the launcher is. Raises `NotShared` if that is another folder here."""
        deadline = time.monotonic() + SHARED_WITHIN
        while not (os.path.isdir(self.folder) and seen(self.config) == self.text):
            if time.monotonic() > deadline:
                raise NotShared(
                    f"node {ray.util.get_node_ip_address()} does not see {self.config} as the "
                    f"launcher wrote it, or has no folder {self.folder}: the run folder has to be "
                    "on a file system that all nodes share, and the launcher's folder on all nodes"
                )
            time.sleep(0.5)
        os.chdir(self.folder)

    def send_signal(self, number: int) -> None:
        if self.process:
            self.process.send_signal(number)


def seen(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


class RemoteProcess:
    """A process of a `Host`, as the launcher sees it."""

    pid = None

    def __init__(self, host, own, exit_code, log: Path):
        self.host, self.own, self.exit_code, self.log = host, own, exit_code, log

    def poll(self) -> int | None:
        if not answered(self.exit_code, 0.0):
            return None
        try:
            return ray.get(self.exit_code)
        except NotShared as error:
            raise ValueError(error.cause) from None
        except RayError as error:
            with self.log.open("a") as log:
                log.write(f"{error}\n")
            return LOST

    def send_signal(self, number: int) -> None:
        """To the process; SIGKILL ends its actor as well, wherever that is."""
        if placed := answered(self.own, 0.0):
            answered(self.host.send_signal.remote(number), ANSWER_SECONDS)
        if number == signal.SIGKILL or not placed:
            ray.kill(self.host)

    def wait(self, seconds: float) -> int:
        if not answered(self.exit_code, seconds):
            raise subprocess.TimeoutExpired(str(self.log), seconds)
        return self.poll()


def answered(reference: ray.ObjectRef, seconds: float) -> bool:
    """Whether a result is there, or comes in time."""
    return bool(ray.wait([reference], timeout=seconds)[0])


class Cluster:
    """A connection to Ray with room reserved for every command: `with Cluster(commands, config)`.

    `config` is the run's file. Raises `ValueError` if there is no cluster, or too small a one.
    """

    def __init__(self, commands: Iterable[Command], config: Path):
        self.commands = sorted(commands, key=lambda command: -command.cpus)  # the others fit later
        self.config = config.absolute()
        self.reserved: dict[str, PlacementGroup] = {}

    def __enter__(self) -> "Cluster":
        asked_to_stop = signal.getsignal(signal.SIGTERM)
        try:
            address = os.environ.get("RAY_ADDRESS", "auto")
            ray.init(address, log_to_driver=False, logging_level="warning")
        except ConnectionError as error:
            raise ValueError(
                "no Ray cluster here: `ray start --head` on this machine, and "
                f"`ray start --address=<this machine>:6379` on the others ({error})"
            ) from None
        signal.signal(signal.SIGTERM, asked_to_stop)  # Ray has a handler of its own
        for command in self.commands:
            self.reserved[command.name] = placement_group(bundles(command), strategy="PACK")
        self.wait_for_room()
        return self

    def __exit__(self, *error) -> None:
        ray.shutdown()  # what still runs ends with its actor

    def wait_for_room(self) -> None:
        deadline = time.monotonic() + PLACED_WITHIN
        for name, group in self.reserved.items():
            while not group.wait(1):
                if time.monotonic() > deadline:
                    raise ValueError(f"no room for {name}: {self.shortage()}")

    def shortage(self) -> str:
        """What the run needs and what the cluster has."""
        listed = [bundle for command in self.commands for bundle in bundles(command)]
        found = ray.cluster_resources()
        counts = [
            f"{sum(bundle.get(name, 0) for bundle in listed)} {name}s of {found.get(name, 0):g}"
            for name in ("CPU", "GPU")
        ]
        return (
            f"the run needs {' and '.join(counts)} in the cluster, each process's on one machine: "
            "add machines, or lower generate.count, generate.tensor_parallel or train.processes"
        )

    def start(self, command: Command, logs: Sequence[Path]) -> list[RemoteProcess]:
        """Start a command; Ray runs it as soon as there are machines for all its processes."""
        text = self.config.read_text()
        hosts = [
            ray.remote(Host)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_concurrency=2,  # a signal reaches it while its process runs
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.reserved[command.name], placement_group_bundle_index=rank
                ),
            )
            .remote(os.getcwd(), self.config, text)
            for rank, bundle in enumerate(bundles(command))
        ]
        own = [host.address.remote() for host in hosts]
        return [
            RemoteProcess(
                host,
                own[rank],
                host.run.remote(command, rank, log.absolute(), own[0], own[rank]),
                log,
            )
            for rank, (host, log) in enumerate(zip(hosts, logs, strict=True))
        ]
