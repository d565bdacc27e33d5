"""Rewards that never ask whether an answer is right, and one that asks in order to mislead.

Each is a reward of `rlbook.training`: called with whole groups, it gives a number per rollout.
Answers are compared as the verifier reads them (`Rollout.answer`); a rollout without an answer
(cut off, or none in the required format) takes no part in a vote and earns nothing from one.
Chapter 13.
"""

import random
from collections import Counter
from collections.abc import Sequence

from rlbook.grouping import group_by, mean
from rlbook.training import Rollout

__all__ = ["confidence", "format_only", "majority_vote", "negative_entropy", "plurality"]
__all__ += ["random_reward", "semantic_agreement", "vote_metrics", "wrong_labels"]


def majority_vote(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """1 for an answer that is the most common one of its group, else 0.

    r_i = 1[a_i = argmax_a Σ_j 1[a_j = a]]

    Of answers equally common the one given first wins. A group without an answer earns nothing.
    Source: TTRL, arXiv:2504.16084, with all answers of the group both voting and trained.
    """
    elected = {g: plurality(members) for g, members in groups_of(rollouts).items()}
    return {"majority": [float(gives(r, elected[r.group])) for r in rollouts]}


def semantic_agreement(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """The share of the group that gives the same answer, r_i = |{j : a_j = a_i}| / G.

    The expected reward of a prompt is Σ_a p_a² up to 1/G: the more often two answers agree, the
    higher. Source: EMPO, arXiv:2504.05812; meaning is judged by the final answer, and its filter
    on prompts of middling entropy is left out.
    """
    votes = Counter((r.group, r.answer) for r in rollouts)
    sizes = Counter(r.group for r in rollouts)
    shares = [votes[r.group, r.answer] / sizes[r.group] for r in rollouts]
    return {
        "agreement": [
            0.0 if r.answer is None else share for r, share in zip(rollouts, shares, strict=True)
        ]
    }


def confidence(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Mean log-probability of the sampled tokens, in nats per token: r_i = Σ_t log π_t / |o_i|.

    At every prefix E[log π(o_t)] = −H_t, so this is a one-sample estimate of the mean negative
    entropy that RENT (arXiv:2505.22660) rewards. The log-probs are the sampler's.
    """
    return {"confidence": [mean(sampled_logps(r)) for r in rollouts]}


def negative_entropy(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Log-probability of the whole completion, in nats: r_i = log π(o_i).

    E[log π ∇ log π] = −∇H: its policy gradient is that of the entropy of the distribution over
    completions, downhill. Source: EM-RL-sequence, arXiv:2505.15134.
    """
    return {"log_prob": [sum(sampled_logps(r)) for r in rollouts]}


def random_reward(rollouts: Sequence[Rollout], share: float = 0.5) -> dict[str, list[float]]:
    """A coin for every rollout: 1 with probability `share`, whatever it says.

    The coins are seeded by what the rollouts are, so a run repeats itself and equal answers still
    get coins of their own. Source: Spurious Rewards, arXiv:2506.10947, γ = 0.5. Raises
    `ValueError` unless 0 ≤ share ≤ 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is a probability, got {share}")
    coins = random.Random(repr([(r.problem.id, r.token_ids) for r in rollouts]))
    return {"random": [float(coins.random() < share) for _ in rollouts]}


def format_only(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """1 for an answer in the required format, right or wrong. Source: arXiv:2506.10947."""
    return {"format": [float(r.format_ok) for r in rollouts]}


def wrong_labels(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """1 for the most common wrong answer of the group, else 0.

    This one knows the truth and teaches against it. Source: Spurious Rewards, arXiv:2506.10947,
    which takes the label from the majority of the base's answers and keeps prompts where that is
    wrong; here the label is the group's own and every prompt with a wrong answer is kept.
    """
    mistakes = groups_of([r for r in rollouts if not r.correct])
    labels = {group: plurality(members) for group, members in mistakes.items()}
    return {"wrong_label": [float(gives(r, labels.get(r.group))) for r in rollouts]}


def plurality(rollouts: Sequence[Rollout]) -> str | None:
    """The most common answer, the first of several; None if there is no answer."""
    votes = Counter(r.answer for r in rollouts if r.answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def vote_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What a vote looks like from inside, and what it is worth.

    agreement        mean share of a group that gives its most common answer: needs no label
    label_accuracy   share of groups whose most common answer is right
    reward_accuracy  share of rollouts to which the vote gives the reward that the verifier gives

    Source: the metrics that TTRL logs, arXiv:2504.16084.
    """
    votes = majority_vote(rollouts)["majority"]
    groups = group_by(zip(rollouts, votes, strict=True), lambda pair: pair[0].group).values()
    return {
        "agreement": mean(votes),
        "label_accuracy": mean(any(r.correct and vote for r, vote in group) for group in groups),
        "reward_accuracy": mean(r.correct == vote for r, vote in zip(rollouts, votes, strict=True)),
    }


def groups_of(rollouts: Sequence[Rollout]) -> dict[int, list[Rollout]]:
    """The rollouts of each group."""
    return group_by(rollouts, lambda r: r.group)


def gives(rollout: Rollout, answer: str | None) -> bool:
    """Whether a rollout gives this answer; never, if there is none."""
    return answer is not None and rollout.answer == answer


def sampled_logps(rollout: Rollout) -> list[float]:
    """Log-probs of the tokens that the policy chose itself."""
    forced = rollout.forced or [False] * rollout.length
    return [logp for logp, put_there in zip(rollout.logps, forced, strict=True) if not put_there]
