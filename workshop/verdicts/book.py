"""The book's claims from training, chapter by chapter."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from workshop.ch02.claims import baselines
from workshop.ch03.claims import reuse
from workshop.ch04.claims import rlhf
from workshop.ch05.claims import grpo
from workshop.ch06.claims import rloo
from workshop.ch07.claims import dr_grpo
from workshop.ch08.claims import dapo
from workshop.ch09.claims import cispo
from workshop.ch10.claims import maxrl
from workshop.ch11.claims import dppo
from workshop.ch12.claims import tricks
from workshop.ch13.claims import reality
from workshop.ch14.claims import efficiency
from workshop.ch15.claims import credit
from workshop.ch16.claims import scalerl
from workshop.shared.evidence import load_results
from workshop.shared.runs import Load
from workshop.shared.told import Told
from workshop.shared.verdict import Claim

CHAPTERS: dict[str, Callable[[Told], Iterator[Claim]]] = {
    "02": baselines,
    "03": reuse,
    "04": rlhf,
    "05": grpo,
    "06": rloo,
    "07": dr_grpo,
    "08": dapo,
    "09": cispo,
    "10": maxrl,
    "11": dppo,
    "12": tricks,
    "13": reality,
    "14": efficiency,
    "15": credit,
    "16": scalerl,
}


def claims(chapters: Sequence[str] = tuple(CHAPTERS), load: Load = load_results) -> list[Claim]:
    """What these chapters claim from training."""
    read = cache(load)
    return [one for chapter in chapters for one in CHAPTERS[chapter](Told(chapter, read))]
