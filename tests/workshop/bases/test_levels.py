"""Levels one by one are the policy asked of each level alone."""

from rlbook.evaluation import evaluate
from workshop.bases.levels import evaluate_levels


def test_every_level_is_evaluated_by_itself(little_policy, parity):
    policy, how = little_policy(), {"max_new_tokens": 6}
    rows = evaluate_levels(
        policy, parity, 3, 4, greedy=True, also=lambda rollouts: {"answers": len(rollouts)}, **how
    )
    assert list(rows) == [1, 2, 3]
    for level, row in rows.items():
        alone = evaluate(policy, parity, 3, 4, levels=[level], **how)
        likeliest = evaluate(policy, parity, 3, 1, levels=[level], temperature=0, **how)
        assert row == alone | {"answers": 12, "greedy": likeliest["pass@1"]}
