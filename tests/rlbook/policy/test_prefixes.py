"""Shared prefixes: the tree by enumeration, values and gradients by the library's own forward."""

from functools import partial
from random import Random

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rlbook.policy import load_policy, prefixes, token_stats, topk_logprobs
from rlbook.policy.prefixes import PrefixTree, last_states, why_whole
from rlbook.training.critic import Critic

SHAPES = {  # rows as (tokens, first trained column); what a row says after its last is padding
    "a group": [
        ([3, 4, 5, 6, 7], 2),
        ([3, 4, 5, 9, 7], 2),
        ([3, 4, 8], 2),
        ([3, 4, 5, 6, 8, 9], 2),
    ],
    "identical rows": [([3, 4, 5, 6], 2)] * 3,
    "one row": [([3, 4, 5, 6], 1)],
    "one is the prefix of another": [([3, 4, 5, 6, 7, 8], 2), ([3, 4, 5, 6], 2), ([3, 4], 1)],
    "nothing shared": [([3, 4, 5], 1), ([4, 4, 5, 6], 2), ([5, 3], 1)],
    "the same answers to other prompts": [([3, 4, 7, 8], 2), ([5, 4, 7, 8], 2), ([4, 7, 8], 1)],
    "empty mask": [([3, 4, 5], 3), ([3, 4, 6], 3)],
    "an empty row among others": [([3, 4, 5], 3), ([3, 4, 6, 7], 2)],
    "a single token": [([3], 1), ([3, 4], 1)],
    "padded on the left": [([0, 0, 3, 4, 5], 3), ([0, 0, 3, 4, 6], 3), ([0, 7, 3, 4, 5], 3)],
    "three blocks": [([3, 4, 5 + k % 3, *range(4, 4 + 7 * k % 19), k], 2) for k in range(20)],
}


def as_batch(rows, padding=0):
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.tensor([tokens + [padding] * (width - len(tokens)) for tokens, _ in rows])
    column = torch.arange(width)
    start = torch.tensor([start for _, start in rows])[:, None]
    stop = torch.tensor([len(tokens) for tokens, _ in rows])[:, None]
    return ids, (column >= start) & (column < stop)


def exact(model):
    """In float64 throughout: the library's norms would round to float32 on their way."""
    for module in [*model.modules()]:
        for name, norm in module.named_children():
            if isinstance(norm, LlamaRMSNorm):
                plain = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                plain.weight = norm.weight
                setattr(module, name, plain)
    return model.double()


def numbers_of(model, ids, mask, upstream):
    """Log-probs, entropies, and the gradient of a weighted sum of both."""
    model.zero_grad()
    stats = token_stats(model, ids, mask, 0.8, entropy_grad=True)
    (stats.logp * upstream + stats.entropy * upstream.square()).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return stats.logp.detach(), stats.entropy.detach(), torch.cat([g.flatten() for g in grads])


def whole_rows(monkeypatch):
    monkeypatch.setattr(prefixes, "why_whole", lambda body: "a test asks for it")


def assert_equal_to_whole_rows(model, ids, mask, monkeypatch, atol=1e-12, rtol=1e-9):
    assert why_whole(model.base_model) is None
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(ids.shape, generator=generator, dtype=model.dtype)
    shared = numbers_of(model, ids, mask, upstream)
    with monkeypatch.context() as patch:
        whole_rows(patch)
        expected = numbers_of(model, ids, mask, upstream)
    for found, wanted in zip(shared[:2], expected[:2], strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=atol)
    error = (shared[2] - expected[2]).norm()
    assert error <= rtol * expected[2].norm(), error


