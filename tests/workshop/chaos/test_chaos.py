"""A short run under fire, and doctored runs; `python -m workshop.chaos` is the long one."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlbook.durable import checksums, damage, read_json, write_json
from rlbook.paths import data_dir
from rlbook.policy import Completion, Sampler, load_policy, load_tokenizer
from rlbook.scale.batch_log import DamagedBatch, end_log, read_batch, write_batch
from rlbook.scale.config import LaunchConfig, ScaleConfig, load_config
from rlbook.scale.launch.processes import Command
from rlbook.scale.launch.supervisor import Supervisor
from rlbook.scale.layout import Layout
from rlbook.scale.process import LAUNCHER
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.tasks import get_task
from rlbook.training.chat import Dialect
from rlbook.training.episodes import Limits, dialogue, written
from rlbook.training.judge import rollouts_of_turns
from rlbook.training.rollouts import collect_rollouts
from workshop.ch16.worlds import Guessing
from workshop.chaos import faults
from workshop.chaos.__main__ import parse
from workshop.chaos.faults import Scene
from workshop.chaos.promises import broken_promises, played_again
from workshop.chaos.report import PROMISES, ledger, markdown, report, seconds_lost
from workshop.chaos.run import Chaos, Struck
from workshop.chaos.series import costs, summary
from workshop.chaos.victims import children, is_stopped, pids_of, survivors
from workshop.shared.evidence import check_table

CONFIG = Path(__file__).parents[3] / "configs" / "cpu-tiny.yaml"
SMALL = (
    "generate.engine=builtin",
    "steps=12",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=32",
    "checkpoint.every=4",
    "evaluation.every=0",
    "launch.grace=3",
)
SLEEP = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(600)"]


@pytest.mark.slow
def test_nothing_is_lost_whoever_is_killed(tmp_path):
    """Seed 5 kills a trainer rank, a generator and the orchestrator."""
    kinds = ("kill generator", "kill orchestrator", "kill rank")
    chaos = Chaos(CONFIG, tmp_path / "run", seed=5, overrides=SMALL, faults=kinds)
    assert chaos.run(seconds=900, pause=(0.1, 0.5), patience=600, strikes=3) == []
    assert list(broken_promises(chaos.layout, chaos.kept, chaos.config)) == []
    assert sum(chaos.counts.values()) == 3
    found = report(chaos, 1.0, [], [])
    assert found["kills"] == 3 and found["replayed"] == 12
    assert "all promises kept" in markdown(found)


DYING = """
import os
from pathlib import Path

from workshop.ch16.worlds import Guessing


class Dying(Guessing):
    def begin(self, problem, seed):
        session, met = super().begin(problem, seed), Path(__file__).with_name(f"met-{seed}")
        if seed % 24 or met.exists() or "CHAOS" not in os.environ:
            return session
        met.touch()
        session.turn = lambda text, finished=True: os._exit(7)
        return session
