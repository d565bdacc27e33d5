"""What a transfer that waits for a dead peer does to the trainer; NCCL itself is played."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fleet import Client, Generator

from rlbook.durable import read_json
from rlbook.policy import load_policy
from rlbook.scale.batch_log import write_batch
from rlbook.scale.config import ScaleConfig, dump_config
from rlbook.scale.layout import Layout
from rlbook.scale.process import ENTRY_VARIABLE
from rlbook.scale.train import weights
from rlbook.scale.train.weights import NCCLTransport
from rlbook.tasks import Problem
from rlbook.training import Rollout

PROGRAM = Path(__file__).with_name("hanging_push.py")


class Ended(BaseException):
    pass


@dataclass
class Engine:
    """vLLM's end, which does with its routes what it is told to."""

    routes: object
    work: Callable

    ended: bool = False

    def send_weights(self):
        self.work(self.routes)

    def shutdown(self):
        self.ended = True


@pytest.fixture
def transport(tmp_path, monkeypatch):
    """One that tells when it would end the rank; `work` is what a transfer does."""

    def end(clients, error):
        made.ended.extend((client.url, str(error)) for client in clients)
        raise Ended

    monkeypatch.setattr(weights, "end_rank", end)
    ranks = SimpleNamespace(device=torch.device("cpu"), first=True, alive=lambda: None)
    made = NCCLTransport(ScaleConfig(run=str(tmp_path)), Layout(tmp_path), ranks, load_policy()[0])
    made.ended = []
    monkeypatch.setattr(made, "meet", lambda routes, generators: Engine(routes, made.work))
    return made


CLOSE = "shutdown_weight_transfer_engine"


def clients_of(count):
    return [Client(Generator(f"generator{number}")) for number in range(count)]


def asked(client, route):
    """The bodies of such requests to its generator."""
    return client.fleet[0].bodies(route)


def push(transport, *clients, fresh=(), absent=()):
    """What `WeightSync` does for each that is due."""

    async def one(client):
        if client in absent:
            return transport.leave(client)
        await transport.send(client, client in fresh)

    async def all_of_them():
        transport.expect(clients)
        await asyncio.gather(*map(one, clients))

    return all_of_them()


def update(tensors, routes):
    """As vLLM makes it."""
    routes.start_weight_update()
    for name, _ in tensors:
        routes.update_weights({"names": [name]})
    routes.finish_weight_update()


def test_a_transfer_that_succeeds_uses_the_group_again(transport):
    client, told = Client(Generator()), []
    transport.ranks.share = told.append
    transport.work = partial(update, transport)

    async def run():
        await push(transport, client, fresh=[client])
        await push(transport, client)

    asyncio.run(run())
    updates = [{"update_info": {"names": [name]}} for name in transport.policy.state_dict()]
    assert asked(client, "update_weights") == 2 * updates and len(asked(client, CLOSE)) == 1
    assert told == [True, True]  # the other ranks: gather along, once per transfer


def test_the_group_of_a_generator_that_is_started_again_is_closed_at_both_ends(transport):
    """It has another address then, or the same."""
    transport.work = lambda routes: None
    first, again = clients_of(2)
    again.name = first.name

    async def run():
        for client, fresh in ((first, True), (first, False), (again, True), (again, True)):
            await push(transport, client, fresh=[client] * fresh)
            groups.append(transport.engine)

    groups = []
    asyncio.run(run())
    assert [one.ended for one in groups] == [True, True, True, False]
    assert groups[0] is groups[1]
    assert (len(asked(first, CLOSE)), len(asked(again, CLOSE))) == (1, 2)


def test_no_gather_runs_on_the_stream_of_whoever_asks_for_the_weights(monkeypatch):
    """vLLM fills its buffers inside streams of its own; the other ranks gather on the default one.

    Streams are names here. A chunk is gathered and over before the first of it is handed over.
    """
    streams, gathered, handed, waited = ["default"], [], [], []

    @contextmanager
    def on(stream):
        streams.append(stream.name)
        yield
        streams.pop()

    def named(name):
        return SimpleNamespace(name=name, synchronize=lambda: waited.append(len(gathered)))

    def gather(tensor):
        gathered.append(streams[-1])
        return tensor

    def hand_over(tensor, stream):
        handed.append(stream.name)

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: named("default"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: named(streams[-1]))
    monkeypatch.setattr(torch.Tensor, "record_stream", hand_over)
    monkeypatch.setattr(weights, "full_tensor", gather)
    monkeypatch.setattr(weights, "PUSH_BUFFER", 3 * 64 * 64 * 4)
    ranks = SimpleNamespace(share=lambda value: None, alive=None, device=torch.device("cuda"))
    model = torch.nn.ParameterDict({f"w{i}": torch.ones(64, 64) for i in range(8)})
    ranks.alive = lambda: None
    source = iter(NCCLTransport(ScaleConfig(), Layout(Path()), ranks, model))
    names = []
    for number in range(8):
        with on(named(f"side{number % 2}")):
            names.append(next(source)[0])
            assert waited and waited[-1] > number
    assert names == list(model) and next(source, None) is None
    assert gathered == ["default"] * 8 and waited[:3] == [3, 6, 8]
    assert handed == [f"side{number % 2}" for number in range(8)]


