"""The supervisor over small scripts, the run folder, the command lines."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from rlbook.durable import held, read_json, write_json
from rlbook.jsonl import read_jsonl
from rlbook.scale.batch_log import end_log
from rlbook.scale.config import LaunchConfig, ScaleConfig, load_config
from rlbook.scale.launch.commands import run_commands
from rlbook.scale.launch.processes import LOST, Command, describe_exit, start_here
from rlbook.scale.launch.start import (
    check_machine,
    launch,
    remedy,
    scale,
    status_line,
)
from rlbook.scale.launch.supervisor import Supervisor, TooManyDeaths, last_error
from rlbook.scale.layout import RESUMABLE, Layout, open_run
from rlbook.scale.plan.table import duration
from rlbook.scale.process import LAUNCHER, Heartbeat
from rlbook.training.resume import may_change

WAIT = 120.0  # seconds that a busy machine may take


def script(name, code, *arguments):
    return Command(name, [sys.executable, "-S", "-c", code, *map(str, arguments)])


def until(condition, seconds=WAIT):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def events(layout, event):
    return [row for row in read_jsonl(layout.log("events")) if row["event"] == event]


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "run")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("rlbook.scale.launch.supervisor.FIRST_DELAY", 0.01)


def supervise(layout, *commands, **limits):
    bears = LaunchConfig(**{"grace": 5.0, "max_deaths_at_update": 99, **limits})
    return Supervisor(commands, layout, bears)


def test_every_exit_before_the_end_is_a_death(layout, quick):
    """A script that exits with 0 three times, and one that is killed, go on until the end."""
    code = "import sys; open(sys.argv[1], 'a').write('x'); print('hello')"
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    marks = layout.root / "marks"
    layout.root.mkdir()
    with supervise(layout, script("early", code, marks), script("killed", killed)) as supervisor:
        supervisor.watch(lambda: marks.exists() and len(marks.read_text()) >= 4, seconds=0.02)
    reasons = {(row["process"], row["reason"]) for row in events(layout, "death")}
    assert reasons == {("early", "exit code 0"), ("killed", "killed by SIGKILL")}
    assert (layout.logs / "early.log").read_text().count("hello") >= 3
    assert (layout.logs / "early.log").read_text().count("--- ") >= 4


def test_the_end_waits_for_those_who_finish_by_themselves(layout, quick):
    """After "done" the first exits with 1 and is started again; the server never exits."""
    layout.root.mkdir()
    done, mark = layout.status, layout.root / "mark"
    ending = (
        "import os, sys\n"
        "open(sys.argv[1], 'w').close()\n"
        "first = not os.path.exists(sys.argv[2])\n"
        "open(sys.argv[2], 'w').close()\n"
        "sys.exit(first)"
    )
    trainer = replace(script("trainer", ending, done, mark), finishes=True)
    server = script("generator0", "import time; time.sleep(600)")
    with supervise(layout, server, trainer) as supervisor:
        supervisor.watch(done.exists, seconds=0.02)
        assert supervisor.process_ids().keys() == {"generator0"}
        assert not supervisor.finishing()
    assert [row["process"] for row in events(layout, "end")] == ["trainer"]
    assert [row["process"] for row in events(layout, "stop")] == ["generator0"]


def test_a_server_that_exits_after_the_end_is_not_started_again(layout):
    layout.root.mkdir()
    with supervise(layout, script("generator0", "")) as supervisor:
        supervisor.look(done=False)
        until(lambda: supervisor.watched[0].processes[0].poll() is not None)
        assert supervisor.look(done=True)
        supervisor.look(done=True)
    assert [row["event"] for row in read_jsonl(layout.log("events"))] == ["start", "end"]
    assert supervisor.deaths == 0


def test_too_many_deaths_name_the_process_and_its_last_lines(layout, quick):
    failing = script("orchestrator", "print('disk is full'); raise SystemExit(3)")
    sleeping = script("generator0", "import time; time.sleep(600)")
    with supervise(layout, sleeping, failing, max_deaths=2) as supervisor:
        with pytest.raises(TooManyDeaths, match=r"orchestrator died 3 times[\s\S]*disk is full"):
            supervisor.watch(lambda: False, seconds=0.02)
        pid = supervisor.process_ids()["generator0"]
    assert not alive(pid)
    assert len(events(layout, "death")) == 3


def test_who_hangs_is_killed_and_started_again(layout, quick):
    """It shows life once, and stops; so does its witness, which is no reason to kill the other."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from rlbook.scale.process import Heartbeat\n"
        "Heartbeat(pathlib.Path(sys.argv[1]), 0.2)()\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    stopped = script("trainer", code, layout.alive("trainer"))
    unseen = replace(script("generator0", code, layout.alive("generator0")), witness="nobody seen")
    Heartbeat(layout.alive("nobody seen"), 1.0)()
    with supervise(layout, stopped, unseen, max_deaths=20) as supervisor:
        supervisor.watch(lambda: len(events(layout, "hung")) > 1, seconds=0.02)
    assert {row["process"] for row in events(layout, "hung")} == {"trainer"}
    assert "killed by SIGKILL" in {row["reason"] for row in events(layout, "death")}


