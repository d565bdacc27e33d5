"""Preferences, the reward model and DPO's training, against values computed by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import data_dir
from rlbook.policy import load_tokenizer
from rlbook.rewards import (
    Misled,
    Preference,
    ProxyReward,
    RewardModel,
    answer_logprobs,
    bradley_terry_loss,
    calibration,
    dpo_loss,
    expert,
    implicit_reward,
    kl_of_answers,
    margins,
    sample_preferences,
    train_dpo,
    train_reward_model,
)
from rlbook.tasks import Problem, SumsTask
from rlbook.tasks.habits import HabitsTask
from rlbook.training import Rollout, RunConfig, Trainer
from rlbook.training.sft import Answer

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return LlamaForCausalLM(TINY).eval(), load_tokenizer()


def rollout(tokens=(11, 2), correct=False, level=1, text="", prompt=(1, 9)):
    problem = Problem("p", "1+1=?", "2", level=level, meta={"right": "1+1", "wrong": "1+2"})
    return Rollout(
        problem, 0, list(prompt), list(tokens), [-0.5] * len(tokens), [0] * len(tokens), "stop",
        text, correct=correct,
    )  # fmt: skip


def pairs_of(count):
    """The token 11 is liked, the token 12 is not, whatever the prompt."""
    prompts = [(1, 9 + i % 5) for i in range(count)]
    return [Preference(rollout((11, 2), prompt=p), rollout((12, 2), prompt=p)) for p in prompts]


def test_the_loss_by_hand():
    """−log σ(2) = log(1 + e^−2), −log σ(−1) = log(1 + e), and log 2 where there is no margin."""
    chosen, rejected = torch.tensor([2.0, 0.0, 5.0]), torch.tensor([0.0, 1.0, 5.0])
    by_hand = [0.126928, 1.313262, 0.693147]
    assert bradley_terry_loss(chosen, rejected).item() == pytest.approx(sum(by_hand) / 3, abs=1e-5)
    shifted = bradley_terry_loss(chosen + 40, rejected + 40)
    assert shifted.item() == pytest.approx(sum(by_hand) / 3, abs=1e-4)


def test_dpo_by_hand():
    """Log-ratios 0.5 and −1.5 at β = 0.1: −log σ(0.2) = 0.598139."""
    chosen, rejected = torch.tensor([-3.0]), torch.tensor([-6.5])
    loss = dpo_loss(chosen, rejected, torch.tensor([-3.5]), torch.tensor([-5.0]), beta=0.1)
    assert loss.item() == pytest.approx(0.598139, abs=1e-5)
    assert implicit_reward(chosen, torch.tensor([-3.5]), 0.1).item() == pytest.approx(0.05)


def test_a_policy_at_its_reference_has_the_loss_of_a_coin():
    logp = torch.randn(2, 5)
    assert dpo_loss(*logp, *logp).item() == pytest.approx(math.log(2), abs=1e-6)


def test_the_score_is_read_at_the_answers_last_token(policy):
    model = RewardModel(policy[0])
    torch.nn.init.normal_(model.head.weight)
    answers = [Answer([1, 9, 10], [11, 12, 2]), Answer([1, 5], [7, 2])]
    together = model.scores(answers)
    for answer, score in zip(answers, together, strict=True):
        ids = torch.tensor([answer.prompt_ids + answer.token_ids])
        last = policy[0].base_model(input_ids=ids).last_hidden_state[0, -1]
        assert score.item() == pytest.approx((model.head.weight[0] @ last).item(), abs=1e-4)


def test_an_answer_that_is_given_twice_is_read_once(policy, monkeypatch):
    model, read = RewardModel(policy[0]), []
    torch.nn.init.normal_(model.head.weight)
    one, other = Answer([1, 9, 10], [11, 12, 2]), Answer([1, 9, 10], [11, 2])
    apart = torch.cat([model.scores([answer]) for answer in (one, other, one, one)])
    score = model.read
    monkeypatch.setattr(
        model, "read", lambda ids, mask: (read.append(len(ids)), score(ids, mask))[1]
    )
    torch.testing.assert_close(model.scores([one, other, one, one]), apart, atol=1e-4, rtol=1e-4)
    assert read == [2] and apart[0] != apart[1]


def test_a_new_reward_model_gives_nothing_and_leaves_the_policy_alone(policy):
    before = copy.deepcopy(policy[0].state_dict())
    model = RewardModel(policy[0])
    assert model.scores([rollout()]).tolist() == [0.0]
    list(train_reward_model(model, pairs_of(4), lr=1e-2))
    assert all((before[name] == value).all() for name, value in policy[0].state_dict().items())


def test_training_ranks_what_it_was_told(policy):
    model = RewardModel(policy[0])
    losses = list(train_reward_model(model, pairs_of(64), epochs=10, lr=1e-3))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.1
    unseen = [Preference(rollout((11, 2), prompt=(1, 7)), rollout((12, 2), prompt=(1, 7)))]
    assert margins(model, unseen).item() > 0


def test_calibration_of_labels_drawn_from_the_model_itself():
    generator = torch.Generator().manual_seed(0)
    margin = 2 * torch.randn(20_000, generator=generator)
    agrees = torch.rand(20_000, generator=generator) < margin.abs().sigmoid()
    rows = calibration(torch.where(agrees, margin.abs(), -margin.abs()), bins=4)
    assert [row["pairs"] for row in rows] == [5000] * 4
    assert rows[0]["confidence"] < 0.6 < 0.9 < rows[-1]["confidence"]
    for row in rows:
        assert row["agreement"] == pytest.approx(row["confidence"], abs=0.03)
    with pytest.raises(ValueError, match="at least 4 pairs"):
        calibration(margin[:3], bins=4)


def test_annotators_differ_where_the_misconception_is_shared():
    misled = Misled(HabitsTask(), levels=(2,))
    right = {"text": "<think>1+1=2;</think><answer>2</answer>", "correct": True}
    wrong = {"text": "<think>1+2=3;</think><answer>3</answer>", "correct": False}
    assert [expert(rollout(**answer)) for answer in (right, wrong)] == [1, 0]
    assert [misled(rollout(**answer, level=2)) for answer in (right, wrong)] == [0, 1]
    assert [misled(rollout(**answer, level=1)) for answer in (right, wrong)] == [1, 0]


def likes_short(r):
    return -r.length


def asked(policy, n, **how):
    settings = {"annotator": likes_short, "answers": 3, "max_new_tokens": 12}
    return sample_preferences(policy, SumsTask(), n, **settings | how)


def test_pairs_answer_one_problem_and_obey_the_annotator(policy):
    for pair in asked(policy, 20):
        assert pair.chosen.problem == pair.rejected.problem
        assert pair.chosen.length < pair.rejected.length


def key(pair):
    return pair.chosen.token_ids, pair.rejected.token_ids


def test_a_longer_list_begins_with_the_shorter_one_and_a_seed_is_a_seed(policy):
    longer = list(map(key, asked(policy, 12, seed=1, noise=0.3)))
    assert longer[:5] == list(map(key, asked(policy, 5, seed=1, noise=0.3)))
    assert longer != list(map(key, asked(policy, 12, seed=2, noise=0.3)))


def test_noise_turns_labels_round(policy):
    flips = [p.chosen.length > p.rejected.length for p in asked(policy, 200, noise=0.25)]
    assert 0.1 < sum(flips) / 200 < 0.4
    assert all(p.chosen.length > p.rejected.length for p in asked(policy, 10, noise=1.0))
    with pytest.raises(ValueError, match="probability of a flipped label"):
        asked(policy, 1, noise=1.5)


def test_dpo_moves_towards_the_chosen_from_its_own_reference(policy):
    model, pairs = policy[0], pairs_of(32)
    before = copy.deepcopy(model)
    losses = list(train_dpo(model, pairs, epochs=4, batch=16, lr=1e-3, beta=0.5))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5) and losses[-1] < 0.3
    with torch.no_grad():
        chosen, rejected = [p.chosen for p in pairs], [p.rejected for p in pairs]
        gap = answer_logprobs(model, chosen) - answer_logprobs(model, rejected)
        was = answer_logprobs(before, chosen) - answer_logprobs(before, rejected)
    assert (gap > was + 1).all()


def test_answer_logprobs_are_sums_over_the_completion(policy):
    model = policy[0]
    ids = torch.tensor([[1, 9, 11, 2]])
    with torch.no_grad():
        logp = F.log_softmax(model(input_ids=ids).logits[0], -1)
        expected = logp[1, 11] + logp[2, 2]
        assert answer_logprobs(model, [rollout()]).item() == pytest.approx(
            expected.item(), abs=1e-4
        )


def test_a_trainer_earns_the_proxy_and_still_reports_the_truth(policy):
    reward = ProxyReward(RewardModel(policy[0]))
    torch.nn.init.ones_(reward.model.head.weight)
    settings = {"prompts": 2, "group_size": 2, "minibatches": 1, "max_new_tokens": 6}
    trainer = Trainer(RunConfig(method="rloo", **settings), policy, reward=reward)
    rollouts = trainer.collect()
    assert [list(r.rewards) for r in rollouts] == [["proxy"]] * 4
    assert [r.reward for r in rollouts] == pytest.approx(reward.model.scores(rollouts).tolist())
    metrics = trainer.learn(rollouts)
    assert metrics["accuracy"] == sum(r.correct for r in rollouts) / 4
    assert metrics["reward"] == pytest.approx(sum(r.reward for r in rollouts) / 4)


def test_the_distance_of_answers_is_the_gap_of_their_log_probs(policy):
    model, _ = policy
    sampled = Trainer(
        RunConfig(method="rloo", prompts=3, group_size=2, minibatches=1, max_new_tokens=6), policy
    ).collect()
    assert kl_of_answers(sampled, model) == pytest.approx(0.0, abs=1e-4)
    other = LlamaForCausalLM(TINY).eval()
    with torch.no_grad():
        gap = (answer_logprobs(model, sampled) - answer_logprobs(other, sampled)).mean()
    assert kl_of_answers(sampled, other) == pytest.approx(gap.item(), abs=1e-3)


@pytest.mark.parametrize("train", [train_reward_model, train_dpo])
def test_no_pairs_is_an_error(policy, train):
    model = RewardModel(policy[0]) if train is train_reward_model else policy[0]
    with pytest.raises(ValueError, match="at least one preference"):
        next(train(model, []))
