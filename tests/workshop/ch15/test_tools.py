"""A tool in the loop: what it writes, whose tokens these are, and where a completion ends."""

import pytest
import torch

from rlbook.policy import load_policy, logprobs
from rlbook.tasks import get_task
from rlbook.training import RunConfig, Trainer, collate, collect_rollouts
from workshop.ch15.tools import Calculator, Unmasked

ASKED = {"max_new_tokens": 48, "seed": 3}


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny-habits")


def sampled(policy, engine, n=4, **how):
    task = get_task("habits")
    return collect_rollouts(engine, policy[1], task, task.sample(1, 12), n, **ASKED | how)


def written(policy, rollout, forced):
    pairs = zip(rollout.token_ids, rollout.forced, strict=True)
    return policy[1].decode([token for token, f in pairs if f == forced])


def test_every_result_is_right_and_marked_as_the_tools(policy):
    for r in sampled(policy, Calculator(*policy)):
        thought = r.text.partition("</think>")[0].removeprefix("<think>")
        for step in filter(None, thought.split(";")):
            call, _, result = step.partition("=")
            assert result == "?" or int(result) == eval(call.replace("--", "+"))
        results = [step.partition("=")[2] for step in thought.split(";") if "=" in step]
        assert written(policy, r, forced=True) == "".join(f"{result};" for result in results)


def test_an_unreliable_one_is_wrong_as_often_as_it_says(policy):
    """About 200 calls; five standard errors."""
    wrong = total = 0
    for r in sampled(policy, Calculator(*policy, wrong=0.3), n=8):
        for step in r.text.partition("</think>")[0].removeprefix("<think>").split(";")[:-1]:
            call, _, result = step.partition("=")
            total += 1
            wrong += int(result) != eval(call.replace("--", "+"))
    assert total > 150 and abs(wrong / total - 0.3) < 5 * (0.3 * 0.7 / total) ** 0.5


def test_sampled_tokens_carry_the_policys_log_probs_given_the_tools_words(policy):
    batch = collate(sampled(policy, Calculator(*policy)))
    with torch.no_grad():
        again = logprobs(policy[0], batch.ids, batch.mask)
    torch.testing.assert_close(batch.logp_sampler * batch.mask, again, atol=1e-4, rtol=1e-4)
    assert (batch.logp_sampler[~batch.mask] == 0).all()


def test_a_limit_holds_for_both(policy):
    for limit in (3, 7, 9, 20):
        for r in sampled(policy, Calculator(*policy), max_new_tokens=limit):
            assert r.length <= limit and len(r.forced or r.token_ids) == r.length
            assert r.truncated == (r.token_ids[-1] != policy[1].eos_token_id)


def test_a_prompt_that_ends_with_a_call_is_answered_first(policy):
    prompt = policy[1]("7+8*2=?").input_ids
    prefix = policy[1]("<think>8*2=", add_special_tokens=False).input_ids
    asked = {"n": 3, "max_new_tokens": 30, "temperature": 1.0, "seed": 0}
    for one in Calculator(*policy).generate([prompt + prefix], **asked):
        assert policy[1].decode(one.token_ids).startswith("16;") and one.forced[:3] == [True] * 3


def test_the_mistake_differs_in_the_mask_alone(policy):
    calculator = Calculator(*policy)
    right, mistaken = (sampled(policy, e) for e in (calculator, Unmasked(calculator)))
    assert [r.token_ids for r in right] == [r.token_ids for r in mistaken]
    more = collate(mistaken).mask.sum() - collate(right).mask.sum()
    assert more == sum(sum(r.forced) for r in right) > 0


def test_it_comes_in_through_the_seam_of_the_trainer():
    policy = load_policy("tiny-habits")
    config = RunConfig(policy="tiny-habits", task="habits", prompts=2, group_size=4, minibatches=1)
    trainer = Trainer(config, policy, engine=Calculator(*policy))
    batch = trainer.learner.prepare(trainer.collect())
    assert (
        not batch.mask.all(dim=1).any() and trainer.learner.updates(batch)["skipped_updates"] == 0
    )
