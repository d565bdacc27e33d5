"""A method as data: every choice can be written, read, changed by name, and is then the same."""

import functools
import inspect
import json
import math
import pickle
import sys
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
import yaml

from rlbook.objectives import (
    METHODS,
    DivergenceMask,
    EMABaseline,
    KLPenalty,
    Method,
    NoTrustRegion,
    RatioClip,
    SamplerCorrection,
    WeightClip,
    batch_normalize,
    compute_advantages,
    estimator_state,
    gae,
    group_normalize,
    load_estimator_state,
    max_rl,
    method_table,
    method_table_markdown,
    method_text,
    needs,
    policy_loss,
    reinforce_plus_plus,
)
from rlbook.objectives.estimators import BoundEstimator, needs_of
from rlbook.objectives.specs import KNOWN

GRPO = METHODS["grpo"]
ADVANTAGES = KNOWN["advantage"]
ABLATIONS = [
    replace(GRPO, trust_region=RatioClip(0.2, 0.28, dual=10.0), kl=None),
    replace(GRPO, trust_region=WeightClip(5.0), ratio="sequence_product", constant=7),
    replace(GRPO, trust_region=NoTrustRegion(), ratio="none", reward_values=(-1, 1)),
    replace(GRPO, sampler_correction=SamplerCorrection(5.0, "drop", "geometric", low=0.5)),
    replace(GRPO, advantage=partial(group_normalize, ddof=0, eps=1e-4), name="mine"),
    replace(GRPO, advantage=partial(METHODS["lite_ppo"].advantage, eps=1e-4)),
    replace(METHODS["lite_ppo"], advantage=batch_normalize),  # the row's option is gone
    replace(METHODS["lite_ppo"], advantage=partial(batch_normalize, eps=1e-3)),
    replace(METHODS["reinforce_ema"], advantage=partial(EMABaseline, decay=0.8)),
    replace(METHODS["ppo"], advantage=partial(gae, lam=0.95), format_bonus=0.5),
    replace(METHODS["dppo"], trust_region=DivergenceMask("kl", 0.05, 0.05, 5.0, top_k=20)),
    replace(METHODS["dapo"], overlong_cache=4096, note="“ε”: 0.2"),
    replace(METHODS["dapo"], trust_region=RatioClip(high=float("inf"))),
]


@pytest.mark.parametrize("method", [*METHODS.values(), *ABLATIONS], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "through",
    [
        lambda d: d,
        lambda d: json.loads(json.dumps(d)),
        lambda d: yaml.safe_load(yaml.safe_dump(d, allow_unicode=True)),
    ],
    ids=["dict", "json", "yaml"],
)
def test_a_method_comes_back_from_a_file(method, through):
    written = method.to_dict()
    assert list(written) == [f.name for f in fields(Method)]
    again = Method.from_dict(through(written))
    assert again == method
    assert hash(again) == hash(method)
    assert again.to_dict() == written


def test_methods_are_compared_by_value_and_survive_pickle():
    for method in METHODS.values():
        assert pickle.loads(pickle.dumps(method)) == method
    raw = [partial(batch_normalize, population=p) for p in ("raw", "raw", "centered")]
    one, same, other = (replace(GRPO, advantage=a) for a in raw)
    assert one == same and hash(one) == hash(same)
    assert one != other and one.advantage != partial(batch_normalize, population="raw")
    nested = replace(GRPO, advantage=partial(partial(batch_normalize, ddof=0), ddof=1))
    assert nested.advantage == BoundEstimator(batch_normalize, ddof=1)
    assert replace(GRPO, advantage=partial(batch_normalize)).advantage is batch_normalize


# Changes to a row.

