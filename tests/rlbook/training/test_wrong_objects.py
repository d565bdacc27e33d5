"""Every seam of rlbook/README.md and objects that do not fit: thing, field and mend are named."""

from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from math import inf, nan

import numpy as np
import pytest
import torch
from transformers import LlamaForSequenceClassification, LlamaModel

from rlbook.evaluation import ask, evaluate, evaluate_run
from rlbook.objectives import (
    METHODS,
    DivergencePenalty,
    GeometricClip,
    KLPenalty,
    PromptFilter,
    RatioClip,
    SamplerCorrection,
    SequenceGamma,
    SequenceMask,
    SoftGate,
    TopEntropy,
    Weights,
    needs,
    remembers,
)
from rlbook.policy import Completion, load_tokenizer
from rlbook.tasks import Message, Problem, Reply, Session, SumsTask, Verdict
from rlbook.training import RunConfig, Trainer

GRPO, GSPO = METHODS["grpo"], METHODS["gspo"]
pytestmark = pytest.mark.wrong_on_purpose


def row(base=GRPO, **columns):
    """A row with these columns and without what needs a second model."""
    return lambda: {"method": replace(base, kl=None, **columns)}


def given(**objects):
    """Objects that a trainer is handed."""
    return lambda: objects


class Task:
    """Whole; its parts are spoiled below."""

    name, levels = "mine", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(str(i), "1+1=?", "2") for i in range(n)]

    def verify(self, problem, completion, finished=True):
        return Verdict(len(completion) % 2 == 0)


def task(**parts):
    return lambda: {"task": type("Mine", (Task,), parts)()}


class Visit(Session):
    """An episode of one turn; its parts are spoiled below."""

    def turn(self, text, finished=True):
        return Reply(done=True)

    def verdict(self):
        return Verdict(True)


class World(Task):
    """An environment of these, whose `begin` is spoiled below."""

    verify = None

    def begin(self, problem, seed):
        return Visit()


def world(**parts):
    return lambda: {"task": type("Mine", (World,), parts)()}


def begins(make):
    """A world whose episodes are these objects."""
    return world(begin=lambda self, problem, seed: make())


def session(**parts):
    """A world whose sessions have these parts."""
    return begins(type("Guess", (Visit,), parts))


def replies(*given, **fields):
    return session(turn=lambda self, text, finished=True: Reply(*given, **fields))


def judges(verdict):
    return session(verdict=lambda self: verdict)


def raises(*_):
    raise KeyError("a slip")


class Duck:
    """A session that is none of `Session`."""

    def open(self):
        return Reply(place="start")

    def turn(self, text, finished):
        return Reply([Message("4", "tool", "add")], np.bool_(True), np.float32(0.5), "end")

    def verdict(self):
        return Verdict(np.bool_(True), np.bool_(False))

    def close(self):
        pass


ONE = Visit()


def measures(**found):
    return lambda: {"evaluate": lambda trainer: found.get("row", found), "every": 1}


def pass_at_1(value):
    return measures(row={"pass@1": value})


def headless(kind):
    """A model without a head that writes, in a pair."""

    def make(little_policy):
        model, tokenizer = little_policy()
        return {"policy": (kind(model.config), tokenizer)}

    return make


def frozen(little_policy):
    model, tokenizer = little_policy()
    return {"policy": (model.requires_grad_(False), tokenizer)}


class Words:
    """A tokenizer that knows no end."""

    def decode(self, ids):
        return ""


def endless(little_policy):
    return {"policy": (little_policy()[0], Words())}


class Engine:
    def generate(self, prompts, *, n, max_new_tokens, temperature, seed):
        return [Completion([5, 2], [-1.0, -1.0], "stop") for _ in prompts for _ in range(n)]


def engine(generate):
    return lambda: {"engine": type("Mine", (Engine,), {"generate": generate})()}


def saying(token_ids=(5, 2), logps=(-1.0, -1.0), **others):
    """An engine of such completions."""
    whole = partial(Completion, token_ids, logps, "stop", **others)
    return engine(lambda self, prompts, *, n, max_new_tokens, temperature, seed: [
        whole() for _ in prompts for _ in range(n)
    ])  # fmt: skip


async def later(self, prompts, *, n, max_new_tokens, temperature, seed):
    return []


def one_by_one(self, prompts, *, n, max_new_tokens, temperature, seed):
    yield from Engine().generate(prompts, n=n, max_new_tokens=8, temperature=1, seed=0)


def nothing(self, prompts, *, n, max_new_tokens, temperature, seed):
    pass


def paying(value, method="reinforce"):
    """A reward with a part "a": a value of each rollout."""

    def paid(rollouts):
        return {"a": [value(r) for r in rollouts]}

    return lambda: {"reward": paid, "method": method}


def part(values, name="a", method="reinforce"):
    """A reward with one part, of all rollouts."""

    def paid(rollouts):
        return {name: values(rollouts)}

    return lambda: {"reward": paid, "method": method}


