"""A run that was saved and resumed is the run that was never interrupted."""

import copy
import functools
import math
from dataclasses import replace

import pytest
import torch

from rlbook.evaluation import evaluate_run
from rlbook.objectives import METHODS, EMABaseline, Method, RatioClip, group_center
from rlbook.policy import Sampler, load_policy
from rlbook.training import RunConfig, Trainer
from rlbook.training.checkpoint import pack_optimizer, read_state

ABLATION = replace(
    METHODS["grpo"], kl=None, trust_region=RatioClip(0.5, 0.9), aggregation="token_mean"
)


def logged(estimator):
    @functools.wraps(estimator)
    def inner(*arguments, **options):
        inner.calls += 1
        return estimator(*arguments, **options)

    inner.calls = 0
    return inner


@logged
def decorated(rewards, groups):
    return group_center(rewards, groups)


def doubled(rollouts):
    return {"twice": [2.0 * r.correct for r in rollouts]}


def halved(rollouts):
    return {"half": [0.5 * r.correct for r in rollouts]}


class Remembering:
    """An engine with weights of its own, counted."""

    def __init__(self, model, tokenizer):
        self.model, self.eos, self.loads = copy.deepcopy(model), tokenizer.eos_token_id, 0

    def load_weights(self, model):
        self.model.load_state_dict(model.state_dict())
        self.loads += 1

    def generate(self, prompts, **how):
        return Sampler(self.model, self.eos).generate(prompts, **how)


@pytest.fixture
def trainer(little_policy, parity, little):
    def make(method="grpo", tied=False, **changes):
        seams = {k: changes.pop(k) for k in ("reward", "engine") if k in changes}
        config = RunConfig(method=method, **{"steps": 4} | little | changes)
        seams |= {"task": parity, "evaluate": measure_of(config)}
        return Trainer(config, little_policy(tied=tied), **seams)

    return make


def measure_of(config):
    """A trainer's `evaluate`, where its run evaluates."""
    return evaluate_run if config.evaluation.every else None


def state_of(trained):
    """All weights and moments of a run, by name."""
    models = {"policy": trained.model, **trained.others()}
    tensors = {
        f"{name}.{key}": value
        for name, model in models.items()
        for key, value in model.state_dict().items()
    }
    for name, optimizer in trained.learner.optimizers.items():
        moments, groups = pack_optimizer(optimizer)
        tensors |= {f"{name}.{key}": value for key, value in moments.items()}
        tensors[f"{name}.rate"] = torch.tensor([group["lr"] for group in groups])
    return tensors


def assert_same_state(one, other):
    one, other = state_of(one), state_of(other)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_same_metrics(got, wanted):
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key] == value or (math.isnan(got[key]) and math.isnan(value)), key


@pytest.mark.parametrize(
    ("method", "settings", "also_kept"),
    [
        ("reinforce_ema", {}, "none"),  # the estimator's average
        ("ppo", {}, "critic"),
        ("grpo", {}, "none"),  # a reference, the policy before training
        ("grpo", {"tied": True}, "none"),
        ("grpo", {"pool": 3, "retire_at": 0.9}, "none"),
        ("rloo", {"pool": 6}, "none"),
        ("dapo", {"sync_every": 3}, "behaviour"),
        ("ppo", {"sync_every": 3, "warmup": 8, "every": 1, "samples": 2}, "behaviour critic"),
        (ABLATION, {}, "none"),
    ],
)
def test_resume_is_bit_identical(
    method, settings, also_kept, trainer, tmp_path, little_policy, parity
):
    uninterrupted = trainer(method, **settings)
    expected = list(uninterrupted)

    first = trainer(method, **settings)
    assert " ".join(sorted(first.others())) == also_kept.replace("none", "")
    half = [first.train_one(), first.train_one()]
    first.save(tmp_path)
    policy = little_policy(tied=settings.get("tied", False))
    measure = measure_of(first.config)
    second = Trainer.resume(tmp_path, policy=policy, task=parity, evaluate=measure)
    assert second.method == first.method == (METHODS.get(method) or method)
    rest = list(second)

    assert [m["step"] for m in half + rest] == [1, 2, 3, 4]
    for got, wanted in zip(half + rest, expected, strict=True):
        assert_same_metrics(got, wanted)
    assert_same_state(second, uninterrupted)


def test_the_reference_of_a_resumed_run_is_the_policy_before_training(
    trainer, tmp_path, parity, little_policy
):
    first = trainer("grpo")
    first.train_one()
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    start = little_policy()[0]
    for (name, weight), other in zip(
        second.learner.reference.named_parameters(), start.parameters(), strict=True
    ):
        assert torch.equal(weight, other), name
    assert not torch.equal(second.model.lm_head.weight, start.lm_head.weight)


