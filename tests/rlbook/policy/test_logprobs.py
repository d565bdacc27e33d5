"""Log-probabilities: value, gradient, memory and refusals."""

import copy
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from rlbook.policy import logprobs, token_stats
from rlbook.policy.logprobs import _ChunkedHead, _Head, chunk_rows, chunked_head, topk_logprobs
from rlbook.policy.prefixes import last_states


@pytest.fixture
def batch():
    torch.manual_seed(1)
    ids = torch.randint(0, 23, (4, 9))
    mask = torch.zeros(4, 9, dtype=torch.bool)
    for row, (start, stop) in enumerate([(2, 9), (1, 4), (5, 6), (3, 8)]):
        mask[row, start:stop] = True
    return ids, mask


def plain(model, ids, mask, temperature):
    """Textbook form: all logits at once, a shift by one, a gather."""
    logits = model(input_ids=ids).logits[:, :-1] / temperature
    distribution = torch.distributions.Categorical(logits=logits)
    logp = torch.zeros(ids.shape, dtype=logits.dtype)
    entropy = torch.zeros(ids.shape, dtype=logits.dtype)
    logp[:, 1:] = distribution.log_prob(ids[:, 1:])
    entropy[:, 1:] = distribution.entropy()
    return logp * mask, entropy * mask


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_value_and_gradient_equal_the_plain_form(make_llama, batch, tied, temperature, chunk):
    model, (ids, mask) = make_llama(tied=tied).double(), batch
    upstream = torch.randn(ids.shape, dtype=torch.float64)
    expected, _ = plain(model, ids, mask, temperature)
    actual = logprobs(model, ids, mask, temperature, chunk=chunk)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    wanted = gradients(model, (expected * upstream).sum())
    for name, grad in gradients(model, (actual * upstream).sum()).items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-9, atol=1e-12, msg=name)


def test_entropy_value_and_gradient_equal_the_plain_form(llama, batch):
    model, (ids, mask) = llama.double(), batch
    logp, entropy = plain(model, ids, mask, 0.8)
    stats = token_stats(model, ids, mask, 0.8, chunk=4, entropy_grad=True)
    torch.testing.assert_close(stats.logp, logp, rtol=0, atol=1e-12)
    torch.testing.assert_close(stats.entropy, entropy, rtol=0, atol=1e-12)
    wanted = gradients(model, (logp.exp() + entropy.square()).sum())
    actual = gradients(model, (stats.logp.exp() + stats.entropy.square()).sum())
    for name, grad in actual.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-9, atol=1e-12, msg=name)


def test_entropy_alone_has_a_gradient_only_on_request(llama, batch):
    model, (ids, mask) = llama.double(), batch
    _, entropy = plain(model, ids, mask, 1.0)
    wanted = gradients(model, entropy.sum())
    stats = token_stats(model, ids, mask, entropy_grad=True)
    for name, grad in gradients(model, stats.entropy.sum()).items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-9, atol=1e-12, msg=name)
    stats = token_stats(model, ids, mask)
    assert stats.logp.requires_grad and not stats.entropy.requires_grad


