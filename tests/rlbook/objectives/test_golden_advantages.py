"""Advantages, GAE, whitening and penalties against public implementations and worked numbers."""

from functools import partial

import pytest
import torch

from rlbook.objectives import (
    KLPenalty,
    batch_normalize,
    gae,
    gpg,
    group_center,
    group_normalize,
    leave_one_out,
    length_weighted_baseline,
    max_rl,
    overlong_penalty,
    reinforce_plus_plus,
    token_rewards,
)

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
TRL = {
    "grpo/group": partial(group_normalize, eps=1e-4),
    "grpo/batch": partial(batch_normalize, population="raw", eps=1e-4),
    "grpo/none": group_center,
    "grpo/multi/sum_then_normalize": partial(group_normalize, eps=1e-4),
    "grpo/nan": partial(group_normalize, eps=1e-4),
    "rloo/plain": leave_one_out,
    "rloo/clip": leave_one_out,
    "rloo/nan": leave_one_out,
}


@pytest.mark.parametrize("case_id", TRL)
def test_trl_advantages(golden, case_id):
    case = golden("trl_advantages")[case_id]
    rewards, kwargs = case["inputs"]["rewards"], case["kwargs"]
    if "reward_weights" in kwargs:
        rewards = rewards @ torch.tensor(kwargs["reward_weights"], dtype=torch.float64)
    if "reward_clip_range" in kwargs:
        rewards = rewards.clamp(*kwargs["reward_clip_range"])
    groups = torch.arange(len(rewards)) // kwargs["num_generations"]
    scored = ~rewards.isnan()  # an unscorable rollout is dropped, which leaves unequal groups
    advantages = torch.zeros_like(rewards)
    advantages[scored] = TRL[case_id](rewards[scored], groups[scored])
    torch.testing.assert_close(advantages, case["outputs"]["advantages"], **CLOSE)