@pytest.mark.parametrize("named_again", [False, True])
def test_the_reference_of_a_resumed_run_stays_though_its_run_goes_on(named_again, tmp_path):
    """The policy was another run's newest step, which by now is another one."""
    base, run = tmp_path / "base", tmp_path / "run"
    config = RunConfig(method="grpo", policy=str(base), prompts=4, group_size=2)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model, tokenizer = load_policy("tiny")
        with torch.no_grad():
            model.lm_head.weight += torch.randn_like(model.lm_head.weight)
        folder = base / f"step_{seed}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (base / "latest").write_text(f"step_{seed}\n")
        if not seed:
            started = Trainer(config)
            started.train_one()
            started.save(run)
            was = load_policy(str(folder))[0].lm_head.weight
    resumed = Trainer.resume(run, config if named_again else None)
    assert torch.equal(resumed.learner.reference.lm_head.weight, was)
    assert not torch.equal(load_policy(str(base))[0].lm_head.weight, was)


def test_a_stale_sampler_goes_on_with_the_weights_it_had(trainer, tmp_path, parity, little_policy):
    """After four steps of two updates, synced at the third, it is neither new nor as at first."""
    first = trainer("rloo", sync_every=3)
    for _ in first:
        pass
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    assert (second.source.version, second.version) == (6, 8)
    heads = [m.lm_head.weight for m in (little_policy()[0], second.model, first.source.weights)]
    assert [torch.equal(second.source.weights.lm_head.weight, head) for head in heads] == [0, 0, 1]
    assert second.source.engine.model is second.source.weights


def test_a_pool_goes_on_where_it_was(trainer, tmp_path, parity, little_policy):
    first = trainer("rloo", pool=6, retire_at=0.9)
    first.train_one()
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    assert second.source.pool.state() == first.source.pool.state()
    assert second.source.pool.drawn == 4
    assert sum(tried for _, tried in second.source.pool.memory.values()) == 16


def test_an_engine_with_weights_of_its_own_is_given_them(trainer, tmp_path, parity, little_policy):
    engine = Remembering(*little_policy(seed=1))
    first = trainer("dapo", sync_every=2, engine=engine)
    assert torch.equal(engine.model.lm_head.weight, first.model.lm_head.weight)
    loads = []
    for _ in first:
        loads.append(engine.loads)
    assert loads == [1, 2, 2, 3]
    assert torch.equal(engine.model.lm_head.weight, first.model.lm_head.weight)
    first.save(tmp_path)
    again = Remembering(*little_policy(seed=1))
    Trainer.resume(tmp_path, policy=little_policy(), task=parity, engine=again)
    assert torch.equal(again.model.lm_head.weight, engine.model.lm_head.weight)


def test_a_run_may_grow_and_be_evaluated_otherwise(trainer, tmp_path, parity, little_policy):
    first = trainer("rloo", steps=2)
    list(first)
    first.save(tmp_path)
    assert list(Trainer.resume(tmp_path, policy=little_policy(), task=parity)) == []
    longer = first.config.replace(steps=4, every=2, prompts=4)
    second = Trainer.resume(
        tmp_path, longer, policy=little_policy(), task=parity, evaluate=evaluate_run
    )
    rest = list(second)
    assert [m["step"] for m in rest] == [3, 4]
    assert "heldout" in rest[1]
    uninterrupted = trainer("rloo", steps=4)
    list(uninterrupted)
    assert_same_state(second, uninterrupted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 1e-3}, r"optimizer\.lr is 0\.01 in the run and 0\.001 here"),
        ({"critic_lr": 1e-3}, r"critic\.lr is 0\.0003 in the run and 0\.001 here"),
        ({"seed": 5}, "seed is 0 in the run and 5 here"),
        ({"method": "rloo"}, r"method\.advantage is 'group_normalize' .* 'leave_one_out' here"),
        (
            {"method": {"name": "grpo", "trust_region": {"high": 0.28}}},
            r"method\.trust_region\.high is 0\.2 in the run and 0\.28 here",
        ),
    ],
)
def test_another_run_is_refused_by_name(changes, message, trainer, tmp_path, parity, little_policy):
    first = trainer("grpo", steps=1)
    first.save(tmp_path)
    with pytest.raises(ValueError, match=f"not the same run: .*{message}") as error:
        Trainer.resume(
            tmp_path, first.config.replace(**changes), policy=little_policy(), task=parity
        )
    assert "Only steps, sinks, evaluation, model.device may change" in str(error.value)


@pytest.mark.parametrize(
    ("given", "again", "message"),
    [
        (("task", "reward"), ("reward",), "task was .*Parity in the run and is not given here"),
        (("task", "reward"), ("task",), "reward was .*doubled in the run and is not given here"),
        (("task",), ("task", "reward"), "reward was not given in the run and is .*doubled here"),
    ],
)
def test_what_a_run_was_given_has_to_be_given_again(
    given, again, message, parity, little_policy, little, tmp_path
):
    seams = {"task": parity, "reward": doubled}
    config = RunConfig(method="rloo", **little)
    Trainer(config, little_policy(), **{k: seams[k] for k in given}).save(tmp_path)
    with pytest.raises(ValueError, match=message):
        Trainer.resume(tmp_path, policy=little_policy(), **{k: seams[k] for k in again})
    with pytest.raises(ValueError, match=r"doubled in the run and is .*halved here"):
        Trainer(config, little_policy(), **seams).save(tmp_path)
        Trainer.resume(tmp_path, policy=little_policy(), task=parity, reward=halved)


