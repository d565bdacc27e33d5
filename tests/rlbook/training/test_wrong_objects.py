"""Every seam of rlbook/README.md and objects that do not fit: thing, field and mend are named."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

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
)
from rlbook.policy import Completion, load_tokenizer
from rlbook.tasks import Problem, Verdict
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


class Engine:
    def generate(self, prompts, *, n, max_new_tokens, temperature, seed):
        return [Completion([5, 2], [-1.0, -1.0], "stop") for _ in prompts for _ in range(n)]


def engine(generate):
    return lambda: {"engine": type("Mine", (Engine,), {"generate": generate})()}


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
    # a reward
    "a reward's name": (given(reward="brief"), "reward 'brief' is no function of rollouts"),
    "a reward of two": (given(reward=lambda r, group: {}), r"called as \(rollouts\).*'group'"),
    "a reward of one": (
        given(reward=pay_one),
        r"pay_one takes the list of rollouts for one .*return \{part: \[value for r in roll",
    ),
    "a bare number": (given(reward=lambda r: 1.0), r"reward <lambda> returned 1.0: return \{part"),
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
    # an engine: what it returns is in test_seams.py
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
    # a policy
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
        objects = make()
        settings = {key: objects.pop(key) for key in ("method", "every") if key in objects}
        config = RunConfig(**{"method": "reinforce", **little, **settings})
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
