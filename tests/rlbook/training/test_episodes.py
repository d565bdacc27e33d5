"""An answer in turns: one seam for a sampler, an interruption, a tool and a world with state."""

import asyncio
from dataclasses import dataclass, field, replace
from statistics import fmean

import pytest
import torch

from rlbook.objectives import METHODS
from rlbook.policy import Completion, Sampler, load_policy, load_tokenizer
from rlbook.tasks import Message, OneTurn, Problem, Reply, Session, SumsTask, Verdict
from rlbook.training import RunConfig, Trainer, collate, collect_rollouts
from rlbook.training.chat import Dialect, encode
from rlbook.training.episodes import (
    Ask,
    Limits,
    asked,
    cut_short,
    dialogue,
    in_batches,
    single,
    written,
)
from rlbook.training.metrics import rollout_metrics
from rlbook.training.packing import load_rollouts, save_rollouts


@pytest.fixture(scope="module")
def sums():
    return load_policy("tiny")


@dataclass
class Echo(Session):
    """Counts turns, and replies with how many are left."""

    left: int = 2
    heard: list[tuple[str, bool]] = field(default_factory=list)
    paid: float | None = None
    closed: bool = False

    def open(self):
        return Reply(place=f"{self.left} left")

    def turn(self, text, finished=True):
        self.heard.append((text, finished))
        self.left -= 1
        return Reply(f"{self.left}+", self.left == 0, self.paid, f"{self.left} left")

    def verdict(self):
        return Verdict(self.left == 0, True, str(len(self.heard)), "ok")

    def close(self):
        self.closed = True


@dataclass
class Echoes:
    """The environment of `Echo`: a turn ends with `;`."""

    turns: int = 2
    paid: float | None = None
    name: str = "echo"
    levels: tuple[int, ...] = (1,)
    ends: tuple[str, ...] = (";",)
    begun: list[Echo] = field(default_factory=list)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{seed}/{i}", f"{i % 9}+{seed % 9}=", "") for i in range(n)]

    def begin(self, problem, seed):
        self.begun.append(Echo(self.turns, paid=self.paid))
        return self.begun[-1]


class Scripted:
    """An engine that says these lines, one after the other, whoever asks."""

    def __init__(self, tokenizer, *lines):
        self.tokenizer, self.lines, self.asked = tokenizer, list(lines), []

    def generate(self, prompts, *, n, max_new_tokens, temperature, seed, stop=()):
        self.asked += prompts
        line = self.lines.pop(0)
        ids = self.tokenizer(line, add_special_tokens=False).input_ids[:max_new_tokens]
        ended = ids[-1] in (self.tokenizer.eos_token_id, *stop)
        one = Completion(ids, [-0.5] * len(ids), "stop" if ended else "length")
        return [one] * (n * len(prompts))


def same(one, other):
    return (one.token_ids, one.logps, one.finish_reason) == (
        other.token_ids,
        other.logps,
        other.finish_reason,
    )


def test_one_turn_is_the_sampler_bit_for_bit(sums):
    model, tokenizer = sums
    sampler = Sampler(model, tokenizer.eos_token_id)
    prompts = [encode(tokenizer, p) for p in SumsTask().sample(1, 6)]
    direct = sampler.generate(prompts, n=4, max_new_tokens=60, temperature=0.9, seed=7)
    episodes = [single(prompt, 60) for prompt in prompts for _ in range(4)]
    for one, turns in zip(direct, written(in_batches(sampler, 0.9, 7), episodes), strict=True):
        assert same(one, turns.completion())
        assert turns.completion().forced is None


def test_a_task_is_a_world_of_one_turn(sums):
    model, tokenizer = sums
    task, sampler = SumsTask(), Sampler(model, tokenizer.eos_token_id)

    class AsWorld:
        name, levels, sample = task.name, task.levels, task.sample

        def begin(self, problem, seed):
            return OneTurn(task, problem)

    problems, how = task.sample(2, 5), {"n": 4, "seed": 3, "max_new_tokens": 60}
    plain = collect_rollouts(sampler, tokenizer, task, problems, **how)
    played = collect_rollouts(sampler, tokenizer, AsWorld(), problems, **how)
    unlike = {"turn_of": None, "places": None}
    assert [replace(r, **unlike) for r in played] == plain


