"""What the tables call absent is absent: no word for it is in the wheel (`data/absent.toml`)."""

import ast
import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch

from rlbook.interop import PEERS
from rlbook.paths import data_dir

ABSENT = tomllib.loads((data_dir() / "absent.toml").read_text(encoding="utf-8"))
SAID = [(peer, name) for peer, entries in ABSENT.items() for name in entries]
IN_WORDS = [(peer, name) for peer, name in SAID if "words" in ABSENT[peer][name]]
LISTED = "prime-rl"  # not on PyPI


@cache
def library(peer):
    """All Python and YAML of a wheel by path, in small letters; of prime-rl, the names we hold."""
    if peer == LISTED:
        return {"peers.yaml": "\n".join(PEERS[peer].DEFAULTS).lower()}
    spec = importlib.util.find_spec(peer)
    if spec is None:
        pytest.skip(f"{peer} is not installed here: make interop")
    root = Path(spec.submodule_search_locations[0])
    files = [path for path in root.rglob("*") if path.suffix in (".py", ".yaml", ".yml")]
    texts = {str(p.relative_to(root.parent)): p for p in files if "third_party" not in p.parts}
    return {name: read(path).lower() for name, path in texts.items()}


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def source_of(peer, within):
    """The text of one function, "file::name", in small letters."""
    file, _, name = within.partition("::")
    root = Path(importlib.util.find_spec(peer).submodule_search_locations[0])
    text = read(root.parent / file)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    (node,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds) and n.name == name)
    return ast.get_source_segment(text, node).lower()


def places(word, texts):
    """Where a word is: "max rl" is also max_rl, max-rl and MaxRL, "greedy*" begins a word."""
    body = re.compile("[-_ ]?".join(re.escape(part) for part in word.rstrip("*").lower().split()))
    begins, ends = word[0].isalnum(), word[-1].isalnum()
    for file, text in texts.items():
        for match in body.finditer(text):
            start, end = match.span()
            before, after = text[max(start - 1, 0) : start], text[end : end + 1]
            if not ((begins and before.isalnum()) or (ends and after.isalnum())):
                yield file, text.count("\n", 0, start) + 1


def searched(peer, entry):
    texts = library(peer)
    return {entry["within"]: source_of(peer, entry["within"])} if "within" in entry else texts


@pytest.mark.parametrize(("peer", "name"), IN_WORDS)
def test_no_word_for_it_is_there_and_a_neighbour_is(peer, name):
    entry = ABSENT[peer][name]
    texts = searched(peer, entry)
    assert {word: list(places(word, texts)) for word in entry["words"]} == {
        word: [] for word in entry["words"]
    }
    assert next(places(entry["beside"], texts), None), entry["beside"]


@pytest.mark.parametrize(("peer", "name"), IN_WORDS)
def test_each_word_is_found_where_it_is(peer, name):
    """As a setting, a class, an option and in prose; a longer word is not one that is closed."""
    for word in ABSENT[peer][name]["words"]:
        parts = word.rstrip("*").split()
        camel = "".join(part[:1].upper() + part[1:] for part in parts)
        for form in ("_".join(parts), "-".join(parts), " ".join(parts), camel):
            text = f"x = 1\ncfg.{form}: int".lower()
            assert list(places(word, {"a": text})) == [("a", 2)], form
        longer = list(places(word, {"a": f"{'_'.join(parts)}z".lower()}))
        assert bool(longer) == (not word[-1].isalnum()), word


def test_every_entry_has_a_check_or_words():
    for peer, name in SAID:
        entry = ABSENT[peer][name]
        assert ("words" in entry) == ("beside" in entry) and {"words", "check"} & {*entry}, name


def test_trls_rloo_refuses_a_group_of_one(tmp_path):
    rloo = pytest.importorskip("trl").RLOOConfig
    with pytest.raises(ValueError, match="at least 2 generations"):
        rloo(output_dir=str(tmp_path), report_to="none", bf16=False, num_generations=1)


def test_verl_does_not_count_an_answer_without_a_trained_token(verl):
    """Three answers, one of them empty: the mean of answers is that of the two others."""
    mask = torch.tensor([[1.0, 1], [1, 0], [0, 0]])
    loss = torch.tensor([[1.0, 3], [6, 9], [9, 9]])
    mean = verl.core.agg_loss(loss, mask, "seq-mean-token-mean")
    torch.testing.assert_close(mean, torch.tensor(4.0), rtol=1e-6, atol=1e-6)
