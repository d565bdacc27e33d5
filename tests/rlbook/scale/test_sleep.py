"""Turns on one GPU: generators give their memory back for an update, and lose nothing by it."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from aiohttp import web
from fleet import RUN, Generator

from rlbook.policy import load_policy, logprobs
from rlbook.policy.continuous import ContinuousSampler
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.generate.builtin_server import make_app
from rlbook.scale.generate.client import GeneratorClient
from rlbook.scale.generate.protocol import weight_label
from rlbook.scale.generate.vllm_server import ROUTES
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.choose import chosen
from rlbook.scale.plan.fit import too_large
from rlbook.scaling.shape import described_shape

TURNS = {"colocated": True, "max_staleness": 0, "sleep": True}
WOKEN = ["wake_up", "resume"]  # as a trainer greets it too
SEVEN_B = {
    **{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584},
    **{"intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    **{"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": False},
}


@pytest.fixture
def served():
    """A built-in server, and what writes in it."""
    model, _ = load_policy()
    sampler = ContinuousSampler(model, 3, slots=4)
    return SimpleNamespace(app=make_app(sampler), sampler=sampler, model=model)


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


def test_it_sleeps_for_the_update_and_wakes_whatever_becomes_of_that(make_sync):
    sync = make_sync(generator := Generator(weights=3), **TURNS)
    with sync.asleep():
        assert generator.routes == [*WOKEN, "sleep"] and generator.paused
    with pytest.raises(FloatingPointError), sync.asleep():
        raise FloatingPointError
    assert generator.routes == [*WOKEN, "sleep", *WOKEN, "sleep", *WOKEN]
    assert not generator.paused


def test_one_whose_update_was_broken_is_not_woken_for_it_would_go_on(make_sync):
    broken = Generator()
    broken.label = weight_label(RUN, None)
    with make_sync(broken, **TURNS).asleep():
        pass
    assert broken.asked and broken.routes == []


def test_without_the_setting_nobody_is_asked(make_sync):
    sync = make_sync(generator := Generator(weights=3))
    greeting = len(generator.asked)
    with sync.asleep():
        pass
    assert len(generator.asked) == greeting


def test_who_may_still_sleep_is_woken_before_it_is_sent_weights(make_sync):
    """Not one that has none of this run: it would go on with what it has of them."""
    behind, fresh = Generator("a", 0), Generator("b", None)
    sync = make_sync(behind, fresh, **TURNS)
    behind.routes.clear(), fresh.routes.clear()
    sync.learner.step, sync.looked_for = 1, None
    assert sync.is_due()
    sync.runner.run(sync.push())
    assert behind.routes.index("wake_up") < behind.routes.index("pause")
    assert "wake_up" not in fresh.routes and behind.weights == fresh.weights == 1


def test_one_that_cannot_sleep_is_named_and_the_update_is_made(make_sync):
    generator, updates = Generator(weights=3, hangs={"sleep"}), []
    sync = make_sync(generator, **TURNS, timeout=2.0)
    with pytest.warns(RuntimeWarning, match="http://generator0: time limit"), sync.asleep():
        updates.append(generator.routes[-1])
    assert updates == ["sleep"] and generator.routes == [*WOKEN, "sleep", *WOKEN]


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
