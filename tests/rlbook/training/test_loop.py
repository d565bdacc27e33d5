"""The loop that a reader sees is the one that the package runs."""

import inspect
from dataclasses import replace
from functools import partial

import pytest
import torch

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    EMABaseline,
    SamplerCorrection,
    TopEntropy,
    needs,
)
from rlbook.training import RunConfig, Trainer, loop
from workshop.tools.exports import essence, export_difference

PLAIN = ["reinforce", "reinforce_batch_mean", "maxrl", "gpg", "dppo", "dppo_kl"]
RLOO = replace(METHODS["rloo"], kl=None)


@needs("rewards", "groups", token_rewards=True)
def first_token_only(rewards, groups):
    return rewards


def loop_of(method, policy, task, steps=3, **changes):
    model, tokenizer = policy
    settings = {"prompts": 4, "n": 4, "updates": 2, "lr": 1e-2} | changes
    return loop.train(model, tokenizer, task, method, steps, **settings)


@pytest.mark.parametrize("method", [*PLAIN, RLOO, "dr"])
def test_the_loop_is_the_trainer_bit_for_bit(method, little_policy, parity):
    if method == "dr":
        method = replace(METHODS["dr_grpo"], old_logprobs="sampler", constant=80.0)
    method = METHODS.get(method, method) if isinstance(method, str) else method
    policy = little_policy()
    rewards = list(loop_of(method, policy, parity, seed=3))
    config = RunConfig(
        method=method, prompts=4, group_size=4, minibatches=2, lr=1e-2, steps=3, seed=3
    )
    trainer = Trainer(config, little_policy(), task=parity)
    assert rewards == pytest.approx([m["reward"] for m in trainer], abs=1e-6)
    assert len(rewards) == 3
    start = little_policy()[0].state_dict()
    for (name, ours), theirs in zip(
        policy[0].named_parameters(), trainer.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
        assert not torch.equal(ours, start[name]), name


@pytest.mark.parametrize(
    ("method", "lacks"),
    [
        ("reinforce_ema", "an estimator that remembers"),
        ("ppo", "a critic"),
        ("grpo", "log-probs recomputed by the trainer"),
        ("rloo", "a reference model"),
        ("remax", "a greedy answer"),
        ("reinforce_plus_plus", "the lengths of answers"),
        ("opo", "the lengths of answers for its adv"),
        ("dr_grpo", "log-probs recomputed by the trainer"),
        ("dapo", "log-probs recomputed by the trainer"),
        ("cispo", "log-probs recomputed by the trainer"),
        ("gspo", "log-probs recomputed by the trainer"),
        ("scalerl", "a prompt filter"),
        ("lite_ppo", "log-probs recomputed by the trainer"),
        (replace(RLOO, aggregation="prompt_mean"), "groups in its aggregation"),
        (replace(RLOO, aggregation="constant"), "the generation limit as its constant"),
        (replace(RLOO, reward_values=(-1.0, 1.0)), "shaped rewards"),
        (replace(RLOO, reward_shaping="overlong"), "shaped rewards"),
        (replace(RLOO, format_bonus=0.1), "shaped rewards"),
        (replace(RLOO, selection=TopEntropy(0.2)), "a selection of tokens"),
        (replace(RLOO, entropy_bonus=0.1), "the entropies of its tokens"),
        (replace(RLOO, likelihood=0.1, aggregation="token_mean"), "which answers are right"),
        (replace(RLOO, advantage=partial(EMABaseline, decay=0.5)), "an estimator that remembers"),
        (replace(RLOO, advantage=first_token_only), "rewards per token"),
        (
            replace(METHODS["dppo"], trust_region=DivergenceMask("tv", top_k=4)),
            "further tokens for its trust region",
        ),
        (
            replace(RLOO, old_logprobs="recomputed", sampler_correction=SamplerCorrection(2.0)),
            "log-probs recomputed by the trainer",
        ),
    ],
)
def test_the_loop_refuses_what_it_lacks(method, lacks, little_policy, parity):
    method = METHODS.get(method, method) if isinstance(method, str) else method
    policy = little_policy()
    with pytest.raises(ValueError, match=rf"lacks what {method.name} needs: .*{lacks}.*Trainer"):
        next(loop_of(method, policy, parity))


def test_every_row_runs_in_the_loop_or_is_refused(little_policy, parity):
    def runs(method):
        try:
            next(loop_of(method, little_policy(), parity, steps=1))
        except ValueError as error:
            assert "use rlbook.training.Trainer" in str(error)
            return False
        return True

    assert {name for name, method in METHODS.items() if runs(method)} == set(PLAIN)


def test_the_loop_fits_into_one_cell():
    """A cell may hold fifteen lines, and its guards and annotations are not among them."""
    source = inspect.getsource(loop.train)
    assert len(essence(source, "train").splitlines()) <= 15
    cell = source.replace("    check_plain(method)\n", "")
    assert export_difference("rlbook.training.loop.train", cell) == ""
    other = cell.replace("optimizer.zero_grad()", "pass")
    assert "zero_grad" in export_difference("rlbook.training.loop.train", other)
