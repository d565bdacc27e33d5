"""What a reader brings along: a task, a reward, an engine, an advantage, a trust region."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from rlbook.evaluation import evaluate_run
from rlbook.objectives import METHODS, Method, Weights, no_baseline
from rlbook.policy import Completion
from rlbook.tasks import Problem, Verdict
from rlbook.training import (
    RunConfig,
    Trainer,
    VerifierReward,
    dump_config,
    give_rewards,
    load_config,
)
from rlbook.training.engine import checked_completions
from rlbook.training.rewards import get_reward, rewards_of

MODULE = """
from dataclasses import dataclass

from rlbook.evaluation import evaluate_run
from rlbook.objectives import needs
from rlbook.objectives import Weights
from rlbook.tasks import Problem, Verdict


class Sevens:
    name, levels = "sevens", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{seed}/{i}", f"{i}+{seed % 9}=?", "7") for i in range(n)]

    def verify(self, problem, completion, finished=True):
        right = completion.count("7") > 0
        return Verdict(right, finished, None, "ok" if right else "wrong")


def brevity(rollouts):
    return {"brevity": [-0.125 * r.length for r in rollouts]}


@needs("rewards", "lengths")
def per_token(rewards, lengths, scale=1.0):
    return scale * rewards / lengths


@dataclass(frozen=True)
class Halved:
    factor: float = 0.5

    def weigh(self, tokens):
        return Weights(self.factor * tokens.ratio, tokens.mask)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module `mine` that only the path of this test finds."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


class Digits:
    """A task is problems and a verdict."""

    name, levels = "digits", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{i}", f"{i}+1=?", str(i + 1)) for i in range(n)]

    def verify(self, problem, completion, finished=True):
        return Verdict(problem.answer in completion, finished, completion, "ok")


def test_own_task(little_policy, little):
    trainer = Trainer(RunConfig(method="rloo", **little), little_policy(), task=Digits())
    rollouts = trainer.collect()
    assert {r.problem.prompt for r in rollouts} == {"0+1=?", "1+1=?", "2+1=?", "3+1=?"}
    assert [r.reward for r in rollouts] == [float(r.problem.answer in r.text) for r in rollouts]
    assert trainer.learn(rollouts)["skipped_updates"] == 0
    assert evaluate_run(trainer, prompts=2)["problems"] == 2


def test_own_task_and_reward_by_import_path(mine, little_policy, little):
    config = RunConfig(method="rloo", task="mine:Sevens", reward="mine:brevity", **little)
    trainer = Trainer(config, little_policy())
    assert trainer.task.name == "sevens"
    for rollout in trainer.collect():
        assert rollout.rewards == {"brevity": -0.125 * rollout.length}
        assert rollout.correct == ("7" in rollout.text)
    again = Trainer(config, little_policy())
    again.train_one()
    again.save(mine / "run")
    assert Trainer.resume(mine / "run", policy=little_policy()).train_one()["step"] == 2


def evens(rollouts):
    """A number for each answer."""
    return {"evens": [sum(t % 2 == 0 for t in r.token_ids) / 4 for r in rollouts]}


def test_own_reward(little_policy, parity, little):
    """It stands in place of the verifier's word, whose verdict the metrics still count."""
    config = RunConfig(method=Method("raw", "-", no_baseline), **little)
    trainer = Trainer(config, little_policy(), task=parity, reward=evens)
    rollouts = trainer.collect()
    expected = [sum(t % 2 == 0 for t in r.token_ids) / 4 for r in rollouts]
    assert len(set(expected)) > 3
    assert trainer.learner.prepare(rollouts).advantages.tolist() == pytest.approx(expected)
    metrics = trainer.learn(rollouts)
    assert metrics["reward"] == pytest.approx(sum(expected) / 16)
    assert metrics["accuracy"] == sum(len(r.text) % 2 == 0 for r in rollouts) / 16


def steps_taken(rollouts):
    """A number for each token, besides one for the answer."""
    process = [[0.5 if token == 4 else 0.0 for token in r.token_ids] for r in rollouts]
    return {"process": process, "answer": [float(r.correct) for r in rollouts]}


def test_rewards_per_token_are_credited_from_their_token_on(
    little_policy, parity, little, make_rollout
):
    """Reward-to-go by hand, before whitening; the answer is earned at the last token."""
    rollouts = [
        make_rollout(group=0, tokens=(4, 5, 4, 2), correct=True),
        make_rollout(group=1, tokens=(5, 4, 2), correct=False),
    ]
    to_go = torch.tensor([2.0, 1.5, 1.5, 1.0, 0.5, 0.5, 0.0])
    give_rewards(rollouts, [steps_taken])
    assert [r.reward for r in rollouts] == [2.0, 0.5]
    config = RunConfig(method=replace(METHODS["reinforce_plus_plus"], kl=None), **little)
    trainer = Trainer(config, little_policy(), task=parity, reward=steps_taken)
    batch = trainer.learner.prepare(rollouts)
    whitened = (to_go - to_go.mean()) / to_go.std(correction=0)
    assert batch.advantages[batch.mask].tolist() == pytest.approx(whitened.tolist(), abs=1e-4)
    critic = Trainer(config.replace(method="ppo"), little_policy(), task=parity, reward=steps_taken)
    advantages = critic.learner.prepare(rollouts).advantages  # a new critic says 0 everywhere
    assert advantages[batch.mask].tolist() == pytest.approx(to_go.tolist())


