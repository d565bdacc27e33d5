"""Every row in other trainers' words: their losses have its gradient, their estimators its numbers.

Their code knows of a row nothing but the settings that `translate` writes, read by their own
parsers. What a translation calls lost has to differ, or there is no such word at all.
"""

import inspect
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlbook.interop import PEERS, BatchSizes, translate
from rlbook.interop import trl as trl_words
from rlbook.interop.fold import RowAdvantages, folded
from rlbook.objectives import (
    FIELD,
    METHODS,
    CovarianceClip,
    CovarianceKL,
    DivergencePenalty,
    KLPenalty,
    RatioClip,
    RatioWindow,
    SamplerCorrection,
    SoftGate,
    compute_advantages,
    policy_loss,
    token_rewards,
)
from rlbook.objectives.field_rows import NEW
from rlbook.objectives.shapes import expand_to_tokens

N, T, GROUP = 16, 11, 4


ALL = METHODS | FIELD
# Bounds that this batch reaches: the published ones are for mismatches a hundred times smaller.
TIGHT = {
    "tis": SamplerCorrection(1.2),
    "sequence_tis": SamplerCorrection(1.2, level="sequence"),
    "icepop": SamplerCorrection(1.5, "drop", low=0.7),
    "mis": SamplerCorrection(1.5, "drop", "sequence"),
    "geometric_mask": SamplerCorrection(1.1, "drop", "geometric"),
    "clip_cov": CovarianceClip(1.0, -0.5, 5.0),
    "kl_cov": CovarianceKL(0.05),
    "glm5": RatioWindow(0.2, 0.28),
}


def tight(row):
    """The row within the bounds of `TIGHT`, in the column that holds such a thing."""
    bound = TIGHT.get(row.name)
    kept = {c: getattr(row, c) for c in ("sampler_correction", "selection", "trust_region")}
    return replace(
        row, **{c: bound for c, held in kept.items() if bound and type(held) is type(bound)}
    )


def rows():
    """All rows without KL term and likelihood, and what one change of a row makes of it."""
    bare = {n: tight(replace(method, kl=None, likelihood=0.0)) for n, method in ALL.items()}
    grpo, dapo, dppo = bare["grpo"], bare["dapo"], bare["dppo"]
    more = {
        "sapo, other τ": replace(grpo, trust_region=SoftGate(2.0, 0.5)),
        "drpo": replace(dppo, trust_region=DivergencePenalty(0.15)),
        "dppo capped": replace(dppo, trust_region=replace(dppo.trust_region, ratio_cap=1.1)),
        "dual clip": replace(dapo, trust_region=RatioClip(0.2, 0.28, dual=3.0)),
        "k3": replace(grpo, kl=KLPenalty("k3", 0.04, gradient="naive")),
        "k3 score": replace(grpo, kl=KLPenalty("k3", 0.04, gradient="score")),
        "k2": replace(grpo, kl=KLPenalty("k2", 0.04)),
    }
    named = {name: replace(method, name=name.replace(" ", "_")) for name, method in more.items()}
    return bare | named


ROWS = rows()


def batch(seed=1, holes=True):
    """Four prompts of four answers, four policies that differ; one group is silent, one has one
    right answer."""
    draw = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    def near(logp, sd):
        noise = torch.randn(N, T, generator=draw, dtype=torch.float64)
        return (logp + sd * noise).clamp(max=-1e-2)

    mask = rand(N, T) > 0.3
    mask[:, 0] = True
    mask = mask if holes else mask.sort(1, descending=True).values
    old = -2 * rand(N, T) - 0.01
    rewards = (rand(N) > 0.5).double()
    rewards[4:8], rewards[8:12] = 0, torch.tensor([0.0, 1, 0, 0])
    return SimpleNamespace(
        mask=mask,
        groups=torch.arange(N) // GROUP,
        rewards=rewards,
        greedy=rewards.roll(1),
        values=rand(N, T),
        parts=torch.stack([rewards, rand(N)], 1),
        teacher=-2 * rand(N, T),
        old=old,
        logp=near(old, 0.5),
        sampler=near(old, 0.15),
        reference=near(old, 0.4),
        entropy=2 * rand(N, T),
    )