@pytest.mark.parametrize("chance", [Random(seed) for seed in range(5)])
def test_nodes_are_the_distinct_prefixes(chance):
    rows = [chance.choices(range(3), k=chance.randint(1, 6)) for _ in range(chance.randint(1, 30))]
    ids, _ = as_batch([(row, 0) for row in rows], padding=chance.randrange(3))
    tree = PrefixTree.of(ids, torch.tensor([len(row) for row in rows]))
    name = {(n, t): tuple(row[: t + 1]) for n, row in enumerate(rows) for t in range(len(row))}
    node_of = {prefix: int(tree.node[place]) for place, prefix in name.items()}
    assert all(node_of[prefix] == int(tree.node[place]) for place, prefix in name.items())
    assert sorted(node_of.values()) == list(range(len(tree.ids)))
    heads, begin = set(), 0  # where in `paths` a row begins
    for count, width in tree.blocks:
        heads |= {begin + i * width for i in range(count)}
        begin += count * width
    assert begin == len(tree.paths) and len(heads) <= len(set(map(tuple, rows)))
    for prefix, node in node_of.items():
        assert (int(tree.ids[node]), int(tree.position[node])) == (prefix[-1], len(prefix) - 1)
        end = int(tree.first[node]) + 1
        along = [node_of[prefix[: t + 1]] for t in range(len(prefix))]
        assert tree.paths[end - len(prefix) : end].tolist() == along and end - len(prefix) in heads


