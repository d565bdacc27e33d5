"""Worlds of other libraries, played unchanged; each against its wheel where that is installed.

Turn by turn, without a model: what the policy says is given, what comes back is looked at. `make
worlds` runs this in environments with openenv and with verifiers, which cannot share one.
"""

import threading
import time
from random import Random

import pytest

from rlbook.tasks import Environment, Message, Problem, Reply, Session, Verdict
from rlbook.tasks.adapters import (
    hermes_calls,
    openenv_world,
    skyrl_world,
    textarena_world,
    trl_world,
    verifiers_world,
)


class Guess(Session):
    """The same game in this process: a hidden number, four guesses."""

    def __init__(self, hidden, turns=4):
        self.hidden, self.left, self.found = hidden, turns, False

    def turn(self, text, finished=True):
        number = int(text) if text.isdigit() else 0
        self.left, self.found = self.left - 1, number == self.hidden
        said = "=" if self.found else "+" if number < self.hidden else "-"
        return Reply(said, self.found or not self.left, float(self.found), str(self.left))

    def verdict(self):
        return Verdict(self.found, True, None, "ok")


def played(session, lines):
    """Every reply to these lines, until the world is done."""
    replies = [session.open()]
    for line in lines:
        if replies[-1].done:
            break
        replies.append(session.turn(line, True))
    return replies


def halving(session):
    """Plays by halving 1…15; the replies."""
    low, high, replies = 1, 15, [session.open()]
    while not replies[-1].done:
        middle = (low + high) // 2
        reply = session.turn(str(middle), True)
        replies.append(reply)
        said = reply.messages[0].content if reply.messages else ""
        low, high = (middle + 1, high) if "+" in said else (low, middle - 1)
    return replies


# ── TRL ───────────────────────────────────────────────────────────────────────────────────────────


