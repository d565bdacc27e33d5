"""A policy in bfloat16 on the CPU: sampler and learner compute what float32 computes, rounded."""

import pytest
import torch

from rlbook.policy import load_policy, load_tokenizer, logprobs, sample
from rlbook.policy.decoding import LlamaDecoder, decoder_for
from rlbook.policy.prefixes import why_whole

PROMPTS = [[0, 3, 4, 7], [0, 3, 4, 9, 11], [0, 3, 4, 7], [2, 5]]
WIDE = {"hidden_size": 64, "num_hidden_layers": 4, "spread": 0.1}


def rounded(model):
    """The same weights in bfloat16, and in float32 what bfloat16 has left of them."""
    low = model.to(torch.bfloat16)
    exact = type(model)(model.config).eval()
    exact.load_state_dict({k: v.float() for k, v in low.state_dict().items()})
    return low, exact


def plain(model, ids):
    """log π of every token but the first, by the library's forward pass."""
    logp = model(input_ids=ids).logits.float().log_softmax(-1)
    return logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


@pytest.mark.parametrize("tied", [True, False])
def test_the_sampler_reports_what_float32_says_of_its_tokens(tied, make_llama):
    low, exact = rounded(make_llama(tied, **WIDE))
    assert isinstance(decoder_for(low), LlamaDecoder)
    for prompt, one in zip(PROMPTS, sample(low, PROMPTS, 12, 1, seed=0), strict=True):
        with torch.no_grad():
            said = plain(exact, torch.tensor([prompt + one.token_ids]))[0, len(prompt) - 1 :]
        error = (torch.tensor(one.logps) - said).abs()
        assert error.mean() < 0.03 and error.max() < 0.2
        assert all(logp != float(torch.tensor(logp).bfloat16()) for logp in one.logps)  # fp32 head


def test_shared_prefixes_have_the_gradient_of_float32(make_llama):
    low, exact = rounded(make_llama(**WIDE))
    assert why_whole(low.base_model) is None
    ids = torch.randint(2, 23, (12, 14), generator=torch.Generator().manual_seed(0))
    ids[:, :9] = ids[0, :9]
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    mask[:, 9:] = True
    for model in (low, exact):
        logprobs(model, ids, mask)[::3].sum().backward()
    for one, other in zip(low.parameters(), exact.parameters(), strict=True):
        angle = torch.cosine_similarity(one.grad.float().flatten(), other.grad.flatten(), 0)
        assert angle > 0.99


def test_the_gradient_of_a_shared_beginning_is_summed_without_rounding(make_llama):
    """400 rows after one prompt: a sum in bfloat16 would lose parts below 1/256 of itself."""
    low, exact = rounded(make_llama(**WIDE))
    ids = torch.tensor([[0, 3, 4, 5, 6, 7, 2 + i % 20, 2 + i // 20 % 20] for i in range(400)])
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    mask[:, 6:] = True
    for model in (low, exact):
        logprobs(model, ids, mask).mean().backward()
    one, other = (m.model.layers[0].self_attn.v_proj.weight.grad.float() for m in (low, exact))
    assert (one - other).norm() < 0.05 * other.norm()


def test_layers_below_the_trained_ones_have_no_gradient(tmp_path, make_llama):
    model = make_llama(num_hidden_layers=4)
    for part in (model, load_tokenizer()):
        part.save_pretrained(tmp_path)
    policy, _ = load_policy(str(tmp_path), torch.bfloat16, trainable_layers=1)
    ids = torch.tensor([[0, 3, 4, 5], [0, 3, 6, 7]])
    logprobs(policy, ids, ids > 4).sum().backward()
    learned = [name for name, p in policy.named_parameters() if p.grad is not None]
    assert learned and all(name.startswith("model.layers.3.") for name in learned)
    with pytest.raises(ValueError, match="trainable_layers 5: LlamaForCausalLM has 4 layers"):
        load_policy(str(tmp_path), trainable_layers=5)
