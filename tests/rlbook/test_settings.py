"""Every setting reaches its place: changed, it changes what it should, and nothing before that."""

import dataclasses
from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from rlbook.evaluation import evaluate_run
from rlbook.objectives import (
    KLPenalty,
    Method,
    NoTrustRegion,
    PromptFilter,
    RatioClip,
    SamplerCorrection,
    TopEntropy,
    WeightClip,
    gae,
    group_center,
    no_baseline,
)
from rlbook.tasks import Problem, Verdict
from rlbook.training import RunConfig, Trainer, dump_config
from rlbook.training.config import Section
from rlbook.training.parallel import LocalProcess

LITTLE = {"prompts": 4, "group_size": 4, "minibatches": 2, "max_new_tokens": 12, "lr": 1e-2}


def of_length(rollouts):
    return {"brevity": [-0.1 * r.length for r in rollouts]}


class Echo:
    """Problems and verdicts that no other task has."""

    name, levels = "echo", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{seed}/{i}", f"{i}={i}?", "7") for i in range(n)]

    def verify(self, problem, completion, finished=True):
        return Verdict("7" in completion, False, completion, "ok")


PLAIN = Method("plain", "-", group_center, ratio="token", trust_region=RatioClip(0.1, 0.1))
RECOMPUTED = replace(PLAIN, old_logprobs="recomputed")
CRITIC = Method("critic", "-", gae, ratio="token", trust_region=RatioClip(0.2, 0.2))
CONSTANT = replace(PLAIN, aggregation="constant")


RANK_4 = {"rank": 4}
ALPHA, QUERIES = RANK_4 | {"alpha": 1.0}, RANK_4 | {"targets": ("q_proj",)}


@dataclass(frozen=True)
class Case:
    """A changed value, the settings under which it matters, and what differs first."""

    value: object
    first: str
    base: dict = dataclasses.field(default_factory=dict)


# A step goes through rollouts, batch, update, critic and metrics; the evaluation comes last.
RUN = {
    "method": [Case(replace(PLAIN, advantage=no_baseline), "batch of step 1")],
    "steps": [Case(3, "rollouts of step 3")],
    "seed": [Case(1, "rollouts of step 1")],
    "model.policy": [Case("another folder", "rollouts of step 1")],
    "model.dtype": [Case("bfloat16", "rollouts of step 1")],
    "model.trainable_layers": [Case(1, "update of step 1")],
    "model.lora": [
        Case({"rank": 4}, "update of step 1"),
        *(
            Case(v, "update of step 1", {"lora": {"rank": 4}})
            for v in ({"rank": 8}, ALPHA, QUERIES)
        ),
    ],
    "data.task": [Case(f"{__name__}:Echo", "rollouts of step 1")],
    "data.reward": [Case(f"{__name__}:of_length", "rollouts of step 1")],
    "data.levels": [Case((1,), "rollouts of step 1")],
    "data.pool": [Case(3, "rollouts of step 1")],
    "data.retire_at": [Case(0.5, "rollouts of step 2", {"pool": 6})],
    "rollout.prompts": [Case(5, "rollouts of step 1")],
    "rollout.group_size": [Case(3, "rollouts of step 1")],
    "rollout.max_new_tokens": [Case(9, "rollouts of step 1")],
    "rollout.temperature": [Case(0.6, "rollouts of step 1")],
    "rollout.stop": [Case(("1",), "rollouts of step 1")],
    "rollout.sync_every": [Case(2, "rollouts of step 2")],
    "optimizer.lr": [Case(2e-2, "update of step 1")],
    "optimizer.warmup": [Case(8, "update of step 1")],
    "optimizer.betas": [
        Case((0.5, 0.95), "update of step 1"),
        Case((0.9, 0.5), "update of step 1"),
    ],
    "optimizer.eps": [Case(1.0, "update of step 1")],
    "optimizer.weight_decay": [Case(0.5, "update of step 1")],
    "optimizer.max_grad_norm": [Case(1e-3, "update of step 1", {"eps": 1.0})],
    "optimizer.minibatches": [Case(4, "update of step 1")],
    "optimizer.epochs": [Case(2, "update of step 1")],
    "critic.lr": [Case(2e-2, "critic of step 1", {"method": CRITIC})],
    "critic.gamma": [Case(0.9, "batch of step 1", {"method": CRITIC})],
    "critic.lam": [Case(0.9, "batch of step 1", {"method": CRITIC})],
    "critic.value_clip": [
        Case(None, "critic of step 1", {"method": CRITIC, "value_clip": 1e-3}),
        Case(1e-3, "critic of step 1", {"method": CRITIC}),
    ],
    "evaluation.every": [Case(2, "metrics of step 2")],
    "evaluation.prompts": [
        Case(5, "metrics of step 1", {"every": 1}),
        Case(5, "evaluation"),
    ],
    "evaluation.samples": [
        Case(3, "metrics of step 1", {"every": 1}),
        Case(3, "evaluation"),
    ],
}
RUN_NOTHING = {  # at this policy and this task, or ever
    "patience": "how long a silent run goes on (tests/rlbook/training/test_trainer.py)",
    "model.vocabulary": "of byte-pair vocabularies (tests/rlbook/policy/test_vocabulary.py)",
    "model.chat": "of problems that are put in a template (tests/rlbook/training/test_chat.py)",
    "data.mixture": "in the place of data.task (tests/rlbook/tasks/test_mixture.py)",
    "data.rewards": "of a mixture's parts (tests/rlbook/tasks/test_mixture.py)",
    "rollout.max_turns": "of episodes (tests/rlbook/training/test_episodes.py)",
    "rollout.turn_tokens": "of episodes (tests/rlbook/training/test_episodes.py)",
    "sinks": "who is told, not what (tests/rlbook/training/test_sinks.py)",
    "model.device": "where a run computes, not what (tests/rlbook/training/test_devices.py)",
    "optimizer.micro_batch_tokens": "how an update is cut up; its sum is the same (below)",
}