CHANGES = {
    "a name": ("grpo", GRPO),
    "a method": (GRPO, GRPO),
    "a dictionary with a name": ({"name": "grpo"}, GRPO),
    "one setting of the region": (
        {"name": "grpo", "trust_region": {"high": 0.28}, "aggregation": "token_mean"},
        replace(GRPO, trust_region=RatioClip(0.2, 0.28), aggregation="token_mean"),
    ),
    "the same type": (
        {"name": "dapo", "trust_region": {"type": "RatioClip", "low": 0.1}},
        replace(METHODS["dapo"], trust_region=RatioClip(0.1, 0.28)),
    ),
    "another type": (
        {"name": "dapo", "trust_region": {"type": "WeightClip", "max": 5}},
        replace(METHODS["dapo"], trust_region=WeightClip(5)),
    ),
    "another type by name": (
        {"name": "dapo", "trust_region": "DivergenceMask"},
        replace(METHODS["dapo"], trust_region=DivergenceMask()),
    ),
    "no region": (
        {"name": "dapo", "trust_region": None},
        replace(METHODS["dapo"], trust_region=NoTrustRegion()),
    ),
    "no KL": ({"name": "grpo", "kl": None}, replace(GRPO, kl=None)),
    "another β": (
        {"name": "grpo", "kl": {"beta": 0.1}},
        replace(GRPO, kl=KLPenalty("k3", 0.1, "loss", "naive")),
    ),
    "a first KL": (
        {"name": "dapo", "kl": {"beta": 0.1}},
        replace(METHODS["dapo"], kl=KLPenalty(beta=0.1)),
    ),
    "an option of the advantage": (
        {"name": "grpo", "advantage": {"ddof": 0}},
        replace(GRPO, advantage=partial(group_normalize, ddof=0)),
    ),
    "an option beside the row's": (
        {"name": "lite_ppo", "advantage": {"eps": 0.1}},
        replace(METHODS["lite_ppo"], advantage=partial(batch_normalize, population="raw", eps=0.1)),
    ),
    "another advantage": (
        {"name": "lite_ppo", "advantage": {"type": "max_rl", "form": "equation_9"}},
        replace(METHODS["lite_ppo"], advantage=partial(max_rl, form="equation_9")),
    ),
    "the advantage alone": (
        {"name": "lite_ppo", "advantage": "batch_normalize"},
        replace(METHODS["lite_ppo"], advantage=batch_normalize),
    ),
    "a correction": (
        {"name": "grpo", "sampler_correction": {"cap": 2}},
        replace(GRPO, sampler_correction=SamplerCorrection(2)),
    ),
    "objects": (
        {"name": "grpo", "trust_region": WeightClip(3.0), "advantage": max_rl, "kl": KLPenalty()},
        replace(GRPO, trust_region=WeightClip(3.0), advantage=max_rl, kl=KLPenalty()),
    ),
    "one of your own": (
        {"name": "mine", "paper": "none", "advantage": "max_rl", "reward_values": [-1, 1]},
        Method("mine", "none", max_rl, reward_values=(-1, 1)),
    ),
}


CHANGES["a number as YAML reads it"] = (
    {"name": "gspo", "trust_region": yaml.safe_load("high: 3e-4")},
    replace(METHODS["gspo"], trust_region=RatioClip(3e-4, 3e-4)),
)


@pytest.mark.parametrize("case", CHANGES)
def test_a_row_is_changed_by_naming_what_differs(case):
    spec, expected = CHANGES[case]
    assert Method.from_dict(spec) == expected


