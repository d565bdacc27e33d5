"""What a transfer that waits for a dead peer does to the trainer; NCCL itself is played."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlbook.durable import read_json
from rlbook.policy import load_policy
from rlbook.scale.batch_log import write_batch
from rlbook.scale.config import ScaleConfig, dump_config
from rlbook.scale.generate.protocol import GenerationFailed
from rlbook.scale.generate.registry import ENTRY_VARIABLE
from rlbook.scale.layout import Layout
from rlbook.scale.train import nccl
from rlbook.scale.train.nccl import NCCLTransport, own_address
from rlbook.tasks import Problem
from rlbook.training import Rollout

PROGRAM = Path(__file__).with_name("hanging_push.py")


@dataclass
class Peer:
    """A generator whose transfer route fails, or answers."""

    broken: bool = False
    url: str = "http://127.0.0.1:1"
    asked: list = field(default_factory=list)

    async def update(self, info):
        self.asked.append(info)
        if self.broken:
            raise GenerationFailed("HTTP 500")


class Ended(BaseException):
    pass


@pytest.fixture
def transport(tmp_path, monkeypatch):
    def end(reason):
        raise Ended(reason)

    monkeypatch.setattr(nccl, "end_rank", end)
    monkeypatch.setattr(nccl, "GRACE", 120.0)
    ranks = SimpleNamespace(device=torch.device("cpu"), first=True)
    return NCCLTransport(ScaleConfig(run=str(tmp_path)), Layout(tmp_path), ranks)


def test_a_transfer_that_succeeds_leaves_nothing_behind(transport):
    peer = Peer()

    async def run():
        return await transport.supervised(peer, lambda relay: relay.update_weights({"names": []}))

    asyncio.run(run())
    transport.forget(peer)
    assert peer.asked == [{"names": []}]


def test_the_error_of_a_peer_that_refuses_does_not_wait_for_the_transfer(transport, monkeypatch):
    """Its kernel would wait for ever."""
    monkeypatch.setattr(nccl, "GRACE", 0.05)
    peer, blocked = Peer(broken=True), threading.Event()

    def transfer(relay):
        with suppress(GenerationFailed):
            relay.update_weights({})
        blocked.wait()

    async def run():
        try:
            with pytest.raises(GenerationFailed, match="HTTP 500"):
                await transport.supervised(peer, transfer)
            with pytest.raises(Ended, match="given up while it waited for its peer"):
                transport.forget(peer)
        finally:
            blocked.set()

    asyncio.run(run())


def test_a_transfer_that_failed_and_ended_costs_the_connection_alone(transport):
    peer = Peer(broken=True)

    async def run():
        with pytest.raises(GenerationFailed, match="HTTP 500"):
            await transport.supervised(peer, lambda relay: relay.update_weights({}))
        transport.engines[peer.url] = "remade at the next push"
        transport.forget(peer)
        assert not transport.engines

    asyncio.run(run())


def test_one_transfer_waits_at_a_time(transport):
    running, most = [], []

    def transfer(relay):
        running.append(relay)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()

    async def one(peer):
        async with transport.turn:
            await transport.supervised(peer, transfer)

    async def run():
        await asyncio.gather(*(one(Peer(url=f"http://127.0.0.1:{port}")) for port in (1, 2, 3)))

    asyncio.run(run())
    assert most == [1, 1, 1]


def test_what_a_failed_transfer_leaves_is_gathered_all_the_same(transport, monkeypatch):
    """The other ranks gather along, and would wait for ever."""
    monkeypatch.setattr(nccl.torch.cuda, "synchronize", lambda: None)
    policy, peer, told = load_policy()[0], Peer(), []
    transport.ranks.share = lambda value: told.append(value)
    transport.gather(policy, 3)

    class Failing:
        def send_weights(self):
            for number, _ in enumerate(transport):
                if number == 2:
                    raise GenerationFailed("HTTP 500")

    transport.engines[peer.url] = Failing()
    with pytest.raises(GenerationFailed, match="HTTP 500"):
        asyncio.run(transport.send(peer))
    assert told == [True] and list(transport.left) == []
    transport.forget(peer)
    sent = dict(transport)
    assert told == [True, True] and sent.keys() == policy.state_dict().keys()
    transport.release()
    assert told == [True, True, False]


def test_a_pass_that_was_cut_short_ends_the_rank(transport, monkeypatch):
    """A time limit that strikes while the rest is gathered leaves ranks out of step."""
    monkeypatch.setattr(nccl.torch.cuda, "synchronize", lambda: None)
    peer, blocked = Peer(), threading.Event()
    transport.gather(load_policy()[0], 3)
    transport.drain = blocked.wait
    transport.engines[peer.url] = SimpleNamespace()  # without `send_weights`: it fails at once

    async def run():
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await transport.send(peer)
            with pytest.raises(Ended, match="given up"):
                transport.forget(peer)
        finally:
            blocked.set()

    asyncio.run(run())


def test_the_address_a_server_is_reached_by():
    assert own_address("http://127.0.0.1:9") == "127.0.0.1"


def prepared_run(root):
    """Two batches of random tokens for the tiny policy, and one generator."""
    layout, steps = Layout(root), 2
    settings = {"optimizer": {"minibatches": 1}, "generate": {"timeout": 6.0}}
    config = ScaleConfig(run=str(root), steps=steps, **settings)
    root.mkdir()
    layout.config.write_text(dump_config(config))
    layout.run_id.write_text("cafe")
    for step in range(steps):
        rollouts = [
            Rollout(
                Problem("p", "1+2=?", "3"), 0, [1, 9, 10], [5, 6, 2], [-3.0] * 3, [0] * 3,
                "stop", "", correct=i % 2 == 0, rewards={"answer": 1.0 - 2 * (i % 2)},
            )
            for i in range(4)
        ]  # fmt: skip
        write_batch(layout, step, rollouts, {"step": step, "tickets": 0})
    return layout


@pytest.mark.slow
def test_a_trainer_whose_transfer_hangs_ends_in_time_and_its_successor_finishes(tmp_path):
    layout = prepared_run(tmp_path / "run")
    argv = [sys.executable, "-m", "rlbook.scale.generate.builtin_server", "--port=0"]
    environment = os.environ | {ENTRY_VARIABLE: str(layout.server("generator0"))}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout.readline().startswith(b"ready at")
            train = [sys.executable, str(PROGRAM), str(layout.root)]
            first = subprocess.run(train, capture_output=True, text=True, timeout=300)
            assert first.returncode == 1, first.stderr[-2000:]
            assert "given up while it waited for its peer" in first.stderr
            assert (layout.root / "hung").exists()
            assert not (read_json(layout.status) or {}).get("done")
            second = subprocess.run(train, capture_output=True, text=True, timeout=300)
            assert second.returncode == 0, second.stderr[-2000:]
            assert read_json(layout.status)["done"]
        finally:
            server.kill()