def advantages_of(method, b):
    """What the row makes of the batch's rewards; on-policy distillation of the teacher's."""
    rewards = b.rewards
    if method.takes_token_rewards:
        rewards = token_rewards(b.rewards, b.mask)
    if method.advantage == METHODS["opd"].advantage:
        rewards = torch.where(b.mask, b.teacher - b.logp, 0.0)
    return compute_advantages(
        method.new_advantage(),
        rewards=rewards,
        groups=b.groups,
        mask=b.mask,
        lengths=b.mask.sum(1),
        greedy_rewards=b.greedy,
        values=b.values,
        parts=b.parts,
    )


def correction_of(method, b):
    correct = method.sampler_correction
    return None if correct is None else correct(b.old, b.sampler, b.mask)


def gradient(method, b, advantages):
    """Of our loss with respect to the log-probs, 0 outside the mask."""
    logp = b.logp.clone().requires_grad_()
    picked = method.selection
    if picked is not None:
        picked = picked(b.logp, b.entropy, expand_to_tokens(advantages, b.mask), b.mask)
    loss = policy_loss(
        method.resolved(T),
        logp,
        b.old,
        advantages,
        b.mask,
        groups=b.groups,
        logp_ref=b.reference,
        correction=correction_of(method, b),
        selected=picked,
    ).loss
    return torch.autograd.grad(loss, logp)[0]


def far(ours, theirs, mask):
    """The largest difference of two gradients, in parts of the largest entry."""
    gap = torch.where(mask, ours - theirs, 0.0).abs().max()
    return float(gap / torch.where(mask, ours, 0.0).abs().max())


def verl_gradient(verl, settings, b, tokens, method):
    """Of the loss that the settings name, and of the KL term as verl's workers add it."""
    config = verl.parse(settings | {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1})
    actor = config.actor_rollout_ref.actor
    actor.strategy, actor.rollout_n = "fsdp", GROUP
    typed = verl.typed(actor)
    typed.global_batch_info["loss_scale_factor"] = actor.loss_scale_factor
    logp = b.logp.clone().requires_grad_()
    torch.manual_seed(0)
    loss, _ = verl.core.get_policy_loss_fn(actor.policy_loss.loss_mode)(
        b.old,
        logp,
        tokens,
        b.mask,
        loss_agg_mode=actor.loss_agg_mode,
        config=typed,
        rollout_is_weights=verl_weights(config, b),
    )
    if actor.use_kl_loss:
        kl = verl.core.kl_penalty(logp, b.reference, actor.kl_loss_type)
        mean = verl.core.agg_loss(kl, b.mask, actor.loss_agg_mode, **typed.global_batch_info)
        loss = loss + actor.kl_loss_coef * mean
    return torch.autograd.grad(loss, logp)[0]


