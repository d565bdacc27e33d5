"""Chapter 06: siblings by hand, a budget, missing marks, legal baselines; the lab on group size."""

import copy
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import AdamW

from rlbook.exact import FOUR
from rlbook.objectives import METHODS, Method, leave_one_out, no_baseline, policy_loss
from rlbook.objectives.groups import group_mean, group_size, group_sum
from rlbook.policy import Sampler, load_policy, logprobs
from rlbook.tasks import SumsTask
from rlbook.training import RunConfig, SampledBatch, Trainer, collate, collect_rollouts
from workshop.shared.checks import check_lines, check_numbers, not_attempted, not_yet, right, same

NAN = float("nan")
MARKS = torch.tensor(
    [[1, 0, 0, 1], [1, NAN, 0, 0], [NAN, NAN, 1, NAN], 4 * [NAN]], dtype=torch.float64
)
LEGAL = frozenset("ad")
CLOSE = 0.05  # of pass@1: single runs this near to each other have no order
RLOO = replace(METHODS["rloo"], kl=None)

GRADED = torch.tensor([1.0, 0, 0, 3, 1, 0, 7, 7, 0, 7, 0, 0], dtype=torch.float64)
SHUFFLED = torch.tensor([0, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 2])
LOGP = -torch.rand(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def siblings_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """Mean reward of the other answers to the same prompt, (N,)."""
    return (group_sum(rewards, groups) - rewards) / (group_size(groups) - 1)


def one_action(logp: Tensor, mask: Tensor) -> Tensor:
    """log π of each whole answer, (N,)."""
    return torch.where(mask, logp, 0.0).sum(1)


def check_siblings_mean(mine: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Section 4: the baseline that the reader writes."""
    return check_lines(
        mine,
        siblings_mean,
        {
            "the answer itself is still in its baseline: that is the group mean, which keeps "
            "(n − 1)/n of the gradient": group_mean,
            "you left the answer out of the sum and not out of the count: it has n − 1 "
            "siblings": lambda r, g: (group_sum(r, g) - r) / group_size(g),
            "that is the siblings' sum; divide by how many they are": (
                lambda r, g: group_sum(r, g) - r
            ),
            "these are the others of the whole batch; only answers to the same prompt are "
            "siblings": lambda r, g: (r.sum() - r) / (len(r) - 1),
            "that is the advantage already; return what is to be subtracted": (
                lambda r, g: r - siblings_mean(r, g)
            ),
            "these are the other rows of a block of four; `groups` says who is whose sibling": (
                lambda r, g: (r.reshape(-1, 4).sum(1).repeat_interleave(4) - r) / 3
            ),
        },
        [(FOUR.rewards, FOUR.groups), (GRADED, SHUFFLED)],
        "no answer is in its own baseline, whoever its siblings are",
        "the sum of its group without itself, over the number of the others",
    )


def check_one_action(mine: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """Section 4: log-probability of an answer as one action."""
    return check_lines(
        mine,
        one_action,
        {
            "that is the mean over the answer's tokens; a long answer is one action like a short "
            "one, so its log-probabilities are summed": (
                lambda logp, mask: torch.where(mask, logp, 0.0).sum(1) / mask.sum(1)
            ),
            "padding and prompt are in the sum: take the trained tokens only": (
                lambda logp, mask: logp.sum(1)
            ),
            "that is π itself; the gradient wants log π": (
                lambda logp, mask: one_action(logp, mask).exp()
            ),
            "one number for each answer, not for the batch: sum over the last axis": (
                lambda logp, mask: one_action(logp, mask).sum()
            ),
        },
        [(LOGP, FOUR.mask)],
        "one number per answer, and no length divides it",
        "add up log π over the tokens where `mask` is True, answer by answer",
    )


def same_as_trainer(step: Callable[..., None], method: Method) -> float:
    """The largest difference of a log-probability after one step and after the package's `Trainer`.

    `step(model, optimizer, sampled)` is the reader's. Raises `ValueError` above a hundredth of what
    the step has changed.
    """
    trainer = Trainer(RunConfig(method=method, minibatches=1, lr=4e-4))
    rollouts, model = trainer.collect(), load_policy("tiny")[0]
    step(model, AdamW(model.parameters(), 4e-4, weight_decay=0.0), collate(rollouts))
    trainer.learn(rollouts)
    batch = trainer.learner.prepare(rollouts)
    models = (load_policy("tiny")[0], model, trainer.model)
    before, ours, theirs = (logprobs(m, batch.ids, batch.mask) for m in models)
    apart, moved = (ours - theirs).abs().max().item(), (theirs - before).abs().max().item()
    print(f"log-probs moved by up to {moved:.2f}; your step and Trainer are {apart:.0e} apart")
    if apart >= 0.01 * moved:
        raise ValueError("the step is not the package's")
    return apart


def check_three_siblings(answer: Sequence[float] | None) -> None:
    """Exercise 1: leave-one-out advantages of rewards 2, 1, 0."""
    exact = leave_one_out(torch.tensor([2.0, 1, 0]), torch.zeros(3, dtype=torch.long)).tolist()
    check_numbers(
        answer,
        exact,
        "the group mean's advantages, made n/(n − 1) times as long",
        {
            (1.0, 0.0, -1.0): "that is the group mean: each answer is in its own baseline",
            (1.0, -1.0, -3.0): "you subtracted the siblings' sum; divide it by their number",
            (-1.5, 0.0, 1.5): "the sign: the best answer is above its siblings",
        },
        "for each answer: its reward minus the mean of the other two",
    )


def check_budget(answer: float | None) -> None:
    """Exercise 2: noise of ReMax over that of RLOO with 8 completions, p = 3/4, greedy right."""
    p, generated = 0.75, 8
    v = p * (1 - p)
    siblings = v * generated / (generated - 1) / generated
    greedy = (v + (1 - p) ** 2) / (generated - 1)
    check_numbers(
        answer,
        greedy / siblings,
        "a greedy answer is a baseline only, and here it is off the mean by a quarter",
        {
            7 / 6: "that lets ReMax learn from all 8, but one of them is the greedy answer",
            1.0: "equal only if the greedy reward were the mean",
            8 / 7: "that prices the greedy completion only; its baseline is also off the mean",
            3 / 4: "upside down",
        },
        "E[Â²] over the number of answers learnt from, for both; v = p(1 − p)",
        tolerance=0.01,
    )


def check_rows(estimator: Callable[[Tensor], Tensor | None]) -> None:
    """Exercise 3: leave-one-out of a table in which some marks are missing (NaN)."""
    a = estimator(MARKS.clone())
    if a is None:
        not_attempted()
    elif a.isnan().any():
        not_yet("NaN is left: replace it before you sum")
    elif not same(a[0, 0], 2 / 3, 1e-6):
        not_yet("the full row is wrong: 1 minus the mean of the other three")
    elif a[1, 1] != 0:
        not_yet("an answer without a mark must get 0, not 0 minus its siblings' mean")
    elif not same(a[1, 0], 1, 1e-6) or not same(a[1, 2], -0.5, 1e-6):
        not_yet("a crashed answer is no sibling: count the marks in the row, minus one")
    elif (a[2:] != 0).any():
        not_yet("one mark has no sibling: its row must be 0")
    else:
        right("a crash is neither a wrong answer nor a sibling")


def check_unbiased(answer: Set[str] | None) -> None:
    """Exercise 4: which baselines leave the expected gradient unchanged."""
    if answer is None:
        not_attempted()
        return
    given = frozenset(str(letter).strip().lower() for letter in answer)
    if given - frozenset("abcde"):
        not_yet("the letters go from a to e")
    elif given == LEGAL:
        right("whatever only the siblings decide is free")
    elif "b" in given:
        not_yet("one of them moves when r_i moves: it contains the answer")
    elif given & {"c", "e"}:
        not_yet("one of them looks at the length of y_i itself, and so at the action")
    else:
        not_yet("a baseline need not be a mean, or good: it must ignore answer i and its length")


def check_noise(answer: Sequence[float] | None) -> None:
    """Lab, part 1: E[Â²] relative to a known mean for k = 2, 4, 16, 128."""
    sizes = (2, 4, 16, 128)
    check_numbers(
        answer,
        [k / (k - 1) for k in sizes],
        "the second sibling is worth most, and from sixteen on there is nothing left to buy",
        {
            tuple((k - 1) / k for k in sizes): "that is the share the group mean keeps",
            tuple(1 / (k - 1) for k in sizes): "that is the baseline's noise; add the answer's own",
            tuple(
                1 / k for k in sizes
            ): "that is the variance of a mean of k; where is the answer?",
        },
        "v of the answer and v/(k − 1) of its baseline, in units of v",
    )


@cache
def small_batch() -> SampledBatch:
    """Four prompts with four answers each, of different lengths, some right."""
    model, tokenizer = load_policy("tiny")
    engine, problems = Sampler(model, tokenizer.eos_token_id), SumsTask().sample(3, 4, (2, 3))
    return collate(collect_rollouts(engine, tokenizer, SumsTask(), problems, 4, seed=1))


def check_step(
    step: Callable[[torch.nn.Module, torch.optim.Optimizer, SampledBatch], None],
) -> None:
    """Lab, part 2: one update of RLOO, judged by the direction in which it moves the weights."""
    batch, (model, _) = small_batch(), load_policy("tiny")
    before = copy.deepcopy(model)
    step(model, torch.optim.SGD(model.parameters(), lr=1e-3), batch)
    moved = flat(p - q for p, q in zip(model.parameters(), before.parameters(), strict=True))
    if not moved.any():
        not_attempted()
        return
    per_answer = replace(RLOO, aggregation="sequence_mean")
    right_way, alone = (descent(before, RLOO, batch, f) for f in (leave_one_out, no_baseline))
    if cosine(moved, right_way) > 0.999:
        right("two lines of the loop, and a published method")
    elif cosine(moved, right_way) < -0.999:
        not_yet("it goes downhill: an optimizer *descends* its loss")
    elif cosine(moved, alone) > 0.999:
        not_yet("nothing is subtracted from the rewards: who are the siblings?")
    elif cosine(moved, descent(before, per_answer, batch, leave_one_out)) > 0.999:
        not_yet("an answer is one action: its log-probabilities are summed, not averaged")
    else:
        not_yet("it moves another way; groups from `sampled.groups`, tokens from `sampled.mask`")


def descent(
    model: torch.nn.Module,
    method,
    batch: SampledBatch,
    advantage: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Minus the gradient of a method's loss with these advantages."""
    logp = logprobs(model, batch.ids, batch.mask)
    a = advantage(batch.rewards, batch.groups)
    loss = policy_loss(method, logp, logp.detach(), a, batch.mask, batch.groups).loss
    return -flat(torch.autograd.grad(loss, list(model.parameters())))


def flat(tensors) -> Tensor:
    """Tensors as one long vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two vectors."""
    return torch.cosine_similarity(a.double(), b.double(), dim=0).item()


def check_order(order: Sequence[str] | None, results: Mapping[str, float]) -> None:
    """Lab, part 3: the forecast order of runs, best first, against what they reached.

    Runs within `CLOSE` of each other have no order.
    """
    if order is None:
        not_attempted()
        return
    reached = ", ".join(f"{name} {value:.2f}" for name, value in results.items())
    if set(order) != set(results):
        not_yet(f"order these: {', '.join(results)}")
        return
    wrong = [a for a, b in pairwise(order) if results[a] <= results[b] - CLOSE]
    if not wrong:
        right(f"{reached} (one seed each)")
    elif "k = 128" in wrong:
        not_yet(f"{reached}. What does a batch of one prompt know about the others?")
    else:
        not_yet(f"{reached}. What does a baseline cost that is one answer's reward?")
