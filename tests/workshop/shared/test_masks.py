"""Age, roughness and masks: the engine, and that without both it is the plain trainer."""

from dataclasses import replace

import pytest
import torch

from rlbook.policy import load_policy
from rlbook.training import Trainer
from rlbook.training.resume import differences
from workshop.shared.design import Arm
from workshop.shared.mask_and_age import AGE, BITS, MASK_AND_AGE, AgedSampler, aged

STEPS = 3
ARMS = {one.label: one for one in MASK_AND_AGE["mask_new"].arms}


def short(arm: Arm):
    return arm.config.replace(steps=STEPS, prompts=8, group_size=8, max_new_tokens=48, lr=4e-4)


def rows_of(trainer: Trainer) -> list[dict]:
    return list(trainer)


@pytest.mark.parametrize("label", ["CISPO", "clip at μ"])
def test_without_age_and_rounding_it_is_the_plain_trainer_update_for_update(label):
    config = short(ARMS[label])
    plain, same = rows_of(Trainer(config)), rows_of(aged(0, None)(config))
    assert len(plain) == STEPS
    for one, other in zip(plain, same, strict=True):
        assert one.keys() == other.keys()
        for name in ("accuracy", "length", "completions", "clip_fraction"):
            assert one[name] == other[name], name
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4, abs=1e-7)


def test_answers_are_written_by_the_weights_of_so_many_batches_ago():
    model, tokenizer = load_policy("tiny")
    engine, first = AgedSampler(tokenizer, 2, None), next(model.parameters())
    seen = []
    for batch in range(5):
        with torch.no_grad():
            first.fill_(float(batch))
        engine.load_weights(model)
        seen.append(next(engine.kept[0].model.parameters()).mean().item())
    assert seen == [0, 0, 0, 1, 2]
    rough = AgedSampler(tokenizer, 0, BITS)
    rough.load_weights(load_policy("tiny")[0])
    matrix = next(p for p in rough.kept[0].model.parameters() if p.ndim == 2)
    assert max(len(row.unique()) for row in matrix) <= 2**BITS - 1


def test_old_tokens_are_far_from_the_policy_and_new_ones_are_not():
    config = short(ARMS["no region"])
    far = {age: rows_of(aged(age, None)(config))[-1]["ratio_max"] for age in (0, 2)}
    assert far[2] - 1 > 2 * (far[0] - 1)


def test_the_arms_differ_in_their_region_and_the_worlds_in_nothing_else():
    base = ARMS["no region"].config.to_dict()
    for label, one in ARMS.items():
        found = {path.split(".")[1] for path in differences(base, one.config.to_dict())}
        held_to_old = {"old_logprobs", "sampler_correction"} if label == "clip at π_old" else set()
        assert found <= {"trust_region"} | held_to_old, label
    for experiment in MASK_AND_AGE.values():
        assert experiment.arms == MASK_AND_AGE["mask_new"].arms
    settings = [experiment.world.args for experiment in MASK_AND_AGE.values()]
    assert settings == [(AGE, None), (0, BITS), (0, None), (AGE, BITS)]


def test_with_one_update_a_batch_a_clip_held_to_the_trainer_cannot_act():
    config = short(ARMS["clip at π_old"])
    once, twice = (aged(2, None)(config.replace(minibatches=n)) for n in (1, 2))
    ratios = [max(row["ratio_max"] - 1 for row in rows_of(one)) for one in (once, twice)]
    assert ratios[0] < 1e-3 < ratios[1]


def test_the_row_is_that_of_scalerl():
    row = ARMS["CISPO"].config.method
    assert replace(row, note="") == replace(row.from_dict("scalerl"), note="")
