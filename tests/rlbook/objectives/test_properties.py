"""Properties of the whole loss: padding, slicing, order, groups, metrics, errors."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlbook.objectives import (
    FIELD,
    METHODS,
    EMABaseline,
    KLPenalty,
    Method,
    RatioClip,
    Tokens,
    aggregate,
    batch_mean_baseline,
    batch_normalize,
    compute_advantages,
    gae,
    gpg,
    greedy_baseline,
    group_center,
    group_normalize,
    kl_estimate,
    leave_one_out,
    length_weighted_baseline,
    max_rl,
    method_table,
    method_table_markdown,
    no_baseline,
    overlong_penalty,
    policy_loss,
    reinforce_plus_plus,
    sequence_ratio,
    summarize,
    token_rewards,
    token_weights,
    totals_of,
    value_loss,
    weigh,
)
from rlbook.objectives.loss import imitation_weights
from rlbook.objectives.specs import KNOWN

MODES = ("sequence_mean", "token_mean", "prompt_mean", "constant", "sequence_sum")
ROWS = METHODS | FIELD
NAMES = sorted(ROWS)
EXAMPLES = {"WeightClip": {"max": 5.0}, "SequenceMask": {"drift": 0.1}}  # the others have defaults
seeds = st.integers(0, 10_000)
FEW = settings(max_examples=15)
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


def random_batch(seed, n=7, width=6, holes=True):
    """Ragged masks with holes and an empty row; three groups of arbitrary ids, one a singleton."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(width) < torch.randint(1, width + 1, (n, 1), generator=g)
    if holes:
        mask &= torch.rand(n, width, generator=g) > 0.2
    mask[3] = False
    return {
        "logp_old": -4 * torch.rand(n, width, generator=g, dtype=torch.float64),
        "logp": -4 * torch.rand(n, width, generator=g, dtype=torch.float64),
        "logp_ref": -4 * torch.rand(n, width, generator=g, dtype=torch.float64),
        "advantages": torch.randn(n, generator=g, dtype=torch.float64),
        "mask": mask,
        "groups": torch.tensor([40, -3, 40, -3, 40, 7, -3])[torch.randperm(n, generator=g)],
    }


def run(name, batch, rows=slice(None), **options):
    """(loss, gradient in logp, Loss) of a method on some rows of a batch.

    The reference stands for the sampler, any tokens for the selected ones, and a positive
    advantage for a right answer.
    """
    method = ROWS[name].resolved(3000) if isinstance(name, str) else name
    part = {key: value[rows] for key, value in batch.items()}
    if method.sampler_correction is not None:
        old, sampler, mask = (batch[key] for key in ("logp_old", "logp_ref", "mask"))
        options["correction"] = method.sampler_correction(old, sampler, mask)[rows]
    if method.selection is not None:
        options["selected"] = part["logp_old"] > -2
    if method.likelihood:
        mask, advantages = batch["mask"], batch["advantages"].reshape(len(batch["mask"]), -1)
        right = torch.where(mask, advantages, -1.0).amax(1) > 0
        options["imitated"] = imitation_weights(right, mask)[rows]
    logp = part.pop("logp").clone().requires_grad_()
    loss = policy_loss(method, logp, **part, **options)
    loss.loss.backward()
    return loss.loss.detach(), logp.grad, loss


OTHERS = {"sequence_product": replace(METHODS["gspo"], ratio="sequence_product")}


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
@FEW
@given(seed=seeds)
def test_gradient_is_the_stated_weight_times_the_share_of_the_token(name, seed):
    """∂loss/∂logp = −share · weight · A for every row of the table (without its KL term)."""
    batch = random_batch(seed)
    bare = {"kl": None, "selection": None, "sampler_correction": None, "likelihood": 0.0}
    method = OTHERS.get(name) or replace(ROWS[name], **bare).resolved(3000)
    _, grad, _ = run(method, batch)
    mask, logp, old = batch["mask"], batch["logp"], batch["logp_old"]
    advantages = batch["advantages"][:, None].expand_as(logp)
    weight, _ = weigh(method.trust_region, Tokens.of(logp, old, advantages, mask, method.ratio))
    share = token_weights(mask, method.aggregation, batch["groups"], method.constant)
    torch.testing.assert_close(grad, -share * weight * advantages, **CLOSE)


