"""How work is shared out, on one rank; what several ranks do together is in test_ranks."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.objectives import METHODS
from rlbook.paths import data_dir
from rlbook.policy import load_policy, logprobs
from rlbook.policy.logprobs import compiled_or_not
from rlbook.scale.config import TrainConfig
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.training import TrainBatch, train_step
from rlbook.training.parallel import LOCAL

PROGRAM = Path(__file__).with_name("compile_program.py")
TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")


@pytest.fixture(scope="module")
def ranks():
    yield Ranks("cpu")
    dist.destroy_process_group()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    lengths = torch.tensor([5, 9, 12, 4, 7, 12])
    columns = torch.arange(12)
    mask = (columns >= 3) & (columns < lengths[:, None])
    logps = torch.where(mask, -3.0, 0.0)
    return TrainBatch(
        ids=torch.randint(3, 20, (6, 12)),
        mask=mask,
        logp_sampler=logps,
        rewards=torch.zeros(6),
        groups=torch.arange(6) // 2,
        finished=torch.ones(6, dtype=torch.bool),
        versions=torch.zeros(6, 12, dtype=torch.long),
        logp_old=logps,
        advantages=torch.randn(6),
    )


def fresh_policy():
    torch.manual_seed(0)
    return LlamaForCausalLM(TINY).eval()


def weights(policy):
    full = [p.full_tensor() if isinstance(p, DTensor) else p for p in policy.parameters()]
    return torch.cat([p.detach().flatten() for p in full])


def step(model, batch, method="scalerl", **how):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return train_step(model, optimizer, batch, METHODS[method], micro_batch_tokens=20, **how)


def test_a_rank_without_rows_takes_part_with_nothing_to_train(ranks, batch, monkeypatch):
    for name, value in (("count", 7), ("rank", 6)):
        monkeypatch.setattr(ranks, name, value)
    ((rows, nothing),) = ranks.micro_batches(batch, 1000)
    assert len(rows) == 0 and nothing.ids.shape == (1, 1)
    assert not nothing.mask.any()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["scalerl", "gspo"])
def test_sharding_changes_nothing(name, checkpointing, ranks, batch):
    plain, sharded = fresh_policy(), fresh_policy()
    shard(sharded, ranks.mesh, TrainConfig(activation_checkpointing=checkpointing))
    expected = step(plain, batch, name)
    got = step(sharded, batch, name, parallel=ranks)
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(sharded), weights(plain), rtol=0, atol=1e-6)
    assert expected["grad_norm"] > 1e-3


@pytest.fixture
def compiler():
    """Whether anything can be compiled here; afterwards nothing is."""
    try:
        torch.compile(lambda x: x.sin().cos())(torch.ones(3))
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {error}")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    compiled_or_not.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["compile_layers", "compile_head"])
def test_compiling_changes_nothing(part, compiler, ranks, batch):
    """With an entropy bonus, a temperature and recomputation."""
    method = replace(METHODS["dapo"], entropy_bonus=0.1)
    plain, compiled = fresh_policy(), fresh_policy()
    shard(compiled, ranks.mesh, TrainConfig(activation_checkpointing=True, **{part: True}))
    how = {"micro_batch_tokens": 20, "temperature": 0.7}
    got, expected = (
        train_step(m, torch.optim.SGD(m.parameters(), lr=0.1), batch, method, parallel=p, **how)
        for m, p in ((compiled, ranks), (plain, LOCAL))
    )
    assert counters["stats"]["unique_graphs"] > 0
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(compiled), weights(plain), rtol=0, atol=1e-5)
    assert (weights(plain) - weights(fresh_policy())).abs().max() > 1e-3


@pytest.mark.slow
def test_compiling_on_shards_and_copies_changes_nothing(compiler, run_ranks, tmp_path):
    """Layers and head, on four ranks, of which every two hold a copy."""
    run_ranks(PROGRAM, tmp_path, tmp_path, count=4)
    plain, compiled = (load_file(tmp_path / f"{n}.safetensors") for n in ("plain", "compiled"))
    assert plain.keys() == compiled.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=0, atol=1e-5)
    start = load_policy()[0].state_dict()
    assert any((plain[name] - start[name]).abs().max() > 1e-2 for name in start)
    for rank in range(4):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["plain"]["graphs"] == 0 < found["compiled"]["graphs"]
        norms = [found[name]["grad_norm"] for name in ("compiled", "plain")]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_scores_are_those_of_the_weights_after_the_last_update(ranks, batch):
    """A forward pass without a backward one must not leave old weights gathered."""
    policy = fresh_policy()
    shard(policy, ranks.mesh, TrainConfig())
    (before,) = ranks.over(logprobs, policy, batch, 20, 0.7)
    step(policy, batch, parallel=ranks)
    (after,) = ranks.over(logprobs, policy, batch, 20, 0.7)
    plain = fresh_policy()
    torch.testing.assert_close(before, logprobs(plain, batch.ids, batch.mask, 0.7).detach())
    step(plain, batch)
    expected = logprobs(plain, batch.ids, batch.mask, 0.7).detach()
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)
    assert (after - before).abs().max() > 1e-3


def test_bfloat16_layers_keep_float32_weights(ranks, batch):
    policy = fresh_policy()
    shard(policy, ranks.mesh, TrainConfig(dtype="bfloat16"))
    exact = logprobs(fresh_policy(), batch.ids, batch.mask).detach()
    (rounded,) = ranks.over(logprobs, policy, batch, 20, 1.0)
    gap = (rounded - exact)[batch.mask].abs().mean()
    assert 1e-6 < gap < 0.05
    step(policy, batch, parallel=ranks)
    assert all(p.dtype == torch.float32 for p in policy.parameters())
    moved = (weights(policy) - weights(fresh_policy())).abs()
    assert 0 < moved.max() < 1


def test_a_tied_head_is_trained_as_one_matrix(ranks, batch):
    config = LlamaConfig(
        vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config).eval()
    sharded = copy.deepcopy(plain)
    shard(sharded, ranks.mesh, TrainConfig())
    step(plain, batch)
    step(sharded, batch, parallel=ranks)
    torch.testing.assert_close(weights(sharded), weights(plain), rtol=0, atol=1e-6)


def test_json_values_are_shared(ranks):
    value = {"wörds": [1, -2.5, None, "λ"], "flag": True}
    assert ranks.share(value) == value
    assert ranks.collect([1, 2]) == [[1, 2]]


def test_every_micro_batch_shows_life(ranks, batch, monkeypatch):
    """An update may take longer than anybody's patience, one of its micro-batches may not."""
    beats = []
    monkeypatch.setattr(ranks, "alive", lambda: beats.append(1))
    parts = list(ranks.micro_batches(batch, 24))
    assert len(beats) == len(parts) > 1