def verl_weights(config, b):
    """verl's own correction of the sampler, as its settings want it."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    correction = config.algorithm.rollout_correction
    if correction.rollout_is is None:
        return None
    weights, _ = compute_rollout_correction_weights(
        b.old - b.sampler,
        b.mask,
        rollout_is=correction.rollout_is,
        rollout_is_threshold=correction.rollout_is_threshold,
    )
    return weights


def skyrl_gradient(skyrl, settings, b, tokens, method):
    config = skyrl.parse(settings).trainer.algorithm
    logp = b.logp.clone().requires_grad_()
    mask = b.mask.double()
    bounds = [(i, i + GROUP) for i in range(0, N, GROUP)]
    shared = skyrl.core.apply_loss_reduction_to_advantages_minibatch(
        tokens, mask, config.loss_reduction, 1, config.max_seq_len, bounds
    )
    old = b.logp if method.ratio == "none" else b.old  # one update per batch
    sampler = b.old if method.old_logprobs == "sampler" else b.sampler
    loss = skyrl.core.PolicyLossRegistry.get(config.policy_loss_type)
    value, _ = loss(logp, old, shared, config, mask, sampler)
    if config.use_kl_loss:
        kl = skyrl.core.compute_approx_kl(logp, b.reference, mask, config.kl_estimator_type)
        value = value + config.kl_loss_coef * skyrl.core.masked_mean(kl, mask, dim=-1).mean()
    return torch.autograd.grad(value, logp)[0]


def trl_gradient(trl, settings, b, tokens, method):
    """Of `GRPOTrainer._compute_loss`, called on a trainer that has nothing but settings."""
    config = trl.GRPOConfig(output_dir="none", report_to="none", bf16=False, **settings)
    logp = b.logp.clone().requires_grad_()
    same = SimpleNamespace(
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        pad_across_processes=lambda x, **_: x,
        reduce=lambda x, **_: x,
        num_processes=1,
        sync_gradients=True,
    )
    trainer = object.__new__(trl.GRPOTrainer)
    corrected = config.vllm_importance_sampling_correction
    vars(trainer).update(
        {name: value for name, value in vars(config).items() if not name.startswith("_")},
        args=config,
        accelerator=same,
        model=SimpleNamespace(training=True),
        epsilon_low=config.epsilon,
        epsilon_high=config.epsilon if config.epsilon_high is None else config.epsilon_high,
        use_vllm=corrected,
        max_completion_length=T if config.loss_type == "dr_grpo" else 0,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=config.entropy_coef != 0,
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, b.entropy, None),
    )
    config.steps_per_generation = 1
    inputs = {
        "prompt_ids": torch.zeros(N, 1, dtype=torch.long),
        "prompt_mask": torch.ones(N, 1, dtype=torch.long),
        "completion_ids": torch.zeros(N, T, dtype=torch.long),
        "completion_mask": b.mask.long(),
        "advantages": tokens,
        "num_items_in_batch": b.mask.sum().double(),
        "ref_per_token_logps": b.reference,
    }
    if method.ratio != "none":  # else one update per batch: π_old is the policy itself
        inputs["old_per_token_logps"] = b.old
    if corrected:
        inputs["importance_sampling_ratio"] = correction_of(method, b)
    loss = trl.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    return torch.autograd.grad(loss, logp)[0]


GRADIENTS = {"verl": verl_gradient, "skyrl": skyrl_gradient, "trl": trl_gradient}


# Columns that a loss has to do with, given the advantages.
OF_THE_LOSS = {"trust region", "KL", "selection", "sampler correction", "entropy bonus"}
# Rows and variants that a trainer's settings cannot say, whoever computes the advantages.
WITHOUT = {
    "verl": "deepseek_v32, drpo, geometric_mask, k3 score, m2po, top_entropy, topr, vespo",
    "skyrl": "clip_cov, deepseek_v32, dppo capped, dro, drpo, geometric_mask, gmpo, k3 score, "
    "kl_cov, m2po, top_entropy, topr, vespo",
    "trl": "clip_cov, dppo, dppo capped, dppo_kl, dro, drpo, geometric_mask, glm5, gmpo, k2, "
    "kl_cov, m2po, sao, topr",
}


def said(row, to, plugin=False):
    return translate(row, to, GROUP, T, plugin)


def can_say(row, to):
    return not OF_THE_LOSS & said(row, to).lost.keys()


SAID = [(to, name) for to in GRADIENTS for name, row in ROWS.items() if can_say(row, to)]
KNOWN = [
    (to, name)
    for to in ("verl", "skyrl")
    for name, row in ALL.items()
    if "advantage" not in said(row, to).lost and name not in ("opd", "sdpo")
]


@pytest.mark.parametrize("to", GRADIENTS)
def test_rows_without_a_word_are_these(to):
    unsaid = {name for name, row in ROWS.items() if not can_say(row, to)}
    assert unsaid - NEW == {*WITHOUT[to].split(", ")}


@pytest.mark.parametrize(("to", "name"), SAID)
def test_the_peers_loss_has_the_rows_gradient(request, to, name):
    library, row, b = request.getfixturevalue(to), ROWS[name], batch()
    words, advantages = said(row, to), advantages_of(row, b)
    ours = gradient(row, b, advantages)
    tokens = folded(row.resolved(T), advantages, b.mask, b.groups, words.base)
    theirs = GRADIENTS[to](library, words.settings, b, tokens, row)
    assert far(ours, theirs, b.mask) < 1e-6  # verl adds 1e-8 to what it divides by
    if "aggregation" in words.lost:
        plain = torch.where(b.mask, expand_to_tokens(advantages, b.mask), 0.0)
        theirs = GRADIENTS[to](library, words.settings, b, plain, row)
        assert far(ours, theirs, b.mask) > 1e-2


def test_a_window_of_the_samplers_ratio_is_verls_own_icepop(verl):
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    preset, words = (
        RolloutCorrectionConfig.bypass_pg_token_icepop(1.28, 0.8),
        said(ROWS["glm5"], "verl"),
    )
    prefix = "+actor_rollout_ref.actor.policy_loss.rollout_correction."
    window = {k.removeprefix(prefix): v for k, v in words.settings.items() if k.startswith(prefix)}
    assert window == {name: getattr(preset, name) for name in window} and len(window) == 4


def verl_advantages(verl, settings, b):
    """As its trainer calls them: rewards on the last token, prompts by name."""
    config = verl.parse(settings).algorithm
    estimate = verl.core.get_adv_estimator_fn(config.adv_estimator)
    offered = {
        "token_level_rewards": token_rewards(b.rewards, b.mask),
        "response_mask": b.mask.double(),
        "index": np.array([f"prompt {g}" for g in b.groups.tolist()]),
        "reward_baselines": b.greedy,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "config": config,
        "values": b.values,
        "gamma": 1.0,
        "lam": 1.0,
        "non_tensor_batch": {"answer": b.parts[:, 0].numpy(), "format": b.parts[:, 1].numpy()},
        "batch": {"prompts": torch.zeros(N, 0), "attention_mask": b.mask},
    }
    asked = inspect.signature(estimate).parameters
    return estimate(**{name: value for name, value in offered.items() if name in asked})[0]


def skyrl_advantages(skyrl, settings, b):
    config = skyrl.parse(settings).trainer.algorithm
    return skyrl.core.compute_advantages_and_returns(
        token_rewards(b.rewards, b.mask),
        b.mask.double(),
        np.array([f"prompt {g}" for g in b.groups.tolist()]),
        config.advantage_estimator,
        config,
        values=b.values,
        grpo_norm_by_std=config.grpo_norm_by_std,
    )[0]


ADVANTAGES = {"verl": verl_advantages, "skyrl": skyrl_advantages}


def own_tokens(row, b):
    tokens = expand_to_tokens(advantages_of(row, b), b.mask)
    return torch.where(b.mask, tokens, 0.0)


@pytest.mark.parametrize(("to", "name"), KNOWN)
def test_the_peers_estimator_has_the_rows_advantages(request, to, name):
    row, b = ALL[name], batch(holes=False)
    words = said(row, to)
    theirs = ADVANTAGES[to](request.getfixturevalue(to), words.settings, b)
    close = 0.01 if "advantage" in words.notes else 1e-5  # a note is a factor near 1
    assert far(own_tokens(row, b), theirs, b.mask) < close


def test_untrained_tokens_cut_a_reward_off_in_skyrl_alone(verl, skyrl):
    row, b = METHODS["reinforce_plus_plus"], batch()
    verls, skyrls = (
        far(own_tokens(row, b), ADVANTAGES[to](library, said(row, to).settings, b), b.mask)
        for to, library in (("verl", verl), ("skyrl", skyrl))
    )
    assert verls < 0.01 and skyrls > 0.5


@pytest.mark.parametrize(("to", "name"), [("verl", "gpg"), ("verl", "ppo"), ("skyrl", "ppo")])
def test_an_estimator_of_that_name_is_called_lost_where_its_numbers_differ(request, to, name):
    row, b = METHODS[name], batch()
    words = said(row, to)
    assert "advantage" in words.lost
    theirs = ADVANTAGES[to](request.getfixturevalue(to), words.settings, b)
    assert far(own_tokens(row, b), theirs, b.mask) > 0.1


def test_verls_gdpo_whitens_over_tokens_and_trls_over_answers(verl):
    """Long answers weigh more in verl's last step; sums of z-scores are the same in both."""
    row, b = ALL["gdpo"], batch(holes=False)
    keys = {"+algorithm.gdpo_reward_keys": ["answer", "format"]}
    theirs = ADVANTAGES["verl"](verl, said(row, "verl").settings | keys, b)
    tokens = own_tokens(row, b)[b.mask]
    again = torch.zeros_like(theirs)
    again[b.mask] = (tokens - tokens.mean()) / tokens.std()
    assert far(again, theirs, b.mask) < 1e-4
    assert far(own_tokens(row, b), theirs, b.mask) > 0.01