REGIONS = [*KNOWN["trust_region"].values(), RatioClip(dual=3.0)]
SCALES = "token", "sequence", "sequence_product"
EXTREMES = {  # log-ratios of the tokens of one answer
    "one token far up": [0.1, 100.0, 0.0, -0.1],
    "one token far down": [0.1, -100.0, 0.0, -0.1],
    "beyond float32 both ways": [1e4, -1e4, 0.1, 0.0],
    "a long answer up": [0.1] * 1000,
    "a long answer down": [-0.1] * 1000,
}


@pytest.mark.parametrize("moved", EXTREMES)
@pytest.mark.parametrize(
    ("region", "ratio"),
    [(r, ratio) for r in REGIONS for ratio in getattr(r, "needs_ratio", SCALES)],
    ids=lambda given: given if isinstance(given, str) else getattr(given, "__name__", str(given)),
)
def test_overflow_is_never_a_nan_and_what_is_stopped_has_no_gradient(region, ratio, moved):
    """In float32: e^89 overflows, and 0·∞ is no number. One answer good, one bad, one empty."""
    region = region(**EXAMPLES.get(region.__name__, {})) if isinstance(region, type) else region
    row = replace(METHODS["grpo"], trust_region=region, ratio=ratio)
    change = torch.tensor([EXTREMES[moved]] * 3)
    old = -1.0 - change.clamp(min=0)
    logp = (old + change).requires_grad_()
    mask = torch.ones_like(change, dtype=torch.bool)
    mask[2] = False
    signs = torch.tensor([1.0, -1.0, 1.0])
    loss = policy_loss(row, logp, old, signs, mask, logp_ref=old)
    (grad,) = torch.autograd.grad(loss.loss, logp)
    assert torch.isfinite(loss.loss) and torch.isfinite(grad).all() and torch.isfinite(grad.norm())
    assert all(torch.isfinite(value) for value in loss.metrics.values())
    without_kl = policy_loss(replace(row, kl=None), logp, old, signs, mask)
    (grad,) = torch.autograd.grad(without_kl.loss, logp)
    tokens = Tokens.of(logp, old, signs[:, None].expand_as(logp), mask, ratio)
    assert (grad[~(weigh(region, tokens).keep & mask)] == 0).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("name", NAMES)
def test_padding_reaches_neither_value_nor_gradient(name, poison):
    batch = random_batch(1)
    clean, grad, _ = run(name, batch)
    outside = ~batch["mask"]
    bad = {
        key: torch.where(outside, poison, value) if value.ndim == 2 and key != "mask" else value
        for key, value in batch.items()
    }
    bad["advantages"] = torch.where(outside, poison, batch["advantages"][:, None])
    dirty, dirty_grad, loss = run(name, bad)
    assert torch.equal(clean, dirty)
    assert torch.equal(grad, dirty_grad)
    assert (dirty_grad[outside] == 0).all()
    assert (loss.token_loss[outside] == 0).all()
    assert all(torch.isfinite(value) for value in loss.metrics.values())


@pytest.mark.parametrize("name", NAMES)
def test_cutting_the_padding_off_changes_nothing(name):
    batch = random_batch(2, holes=False)
    width = int(batch["mask"].sum(1).max())
    wide = {k: torch.nn.functional.pad(v, (0, 5)) if v.ndim == 2 else v for k, v in batch.items()}
    cut = {k: v[:, :width] if v.ndim == 2 else v for k, v in batch.items()}
    (a, grad_a, _), (b, grad_b, _) = run(name, wide), run(name, cut)
    torch.testing.assert_close(a, b, **CLOSE)
    torch.testing.assert_close(grad_a[:, :width], grad_b, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=seeds, cuts=st.lists(st.integers(0, 7), max_size=4))
def test_micro_batches_add_up(name, seed, cuts):
    """Any split of shuffled rows, prompts spread over several micro-batches, empty parts."""
    batch = random_batch(seed)
    whole, grad, loss = run(name, batch)
    totals = totals_of(batch["mask"], batch["groups"])
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    parts = [rows for rows in order.tensor_split(sorted(cuts)) if len(rows)]
    results = [run(name, batch, rows, totals=totals) for rows in parts]
    torch.testing.assert_close(sum(r[0] for r in results), whole, **CLOSE)
    for rows, (_, part_grad, _) in zip(parts, results, strict=True):
        torch.testing.assert_close(part_grad, grad[rows], **CLOSE)
    merged = summarize(*(r[2].sums for r in results))
    for key, value in loss.metrics.items():
        torch.testing.assert_close(merged[key], value, **CLOSE)


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("count_empty", [True, False])
@FEW
@given(seed=seeds, cut=st.integers(1, 6))
def test_ranks_add_up_with_totals_that_are_sums(how, count_empty, seed, cut):
    """Each rank counts its own rows; the sum of the totals serves both, in either order."""
    batch = random_batch(seed)
    mask, groups, values = batch["mask"], batch["groups"], batch["logp"]
    whole_totals = totals_of(mask, groups, count_empty)
    whole = aggregate(values, mask, how, groups, 50.0, whole_totals)
    ranks = [slice(0, cut), slice(cut, None)]
    one, two = (totals_of(mask[r], groups[r], count_empty) for r in ranks)
    for totals in (one + two, two + one):
        parts = [aggregate(values[r], mask[r], how, groups[r], 50.0, totals) for r in ranks]
        torch.testing.assert_close(sum(parts), whole, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=seeds)