GIVEN = {
    "no method 'gspoo' .did you mean 'gspo'.*: choose from reinforce, .*, opd": "gspoo",
    "your own needs name, advantage and paper": {"name": "mine", "advantage": "max_rl"},
    "a name or a dictionary": 3,
    "no method None": {"kl": None},
    "no 'trustregion' .did you mean 'trust_region'.*: it has name, paper": {"trustregion": {}},
    "no 'hihg' .did you mean 'high'.*: it has low, high, dual": {"trust_region": {"hihg": 0.3}},
    "RatioClip has no 'max'": {"trust_region": {"type": "RatioClip", "max": 0.3}},
    "kl KLPenalty has no 'betta' .*did you mean 'beta'": {"kl": {"betta": 0.1}},
    "sampler_correction SamplerCorrection is missing 'cap'": {"sampler_correction": {}},
    "advantage group_normalize has no 'population': it has ddof, eps": {
        "advantage": {"population": "raw"}
    },
    "advantage group_center has no 'ddof': it has no options": {
        "advantage": {"type": "group_center", "ddof": 0}
    },
    "unknown .did you mean 'group_normalize'.*: choose from .*, leave_one_out": {
        "advantage": "group_normalise"
    },
    "trust_region 'PPOClip' is unknown .did you mean 'RatioClip'.*: choose from NoTrustRegion, ": {
        "trust_region": {"type": "PPOClip"}
    },
    "trust_region WeightClip is missing 'max'": {"trust_region": "WeightClip"},
    "advantage must be a name": {"advantage": {"type": 3}},
    "advantage is 3: choose from 'no_baseline', .*or give code of your own": {"advantage": 3},
    "no module 'nowhere'": {"advantage": "nowhere:advantage"},
    "has no 'nothing'": {"advantage": "math:nothing"},
    "math:pi' is a float, not a function": {"advantage": "math:pi"},
    "trust_region.high: input should be a valid number.*'wide'": {"trust_region": {"high": "wide"}},
    "trust_region.top_k: .* integer.* got 2.5": {
        "trust_region": {"type": "DivergenceMask", "top_k": 2.5}
    },
    "advantage.population: .*'centered' or 'raw', got 'batch'": {
        "advantage": {"type": "batch_normalize", "population": "batch"}
    },
    "advantage.ddof: .* valid integer.* got True": {"advantage": {"ddof": True}},
    "kl.kind: .*'k2' or 'k3', got 'k4'": {"kl": {"kind": "k4"}},
    "beta must be ≥ 0": {"kl": {"beta": -1}},
    "kl: .* instance of KLPenalty, got 0.1": {"kl": 0.1},
    "kl.beta: input should be a valid number, None is not allowed": {"kl": {"beta": None}},
    "kl: null means none, method.kl=null": {"kl": "none"},
    "trust_region RatioClip has no 'epsilon' .did you mean low": {"trust_region": {"epsilon": 0.2}},
    "trust_region.high: input should be a finite number, got nan": {
        "trust_region": {"high": math.nan}
    },
    "entropy_bonus: input should be a finite number, got nan": {"entropy_bonus": math.nan},
    "constant: input should be a finite number, got inf": {"constant": math.inf},
    "constant: .* valid number.*'limit'": {"constant": "limit"},
    "constant divides the loss": {"constant": 0},
    "overlong_cache counts tokens": {"overlong_cache": 0},
    "reward_values: field required": {"reward_values": [1]},
    "format_bonus: .* valid number": {"format_bonus": "yes"},
    "old_logprobs: .*'recomputed' or 'sampler'": {"old_logprobs": "anchor"},
    "ratio 'product' is unknown": {"ratio": "product"},
    "aggregation 'mean' is unknown: choose from sequence_mean": {"aggregation": "mean"},
    "selection 'TopEntropi' is unknown .did you mean 'TopEntropy'": {"selection": "TopEntropi"},
    'RatioClip needs ratio="token"': {"ratio": "none"},
    'set old_logprobs="recomputed"': {"sampler_correction": {"cap": 2}, "old_logprobs": "sampler"},
    "must enclose 1": {"sampler_correction": {"cap": 0.5}},
}


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("message", GIVEN)
def test_what_cannot_be_meant_is_named(message):
    given = GIVEN[message]
    if isinstance(given, dict) and "name" not in given and message != "no method None":
        given = {"name": "grpo"} | given
    with pytest.raises(ValueError, match=message):
        Method.from_dict(given)


# A reader's own code.

