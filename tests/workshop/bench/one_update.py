"""Run by an interpreter that has TRL: its first update and ours, on the same completions.

Prints the cosine between the two changes of the weights and the ratio of their lengths.
"""

import json
import random
import sys
import tempfile
from dataclasses import replace

import torch
from torch.nn.utils import parameters_to_vector

from rlbook.policy import load_policy, logprobs, set_threads
from rlbook.training import Trainer
from rlbook.training.batch import Rollout, collate
from workshop.bench.trl_program import grpo_trainer
from workshop.bench.workload import setting


def main(method: str) -> None:
    set_threads()
    workload = replace(setting(method, completions=32, steps=1), updates=1)
    policy, seen = load_policy("tiny"), []
    model, tokenizer = policy
    start = parameters_to_vector(model.parameters()).detach().clone()
    draw = random.Random(0)

    def reward(completion_ids, number, **_):
        rewards = [float(draw.random() < 0.5) for _ in number]
        seen.extend(zip(number, completion_ids, rewards, strict=True))
        return rewards

    with tempfile.TemporaryDirectory() as folder:
        grpo_trainer(workload, policy, reward, folder).train()
    trainer = Trainer(workload.config)
    trainer.learn(with_logps(trainer.model, [rollout(workload, tokenizer, *row) for row in seen]))

    theirs = parameters_to_vector(model.parameters()).detach() - start
    ours = parameters_to_vector(trainer.model.parameters()).detach() - start
    cosine = torch.cosine_similarity(theirs, ours, dim=0)
    print(json.dumps({"cosine": float(cosine), "ratio": float(ours.norm() / theirs.norm())}))


def rollout(workload, tokenizer, number: int, token_ids: list[int], reward: float) -> Rollout:
    problem = workload.problems(0)[number]
    prompt_ids = tokenizer(problem.prompt).input_ids
    return Rollout(
        problem=problem,
        group=number,
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logps=[0.0] * len(token_ids),
        versions=[0] * len(token_ids),
        finish_reason="stop",
        text="",
        rewards={"answer": reward},
    )


@torch.no_grad()
def with_logps(model, rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts with the log-probabilities that a sampler would have reported."""
    batch = collate(rollouts)
    logps = logprobs(model, batch.ids, batch.mask)
    for one, row, mask in zip(rollouts, logps, batch.mask, strict=True):
        one.logps = row[mask].tolist()
    return rollouts


if __name__ == "__main__":
    main(*sys.argv[1:])