def test_order_of_sequences_and_names_of_groups_do_not_matter(name, seed):
    batch = random_batch(seed)
    whole, grad, _ = run(name, batch)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    renamed = {**batch, "groups": 1000 - 17 * batch["groups"]}
    other, other_grad, _ = run(name, renamed, order)
    torch.testing.assert_close(other, whole, **CLOSE)
    torch.testing.assert_close(other_grad, grad[order], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_a_trained_token_costs_nothing(name):
    batch = random_batch(5)
    batch["mask"] = torch.zeros_like(batch["mask"])
    loss, grad, _ = run(name, batch)
    assert loss == 0
    assert (grad == 0).all()


def test_what_each_aggregation_means():
    """Lengths 1, 3 and 4 in two prompts, loss 1 per token of sequence i times i+1."""
    mask = torch.arange(4) < torch.tensor([1, 3, 4])[:, None]
    values = torch.tensor([1.0, 2.0, 3.0]).double()[:, None].expand(3, 4)
    groups = torch.tensor([5, 5, 9])
    expected = {
        "sequence_mean": (1 + 2 + 3) / 3,
        "token_mean": (1 + 3 * 2 + 4 * 3) / 8,
        "prompt_mean": ((1 + 3 * 2) / 4 + 3) / 2,
        "constant": (1 + 3 * 2 + 4 * 3) / (3 * 10),
        "sequence_sum": (1 + 3 * 2 + 4 * 3) / 3,
    }
    for how, value in expected.items():
        assert float(aggregate(values, mask, how, groups, 10)) == pytest.approx(value), how


def test_means_coincide_when_all_lengths_are_equal():
    mask, groups = torch.ones(6, 5, dtype=torch.bool), torch.tensor([1, 1, 2, 2, 3, 3])
    values = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means = [aggregate(values, mask, how, groups) for how in MODES[:3]]
    torch.testing.assert_close(means[1], means[0], **CLOSE)
    torch.testing.assert_close(means[2], means[0], **CLOSE)
    total = aggregate(values, mask, "sequence_sum")
    torch.testing.assert_close(total, 5 * means[0], **CLOSE)
    torch.testing.assert_close(aggregate(values, mask, "constant", constant=5), means[0], **CLOSE)


@pytest.mark.parametrize("count_empty, sequences, prompts", [(True, 4, 3), (False, 2, 2)])
def test_empty_sequences_count_or_not(count_empty, sequences, prompts):
    mask = torch.tensor([[1, 1], [0, 0], [0, 0], [1, 0]]).bool()
    totals = totals_of(mask, torch.tensor([8, 8, 2, 5]), count_empty)
    assert (totals.num_tokens, totals.num_sequences, totals.num_prompts) == (3, sequences, prompts)


# Advantages.

GROUPED = {
    "group_center": group_center,
    "group_normalize": group_normalize,
    "leave_one_out": leave_one_out,
    "batch_normalize": batch_normalize,
    "raw": partial(batch_normalize, population="raw"),
    "gpg": gpg,
    "opo": lambda r, g: length_weighted_baseline(r, g, torch.arange(1, len(r) + 1)),
}


def by_loop(rewards, groups, function):
    """Apply `function` to one group at a time."""
    result = torch.zeros_like(rewards)
    for group in set(groups.tolist()):
        members = groups == group
        result[members] = function(rewards[members])
    return result


@FEW
@given(
    st.lists(
        st.tuples(st.sampled_from([-9, 0, 3, 2**40]), st.integers(-3, 3)), min_size=1, max_size=20
    )
)
def test_group_estimators_equal_a_loop_over_groups(rows):
    groups = torch.tensor([group for group, _ in rows])
    rewards = torch.tensor([float(reward) for _, reward in rows], dtype=torch.float64)

    def spread(r):
        return len(r) > 1 and bool(r.max() > r.min())

    def z(r):
        return (r - r.mean()) / (r.std() + 1e-6) if spread(r) else 0 * r

    def loo(r):
        others = [(r.sum() - x) / (len(r) - 1) for x in r] if spread(r) else r
        return torch.stack([x - b for x, b in zip(r, others, strict=True)])

    expected = by_loop(rewards, groups, lambda r: r - r.mean() if spread(r) else 0 * r)
    torch.testing.assert_close(group_center(rewards, groups), expected, **CLOSE)
    torch.testing.assert_close(
        group_normalize(rewards, groups), by_loop(rewards, groups, z), **CLOSE
    )
    torch.testing.assert_close(
        leave_one_out(rewards, groups), by_loop(rewards, groups, loo), **CLOSE
    )


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=16), seeds)
def test_no_spread_or_no_sibling_gives_exactly_zero(ids, seed):
    """Every estimator with a group baseline, float32, equal rewards within each group."""
    groups = torch.tensor(ids)
    values = torch.randn(5, generator=torch.Generator().manual_seed(seed))
    for name, estimator in GROUPED.items():
        assert (estimator(values[groups], groups) == 0).all(), name
        alone = torch.arange(len(ids))
        assert (estimator(torch.randn(len(ids)), alone) == 0).all(), name
    binary = (values > 0).float()[groups]
    assert (max_rl(binary, groups) == 0).all()
    assert (batch_mean_baseline(values[:1].expand(len(ids))) == 0).all()


