"""Forced interruption: who is cut, what is forced, what stays as it was."""

import pytest
import torch

from rlbook.policy import Sampler, load_policy, logprobs
from rlbook.tasks import SumsTask
from rlbook.training import collate, collect_rollouts
from workshop.ch14.interruption import InterruptedSampler

AFTER = 10


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny")


@pytest.fixture(scope="module")
def rollouts(policy):
    problems = SumsTask().sample(1, 12, levels=(2, 5))
    engine = InterruptedSampler(*policy, after=AFTER)
    return collect_rollouts(engine, policy[1], SumsTask(), problems, 4, seed=2)


def test_only_open_thoughts_are_ended(policy, rollouts):
    closing = policy[1].convert_tokens_to_ids("</think>")
    cut = [r for r in rollouts if r.forced]
    assert 0 < len(cut) < len(rollouts)
    for r in cut:
        assert closing not in r.token_ids[:AFTER]
        assert r.forced == [AFTER <= t < AFTER + 2 for t in range(r.length)]
        assert "</think><answer>" in r.text
    for r in rollouts:
        if not r.forced and r.length > AFTER:
            assert closing in r.token_ids[:AFTER]


def test_nobody_is_cut_where_there_is_room(policy):
    prompts = [policy[1](p.prompt).input_ids for p in SumsTask().sample(1, 4)]
    how = {"n": 2, "max_new_tokens": 80, "temperature": 1.0, "seed": 4}
    plain = Sampler(policy[0], policy[1].eos_token_id).generate(prompts, **how)
    interrupted = InterruptedSampler(*policy, after=80).generate(prompts, **how)
    stopped = [i for i, one in enumerate(plain) if one.finish_reason == "stop"]
    assert len(stopped) > 2
    assert [interrupted[i] for i in stopped] == [plain[i] for i in stopped]


def test_log_probs_are_those_of_the_whole_text(policy, rollouts):
    batch = collate(rollouts)
    with torch.no_grad():
        logp = logprobs(policy[0], batch.ids, batch.mask)
    torch.testing.assert_close(logp, batch.logp_sampler, rtol=1e-3, atol=1e-3)