"""


@pytest.mark.slow
def test_a_world_that_dies_costs_its_group_a_turn_and_the_run_nothing(tmp_path, monkeypatch):
    """One session in 24 ends its process when it is told something, the first time it is asked."""
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    played = ("data.task=dying:Dying", "data.levels=[3,4]", "data.pool=null", "data.retire_at=null")
    played += ("method=rloo", "rollout.turn_tokens=4")
    kinds = ("kill orchestrator",)
    chaos = Chaos(CONFIG, tmp_path / "run", seed=3, overrides=(*SMALL, *played), faults=kinds)
    with monkeypatch.context() as struck:
        struck.setenv("CHAOS", "1")
        assert chaos.run(seconds=900, pause=(0.1, 0.5), patience=600, strikes=1) == []
    assert list(broken_promises(chaos.layout, chaos.kept, chaos.config)) == []
    states = [read_batch(chaos.kept, step)[1]["statistics"] for step in range(12)]
    assert list(tmp_path.glob("met-*")) and sum(s["world_failures"] for s in states) > 0


@pytest.mark.parametrize(
    "said",
    [
        [("<eos>", "stop"), ("1 ;", "stop"), ("<eos>", "stop")],  # no guess, a guess, none again
        [("9 <eos>", "stop"), ("1 2 1 2", "length")],  # as many tokens as a turn may have
        [("9 9 ;", "stop"), ("9 9 9 <eos>", "stop")],  # no room for a third turn
    ],
)
def test_an_episode_is_played_again_whatever_ended_its_turns(said):
    tokenizer, world = load_tokenizer("tiny"), Guessing()
    config = load_config(CONFIG, ["rollout.turn_tokens=4", "rollout.max_new_tokens=9"])
    (problem,) = world.sample(0, 1)
    ids = [tokenizer.convert_tokens_to_ids(tokens.split()) for tokens, _ in said]
    spoken = iter(
        [Completion(own, [-1.0] * len(own), why) for own, (_, why) in zip(ids, said, strict=True)]
    )
    limits = Limits(9, config.rollout.max_turns, 4)
    episode = dialogue(problem, world.begin(problem, 0), Dialect.of(tokenizer, world), limits)
    turns = written(lambda asks: [next(spoken) for _ in asks], [episode])
    assert next(spoken, None) is None  # all was said
    (rollout,) = rollouts_of_turns(tokenizer, world.name, [problem], turns, 1)
    tokens, verdict = played_again(world, config, rollout, 0)
    assert tokens == rollout.token_ids and not verdict.correct


CONFIGURED = ScaleConfig(
    method="grpo", steps=2, minibatches=1, generate={"max_staleness": 1}, model={"device": "cpu"}
)
TASK = get_task(CONFIGURED.data.task)
PROBLEMS = TASK.sample(0, 6)


def rollouts(policy, *tickets):
    """Answers of the policy to each of these problems."""
    sampler, tokenizer = Sampler(policy[0], policy[1].eos_token_id), policy[1]
    return [
        rollout
        for ticket in tickets
        for rollout in collect_rollouts(
            sampler, tokenizer, TASK, [PROBLEMS[ticket]], 4, seed=ticket, first_group=ticket
        )
    ]


def state(step, next_ticket, opened, rejected=0):
    statistics = {"rejected": rejected, "late": 0, "refused_requests": 0}
    opened = {str(ticket): PROBLEMS[ticket].id for ticket in opened}
    return {"step": step, "statistics": statistics, "next_ticket": next_ticket, "open": opened}


@pytest.fixture(scope="module")
def told_run(tmp_path_factory):
    """The folder of a run of two steps, and its batches: ticket 4 was rejected, 5 is open."""
    folder = tmp_path_factory.mktemp("told")
    layout, kept = Layout(folder), Layout(folder / "kept")
    policy = load_policy("tiny")
    write_json(layout.status, {"version": 2, "done": True})
    for name in ("metrics", "rollouts"):
        rows = [{"step": step, "staleness_max": 1.0} for step in (1, 2)]
        layout.log(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_batch(kept, 0, rollouts(policy, 0, 2), state(0, 4, [1, 3]))
    write_batch(kept, 1, rollouts(policy, 1, 3), state(1, 6, [5], rejected=1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a trainer on a CPU has
    learner = ShardedLearner(CONFIGURED, layout, Ranks("cpu"))
    for step in (0, 1):
        learner.learn(read_batch(kept, step)[0])
    torch.set_num_threads(threads)
    learner.begin_save({})
    assert learner.checkpoints.settle()
    return layout


@pytest.fixture
def run(told_run, tmp_path):
    """A copy of that run to be doctored: its folder and its batches."""
    shutil.copytree(told_run.root, tmp_path / "run")
    return Layout(tmp_path / "run"), Layout(tmp_path / "run" / "kept")


def broken(run, config=CONFIGURED):
    return list(broken_promises(*run, config))


def rewrite(kept, step, change):
    """Put another batch in the place of one, whole and with its checksums."""
    rollouts, state = read_batch(kept, step)
    shutil.rmtree(kept.batch(step))
    write_batch(kept, step, *change(rollouts, state))


def test_kept_promises(run):
    assert broken(run) == []
    fates = {"rejected": 1, "late": 0, "refused_requests": 0}
    expected = {"drawn": 6, "trained": 4, **fates, "open": 1}
    assert ledger(run[1]) == {"tickets": expected, "verdicts": 16}


def test_a_run_that_ends_too_early(run):
    write_json(run[0].status, {"version": 1, "done": True})
    assert broken(run) == ["the run ends with status {'version': 1, 'done': True}"]


def test_an_end_for_want_of_prompts_is_a_legitimate_one(run):
    longer = CONFIGURED.replace(steps=9)
    assert broken(run, longer)
    end_log(run[0], 2, "all prompts are retired")
    assert broken(run, longer) == []
    end_log(run[0], 2, "no prompt has right and wrong answers", failed=True)
    assert broken(run, longer)[0].endswith("no prompt has right and wrong answers")


@pytest.mark.parametrize("steps", [[1], [1, 1, 2], [2, 1], []])
@pytest.mark.parametrize("name", ["metrics", "rollouts"])
def test_an_update_lost_repeated_or_misplaced(name, steps, run):
    rows = [{"step": step, "staleness_max": 0} for step in steps]
    run[0].log(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert broken(run) == [f"{name}.jsonl has the steps {steps}"]


def test_a_token_that_is_too_old(run):
    run[0].log("metrics").write_text(
        '{"step": 1, "staleness_max": 1}\n{"step": 2, "staleness_max": 2}\n'
    )
    assert broken(run) == ["update 2 trained tokens of staleness 2"]


def test_an_evaluation_by_two_versions(run):
    rows = [
        {"step": 0, "version_min": 0, "version_max": 0},
        {"step": 1, "set": "hard", "version_min": 1, "version_max": 2},
    ]
    run[0].log("eval").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert broken(run) == ["the evaluation of version 1 has answers by versions (1, 2)"]


def test_a_prompt_trained_twice(run):
    def again(rollouts, state):
        return [replace(r, group=2) if r.group == 3 else r for r in rollouts], state

    rewrite(run[1], 1, again)
    assert "ticket 2 is in batches 0 and 1" in broken(run)


def test_a_batch_nobody_saw(run):
    run[1].batch(1).rename(run[1].root / "elsewhere")
    assert broken(run) == ["batches [1] were never seen"]


def test_a_ticket_that_vanished(run):
    """It is neither open nor trained, and nobody counted it."""
    rewrite(run[1], 1, lambda rollouts, state: (rollouts, state | {"open": {}}))
    (problem,) = broken(run)
    assert problem.startswith("batch 1: tickets [4, 5] are neither open nor trained, and 1 were")


def test_a_ticket_that_comes_back(run):
    rewrite(run[1], 1, lambda rollouts, state: (rollouts, state | {"open": {"5": "", "0": ""}}))
    assert "batch 1: tickets [0] had left before, or were never drawn" in broken(run)


def test_an_altered_verdict(run):
    """As a verifier that failed would give it."""

    def slip(rollouts, state):
        first = rollouts[0]
        return [replace(first, correct=not first.correct), *rollouts[1:]], state

    rewrite(run[1], 0, slip)
    (problem,) = [promise for promise in broken(run) if "verdict" in promise]
    assert problem.startswith("batch 0, ticket 0: an answer to ")


@pytest.mark.parametrize(
    "change",
    [
        lambda rollouts: [replace(rollouts[0], rewards={"answer": 7.0}), *rollouts[1:]],
        lambda rollouts: rollouts[:4],
    ],
)
def test_a_batch_that_is_not_the_one_trained(run, change):
    rewrite(run[1], 0, lambda rollouts, state: (change(rollouts), state))
    found = [promise for promise in broken(run) if "is not what the batches make" in promise]
    assert found


def test_a_swapped_batch(run):
    one, other = run[1].batch(0), run[1].batch(1)
    aside = one.with_name("aside")
    for source, target in ((one, aside), (other, one), (aside, other)):
        source.rename(target)
    assert any("is not what the batches make" in promise for promise in broken(run))


def test_a_checkpoint_of_other_weights(run):
    """One bit of one number."""
    file = run[0].checkpoints / "step_000002" / "model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(torch.int32).flatten()[0] ^= 1
    save_file(tensors, file)
    assert broken(run) == [f"{name} of step 2 is not what the batches make of the first policy"]


def test_weights_that_are_not_finite(run):
    folder = run[0].checkpoints / "step_000002"
    save_file({"w": torch.tensor([1.0, torch.nan])}, folder / "rank_00000.safetensors")
    assert broken(run) == ["rank_00000.safetensors: w is not finite"]
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert broken(run) == ["no checkpoint of step 2"]


def test_a_kept_batch_that_was_damaged(run):
    (run[1].batch(0) / "rollouts.json").write_text("{}")
    (problem,) = broken(run)
    assert problem.endswith("batch_000000 is damaged (changed or missing")


def test_a_batch_written_twice_is_noticed(tmp_path):
    chaos, written = Chaos(CONFIG, tmp_path / "run", seed=0), rollouts(load_policy("tiny"), 0)
    write_batch(chaos.layout, 0, written, {})
    chaos.keep_batches()
    chaos.keep_batches()
    assert not chaos.replaced
    shutil.rmtree(chaos.layout.batch(0))
    write_batch(chaos.layout, 0, written, {})
    chaos.keep_batches()
    assert chaos.replaced == {0}


def test_survivors_are_found(tmp_path):
    sleep = [*SLEEP, str(tmp_path / "run")]
    with subprocess.Popen(sleep, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()  # before a program has started, its command line is empty
            assert survivors(tmp_path / "run") == [process.pid]
        finally:
            process.kill()
    assert survivors(tmp_path / "run") == []


def test_survivors_are_found_by_their_launcher_too(tmp_path):
    """Verifiers and engines have no folder on their command line."""
    marked = os.environ | {LAUNCHER: "123456"}
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env=marked) as process:
        try:
            process.stdout.readline()
            assert survivors(tmp_path, [123456]) == [process.pid]
            assert survivors(tmp_path, [123457]) == []
        finally:
            process.kill()


KINDS = ("generator", "engine", "orchestrator", "verifier", "rank")


def test_victims_are_our_own(tmp_path):
    """A file of process ids outlives the processes: another program may have theirs by now."""
    layout = Layout(tmp_path)
    with subprocess.Popen(SLEEP) as process:
        try:
            assert process.pid in children(os.getpid())
            write_json(layout.processes, {"generator0": process.pid, "trainer": os.getpid()})
            found = {kind: pids_of(kind, layout, process.pid) for kind in KINDS}
            assert found == {kind: [] for kind in KINDS}  # it has started nobody
            assert pids_of("launcher", layout, process.pid) == [process.pid]
            assert pids_of("generator", layout, os.getpid()) == [process.pid]
            write_json(layout.processes, {"trainer": process.pid})
            assert pids_of("rank", layout, os.getpid()) == [process.pid]
        finally:
            process.kill()


SERVER = f"""
import subprocess, sys
command = [sys.executable, "-S", "-c", {SLEEP[-1]!r}]
started = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in sys.argv[1:]]
print(*(process.pid for process in started), flush=True)
started[0].wait()
print("ended", flush=True)
started[1].wait()
"""


@pytest.fixture
def server(scene):
    """In place of a vLLM server: its process, its engine's id, and that of another child."""
    words = [sys.executable, "-S", "-c", SERVER, "VLLM::EngineCore", "resource_tracker"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        engine, helper = map(int, process.stdout.readline().split())
        write_json(scene.layout.processes, {"generator0": process.pid})
        until(lambda: pids_of("engine", scene.layout, os.getpid()))
        yield process, engine, helper
        for pid in (engine, helper):
            faults.signalled(pid, signal.SIGKILL)
        process.kill()


def test_an_engine_is_told_from_what_else_its_server_has_started(scene, server):
    """vLLM's server also has a child that looks after shared memory: nobody serves with it."""
    process, engine, helper = server
    assert set(children(process.pid)) == {engine, helper}
    assert {scene.one("engine") for _ in range(50)} == {engine}
    assert {scene.one("generator") for _ in range(50)} == {process.pid}
    write_json(scene.layout.processes, {"generator0": engine})  # a server that has none yet
    assert scene.one("engine") is None and faults.kill("engine", scene) is None


def test_an_engine_is_hung_and_killed_and_its_server_is_not(scene, server):
    """While it hangs, nobody else ends it or its server."""
    process, engine, helper = server
    assert faults.hang("engine", scene).seconds == faults.HANG_SECONDS
    until(lambda: is_stopped(engine))
    assert not is_stopped(process.pid) and not is_stopped(helper)
    assert scene.one("engine") is scene.one("generator") is None
    assert scene.one("launcher") == os.getpid()
    faults.signalled(engine, signal.SIGCONT)
    until(lambda: not is_stopped(engine))
    assert scene.one("generator") == process.pid
    faults.kill("engine", scene)
    assert process.stdout.readline() == "ended\n"
    assert children(process.pid) == [helper] and process.poll() is None
    assert faults.kill("engine", scene) is None


@pytest.fixture
def scene(run):
    """The run's batches as its log, and this process as its launcher."""
    layout, kept = run
    shutil.copytree(kept.batches, layout.batches)
    return Scene(layout, kept, os.getpid(), random.Random(0), disk=True)


@pytest.fixture
def sleeper(scene):
    """A process in the place of the orchestrator."""
    with subprocess.Popen(SLEEP) as process:
        write_json(scene.layout.processes, {"orchestrator": process.pid})
        yield process
        process.kill()


def test_a_stopped_process_goes_on(scene, sleeper):
    strike = faults.pause("orchestrator", scene)
    os.waitpid(sleeper.pid, os.WUNTRACED)
    assert is_stopped(sleeper.pid) and faults.PAUSE[0] <= strike.seconds <= faults.PAUSE[1]
    assert strike.undo() is None
    os.waitpid(sleeper.pid, os.WCONTINUED)
    assert not is_stopped(sleeper.pid)


def test_who_hangs_has_to_be_ended_by_others(scene, sleeper):
    strike = faults.hang("orchestrator", scene)
    os.waitpid(sleeper.pid, os.WUNTRACED)
    assert strike.undo() == "a orchestrator that hung for 450 s was not ended"
    assert sleeper.wait(120) == -signal.SIGKILL
    assert strike.undo() is None


def test_nobody_is_struck_who_is_not_there(scene):
    for kind in KINDS:
        assert faults.kill(kind, scene) is faults.pause(kind, scene) is None


def test_a_damaged_batch_is_restored_as_it_was(scene):
    before = checksums(scene.layout.batches)
    strike = faults.damage_batch(scene)
    assert scene.spoiled == {1}
    with pytest.raises(DamagedBatch):
        read_batch(scene.layout, 1)
    assert damage(scene.kept.batch(1)) is None  # the copy is untouched
    strike.undo()
    assert checksums(scene.layout.batches) == before and not scene.spoiled


def test_a_checkpoint_is_damaged_only_if_an_intact_one_is_left(scene):
    folder = scene.layout.checkpoints
    assert faults.damage_checkpoint(scene) is None and damage(folder / "step_000002") is None
    shutil.copytree(folder / "step_000002", folder / "step_000001")
    faults.damage_checkpoint(scene)
    assert damage(folder / "step_000002") and damage(folder / "step_000001") is None
    assert faults.damage_checkpoint(scene) is None and damage(folder / "step_000001") is None


def test_a_full_disk_takes_nothing_more_and_then_does(scene, tmp_path):
    assert faults.fill_disk(replace(scene, disk=False)) is None
    with faults.disk_of_its_own(tmp_path / "disk", megabytes=1) as missing:
        if missing:
            pytest.skip(missing)
        layout = Layout(tmp_path / "disk" / "run")
        layout.root.mkdir()
        strike = faults.fill_disk(replace(scene, layout=layout))
        with pytest.raises(OSError, match="No space"):
            write_json(layout.status, {"version": "x" * 9999})
        strike.undo()
        write_json(layout.status, {"version": "x" * 9999})
    assert not (tmp_path / "disk" / "run").exists()


def test_a_launcher_outlives_a_full_disk(scene, tmp_path):
    """It starts who has died, and says later who that is."""
    with faults.disk_of_its_own(tmp_path / "disk", megabytes=1) as missing:
        if missing:
            pytest.skip(missing)
        layout = Layout(tmp_path / "disk" / "run")
        with Supervisor([Command("sleeper", SLEEP)], layout, LaunchConfig(grace=0)) as supervisor:
            supervisor.look(done=False)
            strike = faults.fill_disk(replace(scene, layout=layout))
            (first,) = supervisor.process_ids().values()
            os.kill(first, signal.SIGKILL)
            until(
                lambda: (
                    supervisor.look(done=False) or set(supervisor.process_ids().values()) - {first}
                )
            )
            assert read_json(layout.processes) == {"sleeper": first}
            strike.undo()
            supervisor.look(done=False)
            assert read_json(layout.processes) == supervisor.process_ids()


def until(holds, seconds=120):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_spoiled_status_is_torn_or_another(scene):
    before = scene.layout.status.read_bytes()
    for _ in range(20):
        faults.damage_status(scene)
        assert scene.layout.status.read_bytes() != before or not before
        before = scene.layout.status.read_bytes()


def test_a_settings_file_may_stand_behind_its_overrides(capsys):
    words = ["steps=3", "seed=1", "--minutes", "2", str(CONFIG)]
    asked = parse(words)
    assert (asked.config, asked.settings, asked.minutes) == (CONFIG, ["steps=3", "seed=1"], 2.0)
    assert parse([str(CONFIG), "steps=3"]).config == CONFIG
    for wrong in ([str(CONFIG), "steps=3", "other.yaml"], ["nowhere.yaml"]):
        with pytest.raises(SystemExit):
            parse(wrong)
        assert "settings file" in capsys.readouterr().err


def test_the_report_counts_kills_apart_from_other_faults(run, tmp_path):
    chaos = Chaos(CONFIG, run[0].root, seed=0, overrides=["steps=2"])
    log = chaos.layout.logs / "orchestrator.log"
    log.parent.mkdir()
    log.write_text("p1: asked in vain: gone\n7 prompts were open and are asked again\n")
    chaos.layout.log("events").write_text('{"event": "death"}\n{"event": "hung"}\n')
    chaos.struck = [Struck(1.0, fault, 0) for fault in ("kill rank", "kill rank", "stop rank")]
    found = report(chaos, 2.0, ["batch 3: an answer has the verdict …"], ["fill disk (no room)"])
    assert found["faults"] == {"kill rank": 2, "stop rank": 1} and found["kills"] == 2
    assert found["ended_at"] == 2
    text = markdown(found)
    assert "2 kills, 8 prompts asked again, 1 verdicts lost, in 2 minutes." in text
    assert "# Chaos: 1 promises broken" in text and "Not done: fill disk (no room)." in text
    assert "6: 4 trained, 1 rejected, 0 late, 0 refused requests, 1 open" in text
    for promise in PROMISES:  # that is not said of a run which has broken one
        assert promise not in text and promise in markdown(found | {"broken": []})
    facts = {"commit": "abc", "versions": {"torch": "2", "vllm": "0.32"}, "seed": 0}
    text = markdown(report(chaos, 2.0, [], [], facts))
    assert "ended at update 2 of 2, on 1 generators" in text
    assert "torch 2, vllm 0.32; commit abc." in text


def test_what_a_fault_costs_is_counted_where_it_was_the_only_one():
    """An update every two seconds; a batch that lay ready hides what the second one costs."""
    updates = [2.0, 4.0, 13.0, 15.0, 17.0, 30.0, 32.0, 34.0, 50.0, 52.0]
    strikes = ((5.0, "kill rank"), (16.0, "stop rank"), (35.0, "kill rank"), (36.0, "kill rank"))
    struck = [Struck(seconds, fault, 0) for seconds, fault in strikes]
    found = seconds_lost(struck, updates)
    assert found == {
        "usual_seconds": 2.0,
        "lost": {"kill rank": [1, 7.0, 7.0], "stop rank": [1, 11.0, 11.0]},
    }
    assert seconds_lost([Struck(60.0, "kill rank", 0)], updates)["lost"] == {}  # nobody knows yet
    assert seconds_lost([], [])["lost"] == {}


def test_the_cost_of_a_fault_from_its_row_and_the_next_one():
    """An update takes two seconds; the third fault comes before the second is over."""
    rows = [
        {"seconds": "5.0", "fault": "kill rank", "version": ""},
        {"seconds": "20.0", "fault": "kill engine", "version": "3"},
        {"seconds": "50.0", "fault": "kill rank", "version": "8"},
        {"seconds": "53.0", "fault": "hang engine", "version": "8"},
        {"seconds": "90.0", "fault": "kill rank", "version": "9"},
        {"seconds": "94.0", "fault": "stop rank", "version": "12"},
        {"seconds": "99.0", "fault": "kill rank", "version": "13"},
    ]
    # 30 s with five updates; 4 s with three, which is faster than usual; 5 s with one
    assert costs(rows, 2.0) == {"kill engine": [20.0], "kill rank": [0.0], "stop rank": [3.0]}


def test_faults_that_come_alone_wait_for_an_update_that_nothing_disturbed(tmp_path):
    chaos = Chaos(CONFIG, tmp_path, 0, SMALL, faults=["stop rank", "kill rank"], alone=True)
    chaos.begin, chaos.pause = 0.0, 0.0
    assert not chaos.due(1.0)  # nothing has been made yet
    chaos.updates = [1.0, 2.0]
    assert chaos.due(3.0)
    chaos.struck.append(Struck(5.0, "stop rank", 0))
    for updates, due in (([4.0], False), ([4.0, 7.0], False), ([4.0, 7.0, 9.0], True)):
        chaos.updates = updates
        assert chaos.due(10.0) is due
    assert [next(chaos.in_turn) for _ in range(3)] == ["stop rank", "kill rank", "stop rank"]


RECORDED = data_dir() / "results" / "chaos"
WITH_VLLM = sorted(RECORDED.glob("vllm_*/"))


@pytest.mark.parametrize(
    ("folder", "name", "kills"),
    [(RECORDED, "long_run", 100), (RECORDED, "alone", 4)]
    + [(folder, "vllm_long_run", 20) for folder in WITH_VLLM],
)
def test_the_runs_that_are_told_of_are_the_ones_recorded(folder, name, kills):
    """A hundred kills and more, or each fault alone, and nothing was lost."""
    for kind in ("json", "md", "csv"):
        check_table(folder / f"{name}.{kind}")
    found = json.loads((folder / f"{name}.json").read_text())
    assert found["kills"] >= kills and found["broken"] == []
    assert found["replayed"] == found["updates"]
    drawn, *fates = found["tickets"].values()
    assert drawn == sum(fates)
    strikes = (folder / f"{name}.csv").read_text().splitlines()[1:]
    assert len(strikes) == sum(found["faults"].values())
    assert (folder / f"{name}.md").read_text().rstrip() == markdown(found)


def test_the_runs_with_vllm_lost_engines_and_had_processes_that_hung():
    """Servers, engines and trainers; the launcher ended who hung."""
    runs = [json.loads((folder / "vllm_long_run.json").read_text()) for folder in WITH_VLLM]
    faults = sum((Counter(run["faults"]) for run in runs), Counter())
    kinds = "kill engine", "kill generator", "kill rank", "hang generator", "hang engine"
    assert all(faults[kind] for kind in kinds) and sum(run["hung_ended"] for run in runs) >= 2
    assert sum(run["kills"] for run in runs) >= 100
    assert all(run["engine"] == "vllm" and run["ended_at"] == run["updates"] for run in runs)
    told = (RECORDED / "vllm.md").read_text()
    check_table(RECORDED / "vllm.md")
    assert told.rstrip() == summary(WITH_VLLM)
    assert f"| kill engine | {faults['kill engine']} |" in told
