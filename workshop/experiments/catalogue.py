"""The questions the book asks of the small world, and the runs that answer them."""

from workshop.shared.design import Experiment
from workshop.shared.experiments import EXPERIMENTS as SHARED
from workshop.shared.ladder_arms import LADDER
from workshop.shared.mask_and_age import MASK_AND_AGE
from workshop.verdicts.book import QUESTIONS

EXPERIMENTS: dict[str, Experiment] = {
    name: experiment
    for chapter in QUESTIONS.values()
    for question in chapter
    for name, experiment in question.experiments.items()
}
EXPERIMENTS |= SHARED | LADDER | MASK_AND_AGE