def test_an_interrupted_thought_is_an_episode(sums):
    model, tokenizer = sums
    sampler = Sampler(model, tokenizer.eos_token_id)
    prompts = [encode(tokenizer, p) for p in SumsTask().sample(3, 8, (4,))]
    text, ended = "</think><answer>", 0
    thoughts = sampler.generate(prompts, n=1, max_new_tokens=9, seed=5)
    episodes = [cut_short(tokenizer, prompt, 9, text, 6) for prompt in prompts]
    closing = tokenizer(text, add_special_tokens=False).input_ids
    for thought, turns in zip(
        thoughts, written(in_batches(sampler, 1.0, 5), episodes), strict=True
    ):
        assert turns.token_ids[: len(thought.token_ids)] == thought.token_ids
        if thought.finish_reason == "stop":
            ended += 1
            assert same(thought, turns.completion())
            continue
        put = [t for t, forced in zip(turns.token_ids, turns.forced, strict=True) if forced]
        assert put == ([] if closing[0] in thought.token_ids else closing)
        assert len(turns.token_ids) <= 9 + len(closing) + 6
    assert ended < len(prompts)


def test_what_is_put_in_has_the_version_that_read_it(sums):
    _, tokenizer = sums
    episode = cut_short(tokenizer, [1, 2], 2, "</think>", 4)
    assert episode.send(None) == Ask([1, 2], 2)
    first = Completion([3, 4], [-1.0, -1.0], "length", versions=[6, 6])
    put = tokenizer("</think>", add_special_tokens=False).input_ids
    assert episode.send(first) == Ask([1, 2, 3, 4, *put], 4)
    with pytest.raises(StopIteration) as end:
        episode.send(Completion([5], [-1.0], "stop", versions=[7]))
    answer = end.value.value.completion()
    assert answer.versions == [6, 6, *[7] * len(put), 7]
    assert answer.forced == [False, False, *[True] * len(put), False]


def test_both_drivers_write_the_same(sums):
    model, tokenizer = sums
    sampler, world = Sampler(model, [tokenizer.eos_token_id]), Echoes(3)
    problems = world.sample(4, 6)
    dialect = Dialect.of(tokenizer, world)

    def episodes():
        return [dialogue(p, world.begin(p, 0), dialect, Limits(40, 8, 7)) for p in problems]

    def greedily(ask):
        return sampler.generate(
            [ask.token_ids], max_new_tokens=ask.room, temperature=0, stop=ask.stop
        )[0]

    async def complete(ask):
        await asyncio.sleep(0)
        return greedily(ask)

    async def at_once():
        return await asyncio.gather(*(asked(complete, one) for one in episodes()))

    together = written(lambda asks: list(map(greedily, asks)), episodes())
    for one, other in zip(together, asyncio.run(at_once()), strict=True):
        assert replace(one, world_seconds=0.0) == replace(other, world_seconds=0.0)
    assert max(one.turn_of[-1] for one in together) == 2


def test_sampled_tokens_are_never_encoded_again():
    """A split that this tokenizer does not make, 4 and 7 for 47, stays as it was sampled."""
    tokenizer = load_tokenizer("tiny")
    tokenizer.add_tokens(["47"])
    four, seven, end = (tokenizer.get_vocab()[token] for token in "47;")
    assert len(tokenizer("47;", add_special_tokens=False).input_ids) == 2

    class Odd(Scripted):
        def generate(self, prompts, **how):
            self.asked += prompts
            return [Completion([four, seven, end], [-1.0] * 3, "stop")] * len(prompts)

    engine, world = Odd(tokenizer), Echoes(2)
    (one,) = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 1)
    put = tokenizer("1+", add_special_tokens=False).input_ids
    assert one.token_ids == [four, seven, end, *put, four, seven, end]
    assert engine.asked[1] == [*one.prompt_ids, four, seven, end, *put]