@pytest.mark.parametrize("to", ["verl", "skyrl"])
def test_the_plugin_brings_what_settings_cannot_say(request, to):
    """Registered, found by name in the settings, and equal to the row with its average folded."""
    library, b = request.getfixturevalue(to), batch()
    PEERS[to].register()
    brought = [name for name, row in ALL.items() if said(row, to, plugin=True).carried]
    assert {"scalerl", "lite_ppo", "reinforce_ema"} <= {*brought}
    for name in brought:
        row, words = ALL[name], said(ALL[name], to, plugin=True)
        wanted = folded(row, advantages_of(row, b), b.mask, b.groups, words.base)
        theirs = ADVANTAGES[to](library, words.settings, b)
        assert far(wanted, theirs, b.mask) < 1e-9, name


def test_the_plugin_remembers_what_an_estimator_remembers():
    row, b = METHODS["reinforce_ema"], batch()
    plugged, own = RowAdvantages(row, "sequence_sum"), row.new_advantage()
    for _ in range(2):
        given = plugged(token_rewards(b.rewards, b.mask), b.mask, b.groups.tolist())[0]
        wanted = torch.where(b.mask, own(b.rewards)[:, None], 0.0)
        assert torch.equal(given, wanted)


class Watched:
    """What a `GRPOTrainer` made of its rewards, batch by batch."""

    def __init__(self, library, trainer, settings, model, tokenizer, folder):
        self.rewards, self.outputs, watched = [], [], self

        def reward(completions, **_):
            draw = torch.Generator().manual_seed(len(watched.rewards))
            watched.rewards.append((torch.rand(len(completions), generator=draw) > 0.5).float())
            return watched.rewards[-1].tolist()

        class Watching(trainer):
            def _generate_and_score_completions(self, inputs):
                watched.outputs.append(super()._generate_and_score_completions(inputs))
                return watched.outputs[-1]

        from datasets import Dataset

        sizes = BatchSizes(prompts=4, group_size=GROUP, minibatches=2, micro_batch=8)
        given = settings | sizes.settings("trl")
        self.trainer = Watching(
            model=model,
            reward_funcs=reward,
            args=library.GRPOConfig(
                output_dir=str(folder), max_steps=2, use_cpu=True, bf16=False, report_to="none",
                save_strategy="no", logging_strategy="no", disable_tqdm=True, **given,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"{i}+1=" for i in range(8)]}),
            processing_class=tokenizer,
        )  # fmt: skip
        self.trainer.train()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "lite_ppo", "scalerl", "reinforce_batch_mean"])
