"""What somebody brings to a run: a policy, an estimator, an engine, problems, a world."""

import json
from dataclasses import dataclass

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rlbook.cli import main
from rlbook.evaluation import evaluate_run
from rlbook.importing import import_name
from rlbook.objectives import Method
from rlbook.objectives.estimators import estimator_state, load_estimator_state
from rlbook.policy import Completion, Sampler, load_policy
from rlbook.policy.adapters import plain_weights
from rlbook.tasks import Problem, Reply, Session, Verdict, get_task, stop_texts
from rlbook.training import RunConfig, Trainer
from rlbook.training.checkpoint import export
from rlbook.training.config import with_settings
from rlbook.training.episodes import Ask, in_batches
from rlbook.training.judge import stop_of

LORA = {"rank": 2, "alpha": 4}


def moved(policy):
    """A policy that differs from the one of its name."""
    with torch.no_grad():
        for weight in policy[0].parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))
    return policy


def test_an_adapter_over_a_policy_of_ones_own_comes_back_with_it(
    little_policy, parity, little, tmp_path
):
    """SFT first, then LoRA: without its base the adapter is worth nothing."""
    config = RunConfig(**little | {"steps": 2, "lora": LORA})
    run = Trainer(config, moved(little_policy()), task=parity)
    run.train_one()
    run.save(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "whole")
    state = dict(plain_weights(run.model))
    for folder in ("run", "whole"):
        loaded = load_policy(str(tmp_path / folder))[0].state_dict()
        assert all(torch.allclose(loaded[n], t, atol=1e-6) for n, t in state.items()), folder
    resumed = Trainer.resume(tmp_path / "run", policy=moved(little_policy()), task=parity)
    assert repr(resumed.train_one()) == repr(run.train_one())
    with pytest.raises(ValueError, match="not the one below this run's adapter"):
        Trainer.resume(tmp_path / "run", policy=little_policy(), task=parity)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    loaded = load_policy(str(tmp_path / "elsewhere"))[0].state_dict()
    assert all(torch.allclose(loaded[n], t, atol=1e-6) for n, t in state.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 40}, r"model\.vocabulary 40: .* keeps its own"),
        ({"dtype": "bfloat16"}, r"model\.dtype bfloat16: the policy that is given is in float32"),
    ],
)
def test_a_setting_that_a_given_policy_cannot_have_is_refused(
    changes, message, little_policy, parity, little
):
    with pytest.raises(ValueError, match=message):
        Trainer(RunConfig(model=changes, **little), little_policy(), task=parity)


def test_an_adapter_that_is_there_already_has_to_be_the_one_that_is_asked_for(
    little_policy, parity, little
):
    policy = little_policy()
    Trainer(RunConfig(lora=LORA, **little), policy, task=parity)
    Trainer(RunConfig(lora=LORA, **little), policy, task=parity)
    for lora, said in (({"rank": 4}, r"model\.lora\.rank is 4"), (None, "model.lora is not set")):
        with pytest.raises(ValueError, match=rf"adapter of rank 2, and {said}"):
            Trainer(RunConfig(lora=lora, **little), policy, task=parity)


def test_so_many_layers_of_a_given_policy_learn(little_policy, parity, little):
    model, tokenizer = load_policy("tiny")
    run = Trainer(RunConfig(trainable_layers=1, **little), (model, tokenizer), task=parity)
    learn = {name for name, p in run.model.named_parameters() if p.requires_grad}
    last = len(model.model.layers) - 1
    assert any(f"layers.{last}." in name for name in learn)
    assert not any(f"layers.{place}." in name for place in range(last) for name in learn)


def test_a_model_from_scratch_samples_and_learns_without_dropout(little_policy, parity, little):
    tokenizer = little_policy()[1]
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        **{"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        **{"resid_pdrop": 0.5, "eos_token_id": 2, "bos_token_id": 1},
    )
    model = GPT2LMHeadModel(config)
    assert model.training
    first, second = (Sampler(model, 2).generate([[5, 6]] * 4, 1, 8, seed=3) for _ in range(2))
    assert first == second and model.training  # as it was
    row = Trainer(RunConfig(**little), (model, tokenizer), task=parity).train_one()
    assert row["mismatch_max"] < 1e-4