METHOD = {
    "advantage": [Case(no_baseline, "batch of step 1")],
    "ratio": [
        Case("sequence", "update of step 1"),
        Case("sequence_product", "update of step 1"),
        Case("none", "update of step 1", {"trust_region": NoTrustRegion()}),
    ],
    "trust_region": [
        Case(WeightClip(1.1), "update of step 1"),
        Case(RatioClip(0.1, 0.4), "update of step 1"),
    ],
    "aggregation": [
        Case(how, "update of step 1")
        for how in ("sequence_mean", "token_mean", "prompt_mean", "constant")
    ],
    "constant": [Case(3.0, "update of step 1", {"aggregation": "constant"})],
    "kl": [
        Case(KLPenalty("k1", 0.5, "reward"), "batch of step 1"),
        Case(KLPenalty("k3", 0.5, "loss"), "batch of step 1"),
        Case(
            KLPenalty("k3", 0.1, "loss"), "update of step 1", {"kl": KLPenalty("k3", 0.5, "loss")}
        ),
    ],
    "old_logprobs": [Case("recomputed", "batch of step 2", {"sync_every": 2})],
    "sampler_correction": [
        Case(SamplerCorrection(2.0), "batch of step 1", {"old_logprobs": "recomputed"}),
        Case(
            SamplerCorrection(1.05),
            "batch of step 2",
            {
                "old_logprobs": "recomputed",
                "sampler_correction": SamplerCorrection(2.0),
                "sync_every": 2,
            },
        ),
    ],
    "selection": [Case(TopEntropy(0.3), "batch of step 1")],
    "entropy_bonus": [Case(0.5, "update of step 1")],
    "likelihood": [Case(0.5, "batch of step 1", {"aggregation": "token_mean"})],
    "reward_values": [
        Case((0.0, 2.0), "rollouts of step 1"),
        Case((-1.0, 1.0), "rollouts of step 1"),
    ],
    "format_bonus": [Case(0.3, "rollouts of step 1")],
    "reward_shaping": [
        Case("overlong", "rollouts of step 1"),
        Case("overlong_filter", "batch of step 1"),
    ],
    "overlong_cache": [Case(8, "rollouts of step 1", {"reward_shaping": "overlong"})],
    "prompt_filter": [
        Case(PromptFilter("correct"), "batch of step 1", {"group_size": 2}),
        Case(PromptFilter("correct", resample=True), "rollouts of step 1", {"group_size": 2}),
        Case(
            PromptFilter("reward"),
            "batch of step 1",
            {"group_size": 2, "prompt_filter": PromptFilter("correct"), "format_bonus": 0.3},
        ),
    ],
}
METHOD_NOTHING = {
    "name": "a label",
    "paper": "a reference",
    "note": "a remark",
}