def test_a_trl_trainer_trains_on_the_rows_advantages(trl, name, little_policy, tmp_path):
    """Two updates of a policy of one layer: of native settings, and of `row_trainer`."""
    row = replace(METHODS[name], kl=None)
    words = translate(row, "trl", GROUP, 8, plugin=True)
    kind = trl_words.row_trainer(row) if words.carried else trl.GRPOTrainer
    seen = Watched(trl, kind, words.settings, *little_policy(), tmp_path)
    output, rewards = seen.outputs[0], seen.rewards[0]
    mask = output["completion_mask"].bool()
    groups = torch.arange(len(mask)) // GROUP
    advantages = compute_advantages(row.new_advantage(), rewards=rewards, groups=groups, mask=mask)
    given = output["advantages"]
    if words.carried:
        advantages = folded(row.resolved(8), advantages, mask, groups, words.base)
        assert given.shape == mask.shape
    torch.testing.assert_close(given, advantages, rtol=1e-3, atol=1e-4)  # TRL adds 1e-4 to σ
    assert seen.trainer.state.global_step == 2


@pytest.mark.parametrize("normalized", [True, False])
def test_trls_rloo_trainer_can_divide_as_scalerl_does(trl, normalized, little_policy, tmp_path):
    """Leave-one-out is the centred reward times G/(G−1), which a deviation of advantages undoes."""
    from trl import RLOOConfig, RLOOTrainer

    library, row = SimpleNamespace(GRPOConfig=RLOOConfig), METHODS["scalerl"]
    settings = {"normalize_advantages": normalized, "max_completion_length": 8, "beta": 0.0}
    seen = Watched(library, RLOOTrainer, settings, *little_policy(), tmp_path)
    rewards = seen.rewards[0]
    groups = torch.arange(len(rewards)) // GROUP
    advantages = compute_advantages(
        row.new_advantage(), rewards=rewards, groups=groups, mask=torch.ones(len(rewards), 1).bool()
    )
    gap = (seen.outputs[0]["advantages"] - advantages).abs().max()
    assert gap < 1e-3 if normalized else gap > 0.1