def test_trl_rloo_with_the_kl_in_the_reward(golden):
    case = golden("trl_advantages")["rloo/kl_in_reward"]
    inputs, beta = case["inputs"], case["kwargs"]["beta"]
    rewards = token_rewards(
        inputs["rewards"],
        inputs["mask"].bool(),
        KLPenalty("k1", beta, "reward"),
        inputs["old_log_prob"],
        inputs["ref_log_prob"],
    ).sum(1)
    advantages = leave_one_out(rewards, torch.arange(len(rewards)) // 4)
    torch.testing.assert_close(advantages, case["outputs"]["advantages"], **CLOSE)


@pytest.mark.parametrize(
    "name, estimator, columns",
    [
        ("standardized", partial(group_normalize, eps=1e-8), slice(None)),
        ("nonstandardized", group_center, slice(None)),
        ("loo", leave_one_out, slice(None)),
        ("maxrl", max_rl, slice(0, 5)),  # the other columns are not binary: an error here
    ],
)
def test_rlhf_book_advantages(golden, name, estimator, columns):
    case = golden("rlhf_book")[f"adv/compute_{name}_advantages"]
    rewards = case["inputs"]["rewards_group_by_column"][:, columns]
    groups = torch.arange(rewards.shape[1]).expand_as(rewards)
    ours = estimator(rewards.flatten(), groups.flatten()).view_as(rewards)
    torch.testing.assert_close(ours, case["outputs"]["advantages"][:, columns], **CLOSE)


ESTIMATORS = {
    "group_center": group_center,
    "group_normalize": group_normalize,
    "tiny eps": partial(group_normalize, eps=1e-9),
    "leave_one_out": leave_one_out,
    "batch_normalize": batch_normalize,
    "raw": partial(batch_normalize, population="raw"),
    "gpg": gpg,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_float32_rewards_give_exactly_zero(golden, name):
    """29 all-equal groups on which public implementations return up to 0.95."""
    cases = golden("float32_equal_groups").values()
    assert len(cases) == 29
    for case in cases:
        rewards = case["inputs"]["rewards"].float()
        groups = torch.zeros(len(rewards), dtype=torch.long)
        assert (ESTIMATORS[name](rewards, groups) == 0).all(), case["id"]


def test_rlhf_book_gae(golden):
    case = golden("rlhf_book")["gae/gae_R"]
    inputs, mask = case["inputs"], case["inputs"]["mask"].bool()
    rewards = token_rewards(inputs["rewards"].flatten(), mask)
    advantages, _ = gae(rewards, inputs["values"], mask, **case["kwargs"])
    torch.testing.assert_close(advantages, case["outputs"]["advantages"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fixture", ["policy_A", "policy_B"])
def test_verl_token_whitening(golden, fixture):
    """Rewards whose sums to go are the given values; their variance has ddof 1 in verl."""
    case = golden("verl_masked_stats")[f"stats/{fixture}"]
    values, mask = case["inputs"]["values"], case["inputs"]["mask"].bool()
    rewards, following = torch.zeros_like(values), torch.zeros(len(values), dtype=values.dtype)
    for t in reversed(range(values.shape[1])):
        rewards[:, t] = values[:, t] - following
        following = torch.where(mask[:, t], values[:, t], following)
    groups = torch.arange(len(values))
    whitened = reinforce_plus_plus(rewards, groups, mask, ddof=1)
    loose = {"rtol": 1e-7, "atol": 1e-9}  # verl adds 1e-8 to the number of tokens
    torch.testing.assert_close(whitened[mask], case["outputs"]["whiten"][mask], **loose)
    assert (whitened[~mask] == 0).all()


def test_overlong_penalty_of_three_implementations(golden):
    for case_id, case in golden("overlong_shaping").items():
        kwargs, inputs = case["kwargs"], case["inputs"]
        verl = case_id.startswith("verl")
        limit = kwargs["max_resp_len" if verl else "max_new_tokens"]
        factor = kwargs["penalty_factor" if verl else "overlong_penalty_factor"]
        floor = None if verl else -1.0
        penalty = overlong_penalty(
            inputs["lengths"].long(), limit, kwargs["overlong_buffer_len"], floor
        )
        ours = inputs["scores"] + factor * penalty
        torch.testing.assert_close(ours, case["outputs"]["rewards"], rtol=1e-6, atol=1e-6)
    case = golden("rlhf_book")["overlong/dapo"]
    ours = overlong_penalty(case["inputs"]["lengths"].long(), 20, 4)
    torch.testing.assert_close(ours.double(), case["outputs"]["penalty"], **CLOSE)


def test_overlong_penalty_of_the_papers():
    dapo = overlong_penalty(torch.tensor([16384, 18432, 20480, 20481]), 20480, 4096)
    assert dapo.tolist() == [0, -0.5, -1, -1]
    scalerl = overlong_penalty(torch.tensor([12000, 13000, 14000]), 14000, 2000)
    assert scalerl.tolist() == [0, -0.5, -1]


def test_one_right_answer_in_four():
    rewards, groups = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), torch.zeros(4).long()
    expected = {
        "GRPO": (group_normalize(rewards, groups, eps=0), [1.5, -0.5]),
        "GRPO, ddof 0": (group_normalize(rewards, groups, 0, 0), [3**0.5, -(3**-0.5)]),
        "RLOO": (leave_one_out(rewards, groups), [1, -1 / 3]),
        "Dr. GRPO": (group_center(rewards, groups), [0.75, -0.25]),
        "MaxRL": (max_rl(rewards, groups), [3, -1]),
        "MaxRL Eq. 10 / N": (max_rl(rewards, groups, "equation_10") / 4, [0.75, -0.25]),
    }
    for name, (ours, (right, wrong)) in expected.items():
        assert ours.tolist() == pytest.approx([right, wrong, wrong, wrong], abs=1e-12), name


REWARDS = torch.tensor(
    [[1, 0, 0, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0], [0] * 8, [1, 1, 1, 1, 0, 0, 0, 0]]
).double()
LENGTHS = torch.tensor(
    [
        [10, 20, 30, 10, 40, 20, 20, 10],
        [5, 5, 5, 5, 5, 5, 5, 25],
        [50] * 8,
        [10, 10, 10, 10, 20, 20, 20, 20],
    ]
)
GROUPS = torch.arange(4)[:, None].expand(4, 8)
MASK = torch.arange(50) < LENGTHS.flatten()[:, None]


def on_first_token(estimator):
    return lambda rewards, groups: estimator(rewards, groups, MASK)[:, 0]


@pytest.mark.parametrize(
    "estimator, worked",
    [
        (group_normalize, (1.6202, -0.5401, 0.3536, -2.4749, 0, 0.9354, -0.9354)),
        (partial(group_normalize, ddof=0), (1.7321, -0.5774, 0.3780, -2.6458, 0, 1, -1)),
        (group_center, (0.75, -0.25, 0.125, -0.875, 0, 0.5, -0.5)),
        (leave_one_out, (0.8571, -0.2857, 0.1429, -1, 0, 0.5714, -0.5714)),
        (
            partial(batch_normalize, population="raw"),
            (1.503, -0.501, 0.2505, -1.7535, 0, 1.002, -1.002),
        ),
        (partial(batch_normalize, ddof=0), (2.0284, -0.6761, 0.3381, -2.3664, 0, 1.3522, -1.3522)),
        (gpg, (1, -0.3333, 0.1667, -1.1667, 0, 0.6667, -0.6667)),
        (
            lambda r, g: length_weighted_baseline(r, g, LENGTHS.flatten()),
            (0.875, -0.125, 0.4167, -0.5833, 0, 0.6667, -0.3333),
        ),
        (
            on_first_token(partial(reinforce_plus_plus, baseline="group")),
            (2.788, -0.5804, 0.6828, -2.6856, 0.2617, 1.9459, -1.4225),
        ),
        (
            on_first_token(partial(reinforce_plus_plus, baseline="group", population="sequences")),
            (2.0284, -0.6761, 0.3381, -2.3664, 0, 1.3522, -1.3522),
        ),
    ],
)  # fmt: skip
def test_four_prompts_worked_by_hand(estimator, worked):
    """Right and wrong answers of prompts 0, 1 and 3; prompt 2 has no right one.

    Whitening over tokens gives the all-wrong group of long answers a positive advantage.
    """
    ours = estimator(REWARDS.flatten(), GROUPS.flatten()).view(4, 8)
    picked = [ours[0, 0], ours[0, 1], ours[1, 0], ours[1, 7], ours[2, 0], ours[3, 0], ours[3, 7]]
    assert [float(x) for x in picked] == pytest.approx(worked, abs=6e-5)
