import pytest

from rlbook.tasks import Problem
from rlbook.training import Rollout


@pytest.fixture
def make_group():
    """A group whose members give these answers ("7" is right); "" gives none."""

    def make(answers, group=0, logps=(-0.5, -1.0)):
        problem = Problem(f"p{group}", "3+4=?", "7")
        return [
            Rollout(
                problem=problem,
                group=group,
                prompt_ids=[1],
                token_ids=[3, 2],
                logps=list(logps),
                versions=[0, 0],
                finish_reason="stop",
                text=answer,
                answer=answer or None,
                correct=answer == "7",
                format_ok=bool(answer),
            )
            for answer in answers
        ]

    return make
