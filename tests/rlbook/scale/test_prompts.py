"""Which problems a run asks: those of its pool, or those of the same run on one process."""

import pytest

from rlbook.policy import Completion
from rlbook.scale.config import ScaleConfig
from rlbook.tasks import SumsTask, get_task
from rlbook.training import RunConfig, Trainer
from rlbook.training.pool import training_pool, training_problems

SMALL = {"prompts": 6, "group_size": 2, "minibatches": 3, "seed": 5, "levels": (3, 4)}


class Recorded(SumsTask):
    """Sums, and the problems that were asked."""

    def __init__(self):
        self.asked = []

    def sample(self, seed, n, levels=None):
        problems = super().sample(seed, n, levels)
        self.asked += problems
        return problems


class Silent:
    """An engine whose answers are empty."""

    def generate(self, prompts, *, n, **how):
        return [Completion([2], [-1.0], "stop") for _ in range(n * len(prompts))]


def test_without_a_pool_the_problems_are_those_of_one_process():
    config = RunConfig(steps=3, **SMALL)
    task = Recorded()
    list(Trainer(config, task=task, engine=Silent()))
    scaled = ScaleConfig(**config.to_dict())
    assert training_problems(SumsTask(), scaled) == list({p.id: p for p in task.asked}.values())
    drawn = training_pool(SumsTask(), scaled, []).draw(len(task.asked))
    assert drawn[: len(set(drawn))] == list(dict.fromkeys(task.asked))  # and then again


def test_a_run_given_more_steps_goes_on_with_new_problems():
    short, long = (training_pool(SumsTask(), ScaleConfig(steps=n, **SMALL), []) for n in (3, 9))
    first = short.draw(18)
    long.load(short.state())
    assert not set(first) & set(long.draw(18))


def test_what_is_held_out_is_not_asked():
    config = ScaleConfig(steps=3, **SMALL)
    held_out = training_problems(SumsTask(), config)[:4]
    pool = training_pool(SumsTask(), config, held_out)
    assert not {p.prompt for p in held_out} & {p.prompt for p in pool.problems.values()}
    everything = training_problems(SumsTask(), config)
    with pytest.raises(ValueError, match=r"all \d+ training problems of sums are held out"):
        training_pool(SumsTask(), config, everything)


def test_a_small_data_set_needs_no_pool(tmp_path):
    """It has fewer problems than the run asks: they are met again."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(f'{{"question": "{i}?", "answer": "{i}"}}' for i in range(40)))
    config = ScaleConfig(task=f"dataset:{rows}", steps=50, prompts=4, minibatches=1)
    problems = training_problems(get_task(config.data.task), config)
    assert len(problems) == len({p.id for p in problems}) <= 40
