"""Sampling: the distribution, its reported log-probabilities, stopping, and refusals."""

from random import Random

import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlbook.policy import Sampler, logprobs, sample
from rlbook.policy.decoding import (
    Decoder,
    LlamaDecoder,
    cache_argument,
    decoder_for,
    fill_holes,
)
from rlbook.policy.sampler import draw

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")

EOS = 1
ROUNDING = 5e-5  # of logits near 7 in float32, ten times what CPUs were seen to differ by
PROMPTS = [[0, 3, 4], [0, 5], [0, 3, 4], [0, 7, 8, 9, 10, 2, 11], [6]] * 5


def as_batch(prompts, completions):
    width = max(len(p) + len(c.token_ids) for p, c in zip(prompts, completions, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    logps = torch.zeros(len(prompts), width)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        stop = len(prompt) + len(completion.token_ids)
        ids[row, :stop] = torch.tensor(prompt + completion.token_ids)
        mask[row, len(prompt) : stop] = True
        logps[row, len(prompt) : stop] = torch.tensor(completion.logps)
    return ids, mask, logps


def small(kind, config, **settings):
    torch.manual_seed(0)
    common = dict(vocab_size=23, hidden_size=32, intermediate_size=32, num_hidden_layers=2)
    common |= dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    common |= dict(max_position_embeddings=128, head_dim=8, pad_token_id=None)
    return kind(config(**(common | settings))).eval()


def models(make_llama):
    gpt2 = GPT2Config(vocab_size=23, n_positions=128, n_embd=32, n_layer=2, n_head=4)
    gpt2.initializer_range = 0.2
    return {
        "llama": make_llama(spread=0.2, max_position_embeddings=128),
        "llama, no sharing": make_llama(spread=0.2, num_key_value_heads=4),
        "qwen3": small(Qwen3ForCausalLM, Qwen3Config),
        "mistral, window 5": small(MistralForCausalLM, MistralConfig, sliding_window=5),
        "gpt2": GPT2LMHeadModel(gpt2).eval(),
    }


@pytest.mark.parametrize(
    "name", ["llama", "llama, no sharing", "qwen3", "mistral, window 5", "gpt2"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_reported_logps_equal_training_logps(make_llama, name, temperature):
    model = models(make_llama)[name]
    completions = sample(model, PROMPTS, 25, EOS, temperature, seed=0)
    lengths = {len(c.token_ids) for c in completions}
    assert len(lengths) > 3, "rows must finish at different times for this test to mean anything"
    ids, mask, logps = as_batch(PROMPTS, completions)
    trained = logprobs(model, ids, mask, temperature).detach()
    torch.testing.assert_close(logps, trained, rtol=0, atol=ROUNDING)


def test_llama_steps_equal_the_models_own_forward(make_llama):
    # The library computes norms and rotations in float32 even in a float64 model: that moves these
    # logits (7 at most) by about 5e-6, on each CPU differently. A norm with epsilon 1e-5 instead of
    # 1e-6, the smallest of the mistakes looked for here, moves them by 2e-3.
    model = make_llama().double()
    assert isinstance(decoder_for(model), LlamaDecoder)
    fast, slow = LlamaDecoder(model), Decoder(model)
    prompts = [p for i, p in enumerate(PROMPTS[:5]) if i != 2]
    keep = torch.tensor([0, 5, 2])
    with torch.inference_mode():
        torch.testing.assert_close(fast.prefill(prompts), slow.prefill(prompts))
        for decoder in (fast, slow):
            decoder.take(torch.tensor([0, 0, 1, 2, 3, 3]))
        token = torch.tensor([3, 4, 5, 6, 7, 8])
        for step in range(45):
            if step == 20:
                token = token[keep]
                fast.take(keep)
                slow.take(keep)
            expected = slow.step(token)
            torch.testing.assert_close(fast.step(token), expected, rtol=0, atol=1e-4)
            token = expected.argmax(-1)


def next_logits(model, sequences):
    """Teacher-forced, each sequence by itself."""
    with torch.no_grad():
        return torch.stack([model(torch.tensor([s])).logits[0, -1] for s in sequences])


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral, window 5", "gpt2"])
def test_rows_that_join_and_leave_read_only_themselves(make_llama, name):
    model, chance = models(make_llama)[name], Random(1)
    decoder, sequences, joins, longest = decoder_for(model), [], 0, 0
    with torch.inference_mode():
        for _ in range(100):
            sequences = [[*s, chance.randrange(23)] for s in sequences]
            logits = [decoder.step(torch.tensor([s[-1] for s in sequences]))] if sequences else []
            if len(sequences) < 6 and chance.random() < 0.4:
                prompts = [
                    chance.choices(range(23), k=k) for k in chance.choices(range(1, 45), k=2)
                ]
                joining = decoder.fresh()
                logits.append(joining.prefill([*prompts, prompts[0]]))
                if sequences:
                    decoder.join(joining)
                    joins += 1
                else:
                    decoder = joining
                sequences = [*sequences, *prompts, prompts[0]]
                assert decoder.length == max(map(len, sequences)), "no column without a use"
            if sequences:
                expected = next_logits(model, sequences)
                torch.testing.assert_close(torch.cat(logits), expected, rtol=0, atol=ROUNDING)
                longest = max(longest, *map(len, sequences))
            if chance.random() < 0.3:
                stay = chance.sample(range(len(sequences)), chance.randint(0, len(sequences)))
                stay = [row for row in stay if len(sequences[row]) < 100]
                sequences = [sequences[row] for row in stay]
                if stay:
                    decoder.take(torch.tensor(stay))
    assert joins > 8 and longest > 64, "few joins or short rows would prove little"


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_pairs_of_tokens_follow_the_exact_distribution(make_llama, temperature):
    model = make_llama(vocab_size=6, spread=0.2)
    prompt, count = [0, 3], 20_000
    completions = Sampler(model, EOS).generate(
        [prompt], n=count, max_new_tokens=2, temperature=temperature, seed=5
    )
    with torch.no_grad():
        extended = torch.tensor([[*prompt, a] for a in range(6)])
        pi = (model(input_ids=extended).logits.double() / temperature).softmax(-1)
    first, second = pi[0, 1], pi[:, 2]
    expected = {(a, b): first[a] * second[a, b] for a in range(6) for b in range(6) if a != EOS}
    expected[(EOS,)] = first[EOS]
    seen = dict.fromkeys(expected, 0)
    for completion in completions:
        seen[tuple(completion.token_ids)] += 1
    common = [key for key in expected if expected[key] * count >= 5]
    observed = [seen[key] for key in common]
    wanted = [float(expected[key]) * count for key in common]
    if len(common) < len(expected):  # the others together; without any, both counts would be 0
        observed.append(count - sum(observed))
        wanted.append(count - sum(wanted))
    assert len(common) > 10
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_temperature_zero_is_greedy_and_reports_temperature_one(llama):
    for prompt in ([0, 3, 4], [0, 5]):
        (completion,) = sample(llama, [prompt], 15, EOS, temperature=0.0)
        generated = llama.generate(
            torch.tensor([prompt]), max_new_tokens=15, do_sample=False, eos_token_id=EOS
        )
        assert completion.token_ids == generated[0, len(prompt) :].tolist()
        ids, mask, logps = as_batch([prompt], [completion])
        trained = logprobs(llama, ids, mask).detach()
        torch.testing.assert_close(logps, trained, rtol=0, atol=ROUNDING)


def test_a_completion_does_not_depend_on_its_neighbours(llama):
    together = sample(llama, PROMPTS, 20, EOS, seed=3)
    fewer = sample(llama, PROMPTS[:4], 20, EOS, seed=3)
    assert [c.token_ids for c in fewer] == [c.token_ids for c in together[:4]]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_sequences_that_have_said_the_same_are_one_row(make_llama, name, monkeypatch):
    """Tokens are those of whole sequences read one by one; rows the distinct ones that go on."""
    model, steps = models(make_llama)[name], 12
    prompts, sizes = [[0, 3, 4], [0, 5], [0, 3, 4]] * 8, []
    uniform = torch.rand(
        len(prompts), steps, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    expected = [list(prompt) for prompt in prompts]
    distinct = []
    for step in range(steps):
        going = [i for i, s in enumerate(expected) if EOS not in s[len(prompts[i]) :]]
        distinct.append(len({tuple(expected[i]) for i in going}))
        for i in going:
            logits = next_logits(model, [expected[i]])
            expected[i].append(int(draw(logits, 1.0, uniform[i, step : step + 1])[0]))

    kind = type(decoder_for(model))
    original = kind.step
    monkeypatch.setattr(kind, "step", lambda self, t: sizes.append(len(t)) or original(self, t))
    completions = sample(model, prompts, steps, EOS, seed=3)
    found = [p + c.token_ids for p, c in zip(prompts, completions, strict=True)]
    assert found == expected
    assert sizes == distinct[1:] and min(sizes[:3]) < len(prompts) - 5


def test_seeds(llama):
    first, again, other = (sample(llama, PROMPTS, 10, EOS, seed=s) for s in (1, 1, 2))
    assert first == again
    assert [c.token_ids for c in first] != [c.token_ids for c in other]
    generator = torch.Generator().manual_seed(1)
    assert sample(llama, PROMPTS, 10, EOS, generator=generator) == first
    assert sample(llama, PROMPTS, 10, EOS, generator=generator) != first
    assert sample(llama, PROMPTS, 10, EOS) != sample(llama, PROMPTS, 10, EOS)


def test_finish_reasons_and_eos(llama):
    completions = sample(llama, PROMPTS, 12, EOS, seed=0)
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        *body, last = completion.token_ids
        assert EOS not in body
        assert len(completion.logps) == len(completion.token_ids) <= 12
        assert (completion.finish_reason == "stop") == (last == EOS)
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 12


def test_several_tokens_can_end_a_completion(llama):
    ends = {sample(llama, [[0]], 40, [1, 2, 3, 4], seed=s)[0].token_ids[-1] for s in range(20)}
    assert len(ends) > 1 and ends <= {1, 2, 3, 4}


def test_n_completions_of_each_prompt_stay_together(llama):
    grouped = Sampler(llama, EOS).generate([[0, 3], [0, 9, 9]], n=3, max_new_tokens=6, seed=0)
    assert grouped == sample(llama, [[0, 3]] * 3 + [[0, 9, 9]] * 3, 6, EOS, seed=0)


def test_no_prompts_give_no_completions(llama):
    assert sample(llama, [], 5, EOS) == []


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    below_one = torch.nextafter(torch.tensor(1.0).double(), torch.tensor(0.0).double())
    token, logp = draw(logits, 1.0, torch.tensor([0.0, 0.5, below_one]).double())
    assert token.tolist() == [1, 3, 3]
    torch.testing.assert_close(logp, torch.full((3,), 0.5).log())


@pytest.mark.parametrize("going", ["12", "", "1110100", "0111", "01", "2013", "0000002", "5", "33"])
def test_rows_go_on_in_places_of_which_few_change(going):
    """`going`: how many children every row has."""
    children = torch.tensor([int(c) for c in going], dtype=torch.long)
    parents = torch.arange(len(children)).repeat_interleave(children)
    order = fill_holes(parents)
    assert sorted(order.tolist()) == list(range(len(parents)))
    staying = (children[: len(parents)] > 0).sum()
    assert (parents[order] == torch.arange(len(parents))).sum() == staying


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_has_the_name_that_the_model_gives_it(make_llama, name):
    """Transformers 5.24 renamed it, and will forget the old name."""
    model, given = make_llama(), []
    kind, own = type(model), cache_argument(model)

    def read(self, ids, cache, more):
        given.append(cache)
        return kind.forward(self, ids, **{own: cache}, **more)

    class Before(kind):
        def forward(self, input_ids=None, past_key_values=None, **more):
            return read(self, input_ids, past_key_values, more)

    class Since(kind):
        def forward(self, input_ids=None, cache=None, **more):
            return read(self, input_ids, cache, more)

    model.__class__ = {"past_key_values": Before, "cache": Since}[name]
    decoder = Decoder(model)
    decoder.prefill([[1, 2, 3]])
    assert given == [decoder.cache]


def test_the_model_is_left_as_it_was(llama):
    before = {name: p.clone() for name, p in llama.named_parameters()}
    sample(llama, PROMPTS, 5, EOS, seed=0)
    for name, p in llama.named_parameters():
        assert torch.equal(p, before[name]) and p.requires_grad and p.grad is None
    logprobs(llama, torch.tensor([[0, 3]]), torch.tensor([[False, True]])).sum().backward()


def test_wrong_arguments_are_named(llama):
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        sample(llama, [[0], []], 5, EOS)
    with pytest.raises(ValueError, match=r"prompt 0 has 60 tokens.*context of 64"):
        sample(llama, [[0] * 60], 5, EOS)
    with pytest.raises(ValueError, match="outside the vocabulary of 23"):
        sample(llama, [[0, 23]], 5, EOS)
    with pytest.raises(ValueError, match="max_new_tokens"):
        sample(llama, [[0]], 0, EOS)
    with pytest.raises(ValueError, match="temperature"):
        sample(llama, [[0]], 5, EOS, temperature=-1.0)
    with pytest.raises(ValueError, match="n must be"):
        Sampler(llama, EOS).generate([[0]], n=0)


def test_diverged_weights_are_reported(llama):
    with torch.no_grad():
        llama.model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="diverged"):
        sample(llama, [[0, 3]], 5, EOS)


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_a_llama_with_biases_is_sampled_with_them(bias):
    """The written-out step knows none: reported log-probs are those of the model's own forward."""
    model = small(LlamaForCausalLM, LlamaConfig, **{bias: True})
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    completions = sample(model, PROMPTS, 12, EOS, seed=3)
    ids, mask, reported = as_batch(PROMPTS, completions)
    with torch.no_grad():
        output = model(ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    own = output[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(reported[mask], own[mask[:, 1:]], rtol=0, atol=ROUNDING)
