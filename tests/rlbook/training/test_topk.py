"""Divergences over the likeliest tokens, from the sampler's softmax to the trust region."""

from dataclasses import replace

import pytest
import torch

from rlbook.objectives import METHODS, DivergenceMask
from rlbook.policy import token_stats
from rlbook.training import RunConfig, Trainer
from rlbook.training.step import divergence_of


def distributions(model, batch, temperature):
    """log π(· | prefix) of every trained token, (M, V), from the model's own logits."""
    with torch.no_grad():
        logits = model(input_ids=batch.ids).logits[:, :-1].double() / temperature
    return logits[batch.mask[:, 1:]].log_softmax(-1)


def exact(kind, old, new):
    if kind == "tv":
        return (old.exp() - new.exp()).abs().sum(-1) / 2
    return (old.exp() * (old - new)).sum(-1)


@pytest.mark.parametrize("kind", ["tv", "kl"])
@pytest.mark.parametrize("old", ["sampler", "recomputed"])
def test_with_the_whole_vocabulary_the_divergence_is_the_exact_one(
    kind, old, little_policy, parity, little
):
    """π_old is the stale sampler's policy, or the trainer's as it was when the batch was made."""
    region = DivergenceMask(kind, 0.05, 0.05, top_k=29)
    method = replace(METHODS["dppo"], trust_region=region, old_logprobs=old)
    config = RunConfig(method=method, **little, temperature=0.8, sync_every=5)
    trainer = Trainer(config, little_policy(), task=parity)
    trainer.train_one()
    batch = trainer.learner.prepare(trainer.collect())
    before = trainer.source.weights if old == "sampler" else trainer.model
    was = distributions(before, batch, 0.8)
    trainer.learner.update(batch)
    now = distributions(trainer.model, batch, 0.8)
    stats = token_stats(trainer.model, batch.ids, batch.mask, 0.8, topk_ids=batch.topk_ids)
    found = divergence_of(method, stats, batch)[batch.mask].double()
    wanted = exact(kind, was, now)
    assert wanted.max() > 0.1
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_few_tokens_see_less_than_all_and_more_than_the_sampled_one(little_policy, parity, little):
    """Merging tokens into one bucket can only bring two distributions closer."""
    found = {}
    for k in (1, 4, 29):
        method = replace(METHODS["dppo"], trust_region=DivergenceMask("tv", 0.1, 0.1, top_k=k))
        trainer = Trainer(RunConfig(method=method, **little), little_policy(), task=parity)
        batch = trainer.learner.prepare(trainer.collect())
        weights = {n: w + 0.05 * torch.sign(w) for n, w in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(weights)
        stats = token_stats(trainer.model, batch.ids, batch.mask, topk_ids=batch.topk_ids)
        found[k] = divergence_of(method, stats, batch)[batch.mask]
        sampled = (stats.logp.exp() - batch.logp_old.exp()).abs()[batch.mask]
        assert (found[k] >= sampled - 1e-5).all()
    assert (found[4] <= found[29] + 1e-5).all()
    assert found[1].mean() < found[4].mean() - 0.005
    assert found[4].mean() < found[29].mean() - 0.005


def test_a_list_of_tokens_changes_what_is_masked(little_policy, parity, little):
    """The same batch under binary and top-K divergence, one update later."""
    masked = []
    for top_k in (None, 8):
        method = replace(METHODS["dppo"], trust_region=DivergenceMask("tv", 0.1, 0.1, top_k=top_k))
        trainer = Trainer(RunConfig(method=method, **little), little_policy(), task=parity)
        batch = trainer.learner.prepare(trainer.collect())
        trainer.learner.update(batch)
        masked.append(trainer.learner.update(batch)["clip_fraction"])
    assert masked[0] > 0.05
    assert masked[1] > masked[0] + 0.02


def test_an_engine_of_ones_own_knows_no_whole_distributions(little_policy, parity, little):
    method = replace(METHODS["dppo"], trust_region=DivergenceMask("tv", 0.05, 0.05, top_k=3))
    policy = little_policy()
    engine = Trainer(RunConfig(**little), policy, task=parity).source.engine
    with pytest.raises(ValueError, match='old_logprobs="recomputed"'):
        Trainer(RunConfig(method=method, **little), policy, task=parity, engine=engine)
    recomputed = replace(method, old_logprobs="recomputed")
    Trainer(RunConfig(method=recomputed, **little), policy, task=parity, engine=engine)
