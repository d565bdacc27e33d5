"""In-flight batching against teacher-forced passes of the model, before and after new weights."""

from itertools import product

import pytest
import torch
from scipy.stats import chisquare
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rlbook.policy import logprobs
from rlbook.policy.continuous import ContinuousSampler
from rlbook.policy.decoding import cache_argument

EOS = 1
PROMPTS = [[0, 3, 4], [0, 5], [0, 3, 4], [0, 7, 8, 9, 10, 2, 11], [6]]
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def build(seed=0, family="llama", tied=False, vocabulary=23):
    """A random model whose distributions are far from uniform, so that errors show."""
    torch.manual_seed(seed)
    kind, config = FAMILIES[family]
    sizes = dict(vocab_size=vocabulary, hidden_size=32, intermediate_size=48, head_dim=8)
    shape = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    context = dict(max_position_embeddings=64, pad_token_id=None, bos_token_id=0)
    return kind(
        config(**sizes, **shape, **context, initializer_range=0.2, tie_word_embeddings=tied)
    ).eval()


def run(sampler):
    """Step until nothing is left to do; completions by number, in order of their ends."""
    finished = {}
    while sampler.busy:
        finished |= sampler.step()
    return finished


def teacher_forced(model, prompt, tokens, temperature=1.0, cache=None):
    """Log-probability of each token after the prompt and the tokens before it."""
    with torch.no_grad():
        behind = {cache_argument(model): cache}
        logits = model(torch.tensor([prompt + tokens]), **behind).logits
    logp = (logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logp.gather(-1, torch.tensor(tokens)[:, None]).squeeze(-1)


def assert_equal(reported, expected):
    torch.testing.assert_close(torch.tensor(reported), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_reported_logps_equal_training_logps(family):
    model = build(family=family)
    sampler = ContinuousSampler(model, EOS, slots=4)
    asked = [(p, length, t) for p, length, t in product(PROMPTS, (5, 20), (1.0, 0.7, 1.5))]
    numbers = [sampler.add(*request) for request in asked]
    finished = run(sampler)
    assert sorted(finished) == sorted(numbers)
    assert len({len(c.token_ids) for c in finished.values()}) > 4
    for number, (prompt, limit, temperature) in zip(numbers, asked, strict=True):
        completion = finished[number]
        *body, last = completion.token_ids
        assert EOS not in body and len(completion.token_ids) <= limit
        assert completion.finish_reason == ("stop" if last == EOS else "length")
        assert completion.finish_reason == "stop" or len(completion.token_ids) == limit
        ids = torch.tensor([prompt + completion.token_ids])
        mask = torch.arange(ids.shape[1])[None] >= len(prompt)
        trained = logprobs(model, ids, mask, temperature)[mask].detach()
        assert_equal(completion.logps, trained)


def test_greedy_completions_run_beside_sampled_ones():
    model = build()
    sampler = ContinuousSampler(model, EOS)
    sampled, greedy = sampler.add([0, 5], 12), sampler.add([0, 5], 12, temperature=0.0)
    finished = run(sampler)
    best = model.generate(
        torch.tensor([[0, 5]]), max_new_tokens=12, do_sample=False, eos_token_id=1
    )
    assert finished[greedy].token_ids == best[0, 2:].tolist() != finished[sampled].token_ids
    expected = teacher_forced(model, [0, 5], finished[greedy].token_ids)
    assert_equal(finished[greedy].logps, expected)


def test_pairs_of_tokens_follow_the_exact_distribution():
    model, prompt, count = build(vocabulary=6), [0, 3], 4000
    sampler = ContinuousSampler(model, EOS, slots=500, seed=7)
    for _ in range(count):
        sampler.add(prompt, 2)
    seen = {}
    for completion in run(sampler).values():
        pair = tuple(completion.token_ids)
        seen[pair] = seen.get(pair, 0) + 1
    pairs = [(EOS,), *([a, b] for a, b in product(range(6), repeat=2) if a != EOS)]
    expected = [float(teacher_forced(model, prompt, list(p)).sum().exp()) * count for p in pairs]
    common = [i for i, number in enumerate(expected) if number >= 5]
    assert len(common) > 10
    observed = [seen.get(tuple(pairs[i]), 0) for i in common]
    wanted = [expected[i] for i in common]
    if len(common) < len(pairs):  # the others together; without any, both counts would be 0
        observed.append(count - sum(observed))
        wanted.append(count - sum(wanted))
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_a_completion_depends_on_its_number_alone():
    model = build()
    results = []
    for slots, cancelled in ((1, ()), (3, ()), (20, ()), (20, range(0, 15, 2))):
        sampler = ContinuousSampler(model, EOS, slots, seed=3)
        for prompt in PROMPTS * 3:
            sampler.add(prompt, 20)
        finished = sampler.step()
        sampler.cancel(cancelled)
        finished |= run(sampler)
        results.append({n: c.token_ids for n, c in finished.items() if n not in cancelled})
    one, three, all_at_once, without_even = results
    assert one == three == all_at_once
    assert without_even == {n: one[n] for n in range(1, 15, 2)}
    assert one[0] != one[5], "equal prompts have different numbers"
    other = ContinuousSampler(model, EOS, seed=4)
    other.add(PROMPTS[0], 20)
    assert run(other)[0].token_ids != one[0]


def test_first_come_first_served():
    sampler = ContinuousSampler(build(), EOS, slots=1)
    numbers = [sampler.add(prompt, 6) for prompt in PROMPTS]
    assert list(run(sampler)) == numbers


def test_cancelled_completions_end_without_a_result():
    sampler = ContinuousSampler(build(), 22, slots=2)
    running, also_running, waiting, last = (sampler.add([0, 5], 4) for _ in range(4))
    sampler.step()
    sampler.cancel([running, waiting, 99])
    assert sorted(run(sampler)) == [also_running, last]
    sampler.add([0], 3)
    sampler.step()
    sampler.cancel([4])
    assert not sampler.busy and sampler.step() == {}


def updated_in_flight(kv, family, tied, prompts=PROMPTS * 4):
    """Some rows begin under old weights, a few end before the update, some begin after it."""
    old, new = build(1, family, tied), build(2, family, tied)
    model = build(1, family, tied)
    sampler = ContinuousSampler(model, EOS, slots=7, kv=kv)
    for prompt in prompts:
        sampler.add(prompt, 20)
    finished = {}
    for _ in range(9):
        finished |= sampler.step()
    sampler.load_weights(new.state_dict(), version=1)
    finished |= run(sampler)
    return old, new, [(prompts[number], finished[number]) for number in sorted(finished)]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv", ["keep", "clear"])
def test_weights_change_in_flight(kv, family, tied):
    old, new, results = updated_in_flight(kv, family, tied)
    differences, kinds = [], set()
    for prompt, completion in results:
        tokens, logps, versions = completion.token_ids, completion.logps, completion.versions
        boundary = versions.count(0)
        assert versions == [0] * boundary + [1] * (len(tokens) - boundary)
        assert_equal(logps[:boundary], teacher_forced(old, prompt, tokens)[:boundary])
        by_new = teacher_forced(new, prompt, tokens)[boundary:]
        kinds.add((boundary > 0, boundary < len(tokens)))
        if 0 < boundary < len(tokens) and kv == "keep":
            differences += (torch.tensor(logps[boundary:]) - by_new).abs().tolist()
        else:
            assert_equal(logps[boundary:], by_new)
    assert kinds == {(True, False), (True, True), (False, True)}
    assert kv == "clear" or max(differences) > 0.1, "stale keys and values leave their mark"


def test_kept_cache_is_the_old_weights_keys_and_values_under_the_new_weights():
    old, new, results = updated_in_flight("keep", "llama", tied=False)
    checked = 0
    for prompt, completion in results:
        boundary = completion.versions.count(0)
        if 0 < boundary < len(completion.token_ids):
            read_by_old = prompt + completion.token_ids[: boundary - 1]
            cache = DynamicCache(config=old.config)
            with torch.no_grad():
                old(torch.tensor([read_by_old]), **{cache_argument(old): cache})
            last, rest = completion.token_ids[boundary - 1], completion.token_ids[boundary:]
            expected = teacher_forced(new, [last], rest, cache=cache)
            assert_equal(completion.logps[boundary:], expected)
            checked += 1
    assert checked >= 3


def test_a_cleared_cache_changes_nothing_but_the_time():
    model = build()
    tokens = []
    for clears in (0, 1):
        sampler = ContinuousSampler(model, EOS, slots=3, seed=5)
        for prompt in PROMPTS:
            sampler.add(prompt, 15)
        finished = {}
        while sampler.busy:
            finished |= sampler.step()
            if clears:
                sampler.clear_cache()
        tokens.append({n: c.token_ids for n, c in finished.items()})
    assert tokens[0] == tokens[1]


def test_one_name_of_a_tied_weight_suffices():
    source = build(2, tied=True).state_dict()
    for absent in ("lm_head.weight", "model.embed_tokens.weight"):
        model = build(1, tied=True)
        given = {name: tensor for name, tensor in source.items() if name != absent}
        ContinuousSampler(model, EOS).load_weights(given, 1)
        assert all(torch.equal(model.state_dict()[name], source[name]) for name in source)


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: without(t, "model.norm.weight"), "1 weights are missing.*'model.norm.weight'"),
        (lambda t: t | {"visual.weight": torch.zeros(2)}, "no weight 'visual.weight'"),
        (lambda t: t | {"model.norm.weight": torch.zeros(3)}, r"'model.norm.weight'.*\(3,\).*32"),
    ],
)
def test_unfit_weights_are_refused_as_a_whole(spoil, message):
    model, before = build(1), build(1).state_dict()
    sampler = ContinuousSampler(model, EOS, version=4)
    with pytest.raises(ValueError, match=message):
        sampler.load_weights(spoil(build(2).state_dict()), 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert sampler.version == 4


def test_diverged_weights_are_reported_and_later_weights_help():
    model = build()
    sampler = ContinuousSampler(model, EOS)
    broken = {name: tensor * torch.nan for name, tensor in build().state_dict().items()}
    sampler.add([0, 3], 5)
    sampler.load_weights(broken, 1)
    with pytest.raises(FloatingPointError, match="diverged"):
        sampler.step()
    sampler.cancel([0])
    sampler.load_weights(build().state_dict(), 2)
    number = sampler.add([0, 3], 5)
    completion = run(sampler)[number]
    assert set(completion.versions) == {2}
    assert_equal(completion.logps, teacher_forced(build(), [0, 3], completion.token_ids))


def test_wrong_requests_are_named():
    sampler = ContinuousSampler(build(), EOS)
    for request, message in [
        (([], 5), "empty"),
        (([0, 23], 5), "vocabulary of 23"),
        (([0] * 60, 5), "context of 64"),
        (([0], 0), "max_new_tokens"),
        (([0], 5, -1.0), "temperature"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler.add(*request)
    assert not sampler.busy
    with pytest.raises(ValueError, match="slots"):
        ContinuousSampler(build(), EOS, slots=0)
