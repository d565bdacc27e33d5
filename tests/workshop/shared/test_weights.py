"""Figures of chapters 08 and 09: what trust regions do to tokens, and where tokens may go."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.objectives import METHODS, DivergenceMask, RatioClip, WeightClip
from rlbook.policy import load_policy
from rlbook.training import RunConfig, Trainer
from workshop.ch08.figures import draw_positions, push_on_care, token_frame, tokens_in_turn
from workshop.ch09.figures import draw_answers, draw_pairs, draw_silenced, draw_worlds
from workshop.shared.worlds.batch_reuse import rare_token_world


@pytest.fixture
def methods():
    grpo = METHODS["grpo"]
    return {
        "PPO": replace(grpo, trust_region=RatioClip(0.2, 0.2)),
        "CISPO": replace(grpo, trust_region=WeightClip(max=5.0)),
        "GSPO": replace(grpo, trust_region=RatioClip(3e-4, 4e-4), ratio="sequence"),
        "DPPO": replace(grpo, trust_region=DivergenceMask("tv", 0.15, 0.15)),
    }


@pytest.fixture
def four(methods):
    """The four completions as a minibatch whose policy has moved on."""
    learner = SimpleNamespace(logprobs=lambda part: FOUR.logp)
    tokenizer = SimpleNamespace(decode=lambda ids: str(ids[0]))
    trainer = SimpleNamespace(learner=learner, tokenizer=tokenizer)
    places = torch.arange(FOUR.mask.numel()).reshape(FOUR.mask.shape)
    part = SimpleNamespace(
        mask=FOUR.mask,
        logp_old=FOUR.logp_old,
        advantages=FOUR.rewards - FOUR.rewards.mean(),
        ids=places,
    )
    return token_frame(trainer, part, methods)


def test_weights_of_the_four_completions(four, methods):
    place = four.token.astype(int)
    names = (place // 8).map(dict(enumerate("ABCD"))) + (place % 8 + 1).astype(str)
    masked = {name: set(names[four[name] == 0]) for name in methods}
    assert masked["PPO"] == {"A1", "A2", "B2", "C2", "D2"}
    assert masked["CISPO"] == set()
    assert masked["GSPO"] == {"A1", "A2", "A3", "A4", "B1", "B2", "D1", "D2"}
    assert masked["DPPO"] == {"A2", "C6", "D2"}
    assert four.advantage.abs().eq(0.5).all() and len(four) == 16


def test_tokens_are_seen_before_their_own_update_and_the_trainer_goes_on(methods):
    method = replace(methods["PPO"], kl=None)
    config = RunConfig(method=method, prompts=6, minibatches=6, lr=1e-3)
    trainer = Trainer(config)
    tokens = tokens_in_turn(trainer, methods, steps=2)
    assert (trainer.step, trainer.version) == (2, 12)
    assert set(tokens.step) == {1, 2}
    first = tokens[tokens.step == 1]
    assert (first.ratio.head(5) - 1).abs().max() < 1e-4  # of the first minibatch
    assert first.ratio.sub(1).abs().max() > 0.01  # of later ones
    assert (tokens.CISPO - tokens.ratio.clip(upper=5)).abs().max() < 1e-5
    assert tokens.advantage.ne(0).all() and tokens.band.notna().all()


def test_the_rare_token_is_hollow_beyond_its_window():
    ax = Figure().subplots()
    names = {"rare": 0, "dominant": 1}
    draw_positions(ax, rare_token_world(0.01), RatioClip(0.2, 0.2), names, updates=6)
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    hollow = [line.get_markerfacecolor() == "white" for line in dots]
    assert hollow == 4 * [False] + 3 * [True] + 7 * [False]
    assert dots[4].get_xdata()[0] > 1.2 > dots[3].get_xdata()[0]


def test_silenced_tokens_are_stacked_by_sign():
    tokens = pd.DataFrame(
        {
            "PPO": [0.0, 0.0, 1.0, 1.0],
            "advantage": [1.0, -1.0, 1.0, -1.0],
            "band": pd.Categorical(["rare"] * 4),
        }
    )
    ax = Figure().subplots()
    draw_silenced(ax, tokens, "PPO")
    bad, good = ax.containers
    assert (bad[0].get_height(), good[0].get_height(), good[0].get_y()) == (0.25, 0.25, 0.25)


def test_worlds_say_how_many_runs_found_the_right_answer():
    runs = pd.DataFrame(
        {"world": "w", "region": ["PPO", "PPO"], "reward": [0.5, 0.6], "found": [0.0, 1.0]}
    )
    ax = Figure().subplots()
    draw_worlds([ax], runs, {"w": "title"})
    assert "50%" in {text.get_text() for text in ax.texts}


def test_answers_are_drawn_by_sign_with_the_window():
    ax = Figure().subplots()
    length, log_ratio = torch.tensor([5, 9, 20]), torch.tensor([0.1, -0.1, 0.0])
    draw_answers(ax, length, log_ratio, torch.tensor([True, False, False]), (3e-4, 4e-4))
    assert [len(dots.get_offsets()) for dots in ax.collections] == [1, 2]
    assert len(ax.patches) == 1 and not ax.texts
    draw_answers(ax, length, log_ratio - 0.4, torch.tensor([True, False, False]), (3e-4, 4e-4))
    assert [text.get_text() for text in ax.texts] == ["2 further below"]


def test_runs_of_a_seed_are_joined_across_arms():
    ax = Figure().subplots()
    runs = pd.DataFrame({"PPO": [0.2, 0.4, 0.3], "CISPO": [0.5, 0.9, 0.4]})
    draw_pairs(ax, runs)
    joined = [line.get_xdata().tolist() for line in ax.lines[:3]]
    assert joined == runs.to_numpy().tolist()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PPO", "CISPO"]


def test_where_nothing_is_cut_off_cliff_ramp_and_filter_push_alike():
    push = push_on_care(load_policy("tiny"), 200, levels=(2,), prompts=8, n=4)
    assert push.loc["cliff"].equals(push.loc["filter"])
    assert push.loc["ramp"].to_numpy() == pytest.approx(push.loc["cliff"].to_numpy(), abs=1e-9)
    assert push["push"].abs().max() > 0.01


def test_where_no_thought_arrives_cliff_and_ramp_push_against_thinking():
    push = push_on_care(load_policy("tiny"), 12, levels=(5,), prompts=24, n=8)["push"]
    assert push["ramp"] < -0.1 and push["cliff"] < 0