def own(**column):
    """A row with a function that a file could name: `mine`, at the top of this module."""

    def make():
        (mine,) = column.values()
        mine.__name__ = mine.__qualname__ = "mine"
        globals()["mine"] = mine
        return row(**column)()

    return make


@dataclass(frozen=True)
class Push:
    width: float = 1.0

    def weigh(self, tokens):
        return Weights(self.width * tokens.ratio, tokens.mask)


@needs("rewards", "lengths")
def by_length(rewards, length):
    return rewards


def bare(tokens):
    return tokens.ratio


def per_answer(tokens):
    return Weights(tokens.ratio.sum(1), tokens.mask)


def no_flags(tokens):
    return Weights(tokens.ratio, tokens.ratio)


def mean_ratio(tokens):
    return tokens.ratio.mean(1)


def first_two(rewards, groups):
    return rewards[:2]


def silent(rollouts):
    """Says neither True nor False."""


def measure(trainer):
    return 0.5


def of_one(rollout):
    return rollout.correct


def pay_one(rollout):
    return {"brevity": -rollout.length}


WRONG = {
    # a task
    "a class in place of a task": (given(task=Task), "task 'mine' is a class: make one, Task"),
    "no verify": (
        given(task=Engine()),
        "task 'Engine' has no name, levels, sample, verify: a task",
    ),
    "sample without levels": (
        task(sample=lambda self, seed, n: []),
        r"task 'mine': sample is called as \(seed, n, levels\).* too many positional arguments",
    ),
    "problems that are text": (
        task(sample=lambda self, seed, n, levels=None: ["1+1=?"] * n),
        r"sample returned \['1\+1=\?'.*: return 4 × Problem\(id, prompt, answer\)",
    ),
    "too few problems": (
        task(sample=lambda self, seed, n, levels=None: Task().sample(seed, n)[1:]),
        "task 'mine': sample returned 3 problems: return 4 × Problem",
    ),
    "a verdict that is a flag": (
        task(verify=lambda self, problem, completion, finished=True: True),
        r"task 'mine': verify returned True for an answer to 0: return Verdict\(correct=True\)",
    ),
    "a task's name": (given(task="sums"), r"task is the name 'sums': hand over .*get_task\('sums'"),
    "a verifier that raises": (
        task(verify=raises),
        r"task 'mine': verify, for an answer to 0, raised KeyError: 'a slip' \(.*objects.py, line",
    ),
    "a label that is text": (task(label="x"), r"task 'mine': label is called as \(problem, comp"),
    "a label of two": (
        task(label=lambda self, problem, completion: "x"),
        r"task 'mine': label is called as \(problem, completion, finished\).*too many",
    ),
    "a label that is no word": (
        task(label=lambda self, problem, completion, finished: None),
        "task 'mine': label, for an answer to 0, returned None: return one word",
    ),
    "held out without levels": (
        task(held_out=lambda self, n: []),
        r"task 'mine': held_out is called as \(n, levels\).*too many",
    ),
    "a bare stop text": (task(stop="ab"), r"task 'mine': stop is 'ab': list the texts, \('ab',\)"),
    "a stop of none": (task(stop=None), "task 'mine': stop is None: list texts, such as .*leave i"),
    "a stop that is a number": (task(stop=5), "task 'mine': stop is 5: list texts"),
    "a stop of numbers": (task(stop=[5]), r"task 'mine': stop is \[5\]: list texts"),
    "a verdict of a number": (
        lambda: Verdict(0.7),
        "Verdict.correct is 0.7: give True or False, and a number as `score`",
    ),
    "a verdict of text": (lambda: Verdict("no"), "Verdict.correct is 'no': give True or False"),
    "a verdict of nothing": (lambda: Verdict(None), "Verdict.correct is None: give True or False"),
    "a verdict of one": (lambda: Verdict(1), "Verdict.correct is 1: give True or False"),
    "a verdict of several": (
        lambda: Verdict(np.array([True])),
        r"Verdict.correct is array\(\[ True\]\): give True or False",
    ),
    "a format of text": (lambda: Verdict(True, "ok"), "Verdict.format_ok is 'ok': give True or F"),
    "an answer of a number": (
        lambda: Verdict(True, True, 7),
        "Verdict.answer is 7: give a text, o",
    ),
    "no reason": (lambda: Verdict(True, True, "7", None), "Verdict.reason is None: give one word"),
    "a score of text": (
        lambda: Verdict(True, score="1"),
        "Verdict.score is '1': give a number, or",
    ),
    "no score at all": (lambda: Verdict(True, score=float("nan")), "score is nan: give a finite"),
    "a problem's id": (lambda: Problem(1, "1+1=?", "2"), "Problem.id is 1: give a text"),
    "a prompt of a number": (lambda: Problem("a", 7, "2"), "Problem.prompt is 7: give a text"),
    "a prompt of messages": (
        lambda: Problem("a", [{"role": "user", "content": "1+1=?"}], "2"),
        r"Problem.prompt is \[\{'role'.*: give one text; with meta=\{'chat': True\} it is put in",
    ),
    "a number to answer": (lambda: Problem("a", "1+1=?", 2), r"Problem.answer is 2: .*str\(answer"),
    "meta for a level": (lambda: Problem("a", "1", "2", {"x": 1}), "Problem.level is .* whole num"),
    "no meta": (
        lambda: Problem("a", "1", "2", meta=None),
        "Problem.meta is None: give a dictionar",
    ),
    # an environment
    "begin that gives nothing": (
        begins(lambda: None),
        "environment 'mine': begin returned None, which has no open, turn, verdict, close: return",
    ),
    "begin as in a gym": (
        begins(lambda: ("seen", {})),
        r"environment 'mine': begin returned \('seen', \{\}\), which has no .*: return a Session w",
    ),
    "begin of two": (world(begin=lambda self, problem: Visit()), r"called as \(problem, seed\)"),
    "begin that raises": (
        world(begin=raises),
        "environment 'mine': begin raised KeyError: 'a slip",
    ),
    "a session's class": (begins(lambda: Visit), "begin returned the class Visit: make one of it"),
    "a session without close": (
        begins(type("Half", (), {v: vars(Duck)[v] for v in ("open", "turn", "verdict")})),
        r"begin returned .*Half.*, which has no close: return a Session with turn\(text, finished",
    ),
    "a session of nothing": (begins(Session), "which has no turn, verdict: return a Session with"),
    "one session for all": (
        begins(lambda: ONE),
        "environment 'mine': begin returned the same Visit for two episodes: make a new session",
    ),
    "a world that is its session": (
        world(begin=lambda self, *_: self, **{v: vars(Duck)[v] for v in vars(Duck) if v[0] != "_"}),
        "begin returned the same Mine for two episodes",
    ),
    "a turn of text alone": (
        session(turn=lambda self, text: Reply(done=True)),
        r"Guess: Session.turn is called as \(text, finished\), and does not take that: too many",
    ),
    "a turn that raises": (session(turn=raises), "Guess: Session.turn raised KeyError: 'a slip' "),
    "a turn that runs dry": (
        session(turn=lambda self, text, finished: next(iter(()))),
        "Guess: Session.turn raised StopIteration",
    ),
    "an opening that raises": (session(open=raises), "Guess: Session.open raised KeyError"),
    "a verdict of True": (
        judges(True),
        r"Guess: Session.verdict returned True: return Verdict\(correct=True\) or",
    ),
    "a verdict of None": (judges(None), "Guess: Session.verdict returned None: return Verdict"),
    "a verdict of a half": (judges(0.5), "Guess: Session.verdict returned 0.5: return Verdict"),
    "a verdict that raises": (session(verdict=raises), "Guess: Session.verdict raised KeyError"),
    "a flag of text": (replies(done="no"), "Guess: Reply.done is 'no': give True or False"),
    "a flag of none": (replies(done=None), "Guess: Reply.done is None: give True or False"),
    "a reward of text": (replies(reward="1"), "Guess: Reply.reward is '1': give a number, or None"),
    "a place of numbers": (
        replies(place=(1, 2)),
        r"Guess: Reply.place is \(1, 2\): give a text, or",
    ),
    "nothing said": (
        replies(None),
        r"Guess said None: say a text, or Message\(text\) several times",
    ),
    "one message": (
        replies(Message("a")),
        r"Guess said Message.*: say a text, or Message\(text\) s",
    ),
    "a message of a number": (replies((Message(4),)), r"Guess said \(Message.*: say a text"),
    "a robot": (
        replies((Message("a", "robot"),)),
        "Guess said something as 'robot': Message.role is one of user, tool, system",
    ),
    "a tool of no name": (
        replies((Message("4", "tool", 7),)),
        "Guess: Message.name is 7: give a text, or None",
    ),
    "a bare end": (world(ends=";"), r"environment 'mine': ends is ';': list the texts, \(';',\)"),
    "ends of none": (world(ends=None), "environment 'mine': ends is None: list texts, .*leave it"),
    "a tool's name": (world(tools="calc"), "environment 'mine': tools is 'calc': list functions"),
    "tools by name": (
        world(tools=["calc"]),
        r"tools is \['calc'\]: list functions, or their JSON s",
    ),
    # a reward
    "a reward's name": (given(reward="brief"), "reward 'brief' is no function of rollouts"),
    "a reward of two": (given(reward=lambda r, group: {}), r"called as \(rollouts\).*'group'"),
    "a reward of one": (
        given(reward=pay_one),
        r"pay_one takes the list of rollouts for one .*return \{part: \[value for r in roll",
    ),
    "a bare number": (given(reward=lambda r: 1.0), r"reward <lambda> returned 1.0: return \{part"),
    "values by rollout": (
        part(lambda rollouts: {i: 1.0 for i in range(len(rollouts))}),
        r"reward paid: part 'a' has \{0: 1.0.* for 16 rollouts: give a list, one value for each",
    ),
    "values in a set": (
        part(lambda rs: {*range(len(rs))}),
        r"part 'a' has \{0, 1.*: give a list, one",
    ),
    "one tensor of a number": (
        part(lambda rs: torch.tensor(1.0)),
        "part 'a' has tensor.*give a list",
    ),
    "values that come one by one": (
        part(lambda rs: (1.0 for _ in rs)),
        "part 'a' has <gen.*give a l",
    ),
    "no part": (
        given(reward=lambda rollouts: {}),
        r"reward <lambda> returned {}: return {part: one v",
    ),
    "a dictionary for a rollout": (
        paying(lambda r: {"x": 1.0}),
        "reward paid: part 'a' is {'x': 1.0} for rollout 0, of .*: give every rollout a number",
    ),
    "a complex number": (
        paying(lambda r: 1j),
        "part 'a' is 1j for rollout 0, of .*: give every roll",
    ),
    "a number of text": (
        paying(lambda r: "1"),
        "part 'a' is '1' for rollout 0, of .*: give every ro",
    ),
    "no number for a token": (
        paying(lambda r: [None] * r.length),
        "part 'a' is None for a token of rollout 0, of .*: give every token a number",
    ),
    "text for a token": (paying(lambda r: "x" * r.length), "part 'a' is 'x+' for rollout 0"),
    "too wide a tensor": (
        part(lambda rollouts: torch.ones(len(rollouts), 13)),
        r"part 'a' has 13 values for a completion of \d+ tokens",
    ),
    "a part that the method has": (
        part(lambda rollouts: [1.0] * len(rollouts), "overlong", "dapo"),
        "two rewards give a part 'overlong': rename the one of paid, as OverlongPenalty has it too",
    ),
    "rewards that are all nan": (
        paying(lambda r: nan),
        r"no rollout has a finite reward \(of 16\): it is nan or inf in 'a'; let the reward give",
    ),
    # columns of a method
    "a region of text": (lambda: RatioClip("wide"), "RatioClip.low: input should be a valid numb"),
    "a flag for a bound": (lambda: SoftGate(tau_low=True), "SoftGate.tau_low: .* got True"),
    "a region's class": (row(trust_region=RatioClip), r"is the class RatioClip: make one, trust_r"),
    "an own region of text": (row(trust_region=Push("x")), "trust_region Push.width: .* got 'x'"),
    "a region of two": (
        row(trust_region=lambda tokens, low: tokens),
        r"trust_region .*lambda.* is called as \(tokens\), .*'low'",
    ),
    "one tensor": (
        row(trust_region=bare),
        r"trust region bare returned Tensor: return Weights\(weight, keep\), \(N, T\) each",
    ),
    "a weight for each answer": (
        row(trust_region=per_answer),
        r"trust region per_answer: weight is \(8,\): return a tensor \(8, \d+\), one value per t",
    ),
    "numbers for flags": (
        row(trust_region=no_flags),
        "trust region no_flags: keep holds torch.float32: return True or False for each token",
    ),
    "SequenceMask of tokens": (
        row(trust_region=SequenceMask(0.1)),
        'SequenceMask needs ratio="sequence", and this row has "token"',
    ),
    "SequenceGamma of means": (
        row(GSPO, trust_region=SequenceGamma()),
        'SequenceGamma needs ratio="sequence_product", and this row has "sequence"',
    ),
    "GeometricClip of answers": (row(GSPO, trust_region=GeometricClip()), 'needs ratio="token"'),
    "no ratio at all": (
        row(METHODS["reinforce"], trust_region=DivergencePenalty()),
        'DivergencePenalty needs ratio="token" or "sequence"',
    ),
    "a likelihood of means": (
        row(likelihood=0.1, aggregation="sequence_mean"),
        "right answers: it needs aggregation=\"token_mean\", got 'sequence_mean'",
    ),
    "a ratio of text": (row(ratio="sequenc"), "ratio 'sequenc' is unknown .did you mean 'sequence"),
    "a ratio of answers": (row(ratio=mean_ratio), r"ratio mean_ratio is \(8,\): ret"),
    "a ratio of two": (row(ratio=lambda t, u: t), r"ratio .* is called as \(tokens\), and does"),
    "an aggregation of none": (
        row(aggregation=lambda: 1.0),
        r"aggregation .* called as \(counts\)",
    ),
    "a misspelt aggregation": (row(aggregation="tokenmean"), "did you mean 'token_mean'"),
    "an advantage of rewards": (row(advantage=lambda r: r), r"called as \(rewards, groups\)"),
    "an advantage of others": (row(advantage=by_length), r"by_length is called .*lengths=….*'leng"),
    "an advantage of two": (
        row(advantage=first_two),
        r"advantages must be \(N,\) or \(N, T\) = \(16, \d+\), got \(2,\)",
    ),
    "a selection that is no object": (row(selection=lambda *_: 1), "selection: .* of Selection"),
    "all of the tokens twice": (lambda: TopEntropy(2.0), "share is a part of all tokens"),
    "a share of text": (lambda: TopEntropy("half"), "TopEntropy.share: .* valid number"),
    "an advantage of a list": (
        own(advantage=lambda rewards, groups: rewards.tolist()),
        r"advantage mine returned list: return a tensor of numbers, \(N,\) or \(N, T\), or a pair",
    ),
    "an advantage of an array": (
        own(advantage=lambda r, g: r.numpy()),
        "mine returned ndarray: return a t",
    ),
    "an advantage of nothing": (
        own(advantage=lambda r, g: None),
        "mine returned NoneType: return a tens",
    ),
    "an advantage of three": (
        own(advantage=lambda rewards, groups: (rewards, rewards, rewards)),
        r"advantage mine returned torch.float32 and .* and .*: return .*\(advantages, returns\)",
    ),
    "an advantage of flags": (
        own(advantage=lambda r, g: r > 0),
        "advantage mine returned torch.bool: ret",
    ),
    "a second of text": (
        own(advantage=lambda r, g: (r, "x")),
        "mine returned torch.float32 and str: retu",
    ),
    "no share": (
        own(aggregation=lambda counts: None),
        r"aggregation mine returned NoneType: return what of the loss each token has, a number "
        r"above 0 or a tensor \(8, 1\) or \(8, \d+\) of them",
    ),
    "a share in words": (
        own(aggregation=lambda counts: "mean"),
        "aggregation mine returned str: return wh",
    ),
    "a share for each answer": (
        own(aggregation=lambda counts: counts.lengths[:, 0]),
        r"aggregation mine returned a tensor \(8,\): return what of the loss each token has",
    ),
    "a share below 0": (
        own(aggregation=lambda c: -1),
        "mine returned a share of -1: return .* above 0",
    ),
    "a share of 0": (
        own(aggregation=lambda c: 0.0),
        "mine returned a share of 0: return .* above 0 or a",
    ),
    "shares below 0": (
        own(aggregation=lambda c: -1 / c.lengths),
        "mine returned a share of -.*: return",
    ),
    "a share of nan": (
        own(aggregation=lambda counts: nan),
        "mine returned a share of nan: return what",
    ),
    "a bound of nan": (
        lambda: RatioClip(nan, nan),
        "RatioClip.low: input should be a finite number",
    ),
    "a bound of none": (
        lambda: RatioClip(0.2, None),
        "RatioClip.high: input should be a valid number, None is not allowed",
    ),
    "a β of none": (
        lambda: KLPenalty("k3", None),
        "KLPenalty.beta: .* number, None is not allowed",
    ),
    "a β of nan": (lambda: KLPenalty(beta=nan), "KLPenalty.beta: .* a finite number, got nan"),
    "a bonus of nan": (row(entropy_bonus=nan), "entropy_bonus: .* a finite number, got nan"),
    "rewards of nan": (
        row(reward_values=(0, nan)),
        r"reward_values: .* finite number, got \(0, nan",
    ),
    "an endless constant": (row(constant=inf), "constant: .* a finite number, got inf"),
    "no aggregation": (row(aggregation=None), "aggregation: .*, None is not allowed"),
    "no ratio": (row(ratio=None), 'RatioClip needs ratio="token" or "sequence"'),
    "a region of a number": (
        row(trust_region=0.2),
        r"trust_region is 0.2: choose from NoTrustRegion\(…\), RatioClip\(…\), .*, or give code",
    ),
    "a list of regions": (
        row(trust_region=[RatioClip()]),
        r"trust_region is \[RatioClip.*choose from",
    ),
    "a selection of a number": (
        row(selection=0.2),
        r"selection is 0.2: choose from TopEntropy\(…\)",
    ),
    "a filter of a flag": (
        row(prompt_filter=True),
        "prompt_filter is True: choose from PromptFilter",
    ),
    "another trainer's ε": (
        lambda: RatioClip(epsilon=0.2),
        r"RatioClip has no 'epsilon' \(did you mean low\?\): it has low, high, dual",
    ),
    "a misspelt option": (
        lambda: PromptFilter("correct", resampel=True),
        r"PromptFilter has no 'resampel' \(did you mean 'resample'\?\): it has by, resample",
    ),
    "a misspelt change": (lambda: replace(RatioClip(), hihg=1), "RatioClip has no 'hihg' .*'high'"),
    "a column of none": (
        row(clip=0.2),
        r"Method has no 'clip' \(did you mean trust_region.low\?\)",
    ),
    "needs of nothing": (
        lambda: needs(first_two),
        r'@needs takes names and got first_two: write @needs\("…", "…"\) above it',
    ),
    "a memory of nothing": (
        lambda: remembers(Task),
        "@remembers takes names and got Task: write @re",
    ),
    "a correction of text": (lambda: SamplerCorrection("x"), "SamplerCorrection.cap: .* got 'x'"),
    "a correction at no level": (lambda: SamplerCorrection(2, level="word"), "n.level: .*'word'"),
    "a KL of text": (lambda: KLPenalty(beta="much"), "KLPenalty.beta: .* number.* got 'much'"),
    "a region no file can name": (
        row(trust_region=lambda t: Weights(t.ratio, t.mask)),
        "trust_region: .*lambda.* has no import path: define it at the top of a module",
    ),
    # a filter
    "a filter by length": (lambda: PromptFilter("length"), "PromptFilter.by: .*'reward', got 'len"),
    "a filter's class": (row(prompt_filter=PromptFilter), r"make one, prompt_filter=PromptFilter"),
    "a filter of two": (row(prompt_filter=lambda a, b: 1), r"called as \(rollouts\), .*'b'"),
    "a filter that says nothing": (
        row(prompt_filter=silent),
        "prompt filter silent returned None for the answers to .*: return True for a group",
    ),
    "a filter of one rollout": (
        row(prompt_filter=of_one),
        "prompt filter of_one takes the list of rollouts for one .*'correct'.*: it is called with "
        r"those of a group, return any\(… for r in rollouts\), True or False",
    ),
    "a filter that fails": (
        own(prompt_filter=lambda rollouts: rollouts["correct"]),
        "prompt filter mine raised TypeError: list indices .*test_wrong_objects.py, line",
    ),
    "a filter that counts": (
        own(prompt_filter=lambda rollouts: sum(r.group == 0 for r in rollouts[:1])),
        "prompt filter mine returned 1 for the answers to .*: return True for a group .* else F",
    ),
    "a filter of two flags": (
        own(prompt_filter=lambda rollouts: torch.tensor([True, False])),
        r"prompt filter mine returned \[True, False\] for the answers to .*: return True for a gr",
    ),
    # an engine: more of what it may lose is in test_seams.py
    "an engine of nothing": (
        engine(nothing),
        "Mine gave None in place of a list of comp.*: generate",
    ),
    "an engine that waits": (
        engine(later),
        "Mine gave <coroutine.* a list of .*, without `async` or",
    ),
    "an engine that yields": (
        engine(one_by_one),
        "Mine gave <generator .*, without `async` or `yield",
    ),
    "token ids of floats": (
        saying([5.0, 2.0]),
        "Mine, completion 0 of 16: token_ids holds 5.0: give a list of ints ≥ 0",
    ),
    "token ids of text": (saying(["5", "2"]), "token_ids holds '5': give a list of ints ≥ 0"),
    "token ids that are text": (saying("52"), "token_ids is '52': give a list of ints ≥ 0"),
    "flags for token ids": (saying([True, False]), "token_ids holds True: give a list of ints"),
    "a token id below 0": (saying([5, -2]), "token_ids holds -2: give a list of ints ≥ 0"),
    "a token id of none": (
        saying([5, 99999]),
        r"token id 99999 is beyond the model's vocabulary of \d+: let the engine sample with",
    ),
    "a tensor of token ids": (
        saying(torch.tensor([5, 2])),
        r"token_ids is tensor\(\[5, 2\]\): give a",
    ),
    "an array of token ids": (
        saying(np.array([5, 2])),
        r"token_ids is array\(.*: give a list of ints",
    ),
    "no token ids": (saying(None), "token_ids is None: give a list of ints ≥ 0"),
    "no log-probs": (
        saying(logps=None),
        "logps is None: give a list of numbers ≤ 0, log-probabili",
    ),
    "log-probs that are none": (
        saying(logps=[None, None]),
        "logps holds None: give a list of numb",
    ),
    "log-probs of text": (
        saying(logps=["-1", "-1"]),
        "logps holds '-1': give a list of numbers ≤ 0",
    ),
    "a tensor of log-probs": (
        saying(logps=torch.tensor([-1.0, -1.0])),
        "logps is tensor.*: give a li",
    ),
    "tensors of log-probs": (
        saying(logps=[torch.tensor(-1.0)] * 2),
        "logps holds tensor.*: give a li",
    ),
    "probabilities": (
        saying(logps=[0.5, 0.37]),
        r"Mine, completion 0 of 16: logps holds 0.5: a log-probability is at most 0, log\(p\) of",
    ),
    "versions of text": (
        saying(versions=["a", "b"]),
        "versions holds 'a': give a list of ints, or",
    ),
    "one version for all": (saying(versions=3), "versions is 3: give a list of ints, or None"),
    "forced by numbers": (
        saying(forced=[0, 1]),
        "forced holds 0: give a list of True and False, or",
    ),
    "an engine's function": (given(engine=print), "engine print has no generate: an engine is an"),
    "an engine's class": (given(engine=Engine), "engine Engine has no generate: an engine is an"),
    "an engine of prompts alone": (
        engine(lambda self, prompts, n: []),
        r"engine Mine: generate is called as \(prompts, n=…, max_new_tokens=….*'max_new_tokens'",
    ),
    # an evaluation
    "a number in place of a function": (given(evaluate=3), "evaluate int is no function of traine"),
    "an evaluation of two": (given(evaluate=lambda a, b: {}), r"evaluate <lambda> .* \(trainer\)"),
    "an evaluation without pass@1": (
        lambda: {"evaluate": measure, "every": 1},
        'evaluate measure returned 0.5: return a dictionary with "pass@1"',
    ),
    "a share in quotes": (pass_at_1("0.5"), "\"pass@1\" is '0.5': give the share of right"),
    "a share of nothing": (pass_at_1(None), '"pass@1" is None: give the share of right'),
    "no share at all": (pass_at_1(float("nan")), '"pass@1" is nan: give the share .*, 0 to 1'),
    "a share below none": (pass_at_1(-1.0), '"pass@1" is -1: give the share of right answers'),
    "percent": (pass_at_1(57.0), '<lambda>: "pass@1" is 57: give the share of right answers'),
    "an evaluation that is never made": (
        given(evaluate=evaluate_run),
        "evaluate evaluate_run is never called, for evaluation.every is 0: set it to .*or leave",
    ),
    # settings
    "a method's name": (
        given(config="grpo"),
        "config is 'grpo': hand over a RunConfig, such as Ru",
    ),
    "settings in a dictionary": (
        given(config={"method": "grpo"}),
        "config is dict: hand over a Ru",
    ),
    "the class of settings": (given(config=RunConfig), r"config is the class RunConfig: make one,"),
    # a policy
    "a model that is none": (
        lambda little_policy: {"policy": (torch.nn.Linear(1, 1), little_policy()[1])},
        "policy: Linear is no causal language model: load one, such as transformers.AutoModelForC",
    ),
    "a body": (headless(LlamaModel), "policy: LlamaModel is no causal language model: load one"),
    "a classifier": (headless(LlamaForSequenceClassification), "Classification is no causal langu"),
    "a frozen model": (
        frozen,
        r"policy: all weights of LlamaForCausalLM are frozen.*: call model.requires_grad_\(True\)",
    ),
    "a tokenizer of no end": (endless, "policy: tokenizer Words has no eos_token_id, .*: load one"),
    "a policy's name": (
        given(policy="tiny"),
        r"policy is 'tiny': a policy is the pair \(model, to",
    ),
    "half a policy": (
        lambda: {"policy": (torch.nn.Linear(1, 1), None)},
        r"policy is \(Linear, NoneType\): a policy is the pair \(model, tokenizer\)",
    ),
    "a policy the wrong way round": (
        lambda: {"policy": (load_tokenizer(), torch.nn.Linear(1, 1))},
        r"policy is \(\w+, Linear\): a policy is the pair",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_named_with_its_mend(wrong, little_policy, little):
    make, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        objects = make(little_policy) if signature(make).parameters else make()
        settings = {key: objects.pop(key) for key in ("method", "every") if key in objects}
        config = RunConfig(**{"method": "reinforce", **little, **settings})
        config = objects.pop("config", config)
        Trainer(config, **{"policy": little_policy(), **objects}).train_one()


def test_what_fits_is_taken_as_it_is(little_policy, little):
    """The same objects whole; a field that a file would convert is converted."""
    method = replace(GRPO, kl=None, trust_region=Push("2"), prompt_filter=lambda rollouts: True)
    assert method.trust_region == Push(2.0) and RatioClip("0.1").low == 0.1
    advantage = partial(lambda rewards, groups, scale: scale * rewards, scale=2.0)
    config = RunConfig(method=replace(method, name="mine", advantage=advantage), **little)
    with pytest.raises(ValueError, match="top of a module"):
        Trainer(config, little_policy())
    config = RunConfig(method=replace(GRPO, kl=None, prompt_filter=either), **little)
    trainer = Trainer(config, little_policy(), task=Task(), engine=Engine())
    assert trainer.train_one()["updates"] == 2


def either(rollouts):
    """A filter of one's own: a function of a group."""
    return len(rollouts) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "sums"}, r"task is the name 'sums': hand over the task, get_task\('sums'\)"),
        ({"task": SumsTask}, r"task .* is a class: make one, SumsTask\(\)"),
        ({"task": None}, "task 'NoneType' has no name, levels, sample, verify"),
        ({"policy": "tiny"}, r"policy is 'tiny': a policy is the pair \(model, tokenizer\)"),
        ({"policy": None}, r"policy is NoneType: a policy is the pair"),
        ({"policy": torch.nn.Linear(1, 1)}, "policy is Linear: a policy is the pair"),
        ({"engine": print}, "engine print has no generate: an engine is an object with"),
        ({"engine": Engine}, "engine Engine has no generate: an engine is an object with"),
        ({"stop": "ab"}, r"stop is 'ab': list the texts, \('ab',\)"),
    ],
)
def test_an_evaluation_takes_what_a_trainer_takes(changes, message, little_policy):
    given = {"policy": little_policy(), "task": Task(), **changes}
    with pytest.raises(ValueError, match=message):
        evaluate(prompts=2, n=2, max_new_tokens=4, **given)
    with pytest.raises(ValueError, match=message):
        ask(problems=Task().sample(0, 2), n=2, max_new_tokens=4, **given)