@pytest.mark.parametrize("name", sorted(GROUPED.keys() - {"opo"}))
@FEW
@given(seed=seeds)
def test_permuting_sequences_permutes_advantages(name, seed):
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(9, generator=g, dtype=torch.float64)
    groups, order = torch.randint(0, 3, (9,), generator=g), torch.randperm(9, generator=g)
    direct = GROUPED[name](rewards, groups)[order]
    torch.testing.assert_close(GROUPED[name](rewards[order], groups[order]), direct, **CLOSE)


@pytest.mark.parametrize(
    "estimator", [group_center, leave_one_out, group_normalize, batch_normalize]
)
def test_a_constant_added_to_all_rewards_of_a_prompt_is_invisible(estimator):
    rewards = torch.tensor([1.0, 0, 0, 3, 1, 2], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    shifted = rewards + torch.tensor([100.0, -7.0], dtype=torch.float64)[groups]
    torch.testing.assert_close(estimator(shifted, groups), estimator(rewards, groups))


def test_ema_baseline_uses_earlier_batches_only():
    ema = EMABaseline(decay=0.5)
    assert ema(torch.tensor([1.0, 3.0])).tolist() == [1, 3]
    assert ema.value == 1.0
    assert ema(torch.tensor([1.0, 5.0])).tolist() == [0, 4]
    assert ema.value == 2.0
    assert METHODS["reinforce_ema"].new_advantage() is not METHODS["reinforce_ema"].new_advantage()


def test_gpg_averages_over_the_groups_that_carry_signal():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 1, 0, 0]).double()
    groups = torch.tensor([1, 1, 1, 1, 2, 2, 3, 3, 4, 4])
    ours = gpg(rewards, groups)  # 4 groups, 3 without spread
    torch.testing.assert_close(ours, 4 * group_center(rewards, groups))
    assert (gpg(torch.ones(4), torch.tensor([0, 0, 1, 1])) == 0).all()


def test_reinforce_plus_plus_is_white_over_the_tokens_it_trains():
    batch = random_batch(8)
    mask, rewards = batch["mask"], batch["advantages"]
    white = reinforce_plus_plus(rewards, batch["groups"], mask)
    assert float(white[mask].mean()) == pytest.approx(0, abs=1e-12)
    assert float(white[mask].var(correction=0)) == pytest.approx(1, abs=1e-6)
    assert (white[~mask] == 0).all()


# GAE and the critic.


def gae_by_definition(rewards, values, gamma, lam):
    """A_t = Σ_k (γλ)^k δ_{t+k} for one sequence, as a double loop."""
    steps = len(rewards)
    following = [*values[1:], 0.0]
    delta = [rewards[t] + gamma * following[t] - values[t] for t in range(steps)]
    return [sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, steps)) for t in range(steps)]


