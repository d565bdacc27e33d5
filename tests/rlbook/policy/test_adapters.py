"""LoRA by peft: beside every path through the model stands the form written by hand."""

import pytest
import torch
import torch.nn.functional as F

from rlbook.policy import load_policy, logprobs, sample, token_stats
from rlbook.policy.adapters import (
    adapted,
    adapter_weights,
    add_adapter,
    linear_names,
    load_adapter,
    merged,
    plain_weights,
    save_adapter,
    start_adapter,
    without_adapter,
)
from rlbook.policy.decoding import LlamaDecoder, decoder_for
from rlbook.policy.prefixes import why_whole

RANK, ALPHA = 3, 5.0
PROMPTS = [[0, 3, 4, 7], [0, 3, 4, 9, 11], [0, 3, 4, 7], [2, 5]]


def with_adapter(model, spread=0.2, **how):
    """The model with an adapter whose B is not 0."""
    add_adapter(model, RANK, ALPHA, **how)
    start_adapter(model, 7, "cpu")
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in adapter_weights(model).items():
            if "lora_B" in name:
                weight.normal_(0, spread, generator=draws)
    return model


def by_hand(model, plain):
    """`plain` with W + (α / r) B A for every W, of the tensors in the file's names."""
    weights = adapter_weights(model)
    with torch.no_grad():
        for name, module in plain.named_modules():
            if (a := weights.get(f"base_model.model.{name}.lora_A.weight")) is not None:
                b = weights[f"base_model.model.{name}.lora_B.weight"]
                module.weight += ALPHA / RANK * (b.double() @ a.double()).float()
    return plain


def batch_of(seed=0):
    ids = torch.randint(2, 23, (6, 12), generator=torch.Generator().manual_seed(seed))
    ids[:, :5] = ids[0, :5]
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    mask[:, 5:] = True
    return ids, mask


def test_a_new_adapter_changes_nothing_and_is_all_that_learns(make_llama):
    model, ids = make_llama(), batch_of()[0]
    before = model(input_ids=ids).logits
    add_adapter(model, RANK, ALPHA)
    start_adapter(model, 0, "cpu")
    assert torch.equal(model(input_ids=ids).logits, before)
    learns = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learns and all(".lora_" in name for name in learns)
    assert set(adapted(model)) == {
        f"model.layers.{i}.{room}.{name}"
        for i in range(2)
        for room, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down")))
        for name in (f"{one}_proj" for one in names)
    }


@pytest.mark.parametrize("tied", [True, False])
def test_every_path_says_what_the_merged_model_says(tied, make_llama):
    """Scores along shared prefixes, the sampler's written-out steps, the tensors of a push."""
    model, (ids, mask) = with_adapter(make_llama(tied)), batch_of()
    plain = by_hand(model, make_llama(tied))
    assert why_whole(model.base_model) is None
    assert isinstance(decoder_for(model), LlamaDecoder)
    expected = plain(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])
    found = logprobs(model, ids, mask)
    assert torch.allclose(found[mask], F.pad(expected[..., 0], (1, 0))[mask], atol=2e-5)
    own, its = sample(model, PROMPTS, 10, 1, seed=0), sample(plain, PROMPTS, 10, 1, seed=0)
    for one, other in zip(own, its, strict=True):
        assert one.token_ids == other.token_ids
        assert torch.allclose(torch.tensor(one.logps), torch.tensor(other.logps), atol=2e-5)
    state = plain.state_dict()
    pushed = dict(plain_weights(model))
    assert pushed.keys() == state.keys()
    assert all(torch.allclose(pushed[name], state[name], atol=1e-6) for name in state)


def test_gradients_are_those_of_the_form_written_by_hand(make_llama):
    """∂L/∂A = s Bᵀ G and ∂L/∂B = s G Aᵀ, with G = ∂L/∂W of the merged model by autograd."""
    model, (ids, mask) = with_adapter(make_llama(tied=False)), batch_of()
    plain = by_hand(model, make_llama(tied=False))
    weigh = torch.linspace(-1, 2, int(mask.sum()))
    for one in (model, plain):
        stats = token_stats(one, ids, mask, entropy_grad=True)
        ((stats.logp + 0.3 * stats.entropy)[mask] * weigh).sum().backward()
    for name, layer in adapted(model).items():
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        g = plain.get_submodule(name).weight.grad
        assert torch.allclose(a.grad, ALPHA / RANK * b.T @ g, rtol=1e-3, atol=1e-4)
        assert torch.allclose(b.grad, ALPHA / RANK * g @ a.T, rtol=1e-3, atol=1e-4)
        assert layer.base_layer.weight.grad is None
    assert model.lm_head.weight.grad is None


