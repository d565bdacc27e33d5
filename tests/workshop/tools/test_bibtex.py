"""The bibliography for LaTeX: every paper once, under a name of its own."""

import re

from workshop.tools.bibtex import bibtex
from workshop.tools.terms import bibliography


def test_every_paper_is_an_entry_with_a_name_of_its_own():
    text, papers = bibtex(), bibliography()
    names = re.findall(r"^@misc\{(.*),$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(papers)
    assert all(re.fullmatch(r"[a-z0-9]+", name) for name in names)
    assert all(f"url = {{{paper['link']}}}" in text for paper in papers.values())
    assert text.count("{") == text.count("}")


def test_an_entry_written_by_hand():
    papers = {
        "arXiv:2402.03300": {
            "title": "The Limits",
            "authors": "Hübotter et al.",
            "year": 2024,
            "link": "https://arxiv.org/abs/2402.03300",
            "venue": "ICML 2024",
            "use": "GRPO",
        }
    }
    twice = {**papers, "http://a.b/": papers["arXiv:2402.03300"] | {"link": "http://a.b/"}}
    first, second = bibtex(twice).split("\n\n")
    assert (
        first
        == """@misc{hubotter2024limits,
  title = {{The Limits}},
  author = {{Hübotter} and others},
  year = {2024},
  howpublished = {ICML 2024},
  eprint = {2402.03300},
  archiveprefix = {arXiv},
  url = {https://arxiv.org/abs/2402.03300},
  note = {GRPO},
}"""
    )
    assert second.startswith("@misc{hubotter2024limitsb,") and "eprint" not in second


def test_every_paper_says_what_it_is_cited_for():
    assert [key for key, paper in bibliography().items() if not paper.get("use")] == []
