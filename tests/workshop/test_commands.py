"""`python -m workshop`: the commands that make the book, and that `rlbook` has none of them."""

import pytest

from rlbook.cli import VERBS as LIBRARY
from workshop.__main__ import VERBS, main


def test_the_two_houses_share_no_command():
    assert not VERBS.keys() & LIBRARY.keys()


def test_experiments_are_listed(capsys):
    main(["experiments"])
    assert "methods " in capsys.readouterr().out


def test_an_error_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "nothing"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("workshop: unknown benchmark ['nothing']")


def test_chaos_reads_its_own_words(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["chaos", "--help"])
    assert not stopped.value.code
    assert "of striking" in capsys.readouterr().out