class GuessEnvironment:
    """As TRL's documentation wants it for `environment_factory`."""

    def reset(self, high=47, hidden=30, **row):
        self.hidden, self.found, self.calls = hidden, False, 0
        return f" It lies between 1 and {high}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: the guess

        Returns:
            whether it is larger, smaller or right
        """
        self.calls += 1
        self.found = number == self.hidden
        return "right" if self.found else "larger" if number < self.hidden else "smaller"

    async def hint(self) -> str:
        """Ask for a hint.

        Returns:
            a hint
        """
        return "it is even"

    def get_reward(self):
        return float(self.found) - 0.1 * self.calls

    def _private(self):
        raise AssertionError("no tool")


ROWS = [
    {"prompt": [{"role": "user", "content": "Guess my number."}], "hidden": h} for h in (30, 12)
]


def call(name, arguments):
    return f"<tool_call>\n{{'name': '{name}', 'arguments': {arguments}}}\n</tool_call>".replace(
        "'", '"'
    )


def test_a_class_for_trl_is_played_unchanged():
    world = trl_world(GuessEnvironment, ROWS)
    assert isinstance(world, Environment)
    assert sorted(tool.__name__ for tool in world.tools) == ["guess", "hint"]
    (problem,) = [p for p in world.sample(0, 2) if p.meta["row"]["hidden"] == 30]
    assert problem.prompt == "Guess my number."
    lines = [
        "<think>\nthe middle\n</think>" + call("guess", "{'number': 24}") + call("gues", "{}"),
        call("hint", "{}"),
        call("guess", "{'numbers': 3}"),
        call("guess", "{'number': 30}"),
        "It is 30.",
    ]
    session = world.begin(problem, 0)
    replies = played(session, lines)
    assert replies[0].said == " It lies between 1 and 47."
    assert replies[1].messages == (
        Message("larger", "tool", "guess"),
        Message("{'error': 'Tool gues not found.'}", "tool", "gues"),
    )
    assert replies[2].messages == (Message("it is even", "tool", "hint"),)
    assert "unexpected keyword argument 'numbers'" in replies[3].messages[0].content
    assert [reply.done for reply in replies] == [False] * 5 + [True]
    verdict = session.verdict()
    assert (verdict.correct, round(verdict.score, 6)) == (True, 0.8)


def test_trl_takes_the_same_class():
    """Its own reading of the class, where the wheel is: the tools, and what the end is worth."""
    grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    assert hasattr(grpo_trainer, "EnvironmentFactory")
    import inspect

    source = inspect.getsource(grpo_trainer)
    assert "get_reward" in source and "environment_factory" in source


def test_what_is_no_call_is_no_call():
    assert hermes_calls("<tool_call>{'a'}</tool_call>") == []
    assert hermes_calls('<tool_call>{"arguments": {}}</tool_call>') == []
    thought = '<think><tool_call>{"name": "a"}</tool_call></think>'
    assert hermes_calls(thought + '<tool_call>{"name": "b"}</tool_call>') == [("b", {})]


def test_a_turn_that_was_cut_calls_nothing():
    session = trl_world(GuessEnvironment, ROWS).begin(
        Problem("x", "", "", meta={"row": ROWS[0]}), 0
    )
    session.open()
    assert session.turn(call("guess", "{'number': 30}"), False).done
    assert not session.verdict().correct


# ── OpenEnv ───────────────────────────────────────────────────────────────────────────────────────


class Result:
    def __init__(self, observation, reward, done):
        self.observation, self.reward, self.done = observation, reward, done


class Client:
    """What an OpenEnv client is, with the game behind it in this process."""

    def reset(self, hidden, **settings):
        self.game = Guess(hidden)
        return Result({"text": "", "left": "4"}, None, False)

    def step(self, action):
        reply = self.game.turn(action["text"])
        return Result({"text": reply.said, "left": reply.place}, reply.reward, reply.done)

    def close(self):
        self.game = None


def of_client(connect):
    return openenv_world(
        connect,
        [{"prompt": "15?", "hidden": hidden} for hidden in (3, 9, 5, 1)],
        act=lambda text: {"text": text},
        read=lambda seen: seen["text"],
        place=lambda seen: str(seen["left"]),
    )


def assert_plays_as_here(world):
    for problem in world.sample(1, 4):
        there, here = world.begin(problem, 0), Guess(problem.meta["row"]["hidden"])
        for ours, theirs in zip(halving(here)[1:], halving(there)[1:], strict=True):
            assert ours == theirs
        assert there.verdict().correct == here.verdict().correct is True
        there.close()


def test_a_client_of_openenv_is_a_world():
    assert_plays_as_here(of_client(Client))


def test_openenv_on_loopback_plays_as_the_same_world_in_this_process():
    openenv = pytest.importorskip("openenv")
    uvicorn = pytest.importorskip("uvicorn")
    from openenv.core.env_server import Action, Observation, State
    from openenv.core.env_server import Environment as Server
    from openenv.core.env_server.http_server import create_fastapi_app

    class Said(Action):
        text: str

    class Seen(Observation):
        text: str = ""
        left: str = ""

    class Game(Server):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.now = State(episode_id=None, step_count=0)

        def reset(self, seed=None, episode_id=None, hidden=1, **settings):
            self.game = Guess(hidden)
            return Seen(left="4", done=False, reward=None)

        def step(self, action, timeout_s=None, **settings):
            reply = self.game.turn(action.text)
            return Seen(text=reply.said, left=reply.place, done=reply.done, reward=reply.reward)

        @property
        def state(self):
            return self.now

    app = create_fastapi_app(Game, Said, Seen, max_concurrent_envs=8)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 120
    while not server.started and time.monotonic() < until:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]

    def connect():
        client = openenv.GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync()
        client.connect()
        return client

    try:
        assert_plays_as_here(of_client(connect))
    finally:
        server.should_exit = True
        thread.join(30)


# ── verifiers ─────────────────────────────────────────────────────────────────────────────────────


async def guessing(hidden, interaction):
    """The game as verifiers writes it: the world asks for the turns."""
    right = False
    async with interaction:
        segment = await interaction.turn()
        for _ in range(4):
            if segment.terminated:
                break
            number = int(segment.last_reply) if segment.last_reply.isdigit() else 0
            if right := number == hidden:
                break
            segment = await interaction.turn("+" if number < hidden else "-")
    interaction.trace.record_reward("found", float(right), 1.0)


class Data:
    def __init__(self, hidden):
        self.prompt_text, self.info = "15?", {"hidden": hidden}


class Asked:
    def __init__(self, hidden):
        self.data = Data(hidden)


class Driver:
    """What an `Env` of verifiers is: `run(task, agents)`."""

    async def run(self, task, agents):
        await guessing(task.data.info["hidden"], agents.player.interaction(task))


def assert_is_driven(env, tasks):
    world = verifiers_world(env, tasks, role="player")
    for problem in world.sample(2, len(tasks)):
        hidden = tasks[problem.meta["row"]["index"]].data.info["hidden"]
        session = world.begin(problem, 0)
        replies = halving(session)
        words = [m.content for reply in replies for m in reply.messages]
        assert set(words) <= {"+", "-"} and replies[-1].done
        assert session.verdict().score == 1.0, hidden
        session.close()


def test_a_world_that_drives_is_turned_inside_out():
    assert_is_driven(Driver(), [Asked(hidden) for hidden in (3, 9, 5, 1)])


def test_an_error_of_a_world_that_drives_is_raised_where_it_is_asked():
    class Broken:
        async def run(self, task, agents):
            await agents.player.interaction(task).turn()
            raise KeyError("a fault of the world")

    world = verifiers_world(Broken(), [Asked(1)], role="player")
    session = world.begin(*world.sample(0, 1), 0)
    session.open()
    with pytest.raises(KeyError, match="a fault of the world"):
        session.turn("7", True)
    session.close()


def test_an_env_of_verifiers_is_played_unchanged():
    vf = pytest.importorskip("verifiers.v1")

    class Info(vf.TaskData):
        info: dict

    class GuessTask(vf.Task[Info, vf.State, vf.TaskConfig]):
        pass

    class GuessSet(vf.Taskset[GuessTask, vf.TasksetConfig]):
        def load(self):
            for hidden in (3, 9, 5, 1):
                yield GuessTask(Info(prompt="15?", info={"hidden": hidden}), self.config.task)

    class GuessEnv(vf.Env[vf.EnvConfig]):
        async def run(self, task, agents):
            await guessing(task.data.info["hidden"], agents.player.interaction(task))

    tasks = list(GuessSet(vf.TasksetConfig(id="guess")))
    assert_is_driven(object.__new__(GuessEnv), tasks)  # its __init__ wants a registered taskset


# ── skyrl-gym and textarena ───────────────────────────────────────────────────────────────────────


def test_a_text_environment_of_skyrl_gym():
    pytest.importorskip("skyrl_gym")
    from skyrl_gym.envs.gsm8k.multi_turn_env import GSM8kMultiTurnEnv

    def make(row):
        truth = {"method": "rule", "ground_truth": row["answer"]}
        extras = {"reward_spec": truth, "reward_model": truth, "max_turns": 3}
        return GSM8kMultiTurnEnv(env_config={}, extras=extras | {"extra_info": {"max_turns": 3}})

    world = skyrl_world(make, [{"prompt": "3+4?", "answer": "7"}])
    session = world.begin(*world.sample(0, 1), 0)
    replies = played(session, ["let me think", "#### 7", "#### 7"])
    assert replies[-1].done and not replies[1].done
    assert all(isinstance(reply.reward, float) for reply in replies[1:])
    assert session.verdict().correct
    session.close()


def test_a_game_of_textarena_says_what_is_new():
    ta = pytest.importorskip("textarena")
    world = textarena_world(lambda: ta.make(env_id="GuessTheNumber-v0"), seeds=range(3))
    longest = []
    for number in range(8):  # the hidden number is the process's luck
        session = world.begin(*world.sample(number, 1), 0)
        guesses = Random(number).sample(range(1, 21), 20)
        replies = played(session, [f"[{guess}]" for guess in guesses])
        assert replies[-1].done
        longest.append(replies)
        verdict = session.verdict()
        assert verdict.correct == (verdict.score > 0)
    replies = max(longest, key=len)
    opening = replies[0].messages[0].content
    later = [m.content for reply in replies[2:-1] for m in reply.messages]
    assert later and all(len(text) < len(opening) for text in later)  # no history again
