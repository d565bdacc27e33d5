"""One step in everybody's numbers, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbook.interop import BatchSizes, read_batch_sizes
from rlbook.interop.batch_sizes import WORDS

count = st.integers(1, 6)


@given(count, count, count, count, count, count)
def test_there_and_back(per_mini, group, minibatches, epochs, ranks, micro):
    prompts = per_mini * minibatches * ranks * micro
    sizes = BatchSizes(prompts, group, minibatches, epochs, ranks, micro)
    for to in ("verl", "skyrl", *["trl"] * (group > 1)):  # TRL refuses a group of one
        assert read_batch_sizes(sizes.settings(to), ranks) == sizes


def test_dapos_step_in_all_of_them():
    """512 prompts of 16 answers, 16 updates, on 8 GPUs with 4 completions at a time."""
    step = BatchSizes(512, 16, minibatches=16, ranks=8, micro_batch=4)
    assert (step.completions, step.per_update, step.accumulation, step.updates) == (
        8192,
        512,
        16,
        16,
    )
    assert [*step.settings("trl").values()] == [4, 16, 256, 16, 1]
    assert [*step.settings("verl").values()] == [512, 16, 32, 4, 1]
    assert [*step.settings("skyrl").values()] == [512, 16, 32, 4, 1]
    assert [*step.settings("rlbook").values()] == [512, 16, 16, 1]


def test_trl_counts_completions_where_verl_counts_prompts():
    """The same number under two names is a step 16 times as large."""
    verl = {name: 1 for name in WORDS["verl"]} | {
        "data.train_batch_size": 512,
        "actor_rollout_ref.rollout.n": 16,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 512,
    }
    assert read_batch_sizes(verl).completions == 16 * 512
    trl = dict.fromkeys(WORDS["trl"], 1) | {"per_device_train_batch_size": 512}
    assert read_batch_sizes(trl | {"num_generations": 16}).completions == 512


LITE_PPO = {  # as TRL's own recipe has it
    **{"per_device_train_batch_size": 32, "gradient_accumulation_steps": 32},
    **{"steps_per_generation": 8, "num_generations": 8, "num_iterations": 1},
}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BatchSizes(10, 8, minibatches=4), "10 prompts do not make 4 minibatches"),
        (lambda: BatchSizes(4, 4, ranks=3), "16 completions of an update do not fill 3 ranks"),
        (lambda: BatchSizes(0, 4), "prompts is a count of at least 1"),
        (lambda: BatchSizes(4, 4).settings("areal"), "no trainer 'areal': choose from rlbook"),
        (lambda: BatchSizes(4, 4, 2).settings("prime-rl"), "one update per batch"),
        (lambda: read_batch_sizes({"data.train_batch_size": 8}), "not all that a trainer needs"),
        (
            lambda: read_batch_sizes(LITE_PPO),
            "an update of 4 generations.*sample 128 prompts a step",
        ),
        (lambda: read_batch_sizes({n: 3 if "num_g" in n else 1 for n in WORDS["trl"]}), "whole"),
    ],
)
def test_what_does_not_divide_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
