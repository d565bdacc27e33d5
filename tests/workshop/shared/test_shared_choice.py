"""One vector is the choice of all prompts, for sampler and trainer alike."""

import pytest
import torch

from rlbook.policy import Sampler, load_policy, logprobs
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, Trainer, collate, collect_rollouts
from workshop.shared.worlds.shared_choice import OpeningTask, shared_choice

SMALL = {"prompts": 4, "group_size": 4, "minibatches": 1, "steps": 1}


@pytest.fixture
def policy():
    return load_policy("tiny")


def test_a_shared_choice_has_one_vector_to_train(policy):
    model, _ = shared_choice(policy)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["model.shared_offset.offset"]
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    Trainer(RunConfig(**SMALL, lr=0.05), policy, task=OpeningTask()).train_one()
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], value) for name, value in frozen.items())
    assert parameters["model.shared_offset.offset"].abs().max() > 0.01


def test_the_sampler_makes_the_same_shared_choice_as_the_trainer(policy):
    """With an offset that matters: log-probs reported and computed again agree."""
    model, tokenizer = shared_choice(policy)
    task = OpeningTask()
    asked = (tokenizer, task, task.sample(0, 8), 8)
    plain = collect_rollouts(Sampler(model, tokenizer.eos_token_id), *asked)
    with torch.no_grad():
        direct = tokenizer.convert_tokens_to_ids("</think>")
        model.model.shared_offset.offset.copy_(6 * model.lm_head.weight[direct])
    rollouts = collect_rollouts(Sampler(model, tokenizer.eos_token_id), *asked)
    share = [sum(r.text.startswith("</think>") for r in some) / 64 for some in (plain, rollouts)]
    assert share[1] > share[0] + 0.2
    batch = collate(rollouts)
    again = logprobs(model, batch.ids, batch.mask)
    torch.testing.assert_close(again, batch.logp_sampler, rtol=0, atol=1e-4)


def test_the_opening_task_judges_the_whole_answer():
    task, plain = OpeningTask(), SumsTask()
    problem, same = task.sample(5, 1)[0], plain.sample(5, 1)[0]
    assert problem.prompt == same.prompt + "<think>"
    completion = f"</think><answer>{same.answer}</answer>"
    assert task.verify(problem, completion).correct and task.verify(problem, completion).format_ok
    assert task.label(problem, completion) == "direct"