def test_an_estimator_of_whole_answers_gets_the_sum_of_their_tokens(
    little_policy, parity, little, make_rollout
):
    config = RunConfig(method=METHODS["reinforce"], **little)
    trainer = Trainer(config, little_policy(), task=parity, reward=steps_taken)
    rollouts = [make_rollout(tokens=(4, 5, 4, 2), correct=c) for c in (True, False)]
    give_rewards(rollouts, trainer.source.rewards)
    assert trainer.learner.prepare(rollouts).advantages.tolist() == [2.0, 1.0]


def majority(rollouts):
    """The group's most frequent answer is taken for right: no reference answer is needed."""
    votes = {r.group: Counter(s.text for s in rollouts if s.group == r.group) for r in rollouts}
    return {"vote": [float(r.text == votes[r.group].most_common(1)[0][0]) for r in rollouts]}


def test_a_vote_of_the_group_as_reward(little_policy, parity, little, make_rollout):
    """As in TTRL, arXiv:2504.16084."""
    rollouts = [make_rollout(group=i // 3, text=t) for i, t in enumerate(["7", "8", "7", *"9xx"])]
    give_rewards(rollouts, [majority])
    assert [r.reward for r in rollouts] == [1, 0, 1, 0, 1, 1]
    settings = little | {"temperature": 0.3, "max_new_tokens": 1}
    trainer = Trainer(
        RunConfig(method="grpo", **settings), little_policy(), task=parity, reward=majority
    )
    sampled = trainer.collect()
    for group in range(4):
        texts = Counter(r.text for r in sampled if r.group == group)
        paid = Counter(r.text for r in sampled if r.group == group and r.reward)
        assert list(paid.items()) == texts.most_common(1)


class Parrot:
    """An engine is one method; this one says 7 or 77, and calls every token's probability 1/2."""

    def generate(self, prompts, *, n, max_new_tokens, temperature, seed):
        seven, half = 21, -0.6931472
        said = [[seven] * (1 + i % 2) for _ in prompts for i in range(n)]
        return [Completion([*ids, 2], [half] * (len(ids) + 1), "stop") for ids in said]


def test_own_engine(little_policy, parity, little):
    """What the policy thinks of the engine's tokens makes the ratio: the engine is not π_old."""
    config = RunConfig(method="dppo", **little)
    trainer = Trainer(config, little_policy(), task=parity, engine=Parrot())
    rollouts = trainer.collect()
    assert [r.token_ids for r in rollouts[:4]] == [[21, 2], [21, 21, 2]] * 2
    batch = trainer.learner.prepare(rollouts)
    assert batch.logp_old[batch.mask].tolist() == pytest.approx([-0.6931472] * 40)
    ratio = (trainer.learner.logprobs(batch) + 0.6931472).exp()[batch.mask]
    metrics = trainer.learner.update(batch)
    assert metrics["ratio_max"] == pytest.approx(float(ratio.max()), rel=1e-4)
    assert metrics["ratio_min"] == pytest.approx(float(ratio.min()), rel=1e-4)


@dataclass
class Spoiled:
    """The parrot behind a server that does something to its completions."""

    spoil: Callable[[list[Completion]], list[Completion]]

    def generate(self, prompts, **how):
        return self.spoil(Parrot().generate(prompts, **how))


def but_last(**changes):
    """The completions, with these fields of the last one changed."""
    return lambda given: [*given[:-1], replace(given[-1], **changes)]


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda given: given[:8], r"Spoiled gave 8 completions for 4 prompts × 4: generate retu"),
        (lambda given: given[:-1], "Spoiled gave 15 completions for 4 prompts × 4"),
        (lambda given: given * 2, "Spoiled gave 32 completions for 4 prompts × 4"),
        (lambda given: [one.token_ids for one in given], r"0 of 16: \[21, 2\] is no .*Completion"),
        (but_last(token_ids=[], logps=[]), "Spoiled, completion 15 of 16: no tokens: a completion"),
        (but_last(logps=[-1.0]), "15 of 16: logps has 1 values for 3 tokens: one for each token"),
        (but_last(logps=[-1.0, float("nan"), -1.0]), "logps are not finite"),
        (but_last(versions=[1]), "versions has 1 values for 3 tokens"),
        (but_last(forced=[True]), "forced has 1 values for 3 tokens"),
        (but_last(finish_reason="eos"), r"finish_reason 'eos' is neither \"stop\" \(by its EOS\)"),
    ],
)
def test_what_an_engine_loses_or_spoils_is_named(spoil, message, little_policy, parity, little):
    """Half of the answers would be verified against other problems, and trained on."""
    config = RunConfig(method="dppo", **little)
    trainer = Trainer(config, little_policy(), task=parity, engine=Spoiled(spoil))
    with pytest.raises(ValueError, match=message):
        trainer.collect()


