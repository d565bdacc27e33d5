"""One text in several spellings: what is counted is checked by hand."""

import pytest
import torch

from rlbook.exact import TokenTree
from workshop.ch15.retokenization import Speller, climb, letter_by_letter, rewards_of


@pytest.fixture
def speller():
    return letter_by_letter()


def test_chances_of_the_habit(speller):
    spelt = dict(zip(speller.tree.sequences, speller.tree.probs.tolist(), strict=True))
    assert spelt[0, 1, 3] == pytest.approx(0.55 * 0.90 * 0.95)
    assert spelt[2, 3] == pytest.approx(0.05 * 0.90)
    assert float(speller.tree.probs.sum()) == pytest.approx(1.0)


def test_the_encoder_takes_the_longest_piece(speller):
    assert speller.encode("ab") == (2, 3) and speller.encode("ba") == (1, 0, 3)
    assert speller.decode((0, 1, 3)) == speller.decode((2, 3)) == "ab"
    assert speller.encode(speller.decode((0, 1, 1))) == (2, 1)  # cut off: no STOP


def test_ratio_of_a_text_spelt_otherwise(speller):
    ratio = dict(zip(speller.tree.sequences, speller.ratios.tolist(), strict=True))
    assert ratio[0, 1, 3] == pytest.approx(0.05 * 0.90 / (0.55 * 0.90 * 0.95))
    assert ratio[2, 3] == pytest.approx(1.0)


def test_where_every_text_has_one_spelling_nothing_changes():
    speller = Speller(TokenTree.random(2, 3, seed=0), ("a", "b"))
    rewards = rewards_of(speller, "ab")
    torch.testing.assert_close(speller.ratios, torch.ones_like(speller.ratios))
    torch.testing.assert_close(speller.gradient(rewards), speller.tree.true_gradient(rewards))


def test_climbing_on_encoded_text_teaches_the_encoders_spelling(speller):
    rewards = rewards_of(speller, "ab")
    apart = {}
    for encoded in (False, True):
        end = climb(speller, rewards, encoded, steps=60)[-1]
        apart[encoded] = float(end.tree.probs[~end.sampled_as_encoded].sum())
    assert apart[False] > 0.8 > 0.2 > apart[True]