def settings_of(kind, prefix=""):
    """Dotted names of all fields, those of the sections in place of the sections."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from settings_of(field.annotation, f"{name}.")
        else:
            yield prefix + name


def test_every_setting_of_a_run_is_in_the_table_or_said_to_decide_nothing():
    assert sorted(settings_of(RunConfig)) == sorted([*RUN, *RUN_NOTHING])


def test_every_choice_of_a_method_is_in_the_table_or_said_to_decide_nothing():
    assert sorted(f.name for f in fields(Method)) == sorted([*METHOD, *METHOD_NOTHING])


class Recorded(Trainer):
    """Keeps what every step goes through."""

    def __init__(self, config, *arguments, **seams):
        measure = evaluate_run if config.evaluation.every else None
        super().__init__(config, *arguments, evaluate=measure, **seams)
        self.seen, prepare = {}, self.learner.prepare
        self.learner.prepare = lambda *given: self.keep("batch", prepare(*given))

    def keep(self, what, batch):
        self.seen[f"{what} of step {self.step + 1}"] = batch
        return batch

    def collect(self, seed=None):
        rollouts = super().collect(seed)
        self.seen[f"rollouts of step {self.step + 1}"] = rollouts
        return rollouts

    def learn(self, rollouts):
        metrics = super().learn(rollouts)
        kept = {"update": self.model, "critic": self.learner.critic}
        for name, model in kept.items():
            if model is not None:
                weights = torch.cat([p.detach().flatten() for p in model.parameters()])
                self.seen[f"{name} of step {self.step}"] = weights
        self.seen[f"metrics of step {self.step}"] = metrics
        return metrics


def go_through(config, task):
    trainer = Recorded(config, task=task)
    for _ in trainer:
        pass
    return trainer.seen | {"evaluation": evaluate_run(trainer)}


def first_difference(one, other):
    """The first thing that is not the same in two runs, rounding apart; None if all is."""
    for name in max(one, other, key=len):
        if name not in one or name not in other or differs(one[name], other[name]):
            return name
    return None


def differs(one, other):
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape != other.shape or not torch.allclose(
            one.float(), other.float(), rtol=1e-4, atol=1e-5, equal_nan=True
        )
    if isinstance(one, float) and isinstance(other, float):
        return differs(torch.tensor(one), torch.tensor(other))
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return differs(vars(one), vars(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differs(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(differs, one, other))
    return one != other


@pytest.fixture(scope="module")
def folders(tmp_path_factory, little_policy):
    """Two Hugging Face folders with policies that differ."""
    paths = [tmp_path_factory.mktemp("policy") for _ in range(2)]
    for seed, path in enumerate(paths):
        for part in little_policy(seed):
            part.save_pretrained(path)
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def base(folders):
    """`base(**settings)`: a little run of two steps with these settings besides."""
    return lambda **settings: RunConfig(
        **{"steps": 2, "policy": folders[0], "method": PLAIN} | LITTLE | settings
    )


@pytest.fixture(scope="module")
def run(parity):
    """What a run goes through; a second run with the same settings is not made."""
    made = {}

    def remembered(config):
        key = dump_config(config)
        if key not in made:
            task = parity if config.data.task == "sums" else None
            made[key] = go_through(config, task)
        return made[key]

    return remembered


def cases(table):
    return [
        pytest.param(field, case, id=f"{field}-{number}")
        for field, several in table.items()
        for number, case in enumerate(several)
    ]


@pytest.mark.parametrize(("field", "case"), cases(RUN))
def test_a_setting_of_a_run_changes_what_it_should(field, case, base, run, folders):
    config = base(**case.base)
    value = folders[1] if field == "model.policy" else case.value
    section, _, name = field.rpartition(".")
    changed = config.replace(**{section: {name: value}} if section else {name: value})
    assert first_difference(run(config), run(changed)) == case.first


@pytest.mark.parametrize(("field", "case"), cases(METHOD))
def test_a_choice_of_a_method_changes_what_it_should(field, case, base, run):
    row = {key: value for key, value in case.base.items() if key in METHOD}
    others = {key: value for key, value in case.base.items() if key not in METHOD}
    method = replace(PLAIN, **row)
    changed = replace(method, **{field: case.value})
    found = first_difference(
        run(base(method=method, **others)), run(base(method=changed, **others))
    )
    assert found == case.first


@pytest.mark.parametrize("field", METHOD_NOTHING)
def test_labels_of_a_method_change_nothing(field, base, run):
    renamed = replace(PLAIN, **{field: "another"})
    assert first_difference(run(base()), run(base(method=renamed))) is None


@pytest.mark.parametrize("method", [PLAIN, CRITIC])
def test_the_same_settings_give_the_same_run(method, base, run, parity):
    """Else the differences above would say nothing."""
    config = base(method=method, sync_every=2, every=1)
    assert first_difference(run(config), go_through(config, parity)) is None


@pytest.mark.parametrize("tokens", [1, 64, 10_000])
def test_no_forward_pass_is_wider_than_micro_batch_tokens(
    tokens, little_policy, parity, little, monkeypatch
):
    """A row that is longer than that goes alone."""
    sizes = []

    def watch(self, score, model, ids, *rest, **options):
        sizes.append(ids.numel() if len(ids) > 1 else 0)
        return call(self, score, model, ids, *rest, **options)

    call = LocalProcess.call
    monkeypatch.setattr(LocalProcess, "call", watch)
    config = RunConfig(method=PLAIN, **little, micro_batch_tokens=tokens)
    Trainer(config, little_policy(), task=parity).train_one()
    assert max(sizes) <= tokens
    assert (len(sizes) == 2) == (tokens == 10_000)  # one for each minibatch


def test_the_old_log_probs_are_those_that_the_row_names(little_policy, parity, little):
    """At the second step of a sampler that is synced every second step, both are far apart."""
    for method, recomputed in ((PLAIN, False), (RECOMPUTED, True)):
        trainer = Trainer(
            RunConfig(method=method, sync_every=2, **little), little_policy(), task=parity
        )
        trainer.train_one()
        rollouts = trainer.collect()
        batch = trainer.learner.prepare(rollouts)
        reported = torch.cat([torch.tensor(r.logps) for r in rollouts])
        now = trainer.learner.logprobs(batch)[batch.mask]
        assert (now - reported).abs().mean() > 0.1
        expected = now if recomputed else reported
        torch.testing.assert_close(batch.logp_old[batch.mask], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(batch.logp_sampler[batch.mask], reported, rtol=0, atol=1e-5)


def loss_of_one_update(method, policy, task, settings):
    trainer = Trainer(RunConfig(method=method, **settings | {"minibatches": 1}), policy, task=task)
    return trainer.train_one()["loss"]


def test_the_loss_is_divided_by_the_constant_of_the_row(little_policy, parity, little):
    """None is the limit of 12 tokens. The first update is on-policy: loss = −Σ A / (N·constant)."""
    none, five, twenty = (
        loss_of_one_update(
            replace(CONSTANT, advantage=no_baseline, constant=c), little_policy(), parity, little
        )
        for c in (None, 5.0, 20.0)
    )
    assert five == pytest.approx(4 * twenty, rel=1e-4)
    assert none == pytest.approx(5 / 12 * five, rel=1e-4)
    assert abs(five) > 0.1