def test_gradcheck_of_the_chunked_head():
    torch.manual_seed(0)
    hidden = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    head = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 6, 3, 3, 1])
    assert torch.autograd.gradcheck(
        lambda h, w: chunked_head(h, w, targets, 2, with_entropy=True), (hidden, head)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_rounded_operands_lose_nothing_but_their_own_rounding(
    make_llama, batch, temperature, monkeypatch
):
    """bfloat16 operands, float32 logits: the reference has the same operands in float64."""
    model, (ids, mask) = make_llama().bfloat16(), batch
    twin = copy.deepcopy(model).double()
    with torch.no_grad():
        states = model.model(input_ids=ids).last_hidden_state
    hidden = states[:, :-1][mask[:, 1:]].double().requires_grad_()
    z = hidden @ twin.lm_head.weight.T / temperature
    log_pi = z.log_softmax(-1)
    logp = log_pi.gather(-1, ids[mask][:, None]).squeeze(-1)
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    upstream = torch.linspace(-1, 2, len(logp), dtype=torch.float64)
    wanted = torch.autograd.grad(
        (upstream * (logp + 0.3 * entropy)).sum(), (hidden, twin.lm_head.weight)
    )

    rounded = hidden.detach().bfloat16().requires_grad_()
    weight = model.lm_head.weight
    monkeypatch.setattr(sys.modules[_Head.__module__], "PIECE", 5)  # of a vocabulary of 23
    for chunk in (3, None):
        head = _Head(rounded, weight, temperature)
        found, spread = _ChunkedHead.apply(*head, ids[mask], chunk, True)
        assert found.dtype == spread.dtype == torch.float32
        torch.testing.assert_close(found.double(), logp.detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(spread.double(), entropy.detach(), rtol=0, atol=1e-5)
        loss = (upstream.float() * (found + 0.3 * spread)).sum()
        for got, exact in zip(torch.autograd.grad(loss, (rounded, weight)), wanted, strict=True):
            assert got.dtype == torch.bfloat16
            error = (got.double() - exact).norm() / exact.norm()
            assert error < 2**-7, error  # 8 bits of each operand and of the result


def test_a_temperature_is_that_of_the_logits_in_every_dtype(make_llama, batch):
    """The same bfloat16 states, then float64: how a machine rounded the body cannot matter."""
    ids, mask = batch
    model = make_llama().bfloat16()
    with torch.no_grad():
        hidden, node = last_states(model.model, ids, mask)
        states = hidden[node][:, :-1]
    z = states.double() @ model.lm_head.weight.double().T / 0.5
    exact = z.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]
    hot = logprobs(model, ids, mask, 0.5)[:, 1:]
    cold = logprobs(model, ids, mask)[:, 1:]
    assert (hot - exact).abs().max() < 1e-3 < 0.1 < (cold - exact).abs().max()
    listed, found = topk_logprobs(model, ids, mask, 3, 0.5)
    again = token_stats(model, ids, mask, 0.5, topk_ids=listed).topk
    torch.testing.assert_close(found, again)
    assert found.dtype == torch.float32


def test_more_rows_at_a_time_on_a_gpu():
    assert chunk_rows(151_936) == 256 and chunk_rows(151_936, "cuda") == 2048
    assert chunk_rows(32) == chunk_rows(32, "cuda") == 2**18


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_logits_never_exist_for_more_than_a_chunk(make_llama):
    model = make_llama(vocab_size=5000)
    ids = torch.randint(0, 5000, (4, 40))
    mask = torch.ones(4, 40, dtype=torch.bool)
    mask[:, 0] = False
    logprobs(model, ids[:1, :3], mask[:1, :3])
    with LargestTensor() as seen:
        stats = token_stats(model, ids, mask, chunk=8, entropy_grad=True)
        (stats.logp.sum() + stats.entropy.sum()).backward()
    weights = max(p.numel() for p in model.parameters())
    assert seen.elements <= max(8 * 5000, weights) < 4 * 39 * 5000 / 3


def test_padding_and_prompt_positions_cannot_matter(llama, batch):
    ids, mask = batch
    expected = logprobs(llama, ids, mask)
    for row, length in enumerate([9, 4, 6, 8]):
        ids[row, length:] = 7
    torch.testing.assert_close(logprobs(llama, ids, mask), expected)
    assert (expected[~mask] == 0).all() and (expected[mask] < 0).all()
    part = logprobs(llama, ids[1:2, :4], mask[1:2, :4])
    torch.testing.assert_close(part[0], expected[1, :4], rtol=0, atol=1e-5)


def test_fp32_head_on_a_bfloat16_model(make_llama, batch):
    model, (ids, mask) = make_llama().bfloat16(), batch
    with torch.no_grad():
        states, node = last_states(model.model, ids, mask)
        hidden = states[node].float()
        exact = (hidden @ model.lm_head.weight.float().T)[:, :-1].log_softmax(-1)
        expected = exact.gather(-1, ids[:, 1:, None]).squeeze(-1) * mask[:, 1:]
    actual = logprobs(model, ids, mask)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual[:, 1:], expected, rtol=0, atol=2e-5)
    low = logprobs(model, ids, mask, fp32_head=False)
    assert 1e-4 < (low - actual).abs().max() < 0.5
    low.sum().backward()
    assert model.lm_head.weight.grad.dtype == torch.bfloat16


def test_empty_mask_gives_zeros_and_zero_gradients(llama, batch):
    ids, mask = batch
    logp = logprobs(llama, ids, torch.zeros_like(mask))
    assert (logp == 0).all()
    logp.sum().backward()
    assert llama.lm_head.weight.grad.abs().sum() == 0


def test_other_architectures_are_read_through_their_own_forward(batch):
    ids, mask = batch
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=23, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config).eval().double()
    torch.testing.assert_close(logprobs(model, ids, mask), plain(model, ids, mask, 1.0)[0])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Gemma2ForCausalLM, Gemma2Config(final_logit_softcapping=0.5, head_dim=8)),
        (CohereForCausalLM, CohereConfig(logit_scale=0.25)),
    ],
)
def test_models_that_transform_their_logits_are_refused(batch, kind, config):
    config.update(
        dict(vocab_size=23, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
        | dict(num_attention_heads=2, num_key_value_heads=2, initializer_range=0.5)
        | dict(layer_types=["full_attention"], pad_token_id=None)
    )
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="transforms its logits"):
        logprobs(kind(config).eval(), *batch)


@pytest.mark.wrong_on_purpose
def test_wrong_arguments_are_named(llama, batch):
    ids, mask = batch
    with pytest.raises(ValueError, match="share one shape"):
        logprobs(llama, ids, mask[:, :-1])
    with pytest.raises(ValueError, match="boolean"):
        logprobs(llama, ids, mask.float())
    with pytest.raises(ValueError, match="temperature must be positive"):
        logprobs(llama, ids, mask, temperature=0.0)
    mask[0, 0] = True
    with pytest.raises(ValueError, match="column 0"):
        logprobs(llama, ids, mask)