def test_who_hangs_while_it_loads_is_killed_and_started_again(layout, quick):
    stuck = script("trainer", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    with supervise(layout, stuck, loading=0.6, max_deaths=99) as supervisor:
        supervisor.watch(lambda: len(events(layout, "hung")) > 1, seconds=0.02)
    assert all("no sign of life for" in row["reason"] for row in events(layout, "hung"))
    assert "killed by SIGKILL" in {row["reason"] for row in events(layout, "death")}


def test_a_process_that_hangs_whenever_it_loads_is_given_up(layout):
    one = supervise(layout, script("x", ""), max_deaths=3, window=600.0).watched[0]
    said = []
    for now in (2000.0, 4000.0, 6000.0, 8000.0):
        one.hang(1990.0)
        said.append(one.plan_restart(now))
    assert said[:3] == [None] * 3 and "x died 4 times" in said[3]


@pytest.mark.parametrize("gap", [5, 20, 60, 75, 80, 300, 600])
@pytest.mark.parametrize("when", ["before it showed a sign of life", "at update 41"])
def test_a_crash_loop_ends_whatever_the_clock_says(gap, when, layout):
    """A trainer that loads, replays and meets the same batch again may take an hour for it."""
    one = Supervisor([script("trainer", "")], layout, LaunchConfig()).watched[0]
    lives, said = Heartbeat(layout.alive("trainer"), 600.0), []
    for death in range(3):
        one.started = gap * death
        if "update" in when:
            lives.due = 0.0
            lives()
            os.utime(lives.path, ns=(death, death))
        said.append(one.plan_restart(one.started + gap, update=41))
    assert said[:2] == [None, None] and f"trainer died 3 times {when}" in said[2]


def test_deaths_between_which_the_run_goes_on_count_by_the_clock_alone(layout):
    one = Supervisor([script("trainer", "")], layout, LaunchConfig()).watched[0]
    lives = Heartbeat(layout.alive("trainer"), 600.0)
    lives()
    for death in range(20):
        one.started = 100.0 * death
        os.utime(lives.path, ns=(death, death))
        assert one.plan_restart(one.started + 99, update=death) is None


def test_who_is_lost_with_a_machine_again_and_again_could_not_help_it(layout):
    one = Supervisor([script("trainer", "")], layout, LaunchConfig()).watched[0]
    assert [one.plan_restart(1000.0 * n, 7, LOST) for n in range(10)] == [None] * 10


def test_every_death_says_why_at_once(layout, quick, capsys):
    layout.log("metrics").parent.mkdir()
    layout.log("metrics").write_text('{"step": 40}\n')
    failing = script("trainer", "raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')")
    with (
        pytest.raises(TooManyDeaths, match="trainer died 3 times before it showed a sign"),
        supervise(layout, failing, max_deaths_at_update=3) as supervisor,
    ):
        supervisor.watch(lambda: False, seconds=0.02)
    assert supervisor.update() == 41
    words = "trainer died (exit code 1): RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    assert capsys.readouterr().err.count(words) == 3


def test_a_batch_too_large_for_the_gpu_is_answered_with_the_setting_that_helps():
    config = ScaleConfig(micro_batch_tokens=8192)
    late = TooManyDeaths("trainer died 3 times at update 41 … CUDA out of memory", "trainer")
    halved = " optimizer.micro_batch_tokens=4096"
    assert remedy(late, config) == halved + " train.activation_checkpointing=true"
    assert remedy(late, config.replace(activation_checkpointing=True)) == halved
    server = TooManyDeaths("… torch.OutOfMemoryError: CUDA out of memory", "generator0")
    assert remedy(server, config) == " generate.slots=64"
    assert remedy(TooManyDeaths("no space left on device", "trainer"), config) == ""
    world = TooManyDeaths("… scorer process died (out of memory?)", "orchestrator")
    assert remedy(world, config) == ""


def test_a_process_that_waits_for_a_machine_does_not_hang(layout, quick):
    class Waiting:
        pid, runs = None, False

        def begun(self):
            return self.runs

        def poll(self):
            return None

        def send_signal(self, number): ...

        def wait(self, seconds): ...

    waiting = Waiting()
    limits = LaunchConfig(loading=0.01)
    supervisor = Supervisor([script("x", "")], layout, limits, lambda command, logs: [waiting])
    for _ in range(5):
        supervisor.look(done=False)
        time.sleep(0.02)
    assert not events(layout, "hung")
    waiting.runs = True
    until(lambda: supervisor.look(done=False) or events(layout, "hung"))


def test_a_generator_that_keeps_dying_is_left_out_as_long_as_there_is_another(layout, quick):
    gpu = {"CUDA_VISIBLE_DEVICES": "6"}
    broken = replace(script("generator0", "raise SystemExit('bad GPU')"), spare=True, env=gpu)
    good = replace(script("generator1", "import time; time.sleep(600)"), spare=True)
    with (
        pytest.warns(RuntimeWarning, match=r"without generator0 on GPU 6: [\s\S]*bad GPU"),
        supervise(layout, broken, good, max_deaths=2) as supervisor,
    ):
        supervisor.watch(lambda: bool(events(layout, "left out")), seconds=0.02)
        assert supervisor.process_ids().keys() == {"generator1"}
    assert [row["process"] for row in events(layout, "left out")] == ["generator0"]
    alone = [replace(broken, name=f"generator{i}") for i in range(2)]
    with (
        pytest.raises(TooManyDeaths, match=r"generator. died 3 times"),
        pytest.warns(RuntimeWarning, match="without generator"),
        supervise(layout, *alone, max_deaths=2) as supervisor,
    ):
        supervisor.watch(lambda: False, seconds=0.02)


def test_restarts_wait_longer_and_longer(layout):
    one = supervise(layout, script("x", ""), max_deaths=20).watched[0]
    waits = []
    for now in (0.0, 1.0, 2.0, 3.0, 1000.0):
        one.plan_restart(now)
        waits.append(one.start_at - now)
    assert waits == [0.5, 1.0, 2.0, 4.0, 0.5]  # deaths long ago are forgiven


def test_stop_ends_the_whole_group_even_if_it_will_not(layout):
    """The script ignores SIGTERM, and so does the child it started."""
    stubborn = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "open(f'{sys.argv[1]}{os.getpid()}', 'w').close()\n"
        "time.sleep(600)"
    )
    layout.root.mkdir()
    with supervise(layout, script("s", stubborn, layout.root / "pid_"), grace=0.2) as supervisor:
        supervisor.watch(lambda: len(list(layout.root.glob("pid_*"))) == 2, seconds=0.02)
        pids = [int(path.name[4:]) for path in layout.root.glob("pid_*")]
        assert all(map(alive, pids))
    until(lambda: not any(map(alive, pids)))
    assert events(layout, "stop")[0]["code"] == -signal.SIGKILL


