"""Figures of chapter 03: the slip of an answer and what V does there."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.objectives import Tokens
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, Trainer
from workshop.ch03.figures import (
    ReuseTrace,
    changes_of_v,
    draw_values,
    draw_walk,
    explained_by,
    masked_by_probability,
    sixteen_tokens,
    slip_of,
    tokens_between,
    typical_pair,
)
from workshop.ch03.worlds import CLIPPED, Reused
from workshop.shared.texts import token_texts
from workshop.shared.worlds.gae_walk import Walk


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def trainer():
    return Trainer(RunConfig(method="ppo", prompts=8))


@pytest.fixture(scope="module")
def rollouts(trainer):
    return trainer.collect()


@pytest.mark.parametrize(
    ("text", "slip"),
    [
        ("<think>3-3=0;0+1=3;3+5=8;</think><answer>8</answer>", "3"),
        ("<think>38-5=35;</think><answer>35</answer>", "35"),
        ("<think>3-3=0;0+1=1;</think><answer>1</answer>", None),
        ("<think></think><answer>7</answer>", None),
        ("<think>3-3=?;wait 3-3=0;</think><answer>0</answer>", None),
    ],
)
def test_the_first_wrong_result_is_found(text, slip):
    span = slip_of(text)
    assert (span and text[slice(*span)]) == slip


def test_tokens_of_a_span():
    assert tokens_between(["<think>", "3", "8", "=", "35"], (8, 9)) == [2]
    assert tokens_between(["a", "bc", "d"], (1, 4)) == [1, 2]


def test_change_of_v_over_a_wrong_result(trainer, rollouts):
    """V = 1 until the first slip is complete and 0 after it."""
    changes = {True: [], False: []}
    for rollout in rollouts:
        texts = token_texts(trainer.tokenizer, rollout)
        span = slip_of("".join(texts))
        after = tokens_between(texts, span)[-1] + 1 if span else len(texts)
        values = [float(t < after) for t in range(rollout.length)]
        for right, change in changes_of_v(rollout, values, trainer.tokenizer):
            changes[right].append(change)
    assert len(changes[False]) > 0 and len(changes[True]) > 20
    assert set(changes[True]) == {0.0}
    assert -1 <= np.mean(changes[False]) < -0.5  # later slips of an answer change nothing


def test_facts_explain_a_reward_that_they_decide(rollouts):
    explained = explained_by(
        [replace(r, rewards={"r": float(slip_of(r.text) is None)}) for r in rollouts], SumsTask()
    )
    assert list(explained.index) == ["operands", "operands, strategy", "operands, strategy, slip"]
    assert explained.iloc[2] > 0.6 > explained.iloc[1]


def test_masked_tokens_are_counted_once(trainer, rollouts):
    rollouts = trainer.collect()
    batch = trainer.learner.prepare(rollouts)
    moved = batch.logp_old + torch.linspace(-1, 1, batch.mask.shape[1])
    trace = ReuseTrace(batch, [moved])
    counts = masked_by_probability(trace, 0)
    keep = trace.weights(0, trainer.method.trust_region).keep
    masked = counts.loc[["good, masked above", "bad, masked below"]].astype(int).to_numpy().sum()
    assert masked == int((~keep & trace.batch.mask).sum()) > 0
    assert counts.loc["tokens"].astype(int).sum() == int(trace.batch.mask.sum())


def test_every_state_of_a_walk_is_drawn(ax):
    walk = Walk.one_step(2, steps=4)
    draw_walk(ax, walk)
    (states,) = ax.collections
    assert len(states.get_offsets()) == 3 + 2 * 2
    np.testing.assert_allclose(sorted(set(states.get_array())), [0, walk.p, 1], atol=1e-12)


def test_a_slip_is_framed_and_every_token_has_a_box(ax):
    texts = ["<think>", "3", "-", "3", "=", "1", ";"]
    draw_values(ax, texts, [0.5] * 7, 0.0)
    framed = [p for p in ax.patches if not p.get_fill()]
    assert len(framed) == 1 and framed[0].get_x() == pytest.approx(11 - 0.1)
    assert len(ax.patches) == 2 * len(texts) + 1


def test_a_pair_is_right_and_slipped(rollouts, trainer):
    right, wrong = typical_pair(rollouts)
    assert rollouts[right].correct and not rollouts[wrong].correct
    assert rollouts[right].problem == rollouts[wrong].problem
    assert slip_of(rollouts[wrong].text)
    with pytest.raises(ValueError, match="sample more"):
        typical_pair([r for r in rollouts if r.correct])


def test_the_sixteen_tokens_are_named_and_their_ratio_is_that_of_their_probabilities():
    advantages = FOUR.rewards[:, None].expand(4, 8) - 0.5
    table = sixteen_tokens(Tokens.of(FOUR.logp, FOUR.logp_old, advantages, FOUR.mask))
    assert list(table.index[[0, 5, -1]]) == ["A1", "B2", "D2"] and len(table) == 16
    assert table["ratio"].tolist() == pytest.approx((table["π_θ"] / table["π_old"]).tolist())
    assert table["Â"].tolist() == [0.5] * 6 + [-0.5] * 10


def test_nothing_is_gained_before_the_first_pass(rollouts):
    batch = Trainer(RunConfig(method=CLIPPED, prompts=8)).learner.prepare(rollouts)
    likelier = batch.logp_old + 0.1 * batch.advantages[:, None]
    gains = Reused(rollouts, batch, [batch.logp_old, likelier], {}).gains
    assert gains[0] == 0 < gains[1]
