"""Supervised fine-tuning against the model's own cross-entropy."""

import copy
from itertools import chain

import pytest
import torch
import torch.nn.functional as F

from rlbook.tasks import SumsTask
from rlbook.training.sft import Answer, padded, sft, shuffled_batches, written_answer

ANSWERS = [Answer([1, 9, 10], [11, 12, 2]), Answer([1, 5], [7, 2]), Answer([1, 6, 6], [8, 2])]


def test_the_loss_is_the_mean_cross_entropy_of_the_answers_tokens_alone(policy):
    model, _ = policy
    total = 0.0
    for answer in ANSWERS:
        ids = torch.tensor([answer.prompt_ids + answer.token_ids])
        targets, first = ids[0, 1:], len(answer.prompt_ids) - 1
        logits = model(input_ids=ids).logits[0, :-1]
        total += F.cross_entropy(logits[first:], targets[first:], reduction="sum").item()
    expected = total / sum(len(answer.token_ids) for answer in ANSWERS)
    (loss,) = sft(model, ANSWERS, batch=len(ANSWERS))
    assert loss == pytest.approx(expected, rel=1e-5)


def test_an_update_is_adamw_on_that_loss(policy):
    model, _ = policy
    other = copy.deepcopy(model)
    list(sft(model, ANSWERS[:1], lr=1e-3))
    optimizer = torch.optim.AdamW(other.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    labels = torch.tensor([[-100, -100, -100, 11, 12, 2]])
    other(input_ids=torch.tensor([[1, 9, 10, 11, 12, 2]]), labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    optimizer.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        # Adam's first step has the size lr whatever the gradient: where one is nearly 0, its sign
        # is rounding
        assert (mine - theirs).abs().quantile(0.99) < 1e-5


def test_what_is_imitated_becomes_likely(policy):
    model, _ = policy
    losses = list(sft(model, ANSWERS, epochs=30, lr=3e-3))
    assert losses[-1] < losses[0] / 5


def test_rollouts_train_as_their_tokens_do(policy, make_rollout):
    model, _ = policy
    other = copy.deepcopy(model)
    rollout = make_rollout(prompt=(1, 9, 10), tokens=(11, 12, 2))
    assert list(sft(model, [rollout])) == list(sft(other, ANSWERS[:1]))


def test_every_answer_comes_once_an_epoch():
    batches = list(shuffled_batches(range(7), 3, epochs=2, seed=0))
    assert [len(b) for b in batches] == [3, 3, 1, 3, 3, 1]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(chain.from_iterable(epoch)) == list(range(7))
    assert batches[:3] != batches[3:]


def test_the_mask_covers_the_completion_and_nothing_else():
    ids, mask = padded(ANSWERS[:2])
    assert ids.tolist() == [[1, 9, 10, 11, 12, 2], [1, 5, 7, 2, 0, 0]]
    assert mask.int().tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]]


def test_what_a_world_put_in_is_read_and_not_imitated(make_rollout):
    rollout = make_rollout(prompt=(1, 9), tokens=(5, 6, 7, 2))
    rollout.forced = [False, True, True, False]
    ids, mask = padded([rollout])
    assert mask[0, -4:].tolist() == [True, False, False, True]
    assert ids[0, -4:].tolist() == [5, 6, 7, 2]


def test_a_written_answer_ends_with_the_end_of_sequence(policy):
    _, tokenizer = policy
    problem = SumsTask().sample(0, 1)[0]
    answer = written_answer(tokenizer, problem, "<think></think><answer>7</answer>")
    assert answer.token_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(answer.token_ids[:-1]) == "<think></think><answer>7</answer>"
    assert tokenizer.decode(answer.prompt_ids).endswith(problem.prompt)


def test_no_answers_is_an_error(policy):
    with pytest.raises(ValueError, match="at least one answer"):
        next(sft(policy[0], []))