def test_the_worlds_words_are_context_that_nobody_trains_on(sums):
    _, tokenizer = sums
    world = Echoes(3)
    engine = Scripted(tokenizer, "1+2;", "37;", "0;")
    (one,) = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 1)
    assert tokenizer.decode(one.token_ids) == "1+2;2+37;1+0;"
    assert one.forced is not None
    assert tokenizer.decode([t for t, f in zip(one.token_ids, one.forced, strict=True) if f]) == (
        "2+1+"
    )
    assert one.turn_of == [0] * 6 + [1] * 5 + [2] * 2
    assert one.places == ["3 left", "2 left", "1 left", "0 left"]
    assert world.begun[0].heard == [("1+2", True), ("37", True), ("0", True)]
    assert world.begun[0].closed
    batch = collate([one])
    assert int(batch.mask.sum()) == one.forced.count(False)


def test_what_is_put_in_is_not_trained(sums):
    """Whatever the log-prob of a token that the world said, the loss does not depend on it."""
    model, tokenizer = sums
    world = Echoes(2)
    rollouts = [
        collect_rollouts(Scripted(tokenizer, a, b), tokenizer, world, world.sample(0, 1), 1)[0]
        for a, b in (("1+2;", "3;"), ("7;", "42;"))
    ]
    for rollout, reward in zip(rollouts, (0.0, 1.0), strict=True):
        rollout.rewards = {"answer": reward}
    config = RunConfig(method=METHODS["rloo"], minibatches=1, micro_batch_tokens=4096)
    trainer = Trainer(config, (model, tokenizer), task=SumsTask())
    batch = trainer.learner.builder.make_batch(rollouts, version=0)
    forced = torch.tensor(rollouts[0].forced)
    row = batch.mask[0, len(rollouts[0].prompt_ids) :][: len(forced)]
    assert not row[forced].any() and row[~forced].all()


@pytest.mark.parametrize(
    ("lines", "limits", "finish", "turns"),
    [
        (["1;", "2;"], {"max_new_tokens": 40}, "stop", 2),
        (["1;", "2"], {"max_new_tokens": 40, "turn_tokens": 1}, "length", 1),
        (["1;"], {"max_new_tokens": 4}, "length", 1),  # no room to read the reply and to answer
        (["1;"], {"max_turns": 1}, "length", 1),
        (["12345"], {"max_new_tokens": 5}, "length", 1),  # a turn that is cut off
    ],
)
def test_limits_end_an_episode(sums, lines, limits, finish, turns):
    _, tokenizer = sums
    world = Echoes(2)
    engine = Scripted(tokenizer, *lines)
    (one,) = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 1, **limits)
    assert (one.finish_reason, one.turn_count, len(one.places or ())) == (finish, turns, turns + 1)
    assert one.forced is None or not one.forced[-1]  # nothing is put in that nobody answers


def test_a_cut_turn_is_told_as_such(sums):
    _, tokenizer = sums
    world = Echoes(2)
    collect_rollouts(
        Scripted(tokenizer, "1234"), tokenizer, world, world.sample(0, 1), 1, max_new_tokens=3
    )
    assert world.begun[0].heard == [("123", False)]


def test_turn_rewards_stand_on_the_last_sampled_token(sums, tmp_path):
    _, tokenizer = sums
    world = Echoes(2, paid=0.25)
    engine = Scripted(tokenizer, "1+2;", "3;")
    (one,) = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 1)
    assert one.earned == [0.25, 0.25]
    assert one.token_rewards["turns"] == [0, 0, 0, 0.25, 0, 0, 0, 0.25]
    assert one.rewards == {"answer": 0.0} and one.reward == 0.5
    save_rollouts(tmp_path, [one])
    assert load_rollouts(tmp_path) == [one]


class Wrong(Session):
    """Does one thing that a session must not do."""

    def __init__(self, **does):
        self.does = does

    def open(self):
        return self.does.get("open", Reply())

    def turn(self, text, finished=True):
        return self.does.get("turn", Reply(done=True, reward=self.does.get("reward")))

    def verdict(self):
        return Verdict(True, True, None, "ok", score=self.does.get("score"))


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize(
    ("does", "message"),
    [
        ({"turn": "larger"}, r"Wrong answered 'larger': return Reply\(said, done\)"),
        ({"turn": Reply(7)}, "Wrong said 7: say a text"),
        ({"turn": Reply(("larger",))}, r"say a text, or Message\(text\)"),
        ({"open": Reply(done=True)}, "over before the policy has said anything"),
        ({"reward": float("nan")}, "wrong paid nan for turn 0"),
        ({"reward": 1.0, "score": 0.5}, r"paid for its turns, and once more at its end"),
    ],
)
def test_what_a_session_must_not_do_is_named(sums, does, message):
    _, tokenizer = sums
    closed = []

    class World(Echoes):
        def begin(self, problem, seed):
            session = Wrong(**does)
            session.close = lambda: closed.append(seed)
            return session

    world = World(name="wrong")
    with pytest.raises(ValueError, match=message):
        collect_rollouts(Scripted(tokenizer, "1;"), tokenizer, world, world.sample(0, 2), 2)
    assert len(closed) == 4