def test_without_its_adapter_a_model_is_its_base_and_it_learns_afterwards(make_llama):
    base, (ids, mask) = make_llama(), batch_of()
    model = with_adapter(make_llama())
    with without_adapter(model):
        assert torch.equal(logprobs(model, ids, mask), logprobs(base, ids, mask))
    assert not torch.allclose(logprobs(model, ids, mask), logprobs(base, ids, mask), atol=1e-2)
    logprobs(model, ids, mask).sum().backward()
    assert all(w.grad is not None for w in adapter_weights(model).values())


def test_over_a_rounded_base_the_adapter_stays_float32(make_llama):
    model = with_adapter(make_llama(hidden_size=64).to(torch.bfloat16))
    assert {w.dtype for w in adapter_weights(model).values()} == {torch.float32}
    assert {p.dtype for n, p in model.named_parameters() if ".lora_" not in n} == {torch.bfloat16}
    layer = next(iter(adapted(model).values()))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    exact = layer.base_layer.weight.double() + ALPHA / RANK * b.double() @ a.double()
    assert torch.allclose(merged(layer).double(), exact, atol=1e-6)  # summed before it is rounded
    ids, mask = batch_of()
    plain = by_hand(model, make_llama(hidden_size=64).to(torch.bfloat16).float())
    gap = (logprobs(model, ids, mask) - logprobs(plain, ids, mask))[mask].abs()
    assert gap.mean() < 0.05


def test_first_values_hang_on_seed_and_name_alone(make_llama):
    one, other, third = (make_llama(num_hidden_layers=n) for n in (2, 3, 2))
    for model, seed in ((one, 4), (other, 4), (third, 5)):
        torch.rand(seed)  # what was drawn elsewhere does not count
        add_adapter(model, RANK, ALPHA)
        start_adapter(model, seed, "cpu")
    first, more, differ = (adapter_weights(model) for model in (one, other, third))
    assert all(torch.equal(first[name], more[name]) for name in first)
    a = [name for name in first if "lora_A" in name]
    assert all(not torch.equal(first[name], differ[name]) for name in a)
    assert all(first[name].abs().max() <= first[name].shape[1] ** -0.5 for name in a)


def test_a_folder_of_an_adapter_is_its_base_with_it(make_llama, tmp_path):
    base, tokenizer = load_policy("tiny")
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    model = with_adapter(base, 0.05, base=str(tmp_path / "base"), targets=("q_proj", "up_proj"))
    save_adapter(model, tmp_path / "adapter", adapter_weights(model))
    tokenizer.save_pretrained(tmp_path / "adapter")
    loaded, _ = load_policy(str(tmp_path / "adapter"))
    assert not adapted(loaded) and all(p.requires_grad for p in loaded.parameters())
    state = dict(plain_weights(model))
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.state_dict().items())

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    ids = torch.arange(3, 11)[None]
    assert torch.allclose(theirs(input_ids=ids).logits, loaded(input_ids=ids).logits, atol=1e-4)


@pytest.mark.wrong_on_purpose
def test_names_that_are_no_layers_and_files_of_other_adapters_are_named(make_llama, tmp_path):
    assert linear_names(make_llama()) == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    with pytest.raises(ValueError, match=r"'query'.*there are down_proj, gate_proj"):
        add_adapter(make_llama(), RANK, ALPHA, ["query"])
    with pytest.raises(ValueError, match=r"'lm_head' is no linear layer"):
        add_adapter(make_llama(), RANK, ALPHA, ["lm_head"])
    model = with_adapter(make_llama())
    save_adapter(model, tmp_path, adapter_weights(model))
    other = make_llama()
    add_adapter(other, RANK + 1, ALPHA)
    start_adapter(other, 0, "cpu")
    with pytest.raises(ValueError, match="another rank"):
        load_adapter(other, tmp_path)
