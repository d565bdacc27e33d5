"""The tiny base model as a folder, its tokenizer, and its pretraining."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlbook.paths import data_dir
from rlbook.policy import Sampler
from rlbook.tasks import SumsTask
from workshop.bases.card import CardConfig, kind_of_step, markdown, measure, pass_rate_histogram
from workshop.bases.decisions import decisions
from workshop.bases.demonstrations import demonstrations
from workshop.bases.model import VOCABULARY, build_tokenizer
from workshop.bases.pretrain import PretrainConfig, learning_rate_factor, pretrain

BASE = data_dir() / "tiny-sums"


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(BASE)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(BASE)


def test_the_folder_is_small_and_plain():
    sizes = [path.stat().st_size for path in BASE.parent.glob("tiny-*/*")]
    assert sum(sizes) <= 8_000_000
    assert not list(BASE.glob("*.py")) and not list(BASE.glob("*.bin"))


def test_the_head_is_untied_and_the_layout_suits_vllm(model):
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert "lm_head.weight" in load_file(BASE / "model.safetensors")
    assert model.config.head_dim == 32 and model.config.vocab_size == len(VOCABULARY)
    assert sum(p.numel() for p in model.parameters()) < 600_000


def test_special_tokens_are_distinct_and_agree(model, tokenizer):
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert len(set(ids)) == 3
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == ids


def test_the_saved_tokenizer_is_the_one_the_code_builds(tokenizer):
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert tokenizer("1+1=?").input_ids == build_tokenizer()("1+1=?").input_ids


def test_corpus_text_survives_a_round_trip(tokenizer):
    for demo in itertools.islice(demonstrations(11), 500):
        text = demo.problem.prompt + demo.completion
        ids = tokenizer(text).input_ids
        assert ids[0] == tokenizer.bos_token_id and tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert len(tokenizer(demo.problem.prompt, add_special_tokens=False).input_ids) == len(
            demo.problem.prompt
        )


@pytest.mark.parametrize("text", ["", "hello", "37 + 8", "４\x00\n", "<answer", "wait", "\ud83d"])
def test_foreign_text_does_not_break_the_tokenizer(tokenizer, text):
    text = text.encode("utf-8", "replace").decode()
    assert tokenizer(text).input_ids[0] == tokenizer.bos_token_id


def test_the_base_solves_some_problems_but_not_most():
    """Wide margins around the card's figures: the machine's rounding may differ."""
    card = json.loads((BASE / "card.json").read_text())
    measured = measure(CardConfig(model=BASE, per_level=8, seed=1))
    for name, margin in (("pass@1", 0.12), ("pass@8", 0.12)):
        assert abs(measured["pass_at_k"][name] - card["pass_at_k"][name]) < margin
    assert 0.02 < card["all"]["truncated"] < 0.12
    assert 0.25 <= card["pass_at_k"]["pass@1"] <= 0.40
    assert card["pass_at_k"]["pass@8"] >= 0.80


def test_the_model_card_shows_the_measured_figures():
    card = json.loads((BASE / "card.json").read_text())
    assert markdown(card) in (BASE.parent / "README.md").read_text()


def test_strategies_can_be_told_apart(model, tokenizer):
    """The base knows when it is lost, and its rare careful answers are better than most."""
    card = json.loads((BASE / "card.json").read_text())
    after = card["steps"]
    assert after["stuck"]["then_goes_on"] < 0.02 < 0.2 < after["stuck"]["then_tries_again"]
    assert max(after["right"]["then_lost"], after["wrong"]["then_lost"]) < 0.01
    assert card["lost"]["accuracy"] < 0.1
    careful, terse = card["strategies"]["careful"], card["strategies"]["terse"]
    assert careful["share"] < 0.08 and careful["accuracy"] > terse["accuracy"] + 0.1
    measured = decisions(model, tokenizer)
    assert measured == pytest.approx(card["decisions"], abs=2e-3)


def test_decisions_agree_with_sampling(model, tokenizer):
    problem = SumsTask().sample(3, 1, levels=[4])[0]
    sampler = Sampler(model, tokenizer.eos_token_id)
    prompt = tokenizer(problem.prompt).input_ids
    drawn = sampler.generate([prompt], n=4000, max_new_tokens=2, seed=0)
    openings = [tokenizer.decode(completion.token_ids) for completion in drawn]
    exact = decisions(model, tokenizer, [problem])
    for name, text in (("answers_at_once", "</think>"), ("opens_verbose", "so ")):
        share = openings.count(f"<think>{text}") / len(openings)
        error = (exact[name] * (1 - exact[name]) / len(openings)) ** 0.5
        assert abs(share - exact[name]) < 4 * error + 0.002


def test_decisions_need_a_problem(model, tokenizer):
    with pytest.raises(ValueError, match="at least one problem"):
        decisions(model, tokenizer, [])


def test_pretraining_is_reproducible_bit_for_bit(tmp_path):
    config = PretrainConfig(out=tmp_path / "a", stop_after=3, batch=16, micro_batches=4)
    losses = {"a": [], "b": []}
    for name, seen in losses.items():
        run = replace(config, out=tmp_path / name)
        pretrain(run, lambda metrics, seen=seen: seen.append(metrics["loss"]))
    assert losses["a"] == losses["b"] and len(losses["a"]) == 3
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert abs(losses["a"][0] - torch.tensor(len(VOCABULARY)).log()) < 0.1


def test_micro_batches_do_not_change_the_loss(tmp_path):
    losses = []
    for parts in (1, 5):
        config = PretrainConfig(out=tmp_path, stop_after=2, batch=16, micro_batches=parts)
        pretrain(config, lambda metrics: losses.append(metrics["loss"]))
    assert losses[:2] == pytest.approx(losses[2:], abs=1e-5)


def test_learning_rate_schedule():
    config = PretrainConfig(steps=100, warmup=10, decay=0.4)
    factors = [learning_rate_factor(step, config) for step in range(101)]
    assert factors[0] == 0.1 and factors[9] == 1.0 == factors[60]
    assert factors[80] == pytest.approx(0.5) and factors[100] == 0.0


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"micro_batches": 65}, {"decay": 0}, {"max_tokens": 1000}]
)
def test_bad_settings_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        PretrainConfig(**change)


def test_kinds_of_steps():
    assert kind_of_step("37", "+8", "45") == "right"
    assert kind_of_step("37", "-8", "28") == "wrong"
    assert kind_of_step("37", "+8", "?") == "stuck"


def test_pass_rates_of_prompts_fall_into_their_bins():
    rates = np.array([0, 1 / 16, 4 / 16, 8 / 16, 11 / 16, 12 / 16, 15 / 16, 1, 0])
    counts = {"0": 2, "(0,.25)": 1, "[.25,.5)": 1, "[.5,.75)": 2, "[.75,1)": 2, "1": 1}
    assert pass_rate_histogram(rates) == counts


def test_the_vocabulary_covers_every_problem(tokenizer):
    for problem in SumsTask().sample(0, 200):
        assert tokenizer.unk_token_id not in tokenizer(problem.prompt).input_ids