def test_an_answer_beyond_the_limit_is_named_where_the_limit_is_known():
    given = Parrot().generate([[1]], n=2, max_new_tokens=3, temperature=1, seed=0)
    assert checked_completions(given, 1, 2, "Parrot", max_new_tokens=3) == given
    message = "Parrot, completion 1 of 2: 3 tokens, and max_new_tokens=2: end it there"
    with pytest.raises(ValueError, match=message):
        checked_completions(given, 1, 2, "Parrot", max_new_tokens=2)


def half_of_the_reward(rewards, groups):
    """An advantage is a function of rewards and groups."""
    return rewards / 2


@dataclass(frozen=True)
class Fixed:
    """A trust region is a frozen dataclass; this one gives every token the weight 3."""

    weight: float = 3.0

    def weigh(self, tokens):
        return Weights(torch.full_like(tokens.logp, self.weight), tokens.mask)


def test_own_advantage_and_own_trust_region(little_policy, parity, little):
    method = Method("mine", "-", half_of_the_reward, ratio="token", trust_region=Fixed())
    trainer = Trainer(RunConfig(method=method, **little), little_policy(), task=parity)
    rollouts = trainer.collect()
    batch = trainer.learner.prepare(rollouts)
    assert batch.advantages.tolist() == [r.reward / 2 for r in rollouts]
    assert trainer.learner.update(batch)["mean_weight"] == pytest.approx(3.0)


FILE = """
method:
  name: mine
  paper: none
  advantage: {type: "mine:per_token", scale: 4.0}
  ratio: token
  trust_region: {type: "mine:Halved", factor: 0.25}
rollout: {prompts: 4, group_size: 4, max_new_tokens: 12}
optimizer: {minibatches: 1}
"""


def test_own_functions_go_through_a_file_and_back(mine, little_policy, parity):
    (mine / "run.yaml").write_text(FILE)
    config = load_config(mine / "run.yaml", ["method.trust_region.factor=0.125"])
    (mine / "again.yaml").write_text(dump_config(config))
    again = load_config(mine / "again.yaml")
    assert again == config
    trainer = Trainer(again, little_policy(), task=parity)
    rollouts = trainer.collect()
    batch = trainer.learner.prepare(rollouts)
    assert batch.advantages.tolist() == pytest.approx([4 * r.reward / r.length for r in rollouts])
    assert trainer.learner.update(batch)["mean_weight"] == pytest.approx(0.125, rel=1e-4)


def test_shaping_of_the_method_is_added_to_an_own_reward(make_rollout):
    """DAPO's ramp over the last `overlong_cache` of 10 tokens, −1 at the limit."""
    method = replace(METHODS["dapo"], overlong_cache=4)
    rollouts = [make_rollout(tokens=range(3, 3 + n), correct=True) for n in (6, 8, 10)]
    config = RunConfig(method=method, max_new_tokens=10)
    give_rewards(rollouts, rewards_of(config, evens))
    assert [r.rewards["overlong"] for r in rollouts] == [0.0, -0.5, -1.0]
    assert [r.rewards["evens"] for r in rollouts] == [0.75, 1.0, 1.25]
    give_rewards(rollouts, rewards_of(config))
    assert [r.reward for r in rollouts] == [1.0, 0.5, 0.0]


def test_the_verifiers_word_is_worth_what_the_method_says(make_rollout):
    method = replace(METHODS["grpo"], reward_values=(-1.0, 2.0), format_bonus=0.25)
    rollouts = [
        make_rollout(correct=c, format_ok=f)
        for c, f in ((True, True), (True, False), (False, True), (False, False))
    ]
    give_rewards(rollouts, rewards_of(RunConfig(method=method)))
    assert [r.reward for r in rollouts] == [2.25, 2.0, -0.75, -1.0]
    assert VerifierReward()(rollouts) == {"answer": [1.0, 1.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([lambda r: {"a": [1.0]}], r"part 'a' has 1 values for 2 rollouts"),
        ([lambda r: {"a": [[1.0], [1.0, 2.0]]}], r"part 'a' has 1 values for a completion of 3"),
        ([lambda r: None], r"reward <lambda> returned None: return {part: one value per rollout}"),
        ([lambda r: {"a": None}], r"part 'a' has None as its values for 2 rollouts"),
        ([lambda r: {"a": [1.0, None]}], r"part 'a' is None for rollout 1, of p0: give every"),
        ([evens, evens], r"two rewards give a part 'evens': rename the one of evens"),
    ],
)
def test_a_reward_that_does_not_fit_is_named(rewards, message, make_rollout):
    with pytest.raises(ValueError, match=message):
        give_rewards([make_rollout(), make_rollout()], rewards)


def test_a_reward_that_cannot_be_found_is_named(mine):
    with pytest.raises(ValueError, match=r"mine has no 'absent'"):
        get_reward("mine:absent")
    with pytest.raises(ImportError, match="no module 'nowhere' here"):
        get_reward("nowhere:reward")
    with pytest.raises(ValueError, match=r"'rlbook\.training\.rollouts:MAX_ROUNDS' is not a func"):
        get_reward("rlbook.training.rollouts:MAX_ROUNDS")