ORPHAN = """
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)  # the parent is gone before the child has looked
from rlbook.scale.process import die_with_parent
die_with_parent()
open(sys.argv[1], "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launched", [True, False])
def test_a_process_whose_parent_is_gone_before_it_looks_ends(launched, tmp_path, monkeypatch):
    """The orphan of a launcher ends; one that was started by hand goes on."""
    monkeypatch.delenv(LAUNCHER, raising=False)
    if launched:
        shell = subprocess.Popen([sys.executable, "-c", "pass"])
        shell.wait()
        monkeypatch.setenv(LAUNCHER, str(shell.pid))
    survived = tmp_path / "survived"
    orphan = subprocess.Popen([sys.executable, "-c", ORPHAN, str(survived)], stdout=subprocess.PIPE)
    assert orphan.stdout.read() == b""  # until the child, too, has ended
    orphan.wait()
    assert survived.exists() == (not launched)


@pytest.mark.slow
def test_processes_die_with_a_killed_supervisor(layout):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rlbook.scale.config import LaunchConfig\n"
        "from rlbook.scale.layout import Layout\n"
        "from rlbook.scale.launch.processes import Command\n"
        "from rlbook.scale.launch.supervisor import Supervisor\n"
        "sleep = Command('sleeper', [sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "Supervisor([sleep], Layout(Path(sys.argv[1])), LaunchConfig()).watch(lambda: False)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program, str(layout.root)])
    try:
        pid = until(lambda: read_json(layout.processes, {}).get("sleeper"))
        assert alive(pid)
    finally:
        supervisor.kill()
        supervisor.wait()
    until(lambda: not alive(pid))


def test_exits_in_words():
    assert describe_exit(1) == "exit code 1"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"
    assert describe_exit(LOST) == "lost, perhaps with its machine"


def test_the_last_error_of_a_log_is_shown(tmp_path):
    log = tmp_path / "trainer.log"
    error = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>']
    error.append("safetensors.SafetensorError: header too large")
    log.write_text("\n".join(["line"] * 500 + error + ["what a library prints at its end"] * 100))
    shown = last_error(log).splitlines()
    assert shown[-3:] == error and len(shown) <= 15
    log.write_bytes(b"all is \xff well\nKilled")
    assert last_error(log) == "all is \ufffd well\nKilled"
    assert last_error(tmp_path / "never started.log") == ""
    core = "(EngineCore pid=7) ERROR 11-26 15:00:01 [core.py:1143] "
    cause = "ValueError: To serve at least one request with the model's max seq len (40960)"
    end = "RuntimeError: Engine core initialization failed. See root cause above."
    log.write_text("\n".join([core + "Traceback", core + cause, "(APIServer pid=1) x", end]))
    assert last_error(log).splitlines()[-1] == core + cause


RANK = """
import json, os, pathlib, sys, time
folder, names = pathlib.Path(sys.argv[1]), ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
row = [os.environ[name] for name in names] + [os.getpid()]
with (folder / f"rank{row[0]}").open("a") as file:
    file.write(json.dumps(row) + "\\n")