@FEW
@given(seed=seeds, gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_equals_its_definition_on_the_trained_tokens(seed, gamma, lam):
    batch = random_batch(seed)
    mask, rewards, values = batch["mask"], batch["logp"], batch["logp_old"]
    poisoned = [torch.where(mask, x, torch.nan) for x in (rewards, values)]
    advantages, returns = gae(*poisoned, mask, gamma, lam)
    for n, row in enumerate(mask):
        expected = gae_by_definition(rewards[n][row].tolist(), values[n][row].tolist(), gamma, lam)
        assert advantages[n][row].tolist() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(returns[mask], (advantages + values)[mask])
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()


def test_gae_limits():
    """λ = 1, γ = 1: reward to go minus value; λ = 0: the one-step error."""
    rewards = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, 0.25, 0.75]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert gae(rewards, values, mask, 1.0, 1.0)[0][0].tolist() == [0.5, 0.75, 0.25]
    assert gae(rewards, values, mask, 1.0, 0.0)[0][0].tolist() == [-0.25, 0.5, 0.25]


def test_value_loss_is_the_worse_of_two_errors():
    mask = torch.ones(1, 3, dtype=torch.bool)
    values = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[0.0, 0.0, 0.9]], dtype=torch.float64)
    returns = torch.tensor([[2.0, -1.0, 2.0]], dtype=torch.float64)
    loss = value_loss(values, old, returns, mask, clip=0.2)
    # moved towards the return too fast: judged at 0.2; away from it: judged where it is
    assert loss.item() == pytest.approx((1.8**2 + 2.0**2 + 1.0**2) / 2 / 3)
    loss.backward()
    assert values.grad[0].tolist() == pytest.approx([0, 2 / 3, -1 / 3])
    assert value_loss(values, old, returns, mask, clip=None).item() == pytest.approx(1.0)


def test_value_loss_ignores_padding_and_adds_up():
    batch = random_batch(6)
    mask = batch["mask"]
    tensors = [batch[k] for k in ("logp", "logp_old", "logp_ref")]
    whole = value_loss(*tensors, mask)
    poisoned = [torch.where(mask, x, torch.nan) for x in tensors]
    assert torch.equal(value_loss(*poisoned, mask), whole)
    totals = totals_of(mask)
    parts = [value_loss(*(x[r] for x in tensors), mask[r], totals=totals)
             for r in (slice(0, 2), slice(2, None))]  # fmt: skip
    torch.testing.assert_close(sum(parts), whole, **CLOSE)


# Rewards.


def test_token_rewards_sit_on_the_last_trained_token():
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()
    rewards = torch.tensor([5.0, 7.0, 9.0])
    assert token_rewards(rewards, mask).tolist() == [[0, 0, 5, 0], [0, 0, 7, 0], [0, 0, 0, 0]]
    old, ref = torch.full((3, 4), -1.0), torch.full((3, 4), -3.0)
    kl = KLPenalty("k1", 0.5, "reward")
    with_kl = token_rewards(rewards, mask, kl, old, torch.where(mask, ref, torch.nan))
    assert with_kl.tolist() == [[0, -1, 4, 0], [-1, 0, 6, 0], [0, 0, 0, 0]]
    assert torch.equal(token_rewards(rewards, mask, replace(kl, where="loss"), old, ref),
                       token_rewards(rewards, mask))  # fmt: skip


# Metrics, the table, errors.


