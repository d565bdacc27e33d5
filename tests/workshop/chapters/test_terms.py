"""Chapters and docstrings keep to the notation, the vocabulary and the bibliography."""

import re
from pathlib import Path

import pytest

from workshop.tools import terms
from workshop.tools.runner import chapters

ROOT = Path(__file__).parents[3]
MODULES = sorted(m for house in ("rlbook", "workshop") for m in (ROOT / house).rglob("*.py"))


def test_chapters_and_docstrings_keep_to_the_notation():
    texts = {path: terms.prose(path) for path in chapters()}
    texts |= {path: terms.docstrings(path) for path in MODULES}
    found = {
        path.relative_to(ROOT).as_posix(): (terms.undefined_symbols(text), terms.discouraged(text))
        for path, text in texts.items()
    }
    faults = {name: each for name, each in found.items() if any(each)}
    assert faults == {}, "define the letters in data/notation.toml, exchange the words"


@pytest.fixture(scope="module")
def line():
    return list(terms.main_line(path for path in chapters() if path.match("chapters/[0-9]*.ipynb")))


def test_no_main_line_makes_use_of_a_word_before_the_book_says_what_it_means(line):
    words = [term["name"] for term in terms.notation()["term"] if not term.get("common")]
    found = {word: (terms.used_at(word, line), terms.defined_at(word, line)) for word in words}
    early = {
        word: (used[:3], said and said[:3]) for word, (used, said) in found.items() if used != said
    }
    assert early == {}, "set the word in bold where it is explained, or use another before"


def test_a_use_before_the_definition_is_seen():
    at = terms.Place
    line = [at("01", 1, "", "off-policy data"), at("02", 1, "", "data are **off policy** if")]
    assert terms.used_at("off-policy", line) == line[0]
    assert terms.defined_at("off-policy", line) == line[1]
    assert terms.used_at("PPO", [at("01", 1, "", "DPPO, PPO-like, ppo")]) is None


def cited():
    return {key for path in [*chapters(), *MODULES] for key in terms.citations(terms.written(path))}


def test_every_cited_paper_is_in_the_bibliography():
    papers = {key for key in cited() if key.startswith(("arXiv:", "doi:"))}
    assert papers - set(terms.bibliography()) == set()


def test_every_entry_of_the_bibliography_is_cited():
    assert set(terms.bibliography()) - cited() == set()


def test_every_numbered_chapter_cites_a_paper():
    """With its solutions, whose notebook has the same number and comes later."""
    found = terms.cited_by_chapter(chapters())
    assert {path.stem[:2] for path in chapters() if path.stem[:2].isdigit()} <= set(found)
    assert [chapter for chapter, keys in found.items() if chapter.isdigit() and not keys] == []


def test_the_bibliography_says_where_a_paper_is_cited():
    page = (ROOT / "chapters" / "appendix_bibliography.ipynb").read_text()
    row = next(line for line in page.splitlines() if "2602.04879" in line)
    assert "11" in re.split(r"[ ,]+", row.split("|")[3])


def test_entries_are_complete():
    for key, entry in terms.bibliography().items():
        assert {"title", "authors", "year", "link", "theme"} <= set(entry), key
        assert entry["link"].startswith("http"), key


def test_symbols_are_defined_once():
    symbols = [s["latex"] for s in terms.notation()["symbol"]]
    assert len(symbols) == len(set(symbols))


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        (r"$\rho_t\hat A$ and π_θ", {"ρ", "π", "θ"}),
        (r"$\varepsilon_{low}$, \lambda", {"ε", "λ"}),
        (r"\frac12\sum\log", set()),
        ("Σ and Δ are operators", set()),
    ],
)
def test_greek_letters_are_found(text, letters):
    assert terms.greek(text) == letters


def test_an_undefined_letter_and_a_discouraged_word_are_found():
    assert terms.undefined_symbols(r"a new $\zeta$") == {"ζ"}
    assert terms.discouraged("each Trajectory of the behavior policy") == {
        "trajectory": "rollout",
        "behavior policy": "behaviour policy",
        "behavior": "normalise",
    }


def test_citations_are_found_in_all_their_forms():
    text = "PPO, arXiv:1707.06347, Eq. 7; [GAE](https://arxiv.org/abs/1506.02438) doi:10.1007/BF1."
    text += " [blog](http://example.org/kl.html)"
    assert terms.citations(text) == {
        "arXiv:1707.06347",
        "arXiv:1506.02438",
        "doi:10.1007/BF1",
        "http://example.org/kl.html",
    }
