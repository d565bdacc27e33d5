"""Small notebooks for the tests of the tools, and what a check of an exercise says."""

from collections.abc import Callable

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def executed(source: str, count: int, text: str = "", tags: tuple[str, ...] = ()):
    outputs = [new_output("stream", name="stdout", text=text)] if text else []
    return new_code_cell(
        source, execution_count=count, outputs=outputs, metadata={"tags": [*tags]} if tags else {}
    )


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    """A small notebook without any problem."""
    cells = [
        new_markdown_cell("# Title\n\nA short paragraph with a formula $\\rho A$."),
        executed("x = 2\nassert x > 1", 1),
        executed("# NBVAL_CHECK_OUTPUT\nprint(x)", 2, "2\n"),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture
def said(capsys) -> Callable[..., str]:
    """What a check prints for an answer."""

    def read(check: Callable[..., None], *answer) -> str:
        check(*answer)
        return capsys.readouterr().out.strip()

    return read
