"""A run whose adapter learns: every row, its reference, its checkpoints, what comes out."""

import json
from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS, KLPenalty
from rlbook.policy import load_policy
from rlbook.policy.adapters import adapter_weights, plain_weights
from rlbook.training import RunConfig, Trainer
from rlbook.training.checkpoint import export

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture
def trainer(little_policy, parity, little):
    def make(method="grpo", **changes):
        config = RunConfig(method=method, **{"steps": 3, "lora": LORA} | little | changes)
        return Trainer(config, little_policy(), task=parity)

    return make


@pytest.mark.parametrize("name", METHODS)
def test_every_row_trains_its_adapter_and_nothing_else(name, trainer):
    run = trainer(name, steps=2)
    base = {n: p.clone() for n, p in run.model.named_parameters() if ".lora_" not in n}
    before = {n: w.clone() for n, w in adapter_weights(run.model).items()}
    rows = list(run)
    assert all(torch.equal(p, base[n]) for n, p in run.model.named_parameters() if n in base)
    moved = [not torch.equal(w, before[n]) for n, w in adapter_weights(run.model).items()]
    assert all(moved) or all(not row["updates"] for row in rows)


def test_the_reference_of_a_kl_term_is_the_base(trainer, little_policy):
    """Of no second model; and an update with it is that of one that keeps a copy."""
    method = replace(METHODS["grpo"], kl=KLPenalty(beta=0.1), old_logprobs="recomputed")
    run = trainer(method)
    rollouts = run.collect()
    run.learn(rollouts)  # B is not 0 any longer
    assert run.learner.reference is run.model
    batch = run.learner.prepare(rollouts)
    said = run.learner.logprobs(batch, little_policy()[0])
    assert torch.equal(batch.logp_ref, said)
    assert (batch.logp_ref - batch.logp_old)[batch.mask].abs().max() > 1e-3


def test_training_learns():
    """The book's own small policy, its adapter alone: sums of two digits."""
    config = RunConfig(method="grpo", lora={"rank": 8}, steps=14, lr=1e-3, levels=[2, 3])
    rows = [row["accuracy"] for row in Trainer(config)]
    assert sum(rows[-3:]) / 3 > sum(rows[:3]) / 3 + 0.1


@pytest.mark.parametrize("changes", [{}, {"sync_every": 2}, {"method": "ppo"}])
def test_a_resumed_run_is_the_run_that_went_on(changes, trainer, little_policy, parity, tmp_path):
    whole = trainer(**changes, steps=4)
    rows = list(whole)
    first = trainer(**changes, steps=4)
    again = [first.train_one(), first.train_one()]
    first.save(tmp_path)
    assert not list(tmp_path.glob("step_*/model.safetensors"))  # the adapter alone
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    again += list(second)
    assert repr(again) == repr(rows)  # NaN is NaN
    pairs = zip(second.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_run_comes_out_merged_or_as_an_adapter(parity, little, tmp_path):
    how = {"steps": 1, "lora": LORA, "method": "grpo"} | little
    run = Trainer(RunConfig(**how), task=parity)
    list(run)
    run.save(tmp_path / "run")
    whole = export(tmp_path / "run", tmp_path / "whole")
    alone = export(tmp_path / "run", tmp_path / "alone", adapter=True)
    assert (whole / "model.safetensors").is_file() and not (alone / "model.safetensors").exists()
    described = json.loads((alone / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == "tiny" and described["r"] == 4
    state = dict(plain_weights(run.model))
    for folder in (whole, alone, tmp_path / "run"):
        loaded = load_policy(str(folder))[0].state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    with pytest.raises(ValueError, match="no adapter"):
        plain = Trainer(RunConfig(**how | {"lora": None}), task=parity)
        plain.save(tmp_path / "plain")
        export(tmp_path / "plain", tmp_path / "never", adapter=True)


def test_settings_are_written_as_in_a_file():
    from rlbook.training.config import with_settings

    config = with_settings(RunConfig(), ["lora.rank=32", "model.lora.targets=[q_proj,v_proj]"])
    assert config.model.lora.rank == 32 and config.model.lora.alpha == 32
    assert config.model.lora.targets == ("q_proj", "v_proj")
    assert RunConfig(**config.to_dict()) == config
    with pytest.raises(ValueError, match=r"model\.lora\.rank"):
        with_settings(RunConfig(), ["lora_rank=8"])
    with pytest.raises(ValueError, match="leave one out"):
        RunConfig(lora={"rank": 4}, trainable_layers=1)
