"""The questions the book asks of the small world, and the runs that answer them."""

from workshop.ch02.experiments import EXPERIMENTS as CH02
from workshop.ch03.experiments import EXPERIMENTS as CH03
from workshop.ch04.experiments import EXPERIMENTS as CH04
from workshop.ch06.experiments import EXPERIMENTS as CH06
from workshop.ch07.experiments import EXPERIMENTS as CH07
from workshop.ch08.experiments import EXPERIMENTS as CH08
from workshop.ch10.experiments import EXPERIMENTS as CH10
from workshop.ch12.experiments import EXPERIMENTS as CH12
from workshop.ch13.experiments import EXPERIMENTS as CH13
from workshop.ch14.brevity import BREVITY
from workshop.ch14.experiments import EXPERIMENTS as CH14
from workshop.ch14.pupils import PUPILS
from workshop.ch14.real_model import REAL_MODEL
from workshop.ch15.experiments import EXPERIMENTS as CH15
from workshop.shared.design import Experiment
from workshop.shared.experiments import EXPERIMENTS as SHARED
from workshop.shared.ladder_arms import LADDER
from workshop.shared.mask_and_age import MASK_AND_AGE

EXPERIMENTS: dict[str, Experiment] = (
    CH02
    | CH03
    | CH04
    | CH06
    | CH07
    | CH08
    | CH10
    | CH12
    | CH13
    | CH14
    | CH15
    | BREVITY
    | PUPILS
    | REAL_MODEL
    | SHARED
    | LADDER
    | MASK_AND_AGE
)