others = [folder / f"rank{other}" for other in "01"]
while not all(path.exists() and path.read_text().endswith("\\n") for path in others):
    time.sleep(0.01)
if row[0] == "1" and (folder / "rank1").read_text().count("\\n") == 1:
    raise RuntimeError("a GPU has fallen off the bus")
time.sleep(600)
"""


def test_a_gang_is_restarted_whole_and_the_guilty_rank_is_shown(layout, quick):
    """Rank 1 fails at its first start; rank 0 would wait for it for ever."""
    layout.root.mkdir()
    gang = replace(script("trainer", RANK, layout.root), ranks=2)

    def starts(rank):
        path = layout.root / f"rank{rank}"
        return [json.loads(line) for line in path.open()] if path.exists() else []

    with supervise(layout, gang) as supervisor:
        supervisor.watch(lambda: len(starts(0)) == len(starts(1)) == 2, seconds=0.02)
        first, second = zip(starts(0), starts(1), strict=True)
        assert not any(alive(pid) for *_, pid in first) and all(alive(pid) for *_, pid in second)
        named = {
            name: pid for name, (*_, pid) in zip(("trainer0", "trainer1"), second, strict=True)
        }
        assert read_json(layout.processes) == supervisor.process_ids() == named
    for (*ranks, port, _), rank in zip(first + second, "0101", strict=True):
        assert ranks == [rank, rank, "2"] and int(port) > 0
    assert first[0][3] == first[1][3] and second[0][3] == second[1][3] != first[0][3]
    (death,) = events(layout, "death")
    assert (death["process"], death["reason"]) == ("trainer", "trainer1: exit code 1")
    assert "fallen off the bus" in last_error(layout.logs / "trainer1.log")
    assert not any(alive(pid) for *_, pid in second)


def test_a_rank_that_keeps_dying_ends_the_run_with_its_own_error(layout, quick):
    code = "import os, time; time.sleep(600) if os.environ['RANK'] == '0' else 1 / 0"
    with (
        pytest.raises(TooManyDeaths, match=r"trainer died 2 times.*trainer1\.log:[\s\S]*by zero"),
        supervise(layout, replace(script("trainer", code), ranks=2), max_deaths=1) as supervisor,
    ):
        supervisor.watch(lambda: False, seconds=0.02)


def every_setting():
    """Sections and fields of the settings; a field outside of sections has an empty one."""
    for name, field in ScaleConfig.model_fields.items():
        inside = getattr(field.annotation, "model_fields", None)
        yield from ((name, one) for one in inside) if inside else [(name, "")]


class TestRunFolder:
    def config(self, layout, **settings):
        return ScaleConfig(run=str(layout.root), token="s3", **settings)

    def test_a_new_run(self, layout):
        config = self.config(layout)
        open_run(layout, config)
        assert load_config(layout.config) == config
        assert layout.config.stat().st_mode & 0o777 == 0o600
        assert layout.run_id.read_text().isalnum()

    def test_a_folder_that_is_taken(self, layout):
        open_run(layout, self.config(layout))
        with pytest.raises(ValueError, match=r"already holds a run: .*--resume.*run="):
            open_run(layout, self.config(layout))

    def test_the_generator_of_an_evaluation_that_was_is_free(self, layout):
        open_run(layout, self.config(layout))
        write_json(layout.pinned, "generator0")
        open_run(layout, self.config(layout), resume=True)
        assert not layout.pinned.exists()

    def test_nothing_to_resume(self, layout):
        with pytest.raises(ValueError, match="holds no run to resume"):
            open_run(layout, self.config(layout), resume=True)

    def test_resume_keeps_the_run_id_and_takes_what_may_change(self, layout):
        open_run(layout, self.config(layout))
        before = layout.run_id.read_text()
        write_json(layout.server("generator0"), {"url": "http://127.0.0.1:1"})
        write_json(layout.status, {"version": 60, "done": True})
        longer = self.config(
            layout, steps=90, checkpoint={"every": 5}, evaluation={"every": 3}, processes=2
        )
        open_run(layout, longer, resume=True)
        assert load_config(layout.config) == longer
        assert layout.run_id.read_text() == before
        assert not layout.server("generator0").exists()  # nobody is there any more
        assert read_json(layout.status) == {"version": 60, "done": False}
        open_run(layout, load_config(layout.config), resume=True)

    def test_resume_names_what_differs(self, layout):
        open_run(layout, self.config(layout))
        other = self.config(
            layout,
            seed=3,
            lr=1.0,
            max_staleness=2,
            budget={"mfu": 0.5},
            method={"name": "grpo", "trust_region": {"high": 0.28}},
        )
        with pytest.raises(ValueError) as error:
            open_run(layout, other, resume=True)
        message = str(error.value)
        assert "optimizer.lr was 0.00015, is 1.0" in message
        assert "method.trust_region.high was 0.2, is 0.28" in message
        assert "generate.max_staleness was 8, is 2" in message and "seed was 0, is 3" in message
        assert "mfu" not in message and str(layout.config) in message
        assert load_config(layout.config) == self.config(layout)

    def test_what_may_change_is_a_section_or_a_field(self):
        names = [f"{s}.{f}" if f else s for s, f in every_setting()]
        for name in RESUMABLE:
            assert any(other == name or other.startswith(f"{name}.") for other in names), name
        kept = {name for name in names if not may_change(name, RESUMABLE)}
        decisive = {"method", "seed", "optimizer.lr", "rollout.prompts", "data.task", "train.dtype"}
        decisive |= {"evaluation.prompts", "generate.kv", "generate.max_staleness", "model.policy"}
        assert decisive <= kept
        assert not may_change("runs", RESUMABLE)
        assert not may_change("method.steps", RESUMABLE)

    def test_one_launcher_at_a_time(self, layout):
        with (
            held(layout.root),
            pytest.raises(ValueError, match="another process is at work"),
            held(layout.root),
        ):
            pass


def test_the_progress_line():
    row = {"step": 12, "accuracy": 0.41234, "staleness_mean": 1.84, "tokens_per_second": 1950.4}
    line = status_line(row, 40, 1, 130.0)
    assert (
        line
        == "update 12/40 · accuracy 0.412 · staleness 1.8 · 1,950 tokens/s · 1 death · 2 min left"
    )
    assert status_line({}, 40, 0, None) == "waiting for the first update"
    assert status_line({"step": 3}, 40, 2, None) == "update 3/40 · 2 deaths"
    shown = [duration(s) for s in (5, 119, 121, 3_600, 7_200, 200_000)]
    assert shown == ["5 s", "119 s", "2 min", "60 min", "2.0 h", "2.3 days"]


def test_what_cannot_start_is_said_before_anything_is_written(layout, monkeypatch):
    run = str(layout.root)
    with pytest.raises(ValueError, match=r"rollout\.max_new_tokens 250: .*set 2\d\d at most"):
        launch(ScaleConfig(run=run, rollout={"max_new_tokens": 250}))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    cuda = {"device": "cuda", "processes": 2}
    with pytest.raises(ValueError, match=r"2 GPUs of 3: lower generate\.count"):
        launch(ScaleConfig(run=run, **cuda))
    monkeypatch.setattr("rlbook.scale.launch.dry_run.gpu_memory_gb", lambda config: 79.0)
    check_machine(ScaleConfig(**cuda, colocated=True))
    monkeypatch.setattr("rlbook.scale.launch.dry_run.gpu_memory_gb", lambda config: 24.0)
    with pytest.raises(
        ValueError, match=r"have 24 GB, .* set budget\.gpu_memory_gb to 24 .*dry-run"
    ):
        launch(ScaleConfig(run=run, **cuda, colocated=True))
    check_machine(ScaleConfig(**cuda, colocated=True, budget={"gpu_memory_gb": 24.5}))
    assert not layout.root.exists()


def test_several_machines_need_an_extra_that_is_named(layout, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ray not found: pip install -e '\.\[cluster\]'"):
        launch(ScaleConfig(run=str(layout.root), launch_engine="ray"))
    assert not layout.root.exists()


class TestCommands:
    def commands(self, layout, **sections):
        engine = {"engine": "builtin", "token": "s3cret", "count": 2}
        config = ScaleConfig(run=str(layout.root), generate=engine, **sections)
        return {c.name: c for c in run_commands(config, layout)}

    def test_secrets_are_not_on_command_lines(self, layout):
        commands = self.commands(layout).values()
        assert not any("s3cret" in argument for c in commands for argument in c.argv)
        assert "s3cret" in self.commands(layout)["generator0"].env.values()

    def test_generators_take_the_gpus_after_the_trainers(self, layout, monkeypatch):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        commands = self.commands(layout, device="cuda", processes=2)
        found = [commands[f"generator{i}"].env["CUDA_VISIBLE_DEVICES"] for i in (0, 1)]
        assert found == ["2", "3"]

    def test_on_a_cpu_everybody_has_one_thread(self, layout):
        assert all(c.env["OMP_NUM_THREADS"] == "1" for c in self.commands(layout).values())


class TestEndings:
    """What a shell sees of a launch whose processes are small scripts."""

    @pytest.fixture
    def config(self, layout, monkeypatch):
        monkeypatch.setattr("rlbook.scale.launch.start.check_start", lambda config: 64)
        monkeypatch.setattr("rlbook.scale.launch.supervisor.FIRST_DELAY", 0.01)
        return ScaleConfig(run=str(layout.root), steps=3, minibatches=1, launch={"max_deaths": 1})

    def run(self, monkeypatch, config, *commands):
        monkeypatch.setattr("rlbook.scale.launch.start.run_commands", lambda *arguments: commands)
        return scale(config)

    def test_a_task_that_teaches_nothing_is_a_failure(self, config, layout, monkeypatch, capsys):
        end_log(layout, 0, "accuracy 0.000 over 2,560 answers", failed=True)
        done = "import json, sys; json.dump({'version': 0, 'done': True}, open(sys.argv[1], 'w'))"
        trainer = replace(script("trainer", done, layout.status), finishes=True)
        assert self.run(monkeypatch, config, trainer) == 1
        assert "stopped: 0 steps (accuracy 0.000 over 2,560" in capsys.readouterr().err

    def test_every_start_has_a_secret_of_its_own(self, config, layout, monkeypatch, capsys):
        failing = script("orchestrator", "raise SystemExit(1)")
        self.run(monkeypatch, config, failing)
        first = load_config(layout.root).generate.token
        assert len(first) >= 32 and stat.S_IMODE(layout.config.stat().st_mode) == 0o600
        monkeypatch.setattr("rlbook.scale.launch.start.run_commands", lambda *arguments: [failing])
        assert scale(config, resume=True) == 1
        assert load_config(layout.root).generate.token not in (first, None)
        assert first not in capsys.readouterr().err

    def test_done(self, config, layout, monkeypatch, capsys):
        done = "import json, sys; json.dump({'version': 3, 'done': True}, open(sys.argv[1], 'w'))"
        trainer = replace(script("trainer", done, layout.status), finishes=True)
        server = script("generator0", "import time; time.sleep(600)")
        assert self.run(monkeypatch, config, server, trainer) == 0
        assert "done: 3 steps" in capsys.readouterr().err

    def test_too_many_deaths(self, config, layout, monkeypatch, capsys):
        failing = script("orchestrator", "raise SystemExit('no space left on device')")
        assert self.run(monkeypatch, config, failing) == 1
        said = capsys.readouterr().err
        assert "orchestrator died 2 times" in said and "no space left on device" in said
        assert f"go on with `rlbook scale {layout.config} --resume`" in said

    def test_asked_to_stop_while_a_process_starts(self, config, layout, monkeypatch, capsys):
        """It is known before the signal is heard, and so it is ended."""
        server, children = script("generator0", "import time; time.sleep(600)"), []

        def start(command, logs):
            children.extend(start_here(command, logs))
            signal.raise_signal(signal.SIGTERM)
            return children

        monkeypatch.setattr("rlbook.scale.launch.start.start_here", start)
        assert self.run(monkeypatch, config, server) == 130
        (started,) = events(layout, "start")
        assert started["pid"] == children[0].pid and not alive(children[0].pid)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_asked_to_stop(self, number, config, layout, monkeypatch, capsys):
        ask = "import os, sys, time; os.kill(int(sys.argv[1]), int(sys.argv[2])); time.sleep(600)"
        before = signal.getsignal(number)
        write_json(layout.status, {"version": 2})
        asking = script("generator0", ask, os.getpid(), int(number))
        assert self.run(monkeypatch, config, asking) == 130
        said = capsys.readouterr().err
        assert "stopped at update 2 of 3" in said and "--resume" in said
        assert signal.getsignal(number) is before
        (started,) = events(layout, "start")
        assert not alive(started["pid"])
