"""A vocabulary cut after its first merges: texts keep their tokens, the model its logits."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rlbook.policy import load_policy
from rlbook.policy.loading import cut_policy
from rlbook.policy.vocabulary import cut_vocabulary, share_kept
from rlbook.training import RunConfig
from rlbook.training.trainer import cut_once

TEXT = "the cat sat on the mat, the hat of the cat is on the mat that the cat has; 12 + 34 = 46\n"
BYTES = 256


@pytest.fixture(params=["specials first", "specials last"])
def whole(request, tmp_path, make_llama):
    """A folder with a byte-pair vocabulary of 300 and two or three special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first = ["<bos>", "<eos>"] if request.param == "specials first" else []
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300 + len(first), special_tokens=first, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    bos, eos = (tokenizer.token_to_id(t) for t in ("<bos>", "<eos>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    model = make_llama(vocab_size=len(fast) + 3, bos_token_id=bos, eos_token_id=eos)
    model.generation_config.eos_token_id = [eos]
    model.save_pretrained(tmp_path / "whole")
    fast.save_pretrained(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_cut_model_is_the_same_model_of_fewer_words(whole, tmp_path):
    folder = tmp_path / "cut"
    kept = cut_vocabulary(whole, BYTES + 22, folder)
    big, small = (AutoTokenizer.from_pretrained(f) for f in (whole, folder))
    assert len(small) == BYTES + 22 < len(big)
    for text in (TEXT, "ünïcode → 漢字 \t zebra<eos>"):
        ids = small(text).input_ids
        assert small.decode(ids) == "<bos>" + text
        assert len(ids) >= len(big(text).input_ids)
    models = [AutoModelForCausalLM.from_pretrained(f).eval() for f in (whole, folder)]
    words = small.convert_ids_to_tokens(list(range(len(small))))
    old = torch.tensor(big.convert_tokens_to_ids(words))
    assert old.tolist() == kept
    ids = torch.tensor([small(TEXT).input_ids])
    with torch.no_grad():
        one, other = models[1](ids).logits, models[0](old[ids]).logits
    torch.testing.assert_close(one, other[..., old])
    share = share_kept(models[0], old[ids], old)
    torch.testing.assert_close(share, other.softmax(-1)[..., old].sum(-1))
    assert (share < 1).all()


def test_special_tokens_stay_what_they_are(whole, tmp_path):
    folder = tmp_path / "cut"
    cut_vocabulary(whole, BYTES + 10, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer("cat").input_ids[0] == tokenizer.bos_token_id == model.config.bos_token_id
    assert tokenizer.convert_ids_to_tokens(model.config.eos_token_id) == "<eos>"
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]


def test_a_run_s_settings_cut_once(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    model, tokenizer = load_policy(str(whole), vocabulary=BYTES + 30)
    assert model.config.vocab_size == len(tokenizer) == BYTES + 30
    (folder,) = (tmp_path / "cache").iterdir()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert cut_policy(str(whole), BYTES + 30) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_policy_that_is_another_run_is_its_step_of_today_for_all_processes(tmp_path, monkeypatch):
    """Whoever is started later loads the same reference, however far that run has gone on."""
    sft = tmp_path / "sft"
    sft.mkdir()
    (sft / "step_000001").mkdir()
    (sft / "step_000001" / "config.json").write_text("{}")
    (sft / "latest").write_text("step_000001\n")
    config = RunConfig(policy=str(sft))
    assert cut_once(config).model.policy == str(sft / "step_000001")
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = RunConfig(policy="~/sft")
    assert cut_once(at_home).model.policy == str(sft / "step_000001")
    assert cut_once(RunConfig()) == RunConfig()
    sft.rename(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert cut_once(RunConfig(policy="tiny")).model.policy == "tiny"  # the book's, as for everybody


@pytest.mark.parametrize("size", [5, BYTES + 2, 5000])
def test_a_size_outside_the_vocabulary_is_refused(size, whole, tmp_path):
    with pytest.raises(ValueError, match=f"vocabulary {size}: choose more than 258"):
        cut_vocabulary(whole, size, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


def test_another_kind_of_vocabulary_is_refused(whole, tmp_path):
    document = json.loads((whole / "tokenizer.json").read_text())
    words = {"a": 0, "b": 1}
    document["model"] = {"type": "WordLevel", "vocab": words, "unk_token": "a"}
    document |= {"added_tokens": [], "post_processor": None}
    (whole / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="byte pairs can be cut, not one of WordLevel"):
        cut_vocabulary(whole, 5, tmp_path / "cut")