def test_a_peer_that_refuses_ends_the_rank_though_its_kernel_waits(transport):
    """vLLM's engine asks beside the kernel, which would wait for ever."""
    blocked, refused = threading.Event(), threading.Event()
    client = Client(Generator(fails={"update_weights": 500}))

    def transfer(routes):
        def ask():
            with suppress(Ended):
                routes.update_weights({})
            refused.set()

        threading.Thread(target=ask).start()
        assert blocked.wait(60)

    async def run():
        transport.work = transfer
        sending = asyncio.create_task(push(transport, client))
        assert await asyncio.to_thread(refused.wait, 60)
        blocked.set()
        await sending

    asyncio.run(run())
    ((url, reason),) = transport.ended
    assert url == client.url and "HTTP 500: update_weights failed" in reason


def test_a_transfer_that_fails_ends_the_rank(transport):
    """The other ranks are in the middle of a pass over the weights."""
    transport.work = lambda routes: 1 / 0
    with pytest.raises(Ended):
        asyncio.run(push(transport, Client(Generator())))
    assert transport.ended == [("http://generator0", "division by zero")]


def test_a_transfer_that_takes_too_long_ends_the_rank(transport):
    blocked = threading.Event()
    transport.work = lambda routes: blocked.wait(60)

    async def run():
        try:
            async with asyncio.timeout(0.1):
                await push(transport, Client(Generator()))
        finally:
            blocked.set()

    with pytest.raises(Ended):
        asyncio.run(run())
    assert len(transport.ended) == 1


def test_all_generators_make_one_group_and_the_weights_are_gathered_once(transport):
    """vLLM gives the first worker rank 1, whoever it asks; here each generator has two."""
    clients, told, sizes = clients_of(3), [], []
    transport.ranks.share, transport.width = told.append, 2

    def meet(routes, count):
        sizes.append(count)
        routes.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
        return Engine(routes, transport.work)

    transport.meet = meet
    transport.work = partial(update, transport)

    async def run():
        await push(transport, *clients[::-1], fresh=clients)
        await push(transport, *clients)

    asyncio.run(run())
    assert sizes == [3] and told == [True, True]
    meetings = [info for one in clients for info in asked(one, "init_weight_transfer_engine")]
    assert [info["init_info"]["rank_offset"] for info in meetings] == [1, 3, 5]
    sent = [asked(one, "update_weights") for one in clients]
    assert sent == 3 * sent[:1] and len(sent[0]) == 2 * len(transport.policy.state_dict())


def test_nobody_waits_for_a_generator_that_cannot_be_paused(transport):
    """It has no part in the group; the next transfer makes one that it has a part in."""
    clients, groups = clients_of(3), []
    transport.work = partial(update, ())

    async def run():
        for absent in (), clients[1:2], clients[1:2], ():
            await push(transport, *clients, absent=absent)
            groups.append(transport.engine)

    asyncio.run(run())
    assert [len(asked(one, "start_weight_update")) for one in clients] == [4, 2, 4]
    assert groups[1] is groups[2] and len(set(map(id, groups))) == 3
    assert [one.ended for one in groups] == [True, True, True, False]
    assert [len(asked(one, CLOSE)) for one in clients] == [3, 2, 3]


def test_a_generator_that_gives_up_before_the_weights_go_holds_up_nobody(transport):
    first, second = clients_of(2)
    transport.work = partial(update, ())

    async def run():
        transport.expect([first, second])
        waiting = asyncio.create_task(transport.send(first, fresh=False))
        await asyncio.sleep(0)
        assert not first.fleet[0].asked
        transport.leave(second)
        await waiting

    asyncio.run(run())
    assert len(asked(first, "start_weight_update")) == 1 and not second.fleet[0].asked
    assert transport.ended == []


def prepared_run(root):
    """Two batches of random tokens for the tiny policy, and one generator."""
    layout, steps = Layout(root), 2
    settings = {"optimizer": {"minibatches": 1}, "generate": {"timeout": 15.0}}
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
    module = "rlbook.scale.generate.builtin_server"
    argv = [sys.executable, "-m", module, "tiny", "cpu", "128", "0"]
    environment = os.environ | {ENTRY_VARIABLE: str(layout.server("generator0"))}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert b"ready at" in server.stdout.readline()
            train = [sys.executable, str(PROGRAM), str(layout.root)]
            first = subprocess.run(train, capture_output=True, text=True, timeout=300)
            assert first.returncode == 1, first.stderr[-2000:]
            assert re.search(r"the transfer to http://\S+ failed \(time limit\)", first.stderr)
            assert (layout.root / "hung").exists()
            assert not (read_json(layout.status) or {}).get("done")
            second = subprocess.run(train, capture_output=True, text=True, timeout=300)
            assert second.returncode == 0, second.stderr[-2000:]
            assert read_json(layout.status)["done"]
        finally:
            server.kill()