def test_a_policy_that_was_given_has_to_be_given_again(trainer, tmp_path, parity, little_policy):
    """The reference model is what the run began with: another start would be another run."""
    trainer("grpo").save(tmp_path)
    with pytest.raises(ValueError, match=r"policy was .*ForCausalLM in the run and is not given"):
        Trainer.resume(tmp_path, task=parity)
    for part in little_policy():
        part.save_pretrained(tmp_path / "start")
    config = RunConfig(method="grpo", policy=str(tmp_path / "start"), minibatches=1)
    Trainer(config, task=parity).save(tmp_path / "named")
    with pytest.raises(ValueError, match=r"policy was not given in the run and is .*Llama"):
        Trainer.resume(tmp_path / "named", policy=little_policy(), task=parity)
    assert Trainer.resume(tmp_path / "named", task=parity).step == 0


def test_a_reward_given_again_goes_on(trainer, tmp_path, parity, little_policy):
    uninterrupted = trainer("rloo", reward=doubled)
    expected = list(uninterrupted)
    first = trainer("rloo", reward=doubled)
    first.train_one()
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity, reward=doubled)
    for got, wanted in zip(second, expected[1:], strict=True):
        assert_same_metrics(got, wanted)
    assert {r.rewards["twice"] for r in second.collect()} == {0.0, 2.0}


def test_a_decorated_advantage_is_saved_and_resumed(trainer, tmp_path, parity, little_policy):
    method = Method("decorated", "-", decorated)
    first = trainer(method)
    first.train_one()
    assert decorated.calls == 1
    first.save(tmp_path)
    second = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    assert second.method.advantage is decorated
    assert second.train_one()["step"] == 2


def test_the_average_of_an_estimator_is_in_the_state(trainer, tmp_path):
    first = trainer(Method("ema", "-", functools.partial(EMABaseline, decay=0.5)))
    reward = first.train_one()["reward"]
    first.save(tmp_path)
    assert read_state(tmp_path)["estimator"] == {"value": pytest.approx(reward / 2)}


def test_a_state_of_0_3_loads(trainer):
    """It called the updates made a version."""
    trained = trainer()
    trained.learner.load_state({"step": 2, "version": 8, "estimator": {}})
    assert (trained.step, trained.version, trained.learner.updates_made) == (2, 8, 8)


def test_an_interrupted_save_leaves_the_previous_checkpoint(
    trainer, tmp_path, monkeypatch, parity, little_policy
):
    trained = trainer()
    trained.train_one()
    trained.save(tmp_path)
    saved = trained.model.lm_head.weight.detach().clone()
    trained.train_one()

    def disk_full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("rlbook.training.checkpoint.os.replace", disk_full)
    with pytest.raises(OSError, match="No space"):
        trained.save(tmp_path)
    monkeypatch.undo()
    again = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    assert torch.equal(again.model.lm_head.weight, saved)
    assert again.step == 1


def test_the_newest_checkpoints_are_kept(trainer, tmp_path):
    trained = trainer("rloo")
    for _ in trained:
        trained.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert names == ["step_000003", "step_000004"]
    assert (tmp_path / "latest").read_text() == "step_000004\n"


def test_an_older_step_is_resumed_by_its_folder(trainer, tmp_path, parity, little_policy):
    trained = trainer("rloo")
    for _ in trained:
        trained.save(tmp_path)
    again = Trainer.resume(tmp_path / "step_000003", policy=little_policy(), task=parity)
    assert again.step == 3
    again.train_one()
    assert_same_state(again, trained)


def test_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        Trainer.resume(tmp_path / "nowhere")


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_is_a_hugging_face_folder(tied, trainer, tmp_path):
    trained = trainer("ppo", tied=tied, sync_every=2)
    trained.train_one()
    folder = trained.save(tmp_path)
    model, tokenizer = load_policy(str(folder))
    assert not model.training
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    ours, theirs = trained.model.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    text = "12+3=?"
    assert tokenizer(text).input_ids == trained.tokenizer(text).input_ids
    prompts = [tokenizer(text).input_ids] * 3
    for one, other in zip(
        *(
            Sampler(m, tokenizer.eos_token_id).generate(prompts, max_new_tokens=9, seed=4)
            for m in (trained.model, model)
        ),
        strict=True,
    ):
        assert one.token_ids == other.token_ids
        assert one.logps == pytest.approx(other.logps, abs=1e-4)
