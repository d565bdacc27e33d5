"""A run on several machines: what is reserved for it, and what becomes of it if machines are lost.

The machines are the raylets of a Ray cluster on this one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml
from ray._private import services
from ray.cluster_utils import Cluster as Machines

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.paths import ROOT
from rlbook.scale.batch_log import published
from rlbook.scale.config import LaunchConfig, load_config
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.launch.check_nodes import check_nodes
from rlbook.scale.launch.cluster import bundles, cluster, interface_of
from rlbook.scale.launch.commands import run_commands
from rlbook.scale.launch.processes import LOST, Command
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths
from rlbook.scale.layout import Layout
from workshop.chaos.promises import broken_promises
from workshop.chaos.victims import status_of, survivors

PATIENCE = 300.0  # seconds that a busy machine may take
# Ray asks every machine every 3 s whether it lives, and takes five refusals for its death. One that
# is only slow has 10 s to answer, as before.
ASKED_OFTEN = {"health_check_period_ms": 500}
WAITS = (  # Ray's own limits, in seconds, that a busy machine exceeds
    "gcs_rpc_server_connect_timeout_s",
    "gcs_rpc_server_reconnect_timeout_s",
    "gcs_server_request_timeout_seconds",
    "worker_register_timeout_seconds",
)
UPDATES = 8
SETTINGS = {
    "steps": UPDATES,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "data.pool": 64,
    "data.retire_at": None,
    "evaluation.every": 0,
    "generate.engine": "builtin",
    "train.processes": 2,
    "checkpoint.every": 3,
    "launch.engine": "ray",
}


def until(condition):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.fixture
def several_nodes(monkeypatch):
    """The settings for several nodes, wherever there is no vLLM."""
    monkeypatch.setattr(vllm_adapter, "server_command", lambda config, context: ([], {}))
    return load_config("configs/multi-node.yaml", ["generate.engine=vllm"])


def reserved(config):
    return {c.name: bundles(c) for c in run_commands(config, Layout(Path("run")))}


def test_every_process_has_a_place_and_a_generators_gpus_are_on_one_machine(several_nodes):
    config = several_nodes.replace(processes=16, count=3, tensor_parallel=2, verifiers=8)
    assert reserved(config) == {
        "trainer": [{"CPU": 1, "GPU": 1}] * 16,
        "orchestrator": [{"CPU": 9}],
        **{f"generator{i}": [{"CPU": 1, "GPU": 2}] for i in range(3)},
    }
    copies = reserved(config.replace(processes=16, shard=8))
    assert copies["trainer"] == [{"CPU": 8, "GPU": 8}] * 2
    on_cpus = reserved(config.replace(device="cpu"))
    assert not any("GPU" in bundle for command in on_cpus.values() for bundle in command)


def add_machine(machines, cpus, **options):
    """The first is the head."""
    return machines.add_node(num_cpus=cpus, **options)


def patient(look):
    """A look at what Ray was told, again and again: it gives up after 30 s of its own."""

    def look_again(*arguments):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return look(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    return look_again


@pytest.fixture(scope="module")
def machine():
    """A cluster of one machine with two CPUs, its head. A test may add others."""
    machines = Machines()
    with pytest.MonkeyPatch.context() as patch:
        for name in WAITS:
            patch.setenv(f"RAY_{name}", f"{PATIENCE:.0f}")
        patch.setenv("RAY_worker_niceness", "0")  # 15 is nothing beside others that are busy
        patch.setattr(services, "get_node", patient(services.get_node))
        try:
            add_machine(machines, 2, include_dashboard=False, _system_config=ASKED_OFTEN)
            patch.setenv("RAY_ADDRESS", machines.address)
            yield machines
        finally:
            machines.shutdown()


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    return Layout(tmp_path)


@contextmanager
def supervised(layout, command, **limits):
    """Supervise a command on the cluster until the end of the block."""
    with (
        cluster([command], layout.config) as start,
        Supervisor([command], layout, LaunchConfig(**limits), start) as supervisor,
    ):
        yield supervisor


STUBBORN = """
import json, os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RLBOOK_HOST"
path = pathlib.Path(f"pid{os.getpid()}")
path.with_suffix(".partial").write_text(json.dumps([os.environ[name] for name in names]))
path.with_suffix(".partial").rename(path)
time.sleep(600)
"""


@pytest.mark.slow
def test_ranks_meet_on_the_first_ones_machine_and_end_with_all_they_have_started(
    machine, layout, monkeypatch
):
    monkeypatch.chdir(layout.root)
    gang = Command("trainer", [sys.executable, "-S", "-c", STUBBORN], ranks=2)
    with supervised(layout, gang, grace=0.5) as supervisor:
        supervisor.watch(lambda: len(list(layout.root.glob("pid*[0-9]"))) == 4)
        pids = [int(path.name[3:]) for path in layout.root.glob("pid*[0-9]")]
    told = [json.loads((layout.root / f"pid{pid}").read_text()) for pid in pids]
    assert sorted(row[:3] for row in told) == [[r, "0", "2"] for r in "0011"]
    assert len({tuple(row[3:]) for row in told}) == 1 and told[0][3] == told[0][5]
    until(lambda: not any(map(is_alive, pids)))
    (stop,) = [row for row in read_jsonl(layout.log("events")) if row["event"] == "stop"]
    assert stop["code"] in (-signal.SIGKILL, LOST)


@pytest.mark.slow
def test_deaths_are_counted_as_on_one_machine(machine, layout):
    failing = Command("trainer", [sys.executable, "-S", "-c", "1 / 0"])
    with (
        pytest.raises(TooManyDeaths, match=r"trainer died 2 times .*[\s\S]*division by zero"),
        supervised(layout, failing, max_deaths=1) as supervisor,
    ):
        supervisor.watch(lambda: False)


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_run_stops_it(machine, layout, monkeypatch):
    monkeypatch.setattr("rlbook.scale.launch.cluster.SHARED_WITHIN", 0.5)
    sleeping = Command("trainer", [sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    with (
        pytest.raises(ValueError, match=r"node \S+ does not see .*config\.yaml .* all nodes share"),
        supervised(layout, sleeping) as supervisor,
    ):
        supervisor.look(done=False)
        layout.config.unlink()  # long before the machine has an actor that looks for it
        supervisor.watch(lambda: False)
    assert not (layout.logs / "trainer.log").exists()


@pytest.mark.slow
def test_every_node_says_what_a_run_will_find_there(machine, tmp_path, capsys):
    node = add_machine(machine, 1)
    try:
        words = ["train.processes=2", "launch.engine=ray", f"run={tmp_path / 'run'}"]
        assert check_nodes(load_config("configs/cpu-tiny.yaml", words)) == 0, capsys.readouterr()
    finally:
        machine.remove_node(node)
    rows = re.findall(r"^(\S+) \([01]\) .* shared .* GB/s$", capsys.readouterr().out, re.M)
    assert len(rows) == 2


@pytest.mark.slow
def test_a_cluster_that_is_too_small_is_named(machine, layout, monkeypatch):
    monkeypatch.setattr("rlbook.scale.launch.cluster.PLACED_WITHIN", 1.0)
    wide = Command("generator0", [], gpus=2)
    shortage = r"no room for generator0: .* 1 CPUs of 2 and 2 GPUs of 0 .*lower generate\.count"
    with pytest.raises(ValueError, match=shortage), supervised(layout, wide):
        pass


def test_a_missing_cluster_is_named(layout, monkeypatch):
    def init(*arguments, **options):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr("ray.init", init)
    missing = r"no Ray cluster here: `ray start --head` .*Could not find"
    with pytest.raises(ValueError, match=missing), cluster([], layout.config):
        pass


def is_alive(pid):
    return status_of(pid) not in (None, psutil.STATUS_ZOMBIE)


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None  # reserved for examples


def test_the_examples_for_slurm_and_kubernetes_parse_and_have_the_gpus(several_nodes):
    folder = ROOT / "configs" / "cluster"
    subprocess.run(["bash", "-n", folder / "slurm.sbatch"], check=True)
    job = yaml.safe_load((folder / "kuberay.yaml").read_text())
    assert job["kind"] == "RayJob"
    assert f"{several_nodes.run}/config.yaml" in job["spec"]["entrypoint"]
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    gpus = sum(bundle.get("GPU", 0) for one in reserved(several_nodes).values() for bundle in one)
    assert workers["replicas"] * int(pod["nvidia.com/gpu"]) >= gpus


@contextmanager
def launcher(machines, layout, *arguments):
    """`rlbook scale` on the head node."""
    argv = [sys.executable, "-m", "rlbook", "scale", *arguments]
    environment = os.environ | {"RAY_ADDRESS": machines.address}
    with subprocess.Popen(argv, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def machine_of(layout, name):
    """The node id of a process, from the last head in its log."""
    log = (layout.logs / f"{name}.log").read_text()
    return re.findall(r"^--- .* start on .*, node (\w+)$", log, re.M)[-1]


@pytest.mark.slow
def test_a_run_that_loses_machines_ends_as_if_nothing_had_happened(machine, tmp_path):
    """First that of a rank, then the launcher, then the generator's machine.

    The head has room for the orchestrator, every other machine for one process.
    """
    layout, kept = Layout(tmp_path / "run"), Layout(tmp_path / "kept")
    settings = SETTINGS | {"run": str(layout.root)}
    changes = [f"{name}={json.dumps(value)}" for name, value in settings.items()]

    def reached(version):
        for step in published(layout):
            if not kept.batch(step).exists():
                partial = kept.batches / f"partial{step}"
                shutil.rmtree(partial, ignore_errors=True)
                with suppress(OSError):  # pruned at this moment
                    shutil.copytree(layout.batch(step), partial)
                    partial.rename(kept.batch(step))
        return read_json(layout.status, {}).get("version", 0) >= version

    nodes = [add_machine(machine, 1) for _ in range(3)]

    def lose(name, gracefully):
        lost = machine_of(layout, name)
        machine.remove_node(next(n for n in nodes if n.node_id == lost), gracefully)
        nodes.append(add_machine(machine, 1))

    with launcher(machine, layout, "configs/cpu-tiny.yaml", *changes):
        until(lambda: reached(2))
        lose("trainer1", gracefully=False)
        until(lambda: reached(4))
    with launcher(machine, layout, str(layout.root), "--resume") as process:
        until(lambda: reached(6))
        lose("generator0", gracefully=True)
        until(lambda: reached(UPDATES))
        assert process.wait(PATIENCE) == 0
    deaths = [row for row in read_jsonl(layout.log("events")) if row["event"] == "death"]
    print(deaths)
    assert list(broken_promises(layout, kept, load_config(layout.config))) == []
    assert survivors(layout.root) == []
