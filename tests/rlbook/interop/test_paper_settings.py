"""What papers print of a step, in every trainer's words and back."""

import tomllib

import pytest
import yaml

from rlbook.cli import main
from rlbook.interop import PEERS, read_batch_sizes
from rlbook.interop.batch_sizes import WORDS
from rlbook.paths import data_dir

PAPERS = tomllib.loads((data_dir() / "paper_settings.toml").read_text(encoding="utf-8"))


def given(words):
    return dict(word.split("=") for word in words.split()[1:])


@pytest.mark.parametrize("to", PEERS)
@pytest.mark.parametrize("paper", PAPERS)
def test_the_printed_counts_come_back_from_every_trainers_settings(paper, to, capsys):
    words = PAPERS[paper]["words"]
    wanted = given(words)
    if to == "prime-rl" and wanted["minibatches"] != "1":
        pytest.skip("it makes one update per batch")
    main(["translate", *words.split(), "--to", to])
    settings = yaml.safe_load(capsys.readouterr().out)
    sizes = read_batch_sizes({name: settings[name] for name in WORDS[to]})
    counts = (sizes.prompts, sizes.group_size, sizes.minibatches)
    assert counts == tuple(int(wanted[n]) for n in ("prompts", "group_size", "minibatches"))


@pytest.mark.parametrize("paper", PAPERS)
def test_every_count_stands_in_what_the_paper_says(paper):
    """The answers of a prompt as printed; completions of a step are the product that it prints."""
    one = PAPERS[paper]
    digits = one["says"].replace(",", "")
    assert given(one["words"])["group_size"] in digits
    assert one["source"].startswith("arXiv:") and one["chapter"] in "05 08 10 11 17"