def test_a_frozen_policy_is_evaluated(little_policy):
    model, tokenizer = little_policy()
    found = evaluate((model.requires_grad_(False), tokenizer), Task(), 2, 2, max_new_tokens=4)
    assert found["problems"] == 2


def test_a_trainer_is_resumed_with_settings(little, little_policy, tmp_path):
    Trainer(RunConfig(method="reinforce", **little), little_policy()).save(tmp_path)
    with pytest.raises(ValueError, match="config is 'grpo': hand over a RunConfig"):
        Trainer.resume(tmp_path, "grpo", policy=little_policy())


def test_what_a_world_may_be(little_policy, little):
    """Sessions of one's own kind, numbers and flags of numpy, a list of messages."""
    duck = type("Mine", (World,), {"begin": lambda self, problem, seed: Duck(), "ends": [";"]})()
    trainer = Trainer(RunConfig(method="reinforce", **little), little_policy(), task=duck)
    rollouts = trainer.collect()
    assert [(r.correct, r.format_ok, r.earned) for r in rollouts] == [(True, False, [0.5])] * 16
    assert all(type(value) is float for r in rollouts for value in r.earned)
    assert trainer.learn(rollouts)["updates"] == 2


def test_what_a_verdict_and_a_problem_may_be():
    """Values of numpy become Python's own, for they go to other processes as JSON."""
    verdict = Verdict(np.bool_(True), np.array(False), score=np.float32(0.5))
    assert verdict == Verdict(True, False, score=0.5)
    kinds = [type(value) for value in (verdict.correct, verdict.format_ok, verdict.score)]
    assert kinds == [bool, bool, float]
    assert Verdict(True, score=2).score == 2 and Verdict(True, score=torch.tensor(2.0)).score == 2
    assert hash(Problem("a", "1", "2", np.int64(3), {"x": []})) == hash(Problem("a", "1", "2", 3))


