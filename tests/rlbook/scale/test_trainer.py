"""The full-scale trainer on batches that are in the log already, in this process."""

import math
import random
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.durable import read_json, replace_text, write_json
from rlbook.jsonl import read_jsonl
from rlbook.paths import data_dir
from rlbook.policy import load_policy, load_tokenizer, logprobs
from rlbook.scale.batch_log import end_log, published, write_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train import checkpoint, trainer
from rlbook.scale.train.checkpoint import Checkpoints
from rlbook.scale.train.trainer import ScaleTrainer
from rlbook.tasks import Problem
from rlbook.training import Learner, Rollout, RunConfig, Trainer
from rlbook.training.checkpoint import read_state

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")

STEPS = 5


@pytest.fixture(autouse=True)
def written_at_once(monkeypatch):
    """A checkpoint is there before the next update begins, whatever the writer's thread does."""
    original = Checkpoints.begin
    monkeypatch.setattr(
        Checkpoints, "begin", lambda self, *what: (original(self, *what), self.settle())
    )


class Settings:
    policy = ""  # the folder that the fixture of this name makes


@pytest.fixture(autouse=True, scope="module")
def process_group():
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True, scope="module")
def policy(tmp_path_factory):
    """A folder with a model so small that tests are about everything else."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 4}
    model = LlamaForCausalLM(LlamaConfig(**TINY.to_dict() | sizes))
    tokenizer = load_tokenizer()
    Settings.policy = str(tmp_path_factory.mktemp("policy"))
    model.save_pretrained(Settings.policy)
    tokenizer.save_pretrained(Settings.policy)


def rollouts_of(step, groups=2, size=4):
    """Random tokens with random verdicts, in groups that have both kinds."""
    rng, found = random.Random(step), []
    for index in range(groups * size):
        tokens = [rng.randrange(4, 29) for _ in range(rng.randrange(2, 12))]
        found.append(
            Rollout(
                problem=Problem(f"p{index // size}", "1+2=?", "3"),
                group=groups * step + index // size,
                prompt_ids=[1, 9, 10],
                token_ids=tokens,
                logps=[-3.0 - rng.random() / 2 for _ in tokens],
                versions=[max(0, step - index % 3)] * len(tokens),
                finish_reason="length" if index == 3 else "stop",
                text="",
                correct=index % size < 2,
                rewards={"answer": 1.0 if index % size < 2 else -1.0},
                greedy_reward=float(index // size),
            )
        )
    return found


def settings(root, method="scalerl", every=2, **fields):
    """A run of one update a step; `fields` are settings without their section."""
    defaults = {
        "run": str(root),
        "method": method,
        "steps": STEPS,
        "policy": Settings.policy,
        "lr": 1e-3,
        "minibatches": 1,
        "micro_batch_tokens": 60,
        "checkpoint": {"every": every},
    }
    return ScaleConfig(**defaults | fields)


def run_folder(root, batches=STEPS):
    layout = Layout(root)
    root.mkdir(parents=True, exist_ok=True)
    replace_text(layout.run_id, "cafe")
    for step in range(batches):
        write_batch(layout, step, rollouts_of(step), {"step": step, "tickets": 2 * step})
    return layout


def train(root, batches=STEPS, **how):
    layout = run_folder(root, batches)
    ScaleTrainer(layout, settings(root, **how)).run()
    return layout


def rows(layout):
    return read_jsonl(layout.log("metrics"))


def final(layout, step=STEPS):
    """All tensors in a checkpoint."""
    folder = layout.checkpoints / f"step_{step:06d}"
    moments = load_file(folder / "rank_00000.safetensors")
    weights = load_file(folder / "model.safetensors")
    return moments | {f"model.{name}": weight for name, weight in weights.items()}


def weights_after(root, changes):
    trained = final(train(root, batches=2, steps=2, **changes), step=2)
    return torch.cat(
        [trained[name].flatten() for name in sorted(trained) if name.startswith("model.")]
    )


class Killed(BaseException):
    pass


def kill_at(monkeypatch, version, when="report"):
    """Let the trainer die in the update that makes this version."""
    original = getattr(ScaleTrainer, when)

    def die(self, *arguments, **named):
        if self.version == version:
            self.learner.checkpoints.thread.shutdown(cancel_futures=True)  # a kill ends it as well
            raise Killed
        return original(self, *arguments, **named)

    monkeypatch.setattr(ScaleTrainer, when, die)


CHANGED = {
    "method": {
        "name": "dapo",
        "old_logprobs": "sampler",
        "trust_region": {"low": 0.05, "high": 0.28},
        "aggregation": "sequence_mean",
        "kl": {"kind": "k2", "beta": 0.1},
        "reward_shaping": "overlong_filter",
    },
    "temperature": 0.7,
    "eps": 1e-3,
    "betas": (0.5, 0.9),
    "weight_decay": 0.3,
    "max_grad_norm": 0.1,
    "warmup": 3,
}

ORIGINAL = {
    **{"temperature": 1.0, "eps": 1e-8, "betas": (0.9, 0.95), "weight_decay": 0.0},
    **{"max_grad_norm": 1.0, "warmup": 0},
}
CORRECTED = {"method": {"name": "dapo", "sampler_correction": {"cap": 1.1}}}


TOP_K = {"name": "dppo", "old_logprobs": "recomputed", "trust_region": {"top_k": 5}}
SEVERAL = {"minibatches": 2, "epochs": 2}
LEARNED_ALIKE = {
    "scalerl": {"lr": 1.5e-4},
    "changed": CHANGED,
    "corrected": CORRECTED,
    "several updates": {"method": "grpo", **SEVERAL},
    "selection": {"method": {"name": "dapo", "selection": {"type": "TopEntropy", "share": 0.3}}},
    "entropy bonus": {"method": {"name": "dapo", "entropy_bonus": 0.05}},
    "likelihood": {"method": {"name": "dapo", "likelihood": 0.1}},
    "greedy": {"method": "remax"},
    "top-K": {"method": TOP_K, **SEVERAL},
}


@pytest.mark.parametrize("changes", LEARNED_ALIKE.values(), ids=LEARNED_ALIKE)
def test_a_row_learns_as_in_a_notebook(changes, tmp_path):
    """Whatever a run may set: what the sharded learner does with it is what one process does."""
    layout, config = train(tmp_path, **changes), settings(tmp_path, **changes)
    model, _ = load_policy(Settings.policy)
    learner = Learner(RunConfig(**config.shared()), model)
    for step, row in enumerate(rows(layout)):
        expected = learner.learn(rollouts_of(step))
        assert {k: row[k] for k in expected} == pytest.approx(
            expected, rel=1e-4, abs=1e-5, nan_ok=True
        )
        assert row["step"] == step + 1
    updates = config.optimizer.minibatches * config.optimizer.epochs
    assert read_state(tmp_path)["updates_made"] == learner.updates_made == STEPS * updates
    trained = final(layout)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[f"model.{name}"], parameter, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_changed_setting_changes_the_update(tmp_path):
    """Else the test above would hold of settings that nobody reads."""
    everything = weights_after(tmp_path / "all", CHANGED)
    method = CHANGED["method"]
    without = {name: CHANGED | {name: ORIGINAL[name]} for name in CHANGED if name != "method"}
    for name in method.keys() - {"name"}:
        kept = {k: v for k, v in method.items() if k != name}
        without[name] = CHANGED | {"method": kept}
    for name, changes in without.items():
        assert not torch.equal(weights_after(tmp_path / name, changes), everything), name
    corrected, plain = (weights_after(tmp_path / name, changes) for name, changes in (
        ("corrected", CORRECTED), ("plain", {"method": "dapo"})))  # fmt: skip
    assert not torch.equal(corrected, plain)


def test_rows_tell_staleness_and_time(tmp_path):
    layout = train(tmp_path)
    row = rows(layout)[-1]
    assert (row["staleness_min"], row["staleness_max"]) == (0, 2)
    lengths = {age: 0 for age in range(3)}
    for index, rollout in enumerate(rollouts_of(STEPS - 1)):
        lengths[index % 3] += rollout.length
    mean = sum(age * n for age, n in lengths.items()) / sum(lengths.values())
    assert row["staleness_mean"] == pytest.approx(mean)
    assert row["tokens_per_second"] > 0
    assert 0 <= row["trainer_idle"] < 1
    assert 0 < row["mfu"] < 1
    assert read_json(layout.status)["done"]
    assert read_json(layout.status)["version"] == STEPS


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "version"),
    [
        ("scalerl", 3),
        slow("scalerl", 1),
        slow("scalerl", 4),
        slow("reinforce_ema", 3),
        slow("grpo", 3),
        slow("rloo", 3),
    ],
)
def test_a_killed_trainer_ends_up_with_the_same_bits(method, version, tmp_path, monkeypatch):
    """With a method whose baseline has a memory, and with KL to a reference policy."""
    whole = train(tmp_path / "whole", method=method)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, version)
        train(tmp_path / "killed", method=method)
    layout = Layout(tmp_path / "killed")
    ScaleTrainer(layout, settings(layout.root, method=method)).run()
    got, expected = final(layout), final(whole)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    clocks = {"tokens_per_second", "trainer_idle", "train_seconds", "push_seconds", "mfu"}
    for row, other in zip(rows(layout), rows(whole), strict=True):
        for name in row.keys() - clocks:
            both_nan = math.isnan(row[name]) and math.isnan(other[name])
            assert row[name] == other[name] or both_nan, name


@pytest.mark.slow
def test_killed_while_saving_and_once_more(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole")
    layout = run_folder(tmp_path / "killed")
    for version, when in ((2, "save"), (2, "tell"), (4, "save"), (5, "save")):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(patch, version, when)
            ScaleTrainer(layout, settings(layout.root)).run()
    ScaleTrainer(layout, settings(layout.root)).run()
    assert all(torch.equal(final(layout)[k], v) for k, v in final(whole).items())
    assert [row["step"] for row in rows(layout)] == [1, 2, 3, 4, 5]


def test_batches_are_kept_until_the_oldest_checkpoint_supersedes_them(tmp_path, monkeypatch):
    layout = run_folder(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 4, "save")
        ScaleTrainer(layout, settings(tmp_path)).run()
    assert published(layout) == [2, 3, 4]
    newest = layout.checkpoints / "step_000002"
    assert read_json(newest / "orchestrator.json") == {"step": 1, "tickets": 2}
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert published(layout) == [4]  # step_000004 is kept, and may have to be trained on from
    assert read_json(layout.checkpoints / "step_000005" / "orchestrator.json")["step"] == 4


def test_a_damaged_checkpoint_costs_a_replay_and_nothing_else(tmp_path):
    undisturbed, layout = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    for one in (undisturbed, layout):
        ScaleTrainer(one, settings(one.root)).run()
    weights = [
        one.checkpoints / "step_000005" / "model.safetensors" for one in (undisturbed, layout)
    ]
    weights[1].write_bytes(weights[1].read_bytes()[:1000])
    with pytest.warns(RuntimeWarning, match="step_000005 is damaged"):
        ScaleTrainer(layout, settings(layout.root)).run()
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert [row["step"] for row in read_jsonl(layout.log("metrics"))] == [1, 2, 3, 4, 5]


class FakeWeightSync:
    slowest = 0.0
    asleep = nullcontext

    """Generators that lack weights whenever the version changes."""

    asked: list
    delivered: list

    def __init__(self, config, layout, learner):
        self.learner, self.has = learner, None

    def is_due(self, pinned=None):
        self.asked.append(self.learner.step)
        return self.learner.step != self.has

    def deliver(self):
        self.has = self.learner.step
        self.delivered.append(self.has)

    def close(self):
        pass


@pytest.fixture
def weight_sync(monkeypatch):
    monkeypatch.setattr(trainer, "WeightSync", FakeWeightSync)
    monkeypatch.setattr(FakeWeightSync, "asked", [], raising=False)
    monkeypatch.setattr(FakeWeightSync, "delivered", [], raising=False)
    return FakeWeightSync


def test_every_version_is_delivered_the_first_and_the_last_too(weight_sync, tmp_path):
    train(tmp_path)
    assert weight_sync.delivered == [0, 1, 2, 3, 4, 5]


def test_generators_are_left_alone_while_batches_are_replayed(weight_sync, tmp_path, monkeypatch):
    layout = run_folder(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 4, "save")
        ScaleTrainer(layout, settings(tmp_path)).run()
    weight_sync.asked.clear(), weight_sync.delivered.clear()
    write_json(layout.status, {"version": 4, "done": False})  # it had told the others
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert min(weight_sync.asked) == 4
    assert weight_sync.delivered == [4, 5]


def test_the_others_never_hear_of_an_older_version(weight_sync, tmp_path, monkeypatch):
    layout, told = run_folder(tmp_path), []
    write_json(layout.status, {"version": 4, "done": False})
    original = trainer.write_json
    monkeypatch.setattr(
        trainer, "write_json", lambda path, value: (told.append(value), original(path, value))
    )
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert [t["version"] for t in told] == [4, 5, 5]
    assert [t["done"] for t in told] == [False, False, True]


def test_a_log_that_lost_its_batches_does_not_keep_generators_waiting(weight_sync, tmp_path):
    """The status is ahead of what can be replayed: then the present weights have to do."""
    layout = run_folder(tmp_path, batches=2)
    write_json(layout.status, {"version": 4, "done": False})
    end_log(layout, 2, "test")
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert weight_sync.delivered == [2]


def test_the_end_of_the_log_ends_the_run(tmp_path):
    layout = run_folder(tmp_path, batches=3)
    end_log(layout, 3, "every prompt is retired")
    ScaleTrainer(layout, settings(tmp_path)).run()
    status = read_json(layout.status)
    assert (status["version"], status["done"]) == (3, True)
    assert (layout.checkpoints / "latest").read_text() == "step_000003\n"


def test_a_run_folder_is_a_policy_and_knows_its_run(tmp_path):
    layout = train(tmp_path, token="s3cret", lr=2e-3)
    model, _ = load_policy(str(tmp_path))
    trained = final(layout)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[f"model.{name}"])
    assert RunConfig(**read_state(tmp_path)["config"]).optimizer.lr == 2e-3
    with pytest.raises(ValueError, match=r"full-scale run: .*`rlbook scale .* --resume`"):
        Trainer.resume(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


def test_a_finished_run_stays_finished(tmp_path):
    layout = train(tmp_path)
    before, log = final(layout), rows(layout)
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert rows(layout) == log
    assert all(torch.equal(final(layout)[k], v) for k, v in before.items())


def test_a_failed_checkpoint_is_tried_again_and_counted(tmp_path, monkeypatch):
    original, attempts = checkpoint.save_file, []

    def full_twice(*arguments):
        attempts.append(arguments)
        if len(attempts) <= 2:
            raise OSError(28, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", full_twice)
    with pytest.warns(RuntimeWarning, match="checkpoint [23] is not written"):
        layout = train(tmp_path)
    assert [row["checkpoint_failures"] for row in rows(layout)] == [0, 0, 1, 2, 2]
    assert len(attempts) == 4  # of versions 2 to 5
    assert (layout.checkpoints / "latest").read_text() == "step_000005\n"


def test_a_last_checkpoint_that_cannot_be_written_stops_the_run_undone(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    layout = run_folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.warns(RuntimeWarning), pytest.raises(OSError, match="version 5, the last one"):
            ScaleTrainer(layout, settings(tmp_path)).run()
    assert not read_json(layout.status)["done"]
    assert published(layout) == list(range(STEPS))
    ScaleTrainer(layout, settings(tmp_path)).run()
    assert read_json(layout.status)["done"]


def test_the_learning_rate_warms_up(tmp_path):
    layout = train(tmp_path, warmup=4)
    rates = [row["learning_rate"] for row in rows(layout)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


@pytest.mark.parametrize("cap", [None, 1.0])
def test_truncated_weights_repair_the_sampler(cap, tmp_path):
    layout = run_folder(tmp_path)
    method = {"name": "dapo", "sampler_correction": cap and {"cap": cap}}
    builder = ScaleTrainer(layout, settings(tmp_path, method=method)).learner.builder
    batch = builder.make_batch(rollouts_of(0), version=0)
    model, _ = load_policy(Settings.policy)
    recomputed = logprobs(model, batch.ids, batch.mask).detach()
    torch.testing.assert_close(batch.logp_old, recomputed, rtol=0, atol=1e-5)
    if cap is None:
        assert batch.correction is None
    else:
        sampled = torch.cat([torch.tensor(r.logps) for r in rollouts_of(0)])
        ratio = (recomputed[batch.mask] - sampled).exp()
        expected = ratio.clamp(max=cap)
        torch.testing.assert_close(batch.correction[batch.mask], expected, rtol=1e-4, atol=1e-6)
        assert (ratio > cap).any()
        assert (ratio < cap).any()


def test_the_samplers_own_log_probs_are_the_anchor_where_the_method_says_so(tmp_path):
    builder = ScaleTrainer(run_folder(tmp_path), settings(tmp_path)).learner.builder
    batch = builder.make_batch(rollouts_of(0), version=0)
    sampled = torch.cat([torch.tensor(r.logps) for r in rollouts_of(0)])
    assert torch.equal(batch.logp_old[batch.mask], sampled)


def test_what_an_update_took_is_told_by_what_it_was_spent_on(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now[0])
    one, told = ScaleTrainer(run_folder(tmp_path), settings(tmp_path)), []
    one.log.close()
    one.log = told.append
    for _ in range(2):
        for name, seconds in (("wait", 2.0), ("train", 1.0), ("push", 0.25), ("wait", 0.5)):
            with one.timed(name):
                now[0] += seconds
        now[0] += 0.25
        one.report(rollouts_of(0), {})
    for row in told:
        assert (row["train_seconds"], row["push_seconds"]) == (1.0, 0.25)
        assert row["trainer_idle"] == 2.5 / 4.0
        assert row["tokens_per_second"] == sum(r.length for r in rollouts_of(0)) / 4.0
