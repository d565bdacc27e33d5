"""Chapter 01's two worlds: what is told of a score and a verifier that are wrong."""

import pytest

from rlbook.policy import load_policy, logprobs
from rlbook.tasks import get_task
from workshop.ch01.worlds import ATTACKS, World, attacked, score_four


@pytest.fixture(scope="module")
def sums():
    return World(*load_policy("tiny"), get_task("sums"))


def test_a_lenient_verifier_is_told_which_attack_got_through(sums):
    strict = attacked(lambda problem, text: sums.task.verify(problem, text).correct)
    assert list(strict.index[strict.verdict == "right"]) == ["honest", "open thought"]
    assert len(strict) == len(ATTACKS)
    with pytest.raises(ValueError, match="two guesses: the package's verifier says two_answers"):
        attacked(lambda problem, text: problem.answer in text)


def test_a_score_without_the_shift_is_refused(sums):
    def unshifted(policy, ids, mask):
        logp = policy(input_ids=ids).logits.log_softmax(-1)
        return logp.gather(-1, ids[..., None]).squeeze(-1) * mask

    table = score_four(sums, lambda policy, ids, mask: logprobs(policy, ids, mask))
    assert (table["real tokens"] > 5).all() and (table["π"] < 0.2).all()
    with pytest.raises(AssertionError):
        score_four(sums, unshifted)


def test_a_copied_world_is_trained_alone(sums):
    mine = sums.copied()
    next(mine.model.parameters()).data += 1
    assert not next(mine.model.parameters()).equal(next(sums.model.parameters()))