def test_several_threads_add_up_the_same_gradient_every_time(make_llama):
    """Equal runs stay equal on a machine of many cores: with `rows[index]` they parted."""
    model, chance = make_llama(), Random(0)
    prompt = [3, 4, 5]
    rows = [(prompt + chance.choices(range(3, 6), k=60), len(prompt)) for _ in range(200)]
    ids, mask = as_batch(rows)
    upstream = torch.randn(ids.shape, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        first, *others = (numbers_of(model, ids, mask, upstream)[2] for _ in range(4))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rope", ["default", "llama3"])
def test_values_and_gradients_equal_those_of_whole_rows(make_llama, shape, rope, monkeypatch):
    angles = {"rope_type": rope, "rope_theta": 100.0}
    if rope == "llama3":
        angles |= dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
        angles |= dict(original_max_position_embeddings=32)
    model = exact(make_llama(rope_parameters=angles))
    assert_equal_to_whole_rows(model, *as_batch(SHAPES[shape]), monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [{"tied": False}, {"num_key_value_heads": 4}, {"attention_bias": True, "mlp_bias": True}],
)
def test_every_llama_of_the_list_shares(make_llama, changes, monkeypatch):
    model = exact(make_llama(**changes)).train()
    assert_equal_to_whole_rows(model, *as_batch(SHAPES["a group"]), monkeypatch)


@pytest.mark.parametrize("name", ["tiny", "tiny-habits"])
def test_both_worlds_models_in_float32(name, monkeypatch):
    """Random answers that part at every length, one copy of each."""
    model, tokenizer = load_policy(name)
    chance = Random(0)
    prompt = chance.choices(range(4, len(tokenizer)), k=7)
    answer = chance.choices(range(4, len(tokenizer)), k=20)
    rows = [
        (prompt + answer[:k] + chance.choices(range(4, len(tokenizer)), k=5), 7) for k in range(20)
    ]
    ids, mask = as_batch(rows + rows[::3])
    tree = PrefixTree.of(ids, mask.sum(1) + 7)
    assert len(tree.ids) < 0.7 * (mask.sum() + 7 * len(ids)), "too little is shared to prove much"
    assert_equal_to_whole_rows(model, ids, mask, monkeypatch, atol=2e-5, rtol=1e-5)


def test_distributions_over_listed_tokens_equal_those_of_whole_rows(llama, monkeypatch):
    ids, mask = as_batch(SHAPES["a group"])
    model, listed = llama.double(), torch.randint(0, 23, (*ids.shape, 3))  # other ones everywhere

    def numbers():
        return *topk_logprobs(model, ids, mask, 3), token_stats(
            model, ids, mask, topk_ids=listed
        ).topk

    shared = numbers()
    whole_rows(monkeypatch)
    for found, wanted in zip(shared, numbers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_a_critic_values_every_state_before_a_token_as_on_whole_rows(llama, monkeypatch):
    ids, mask = as_batch(SHAPES["a group"])
    critic = Critic(exact(llama))
    critic.double()
    nn.init.normal_(critic.head.weight)
    assert why_whole(critic.trunk) is None

    def numbers():
        critic.zero_grad()
        values = critic(ids, mask)
        values.square().sum().backward()
        return values.detach(), *(p.grad for p in critic.parameters())

    shared = numbers()
    whole_rows(monkeypatch)
    for found, wanted in zip(shared, numbers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


class LowRank(nn.Module):
    """A LoRA adapter as a module in the place of a projection."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(0.3 * torch.randn(2, base.in_features, dtype=base.weight.dtype))
        self.b = nn.Parameter(0.3 * torch.randn(base.out_features, 2, dtype=base.weight.dtype))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def test_adapters_on_projections_stay_in_force(llama, monkeypatch):
    model = exact(llama).requires_grad_(False)
    bare = token_stats(model, *as_batch(SHAPES["a group"])).logp
    for block in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(block.self_attn, name, LowRank(getattr(block.self_attn, name)))
        block.mlp.up_proj = LowRank(block.mlp.up_proj)
    ids, mask = as_batch(SHAPES["a group"])
    assert (token_stats(model, ids, mask).logp - bare).abs().max() > 0.01
    assert_equal_to_whole_rows(model, ids, mask, monkeypatch)


def with_hook(model):
    model.model.layers[0].mlp.register_forward_hook(lambda *call: 2 * call[-1])


def with_hook_on_the_body(model):
    model.model.register_forward_hook(lambda *call: None)


def with_another_forward(model):
    model.model.layers[1].forward = partial(model.model.layers[1].forward)


def with_dropout(model):
    model.model.layers[0].mlp.up_proj = nn.Sequential(
        model.model.layers[0].mlp.up_proj, nn.Dropout()
    )
    model.train()


def with_another_attention(model):
    model.model.layers[0].self_attn = nn.Identity()


CHANGES = {
    "hook": (with_hook, with_hook_on_the_body, with_another_forward),
    "has dropout": (with_dropout,),
    "not the library's own": (with_another_attention,),
    "to save memory": (lambda model: model.gradient_checkpointing_enable(),),
    "not sdpa": (lambda model: model.set_attn_implementation("eager"),),
    "float16": (lambda model: model.half(),),
}


@pytest.mark.parametrize(
    ("reason", "change"), [(reason, c) for reason, cs in CHANGES.items() for c in cs]
)
def test_a_changed_model_keeps_the_librarys_forward_and_says_why(llama, reason, change):
    change(llama)
    assert reason in why_whole(llama.base_model)


def test_other_configurations_keep_the_librarys_forward_and_say_why(make_llama):
    dropout = make_llama(attention_dropout=0.1)
    assert why_whole(dropout.base_model) is None
    assert "dropout" in why_whole(dropout.train().base_model)
    angles = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    assert "longest row" in why_whole(make_llama(rope_parameters=angles).base_model)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=16, n_layer=1, n_head=2))
    assert "GPT2Model is not a Llama" in why_whole(gpt2.base_model)


def test_a_hook_on_the_body_still_sees_rows(llama):
    """A model whose hook adds what depends on the row: only whole rows can be right."""
    ids, mask = as_batch(SHAPES["a group"])
    seen = []
    llama.model.register_forward_hook(lambda *call: seen.append(call[-1].last_hidden_state.shape))
    token_stats(llama, ids, mask)
    assert seen[-1][:2] == ids.shape


def test_gradients_flow_through_checkpointed_layers_as_before(llama):
    model = exact(llama).train()
    ids, mask = as_batch(SHAPES["a group"])
    upstream = torch.ones(ids.shape, dtype=torch.float64)
    expected = numbers_of(model, ids, mask, upstream)
    model.gradient_checkpointing_enable()
    for found, wanted in zip(numbers_of(model, ids, mask, upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_states_are_those_of_every_token_before_the_last_trained_one(llama):
    ids, mask = as_batch(SHAPES["an empty row among others"])
    with torch.no_grad():
        hidden, node = last_states(llama.base_model, ids, mask)
        expected = llama.base_model(input_ids=ids).last_hidden_state
    assert len(hidden) == 3 and node.shape == ids.shape
    torch.testing.assert_close(hidden[node[1, :3]], expected[1, :3])
