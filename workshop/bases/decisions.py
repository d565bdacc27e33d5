"""Single decisions of the policy on fixed prefixes: exact probabilities, nothing sampled.

Sampled frequencies of a rare decision are noisy, and vanish once training has made it rare. The
probabilities below can be followed through a whole run.
"""

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlbook.policy import logprobs
from rlbook.tasks import Problem, SumsTask
from rlbook.tasks.habits import FAMILIES, HabitsTask
from rlbook.tasks.sums import terms_of

HMMS_BEFORE_STOP = 5
PROBE_SEED, PROBE_PROBLEMS, PROBES_PER_FAMILY = 99, 32, 16


@torch.no_grad()
def decisions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem] | None = None,
) -> dict[str, float]:
    """Mean probability, over problems, of the decisions that distinguish strategies.

    After `<think>`: `answers_at_once`, `opens_verbose`, `opens_careful`. In the first step:
    `gets_stuck` (`?` after `=`); once stuck, `tries_again` or `gives_up`; once lost, after five
    `hmm `, `stops_when_lost`. The default problems are always the same 32. Chapter 07.
    """
    if problems is None:
        problems = SumsTask().sample(PROBE_SEED, PROBE_PROBLEMS)
    if not problems:
        raise ValueError("decisions needs at least one problem")
    sums: dict[str, float] = {}
    for problem in problems:
        for name, prefix, token in _questions(problem):
            ids = tokenizer(prefix, return_tensors="pt").input_ids.to(model.device)
            probabilities = model(input_ids=ids).logits[0, -1].float().softmax(-1)
            chosen = probabilities[tokenizer.convert_tokens_to_ids(token)].item()
            sums[name] = sums.get(name, 0.0) + chosen
    return {name: total / len(problems) for name, total in sums.items()}


def _questions(problem: Problem) -> list[tuple[str, str, str]]:
    """Name, text up to the decision, and the token whose probability is asked for."""
    start, term = terms_of(problem)[:2]
    opening = f"{problem.prompt}<think>"
    step = f"{opening}{start}{term:+d}="
    lost = f"{step}?;" + "hmm " * HMMS_BEFORE_STOP
    return [
        ("answers_at_once", opening, "</think>"),
        ("opens_verbose", opening, "so "),
        ("opens_careful", opening, "check "),
        ("gets_stuck", step, "?"),
        ("tries_again", f"{step}?;", "wait "),
        ("gives_up", f"{step}?;", "hmm "),
        ("stops_when_lost", lost, "</think>"),
    ]


@torch.no_grad()
def right_rules(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Mean probability of beginning by the right rule, for each family of `HabitsTask`.

    The product of the probabilities of the tokens from `<think>` to the first `=`, on the same 16
    problems of a family every time. Chapter 05.
    """
    task, begun, families = HabitsTask(), [], list(FAMILIES)
    for level in task.levels:
        for problem in task.sample(PROBE_SEED, PROBES_PER_FAMILY, (level,)):
            prompt = tokenizer(problem.prompt).input_ids
            step = tokenizer(f"<think>{problem.meta['right']}=", add_special_tokens=False)
            begun.append((len(prompt), torch.tensor(prompt + step.input_ids)))
    ids = pad_sequence([row for _, row in begun], batch_first=True).to(model.device)
    place = torch.arange(ids.shape[1])
    mask = torch.stack([(start <= place) & (place < len(row)) for start, row in begun])
    probability = logprobs(model, ids, mask.to(ids.device)).sum(1).exp().view(len(families), -1)
    return dict(zip(families, probability.mean(1).tolist(), strict=True))