MODULE = """
from dataclasses import dataclass
from functools import wraps
import torch
from rlbook.objectives import Weights, needs, group_center

def plain(r, g, power=1.0):
    return r ** power

@needs("rewards", "lengths")
def short(rewards, lengths, scale: float = 1.0):
    return rewards - scale * lengths

@wraps(group_center)
def wrapped(rewards, groups):
    return 2 * group_center(rewards, groups)
wrapped.__qualname__ = "wrapped"
wrapped.__module__ = __name__

class Space:
    @staticmethod
    def inner(rewards, groups):
        return rewards

@dataclass(frozen=True)
class Push:
    width: float
    def weigh(self, tokens):
        return Weights(torch.full_like(tokens.logp, self.width), tokens.mask)

class NoDataclass:
    def weigh(self, tokens):
        return Push(1.0).weigh(tokens)

def region(tokens):
    return Push(3.0).weigh(tokens)

def root(tokens):
    return tokens.ratio.sqrt()

@dataclass(frozen=True)
class Power:
    exponent: float
    def __call__(self, tokens):
        return tokens.ratio ** self.exponent

def by_root(counts):
    return 1 / (counts.sequences * counts.lengths.sqrt())

@dataclass(frozen=True)
class ByLength:
    exponent: float
    def __call__(self, counts):
        return 1 / (counts.sequences * counts.lengths ** self.exponent)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("own_losses")
    del sys.modules["own_losses"]


def test_own_functions_go_by_import_path(own):
    for advantage, written in [
        (own.plain, "own_losses:plain"),
        (own.wrapped, "own_losses:wrapped"),
        (own.Space.inner, "own_losses:Space.inner"),
        (partial(own.plain, power=2.0), {"type": "own_losses:plain", "power": 2.0}),
        (partial(own.short, scale=0.1), {"type": "own_losses:short", "scale": 0.1}),
    ]:
        method = replace(GRPO, advantage=advantage)
        assert method.to_dict()["advantage"] == written
        assert Method.from_dict(json.loads(json.dumps(method.to_dict()))) == method
        assert Method.from_dict({"name": "grpo", "advantage": written}) == method
    with pytest.raises(ValueError, match="plain has no 'r': it has power"):
        Method.from_dict({"name": "grpo", "advantage": {"type": "own_losses:plain", "r": 1}})
    with pytest.raises(ValueError, match="short has no 'lengths': it has scale"):
        Method.from_dict({"name": "grpo", "advantage": {"type": "own_losses:short", "lengths": 1}})


def test_own_trust_regions_go_by_import_path(own):
    spec = {"name": "grpo", "trust_region": {"type": "own_losses:Push", "width": 3}}
    method = Method.from_dict(spec)
    assert method == replace(GRPO, trust_region=own.Push(3))
    assert Method.from_dict(method.to_dict()) == method
    mask, logp = torch.ones(1, 2).bool(), torch.full((1, 2), -1.0)
    same = replace(GRPO, trust_region=own.region, kl=None)
    assert Method.from_dict(same.to_dict()) == same
    for m in (replace(method, kl=None), same):
        loss = policy_loss(m, logp, logp, torch.ones(1), mask)
        assert float(loss.metrics["mean_weight"]) == 3
    assert "Push(width=3.0)" in method_text(method)
    assert "NoDataclass" in method_text(replace(GRPO, trust_region=own.NoDataclass()))
    with pytest.raises(ValueError, match=r"Push has no 'widht' .*: it has width"):
        Method.from_dict({"name": "grpo", "trust_region": {"type": "own_losses:Push", "widht": 3}})
    with pytest.raises(ValueError, match="need a dataclass"):
        Method.from_dict({"name": "grpo", "trust_region": {"type": "own_losses:region", "w": 3}})
    with pytest.raises(ValueError, match=r"NoDataclass cannot be written .*trust_region .*@data"):
        replace(GRPO, trust_region=own.NoDataclass()).to_dict()


def test_own_ratios_and_aggregations_go_by_import_path(own):
    old, mask = torch.full((2, 4), -2.0), torch.tensor([[True] * 4, [True] + [False] * 3])
    logp = (old + math.log(4.0)).requires_grad_()
    for ratio, share in [
        (own.root, own.by_root),
        ("own_losses:root", "own_losses:by_root"),
        (own.Power(0.5), own.ByLength(0.5)),
        (
            {"type": "own_losses:Power", "exponent": 0.5},
            {"type": "own_losses:ByLength", "exponent": "0.5"},
        ),
    ]:
        method = Method.from_dict({"name": "reinforce", "ratio": ratio, "aggregation": share})
        for through in (json.dumps, yaml.safe_dump):
            again = Method.from_dict(yaml.safe_load(through(method.to_dict())))
            assert again == method and hash(again) == hash(method)
        loss = policy_loss(method, logp, old, torch.ones(2), mask).loss
        (grad,) = torch.autograd.grad(loss, logp)  # weight √4, share 1 / (2 √|y|)
        assert grad.tolist() == [pytest.approx([-0.5] * 4), pytest.approx([-1, 0, 0, 0])]
    assert "Power(exponent=0.5)" in method_text(method) and "ByLength" in method_text(method)
    with pytest.raises(ValueError, match="Power is missing 'exponent'"):
        replace(GRPO, ratio="own_losses:Power")
    with pytest.raises(ValueError, match="top of a module"):
        replace(GRPO, aggregation=lambda counts: 1.0).to_dict()


def test_functions_of_a_notebook_go_by_main(monkeypatch):
    main = sys.modules["__main__"]
    code = "def mine(rewards, groups): return rewards"
    scope = {"__name__": "__main__"}
    exec(code, scope)
    monkeypatch.setattr(main, "mine", scope["mine"], raising=False)
    method = replace(GRPO, advantage=scope["mine"])
    assert method.to_dict()["advantage"] == "__main__:mine"
    assert Method.from_dict(method.to_dict()) == method
    exec(code, scope)  # the cell runs again
    monkeypatch.setattr(main, "mine", scope["mine"])
    assert method.to_dict()["advantage"] == "__main__:mine"


def test_what_no_file_can_name_trains_but_is_not_written(own, monkeypatch):
    def local(rewards, groups):
        return rewards

    rewards, groups = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    for advantage in (local, lambda r, g: r, EMABaseline(), partial(local)):
        method = replace(GRPO, advantage=advantage)
        assert compute_advantages(method.new_advantage(), rewards=rewards, groups=groups)[0] == 1
        with pytest.raises(ValueError, match="top of a module"):
            method.to_dict()
    taken = own.plain
    monkeypatch.setattr(own, "plain", own.wrapped)
    with pytest.raises(ValueError, match="own_losses:plain is another object"):
        replace(GRPO, advantage=taken).to_dict()
    with pytest.raises(ValueError, match="eps is a Tensor: only numbers"):
        replace(GRPO, advantage=partial(group_normalize, eps=torch.ones(1))).to_dict()
    with pytest.raises(ValueError, match=r"bind options of .* by name"):
        replace(GRPO, advantage=partial(group_normalize, rewards))


# What an advantage needs, and what it remembers.


@pytest.mark.parametrize("name", ADVANTAGES)
def test_declared_needs_are_the_arguments_without_a_default(name):
    estimator = ADVANTAGES[name]
    call = estimator.__call__ if isinstance(estimator, type) else estimator
    parameters = inspect.signature(call).parameters
    required = [k for k, p in parameters.items() if p.default is p.empty and k != "self"]
    declared = needs_of(estimator)
    assert list(declared.inputs) == required
    assert set(declared.optional) <= set(parameters) - set(required)
    of_tokens = ("gae", "length_adaptive_gae", "reinforce_plus_plus", "reward_to_go")
    assert declared.token_rewards == (name in of_tokens)


def test_every_estimator_of_the_package_has_a_declaration():
    from rlbook.objectives import advantages

    helpers = {"at_last_token", "first_token"}
    public = {
        name
        for name, thing in vars(advantages).items()
        if callable(thing) and getattr(thing, "__module__", "") == advantages.__name__
    }
    assert public == set(ADVANTAGES) | helpers


def test_needs_of_the_rows():
    assert METHODS["opo"].needs == {"rewards", "groups", "lengths"}
    assert METHODS["reinforce"].needs == METHODS["reinforce_ema"].needs == {"rewards"}
    assert METHODS["lite_ppo"].needs == {"rewards", "groups"}
    assert METHODS["ppo"].takes_token_rewards and not METHODS["grpo"].takes_token_rewards
    assert {m.name for m in METHODS.values() if "reference" in m.requirements()} == {
        "grpo",
        "rloo",
        "remax",
    }
    assert METHODS["dppo"].top_k is METHODS["grpo"].top_k is None
    assert replace(METHODS["dppo"], trust_region=DivergenceMask(top_k=20)).top_k == 20


def test_an_advantage_is_called_with_what_it_declared():
    rewards, groups, mask = torch.tensor([1.0, 0.0]), torch.tensor([3, 3]), torch.ones(2, 2).bool()
    everything = {"rewards": rewards, "groups": groups, "mask": mask, "lengths": mask.sum(1)}
    assert compute_advantages(lambda values, x: values + x, **everything).tolist() == [4, 3]
    declared = needs("rewards", "lengths")(lambda rewards, lengths: rewards * lengths)
    assert compute_advantages(declared, **everything).tolist() == [2, 0]
    values, per_token = torch.full((2, 2), 0.5), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    inputs = everything | {"rewards": per_token, "values": values}
    for options in ({}, {"gamma": 0.9}, {"gamma": 0.9, "lam": 0.5}):
        expected, _ = gae(per_token, values, mask, **options)
        assert torch.equal(compute_advantages(gae, **inputs, **options), expected)
    bound = replace(METHODS["ppo"], advantage=partial(gae, lam=0.0)).advantage
    expected, _ = gae(per_token, values, mask, 1.0, 0.0)
    assert torch.equal(compute_advantages(bound, **inputs, lam=1.0), expected)
    with pytest.raises(ValueError, match="gae needs 'values'; it got"):
        compute_advantages(gae, **everything, values=None)
    with pytest.raises(ValueError, match="needs 'groups'"):
        compute_advantages(lambda r, g: r, rewards=rewards)
    whitened = partial(reinforce_plus_plus, baseline="group")
    assert compute_advantages(whitened, **everything).shape == mask.shape


def test_state_of_an_estimator_is_declared_and_comes_back():
    rewards, method = torch.tensor([1.0, 0.0]), METHODS["reinforce_ema"]
    estimator = replace(method, advantage=partial(EMABaseline, decay=0.8)).new_advantage()
    assert estimator == EMABaseline(decay=0.8)
    estimator(rewards)
    state = json.loads(json.dumps(estimator_state(estimator)))
    assert state == {"value": pytest.approx(0.1)}
    other = EMABaseline(decay=0.8)
    load_estimator_state(other, state)
    assert other == estimator

    @functools.wraps(group_normalize)
    def decorated(*args, **kwargs):
        return group_normalize(*args, **kwargs)

    for stateless in (decorated, group_normalize, partial(batch_normalize, ddof=0)):
        assert estimator_state(stateless) == {}
        load_estimator_state(stateless, {})
    assert needs_of(decorated) == needs_of(group_normalize)

    @functools.wraps(estimator)
    def around(*args, **kwargs):
        return estimator(*args, **kwargs)

    assert estimator_state(around) == state
    with pytest.raises(ValueError, match="group_normalize remembers nothing"):
        load_estimator_state(group_normalize, state)
    with pytest.raises(ValueError, match="lacks 'value'"):
        load_estimator_state(EMABaseline(), {"mean": 1.0})


# The constant, the correction, the table.


def test_the_constant_is_the_runs_limit_unless_one_is_given():
    row = METHODS["dr_grpo"]
    assert row.constant is None
    assert row.resolved(80) == replace(row, constant=80.0)
    explicit = replace(row, constant=1000)
    assert explicit.resolved(80) is explicit
    assert GRPO.resolved(80) is GRPO
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"dr_grpo .* call method.resolved\(max_new_tokens\)"):
        policy_loss(row, ones, ones, torch.ones(2), ones.bool())


def test_a_row_with_a_correction_asks_for_its_weights():
    old = torch.full((1, 2), -1.0)
    sampler = torch.tensor([[-1.0, -3.0]])
    mask = torch.ones(1, 2).bool()
    method = replace(GRPO, kl=None, sampler_correction=SamplerCorrection(2.0))
    with pytest.raises(ValueError, match="grpo corrects its sampler: pass"):
        policy_loss(method, old, old, torch.ones(1), mask)
    weights = method.sampler_correction(old, sampler, mask)
    loss = policy_loss(method, old, old, torch.ones(1), mask, correction=weights)
    assert loss.token_loss.tolist() == [[-1, -2]]


def test_old_log_probs_are_said_by_every_row_that_has_a_ratio():
    sampler = {m.name for m in METHODS.values() if m.ratio != "none"} - {
        m.name for m in METHODS.values() if m.old_logprobs == "recomputed"
    }
    assert sampler == {"dppo", "dppo_kl", "scalerl"}
    plain = [m for m in METHODS.values() if m.ratio == "none"]
    assert {m.old_logprobs for m in plain} == {"sampler"}


def test_the_table_shows_a_column_only_where_a_row_uses_it(monkeypatch):
    assert not {"sampler correction", "format bonus"} & set(method_table()[0])
    mine = replace(GRPO, name="mine", sampler_correction=SamplerCorrection(2.0))
    monkeypatch.setitem(METHODS, "mine", mine)
    assert method_table()[-1]["sampler correction"].startswith("SamplerCorrection(cap=2.0")
    assert method_table()[0]["sampler correction"] == "none"


def test_text_of_one_method_for_the_shell():
    text = method_text("dapo")
    for part in ("arXiv:2503.14476", "RatioClip(low=0.2, high=0.28)", "-1 / 1", "Eq. 8 is a mean"):
        assert part in text
    assert "a critic" in method_text("ppo")
    assert "20 likeliest" in method_text(
        replace(METHODS["dppo"], trust_region=DivergenceMask(top_k=20))
    )
    with pytest.raises(ValueError, match="choose from"):
        method_text("dapoo")
    lines = method_table_markdown().splitlines()
    assert len(set(map(len, lines))) == 1 and len(lines[0]) <= 140
    papers = method_table_markdown(("method", "paper"))
    assert all(method.paper in papers for method in METHODS.values())
    with pytest.raises(ValueError, match="no column 'papers': choose from method"):
        method_table_markdown(("papers",))
