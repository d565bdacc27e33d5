"""Turns on one GPU: generators give their memory back for an update, and lose nothing by it."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from aiohttp import web

from rlbook.policy import load_policy, logprobs
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.vllm_server import ROUTES
from rlbook.scale.layout import Layout
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.choose import chosen
from rlbook.scale.plan.fit import too_large
from rlbook.scale.train.weight_sync import WeightSync
from rlbook.scaling.shape import described_shape

TURNS = {"colocated": True, "max_staleness": 0, "sleep": True}
SEVEN_B = {
    **{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584},
    **{"intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    **{"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": False},
}


class Rank:
    """The only one, in this process."""

    first, device, count = True, torch.device("cpu"), 1

    def alive(self):
        """Nobody asks."""

    def collect(self, value):
        return [value]

    def share(self, value=None):
        return value


@pytest.fixture
def served():
    """A built-in server and what it is asked, route by route."""
    model, _ = load_policy()
    asked = []

    @web.middleware
    async def note(request, handler):
        asked.append(request.path)
        return await handler(request)

    app = make_app(sampler := ContinuousSampler(model, 3, slots=4))
    app.middlewares.insert(0, note)
    return SimpleNamespace(app=app, sampler=sampler, model=model, asked=asked)


async def client_of(served):
    runner = web.AppRunner(served.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner, await GeneratorClient(url, "cafe", timeout=120).__aenter__()


def test_what_was_being_written_goes_on_after_the_update(served):
    """No token is written while it sleeps, and all are by the distribution that they report."""

    async def run():
        runner, client = await client_of(served)
        await client.name_weights(0)
        how = {"max_new_tokens": 60, "temperature": 1.0}
        writing = asyncio.create_task(client.complete_at(0, [1, 17, 18], 4, **how))
        while not served.sampler.busy:
            await asyncio.sleep(0.01)
        await client.sleep()
        before = [len(row.tokens) for row in served.sampler._running]
        assert await client.version() == 0  # it is alive, and says what it has
        await asyncio.sleep(0.2)
        assert [len(row.tokens) for row in served.sampler._running] == before
        await client.wake()
        await client.wake()  # as on one that is awake
        found = await writing
        await client.__aexit__()
        await runner.cleanup()
        return found

    for one in asyncio.run(run()):
        ids = torch.tensor([[1, 17, 18, *one.token_ids]])
        said = logprobs(served.model, ids, torch.arange(ids.shape[1])[None] > 2)[0, 3:]
        torch.testing.assert_close(torch.tensor(one.logps), said.detach(), rtol=0, atol=1e-4)


def sync_of(tmp_path, client, **generate):
    (tmp_path / "run_id").write_text("cafe")
    config = ScaleConfig(run=str(tmp_path), generate={"engine": "builtin", **generate})
    weight = torch.zeros(2)
    policy = SimpleNamespace(parameters=lambda: [weight], modules=list, named_modules=list)
    learner = SimpleNamespace(parallel=Rank(), policy=policy, step=0)
    sync = WeightSync(config, Layout(tmp_path), learner)
    sync.clients = [client]
    return sync


def told(monkeypatch, **acts):
    for name in ("sleep", "wake"):
        monkeypatch.setattr(GeneratorClient, name, acts.get(name, getattr(Recorded, name)))


class Recorded:
    name, url = "generator0", "here"

    def __init__(self):
        self.told = []

    def heartbeat(self):
        """It is heard."""

    async def version(self):
        return 3

    async def sleep(self):
        self.told.append("sleep")

    async def wake(self):
        self.told.append("wake")


def test_it_sleeps_for_the_update_and_wakes_whatever_becomes_of_that(tmp_path, monkeypatch):
    sync = sync_of(tmp_path, recorded := Recorded(), **TURNS)
    told(monkeypatch)
    with sync.asleep():
        recorded.told.append("update")
    with pytest.raises(FloatingPointError), sync.asleep():
        raise FloatingPointError
    assert recorded.told == ["sleep", "update", "wake", "sleep", "wake"]


def test_one_whose_update_was_broken_is_not_woken_for_it_would_go_on(tmp_path, monkeypatch):
    sync = sync_of(tmp_path, recorded := Recorded(), **TURNS)
    told(monkeypatch)
    recorded.version = lambda: asyncio.sleep(0)  # None
    with sync.asleep():
        recorded.told.append("update")
    assert recorded.told == ["update"]


def test_without_the_setting_nobody_is_asked(tmp_path, monkeypatch):
    sync = sync_of(tmp_path, recorded := Recorded())
    told(monkeypatch)
    with sync.asleep():
        recorded.told.append("update")
    assert recorded.told == ["update"]


def test_one_that_cannot_sleep_is_named_and_the_update_is_made(tmp_path, monkeypatch):
    async def never(client):
        raise TimeoutError

    sync = sync_of(tmp_path, recorded := Recorded(), **TURNS)
    told(monkeypatch, sleep=never)
    with pytest.warns(RuntimeWarning, match="here: time limit"), sync.asleep():
        recorded.told.append("update")
    assert recorded.told == ["update", "wake"]


def test_vllm_is_told_and_its_routes_are_open(monkeypatch):
    monkeypatch.setattr(vllm_adapter, "cache_bytes", lambda config: 2**30)
    options = vllm_adapter.server_options(ScaleConfig(model={"device": "cuda"}, generate=TURNS))
    assert options["enable-sleep-mode"] is True
    assert {"/sleep", "/wake_up"} <= set(ROUTES)


@pytest.mark.parametrize("changes", [{"max_staleness": 2}, {"colocated": False}])
def test_who_is_not_in_turns_cannot_sleep(changes):
    with pytest.raises(ValueError, match=r"generate\.colocated to true and generate\.max_stal"):
        ScaleConfig(model={"device": "cuda"}, generate=TURNS | changes)


def seven_b(memory, **changes):
    config = ScaleConfig(
        method="scalerl",
        model={"policy": "Qwen/Qwen2.5-7B", "device": "cuda", "lora": {"rank": 16}},
        rollout={"prompts": 32, "group_size": 16, "max_new_tokens": 2048},
        optimizer={"minibatches": 1, "micro_batch_tokens": 16384},
        train={"dtype": "bfloat16", "activation_checkpointing": True},
        budget={"gpu_memory_gb": memory, "mean_tokens": 900, "shape": SEVEN_B},
    )
    return Budget(config.replace(**changes), described_shape(SEVEN_B), Prompts(110, 350))


def test_7b_with_an_adapter_fits_one_gpu_and_sleeping_makes_room_for_more_answers():
    best = chosen(seven_b(80), 1)
    assert best.config.generate.colocated and not list(too_large(best))
    asleep, beside = (
        chosen(seven_b(80, **{"colocated": True, "max_staleness": 0, "sleep": s}), 1, {"sleep"})
        for s in (True, False)
    )
    assert asleep.cache_room > beside.cache_room
    assert best.step_seconds <= min(asleep.step_seconds, beside.step_seconds)
    with pytest.raises(ValueError, match=r"a trainer needs 1\d\d\.\d GB of 80\.0 GB"):
        chosen(seven_b(80, model={"lora": None}), 1)


def test_what_a_trainer_keeps_between_updates_must_fit_beside_a_server_that_is_awake():
    full = seven_b(80, colocated=True, max_staleness=0, sleep=True, gpu_memory=0.9)
    assert any("between updates a trainer keeps 17." in line for line in too_large(full))
    assert not list(too_large(replace_share(full, 0.5)))


def replace_share(budget, share):
    config = budget.config.replace(gpu_memory=share, slots=64)
    return Budget(config, budget.shape, budget.prompts)