def test_adapters_beside_no_linear_layer_are_refused_by_name(little_policy, parity, little):
    config = GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2)
    policy = GPT2LMHeadModel(config), little_policy()[1]
    with pytest.raises(ValueError, match=r"model\.lora: GPT2LMHeadModel has no nn\.Linear"):
        Trainer(RunConfig(lora=LORA, **little), policy, task=parity)


class RunningMean:
    """An estimator that remembers, as people write one."""

    def __init__(self):
        self.mean = 0.0

    def __call__(self, rewards, groups):
        self.mean = 0.5 * self.mean + 0.5 * float(rewards.mean())
        return rewards - self.mean


def test_what_an_object_remembers_is_saved_and_put_back():
    one, other = RunningMean(), RunningMean()
    one(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    assert estimator_state(one) == {"mean": 0.25}
    load_estimator_state(other, estimator_state(one))
    assert other.mean == 0.25
    one.mean = torch.tensor(1.0)
    with pytest.raises(ValueError, match=r"RunningMean.*\.mean is tensor.*state_dict"):
        estimator_state(one)


def test_a_run_with_such_an_estimator_resumes_as_it_was(little_policy, parity, little, tmp_path):
    method = Method(name="running", paper="", advantage=RunningMean)
    config = RunConfig(method=method, **little | {"steps": 3})
    whole = [row["loss"] for row in Trainer(config, little_policy(), task=parity)]
    run = Trainer(config, little_policy(), task=parity)
    run.train_one()
    run.save(tmp_path)
    resumed = Trainer.resume(tmp_path, policy=little_policy(), task=parity)
    assert [row["loss"] for row in resumed] == whole[1:]


class SameIds:
    """A task whose problems have one id."""

    name, levels = "same", (1,)

    def sample(self, seed, n, levels=None):
        return [Problem("q", f"{seed}, {i}?", "") for i in range(n)]

    def verify(self, problem, completion, finished=True):
        return Verdict(False)


def test_two_problems_with_one_id_are_no_pool(little_policy, little):
    with pytest.raises(ValueError, match=r"task 'same': two different problems have the id 'q'"):
        Trainer(RunConfig(pool=8, **little), little_policy(), task=SameIds())


class World(Session):
    """Ends with the first turn."""

    def turn(self, text, finished=True):
        return Reply("", True)

    def verdict(self):
        return Verdict(True)


@dataclass
class Worlds:
    """An environment that says how its turns end by text, which it cannot."""

    name: str = "worlds"
    levels: tuple[int, ...] = (1,)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{seed}/{i}", f"{i}+1=", "") for i in range(n)]

    def begin(self, problem, seed):
        return World()


def test_an_environment_has_no_stop_texts(little_policy):
    tokenizer = little_policy()[1]
    assert stop_of(tokenizer, Worlds(), None) is None
    with pytest.raises(ValueError, match="name them in its `ends`"):
        stop_of(tokenizer, Worlds(), ["</call>"])


class Bounded:
    """An engine with so many positions, which notes what it was asked."""

    positions = 20

    def __init__(self):
        self.calls = []

    def generate(self, prompts, *, n, max_new_tokens, temperature, seed, stop=()):
        longest = max(map(len, prompts))
        assert longest + max_new_tokens <= self.positions, "beyond the positions"
        self.calls.append((len(prompts), max_new_tokens))
        ids = [5] * max_new_tokens
        return [Completion(ids, [-1.0] * len(ids), "length") for _ in prompts]


def test_episodes_that_fit_one_by_one_are_asked_so_that_they_fit():
    """A long context with little room left, beside a short one with much."""
    asks = [Ask([1] * 4, 16), Ask([1] * 15, 5), Ask([1] * 3, 10)]
    engine = Bounded()
    answers = in_batches(engine, 1.0, 0)(asks)
    assert [len(one.token_ids) for one in answers] == [16, 5, 10]
    assert engine.calls == [(2, 16), (1, 5)]
    assert len(in_batches(Whatever(), 1.0, 0)(asks)) == 3


class Whatever(Bounded):
    """Has no limit, so all are asked at once."""

    positions = 10**9


def test_held_out_questions_are_put_as_those_of_training(little_policy, parity, little):
    asked = []

    class Noting(Sampler):
        def generate(self, prompts, *args, **how):
            asked.extend(prompts)
            return super().generate(prompts, *args, **how)

    model, tokenizer = little_policy()
    chat = {"examples": [["1+1=?", "2"]]}
    run = Trainer(RunConfig(chat=chat, **little), (model, tokenizer), task=parity)
    evaluate_run(run, prompts=2, n=1, engine=Noting(model, 2))
    shown = tokenizer("1+1=?\n2\n\n").input_ids
    assert len(asked) == 2 and all(prompt[: len(shown)] == shown for prompt in asked)


class Ended:
    """A task whose answers end with a text."""

    name, levels, stop = "ended", (1,), ("!",)

    def sample(self, seed, n, levels=None):
        return [Problem(f"{seed}/{i}", f"{i}+{seed % 9}=", "") for i in range(n)]

    def verify(self, problem, completion, finished=True):
        return Verdict(finished)


def test_a_mixture_ends_where_its_tasks_do_and_says_where_they_differ():
    own = f"{__name__}:Ended"
    assert stop_texts(get_task(RunConfig(mixture={own: 1.0}).data.task)) == ("!",)
    with pytest.raises(ValueError, match=r"different texts, .*rollout\.stop"):
        stop_texts(get_task(RunConfig(mixture={own: 1.0, "sums": 1.0}).data.task))


def test_a_task_beside_a_mixture_is_refused():
    config = RunConfig(mixture={"sums": 1.0})
    assert RunConfig(**config.to_dict()) == config
    with pytest.raises(ValueError, match="task 'habits' and mixture both"):
        RunConfig(task="habits", mixture={"sums": 1.0})
    with pytest.raises(ValueError, match="task 'habits' and mixture both"):
        with_settings(config, ["data.task=habits"])


def test_a_mixture_takes_the_place_of_the_task_that_was():
    mixture, other = {"sums": 1.0}, {"sums": 1.0, "habits": 2.0}
    word = "data.mixture={sums: 1.0, habits: 2.0}"
    for start in (RunConfig(), RunConfig(task="habits"), RunConfig(mixture=mixture)):
        assert start.replace(mixture=other).data == RunConfig(mixture=other).data
        assert with_settings(start, [word]).data == RunConfig(mixture=other).data
    assert with_settings(RunConfig(mixture=mixture), ["data.mixture=null"]) == RunConfig()
    both = with_settings(RunConfig(mixture=mixture), ["data.mixture=null", "data.task=habits"])
    assert both == RunConfig(task="habits")


def test_the_mend_of_a_stop_text_is_that_text():
    with pytest.raises(ValueError, match=r'write rollout\.stop=\["END OF"\]'):
        with_settings(RunConfig(), ['rollout.stop="END OF"'])


def test_what_was_defined_in_a_notebook_is_not_found_from_elsewhere():
    with pytest.raises(ValueError, match="defined in a notebook or script: move it into a module"):
        import_name("__main__:signs_of_mine")


def test_a_run_in_bfloat16_is_exported_in_it(parity, little, tmp_path):
    run = Trainer(RunConfig(dtype="bfloat16", **little | {"steps": 1}), task=parity)
    run.train_one()
    run.save(tmp_path / "run")
    whole = export(tmp_path / "run", tmp_path / "whole")
    assert json.loads((whole / "config.json").read_text())["dtype"] == "bfloat16"


class Hard(Ended):
    """Nothing is ever right."""

    name = "hard"

    def verify(self, problem, completion, finished=True):
        return Verdict(False)


SMALL = ["steps=9", "prompts=2", "group_size=2", "minibatches=1", "max_new_tokens=6"]


def test_a_run_that_gives_up_has_saved_what_it_learned(tmp_path, capsys):
    words = [*SMALL, f"data.task={__name__}:Hard", "method=dapo", "patience=2"]
    with pytest.warns(RuntimeWarning, match="no update"), pytest.raises(SystemExit) as stopped:
        main(["train", *words, "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "no update in 2 steps" in said
    assert "Traceback" not in said and (tmp_path / "metrics.csv").is_file()
    assert (tmp_path / "latest").is_file()


def test_a_task_that_was_an_object_has_to_be_named(little_policy, little, tmp_path, capsys):
    run = Trainer(RunConfig(**little | {"steps": 1}), task=Ended())
    run.train_one()
    run.save(tmp_path)
    with pytest.raises(SystemExit):
        main(["eval", str(tmp_path), "prompts=1"])
    assert f"such as data.task={__name__}:Ended" in capsys.readouterr().err
    main(["eval", str(tmp_path), "prompts=1", "evaluation.samples=1", f"task={__name__}:Ended"])
    assert "pass@1" in capsys.readouterr().out
