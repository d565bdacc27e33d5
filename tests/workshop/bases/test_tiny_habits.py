"""The second base model: what its card says, measured again on a few problems."""

import itertools
import json

import pytest

from rlbook.evaluation import held_out_rollouts, summary
from rlbook.paths import data_dir
from rlbook.policy import load_policy
from rlbook.tasks import get_task
from rlbook.tasks.habits import FAMILIES
from workshop.bases.demonstrated import WORLDS
from workshop.bases.habits import habit_demonstrations
from workshop.bases.habits_card import HabitsCardConfig, majority, markdown, measure

FOLDER = data_dir() / "tiny-habits"
CARD = json.loads((FOLDER / "card.json").read_text())
TASK = get_task("habits")


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny-habits")


def test_the_words_of_the_world_survive_a_round_trip(policy):
    model, tokenizer = policy
    assert len(tokenizer) == len(WORLDS["habits"].vocabulary) == model.config.vocab_size
    for demo in itertools.islice(habit_demonstrations(3), 200):
        text = demo.problem.prompt + demo.completion
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids


def test_the_card_is_the_table_of_the_data_folder():
    assert markdown(CARD) in (data_dir() / "README.md").read_text()


def test_base_rates_are_graded_and_the_mode_is_wrong():
    families = CARD["families"]
    rates = [families[name]["share_right"] for name in FAMILIES]
    assert all(high > 1.5 * low for high, low in itertools.pairwise(rates))
    assert rates[0] > 0.8 and rates[-1] < 0.02
    wrong_by_habit = list(FAMILIES)[2:]
    assert all(families[name]["greedy"] < 0.1 for name in wrong_by_habit)
    assert all(families[name]["majority"] < 0.1 for name in wrong_by_habit)
    assert families["plain"]["greedy"] > 0.9


@pytest.mark.parametrize("level", range(1, 7))
def test_a_few_problems_agree_with_the_card(policy, level):
    """Five standard errors over 32 problems of 16 samples."""
    asked = held_out_rollouts(policy, TASK, 32, 16, [level], max_new_tokens=64)
    row, recorded = summary(asked, task=TASK), CARD["families"][list(FAMILIES)[level - 1]]
    share = recorded["share_right"]
    error = (max(share * (1 - share), 0.02) / 64) ** 0.5  # answers of one problem are alike
    assert abs(row.get("share_right", 0.0) - share) < 5 * error


def test_the_majority_is_counted_over_readable_answers(policy):
    asked = held_out_rollouts(policy, TASK, 4, 4, [1], max_new_tokens=64)
    for rollout in asked[:4]:
        rollout.answer, rollout.correct = None, False
    asked[0].answer, asked[0].correct = asked[0].problem.answer, True
    before = majority(asked[4:])["majority"]
    assert majority(asked)["majority"] == pytest.approx((1 + 3 * before) / 4)


@pytest.mark.slow
def test_the_card_can_be_measured_again():
    card = measure(HabitsCardConfig(FOLDER, per_family=8, samples=8))
    assert card["families"].keys() == CARD["families"].keys()
    assert card["families"]["plain"]["pass@8"] > 0.9


def test_teacher_and_small_student_share_the_words_of_the_base(policy):
    base = load_policy("tiny-habits")[0]
    for name in ("tiny-habits-teacher", "tiny-habits-small"):
        model, tokenizer = load_policy(name)
        assert tokenizer.get_vocab() == policy[1].get_vocab()
        facts = json.loads((data_dir() / name / "manifest.json").read_text())
        assert facts["command"].startswith(("python -m rlbook", "python -m workshop"))
    assert 5 < base.num_parameters() / model.num_parameters() < 7


def test_the_teacher_has_what_the_base_lacks():
    accuracy = {}
    for name in ("tiny-habits", "tiny-habits-teacher", "tiny-habits-small"):
        asked = held_out_rollouts(load_policy(name), TASK, 24, 4, [4, 5, 6], max_new_tokens=64)
        accuracy[name] = sum(r.correct for r in asked) / len(asked)
    assert accuracy["tiny-habits-teacher"] > 0.5
    assert max(accuracy["tiny-habits"], accuracy["tiny-habits-small"]) < 0.2