def one_word(self, problem, *completion, **more):
    return "word"


def test_what_a_task_may_have(little_policy, little):
    whole = type("Whole", (Task,), {"label": one_word, "stop": ["\n"]})()
    whole.held_out = lambda n, levels=None: tuple(Task().sample(1, n))
    config = RunConfig(method="reinforce", **little | {"every": 1})
    row = {"pass@1": np.float32(1.0)}
    trainer = Trainer(config, little_policy(), task=whole, evaluate=lambda trainer: row)
    assert trainer.train_one()["heldout"] == 1.0
    bare = type("Bare", (Task,), {"label": None, "held_out": None})()
    assert evaluate(little_policy(), bare, 2, 2, max_new_tokens=4)["samples"] == 2


FITS = {
    "numbers of all kinds": paying(
        lambda r: [1, 0.5, True, np.float32(1), torch.tensor(1)][r.group]
    ),
    "one number in a tensor": paying(lambda r: torch.tensor([0.5])),
    "a tensor of all": part(lambda rollouts: torch.arange(len(rollouts))),
    "an array of all": part(lambda rollouts: np.arange(len(rollouts))),
    "a column of a model": part(lambda rollouts: torch.ones(len(rollouts), 1, requires_grad=True)),
    "a tuple of all": part(lambda rollouts: (0.5,) * len(rollouts)),
    "a tensor for each": paying(lambda r: torch.ones(r.length)),
    "an array for each": paying(lambda r: np.ones(r.length)),
    "tokens of all kinds": paying(
        lambda r: (np.float64(1), torch.tensor(1), *[1] * (r.length - 2))
    ),
    "a flag of NumPy": own(prompt_filter=lambda rollouts: np.True_),
    "a flag of PyTorch": own(prompt_filter=lambda rollouts: torch.tensor([True]).any()),
    "log-probs of 0": saying(logps=[0.0, 1e-4]),
    "whole log-probs": saying(logps=[0, -1]),
    "tuples": saying((5, 2), (-1.0, -1.0), forced=(False, False), versions=(0, 0)),
    "numbers of NumPy": saying(
        [np.int64(5), np.int64(2)], [np.float32(-1)] * 2, forced=[np.False_] * 2
    ),
    "a pair without returns": own(advantage=lambda rewards, groups: (rewards, None)),
    "an advantage of ints": own(advantage=lambda rewards, groups: rewards.long()),
    "a share of NumPy": own(aggregation=lambda counts: np.float32(0.5)),
    "a whole share": own(aggregation=lambda counts: 1),
    "a share of no gradient": own(aggregation=lambda counts: torch.tensor(0.5)),
    "shares of tokens": own(aggregation=lambda counts: counts.mask / counts.lengths),
    "an endless bound": row(trust_region=RatioClip(0.2, inf)),
    "no region and no ratio": row(METHODS["reinforce"], trust_region=None, ratio=None),
}


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("right", FITS)
def test_what_is_meant_as_well_trains(right, little_policy, little):
    objects = FITS[right]()
    config = RunConfig(method=objects.pop("method", "reinforce"), **little)
    trainer = Trainer(config, little_policy(), **{"task": Task(), **objects})
    metrics = trainer.train_one()
    assert metrics["updates"] == 2 and metrics["skipped_updates"] == 0