def test_metrics_of_a_batch_worked_by_hand():
    """Ratios 1.5, .5, 1 (A = 1); 1.5, .5 (A = −1); 2 (A = 0): two gradients of five are masked."""
    ratio = torch.tensor([[1.5, 0.5, 1.0], [1.5, 0.5, 9.0], [2.0, 9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    old = torch.full_like(ratio, -3.0)
    advantages = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    method = replace(METHODS["dr_grpo"], constant=10)
    metrics = policy_loss(method, old + ratio.log(), old, advantages, mask).metrics
    assert float(metrics["clip_fraction"]) == pytest.approx(2 / 5)
    assert float(metrics["mean_weight"]) == pytest.approx((0.5 + 1.0 + 1.5 + 2.0) / 6)
    assert (float(metrics["ratio_min"]), float(metrics["ratio_max"])) == pytest.approx((0.5, 2.0))
    drift = [(r - 1) - torch.tensor(r).log().item() for r in (1.5, 0.5, 1.0, 1.5, 0.5, 2.0)]
    assert float(metrics["kl"]) == pytest.approx(sum(drift) / 6)
    assert not any(value.requires_grad for value in metrics.values())


def test_loss_keeps_the_dtype_and_advantages_get_no_gradient():
    for dtype in (torch.float32, torch.float64):
        batch = random_batch(4)
        batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        advantages = batch["advantages"].requires_grad_()
        logp = batch.pop("logp").requires_grad_()
        loss = policy_loss(METHODS["grpo"], logp, **batch)
        loss.loss.backward()
        assert loss.loss.dtype == logp.grad.dtype == dtype
        assert advantages.grad is None


def test_the_table_has_a_row_per_method_and_no_empty_cell_but_the_note():
    rows = method_table()
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert all(value for key, value in row.items() if key != "note"), row
    assert method_table_markdown().count("\n") == len(rows) + 1


def test_every_row_says_what_its_advantage_needs():
    batch = random_batch(9)
    n, mask = len(batch["advantages"]), batch["mask"]
    available = {
        "rewards": torch.arange(n).remainder(2).float(),
        "groups": batch["groups"],
        "mask": mask,
        "lengths": mask.sum(1),
        "greedy_rewards": torch.ones(n),
    }
    for method in METHODS.values():
        assert "rewards" in method.needs
        if "critic" not in method.requirements():
            advantages = compute_advantages(method.new_advantage(), **available)
            assert advantages.shape in (mask.shape, mask.shape[:1])
    critics = {m.name for m in METHODS.values() if "critic" in m.requirements()}
    greedy = {m.name for m in METHODS.values() if "greedy" in m.requirements()}
    assert (critics, greedy) == ({"ppo"}, {"remax"})
    with pytest.raises(ValueError, match="needs 'greedy_rewards'"):
        compute_advantages(greedy_baseline, rewards=torch.ones(2))


ONES = torch.ones(2, 3)
MASK = ONES.bool()
R, G = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
ERRORS = {
    "mask must be boolean": lambda: totals_of(ONES),
    "logp_old has shape": lambda: policy_loss(METHODS["ppo"], ONES, ONES[:, :2], R, MASK),
    r"advantages must be \(N,\) or \(N, T\)": lambda: policy_loss(
        METHODS["ppo"], ONES, ONES, torch.ones(3), MASK
    ),
    "pass logp_ref, or replace": lambda: policy_loss(METHODS["grpo"], ONES, ONES, R, MASK),
    "prompt_mean.* needs groups": lambda: policy_loss(METHODS["cispo"], ONES, ONES, R, MASK),
    "missing in totals": lambda: aggregate(
        ONES, MASK, "prompt_mean", G + 1, totals=totals_of(MASK, G)
    ),
    "needs constant > 0": lambda: aggregate(ONES, MASK, "constant"),
    "unknown aggregation": lambda: aggregate(ONES, MASK, "mean"),
    "rewards must be floating": lambda: group_center(G, G),
    r"rewards must be \(N,\)": lambda: no_baseline(ONES),
    r"rewards\[1\] is nan": lambda: leave_one_out(torch.tensor([0.0, torch.nan]), G),
    "one integer prompt id per reward": lambda: group_center(R, torch.tensor([0])),
    "rewards must be 0 or 1": lambda: max_rl(torch.tensor([-1.0, 1.0]), G),
    "greedy_rewards has shape": lambda: greedy_baseline(R, torch.ones(3)),
    "population must be": lambda: batch_normalize(R, G, population="batch"),
    "baseline must be": lambda: reinforce_plus_plus(R, G, MASK, baseline="mean"),
    "form must be": lambda: max_rl(R, G, form="9"),
    "gradient must be": lambda: sequence_ratio(ONES, ONES, MASK, gradient="none"),
    "kind must be one of": lambda: kl_estimate(ONES, ONES, "k4"),
    "KLPenalty.where: .*'loss' or 'reward', got 'advantage'": lambda: KLPenalty(where="advantage"),
    "beta must be": lambda: KLPenalty(beta=-0.1),
    "decay must lie": lambda: EMABaseline(decay=1.0),
    "0 < cache": lambda: overlong_penalty(torch.tensor([3]), 10, 11),
    "needs logp_old and logp_ref": lambda: token_rewards(R, MASK, KLPenalty(where="reward")),
    "ratio 'tokens' is unknown": lambda: Method("x", "", no_baseline, ratio="tokens"),
    "aggregation 'mean' is unknown": lambda: Method("x", "", no_baseline, aggregation="mean"),
    'RatioClip needs ratio="token"': lambda: Method("x", "", no_baseline, trust_region=RatioClip()),
}  # fmt: skip


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_the_thing_and_the_fix(message):
    with pytest.raises((ValueError, TypeError), match=message):
        ERRORS[message]()