def test_a_group_begins_alike(sums):
    _, tokenizer = sums

    class Lucky(Echoes):
        def begin(self, problem, seed):
            session = Echo(1)
            session.open = lambda: Reply(str(seed % 9973))
            return session

    world = Lucky(name="lucky")
    with pytest.raises(ValueError, match="lucky: episodes of 0/0 begin with different prompts"):
        collect_rollouts(Scripted(tokenizer, "1;"), tokenizer, world, world.sample(0, 1), 4)


def test_a_turn_ends_with_a_token_of_the_vocabulary(sums):
    _, tokenizer = sums
    world = Echoes(ends=("no token",))
    with pytest.raises(ValueError, match="'no token', which is no token of this tokenizer"):
        collect_rollouts(Scripted(tokenizer, "1;"), tokenizer, world, world.sample(0, 1), 1)


CHAT = (
    "{% for m in messages %}{{ {'user': '1', 'assistant': '2', 'tool': '3'}[m.role] }}"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}2{% endif %}"
)


def test_a_template_that_strips_thoughts_changes_no_sampled_token(sums):
    _, tokenizer = sums
    before, tokenizer.chat_template = tokenizer.chat_template, CHAT
    eos = tokenizer.eos_token
    tokenizer.chat_template = CHAT.replace("<eos>", eos)

    class Tools(Echo):
        def turn(self, text, finished=True):
            self.left -= 1
            said = (Message("4+4", "tool", "add"), Message("5+5", "tool", "add"))
            return Reply(said if self.left else "", done=not self.left)

    class Chats(Echoes):
        def sample(self, seed, n, levels=None):
            return [Problem("a", "3+4", "7", meta={"chat": True})] * n

        def begin(self, problem, seed):
            return Tools(2)

    try:
        engine = Scripted(tokenizer, f"<think>3</think>7{eos}", f"8{eos}")
        world = Chats(ends=())
        (one,) = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 1)
        assert tokenizer.decode(one.prompt_ids) == f"13+4{eos}2"
        assert tokenizer.decode(one.token_ids) == (
            f"<think>3</think>7{eos}34+4{eos}35+5{eos}28{eos}"
        )
    finally:
        tokenizer.chat_template = before


def test_a_world_is_learned(sums):
    """Stop early: the world pays for a turn that says little."""
    model, tokenizer = load_policy("tiny")

    class Short(Echoes):
        def begin(self, problem, seed):
            session = Echo(2)
            session.verdict = lambda: Verdict(
                all(len(text) < 3 for text, _ in session.heard), True, None, "ok"
            )
            return session

    world = Short(name="short")
    config = RunConfig(
        method=METHODS["rloo"],
        steps=12,
        lr=1e-3,
        rollout={"prompts": 8, "group_size": 8, "max_new_tokens": 30, "turn_tokens": 8},
        optimizer={"minibatches": 1},
    )
    rows = list(Trainer(config, (model, tokenizer), task=world))
    assert fmean(r["accuracy"] for r in rows[-3:]) > fmean(r["accuracy"] for r in rows[:3]) + 0.2


def test_metrics_of_episodes(sums):
    _, tokenizer = sums
    world = Echoes(3)
    engine = Scripted(tokenizer, "1+2;", "37;", "0;")
    rollouts = collect_rollouts(engine, tokenizer, world, world.sample(0, 1), 2)
    row = rollout_metrics(rollouts, 0)
    assert row["turns"] == 3 and row["ended_by_world"] == 1 and row["places"] == 3
    assert row["world_tokens"] == pytest.approx(4 / 9)  # 2+ and 1+ for 1+2; 37; 0;
    assert row["company"] == 1
    assert "turns" not in rollout_metrics([replace(rollouts[0], turn_of=None)], 0)
