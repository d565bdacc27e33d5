"""A chapter's solutions: shown under a closed line, and run from there until a reader's are right.

A solution is Markdown, a `<details>` with one block of code, so that it is closed wherever Markdown
is read: in JupyterLab, on GitHub, in VS Code, on Colab and on the site. The cell below it calls
`solution` where the lines that the reader was asked for are not right. A chapter's last cell calls
`hold`: whether its sentences are about the reader's run.
"""

import json
import re
from typing import Any

from rlbook.paths import ROOT
from workshop.shared.bound import hold as hold
from workshop.shared.checks import SOLUTION

CLOSED = '<details class="fold"><summary>Solution</summary>'
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shown(code: str) -> str:
    """The Markdown of a solution."""
    return f"{CLOSED}\n\n```python\n{code.strip()}\n```\n\n</details>"


def code_of(markdown: str) -> str:
    """The code of a solution that is shown. Raises `ValueError` if there is not one block."""
    blocks = BLOCK.findall(markdown)
    if len(blocks) != 1:
        raise ValueError(f"a solution has one block of Python, not {len(blocks)}")
    return blocks[0]


def solution(chapter: str, name: str, names: dict[str, Any]) -> Any:
    """The function `name` as a chapter (its file's stem) shows it, made among `names`; says so.

    Raises `LookupError` if no solution of the chapter defines it.
    """
    path = ROOT / "chapters" / f"{chapter}.ipynb"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown" and SOLUTION in cell["metadata"].get("tags", []):
            code = code_of("".join(cell["source"]))
            if re.search(rf"^def {name}\(", code, re.MULTILINE):
                exec(compile(code, f"<solution of {chapter}>", "exec"), names)
                print("until your lines are right, the cells below use the book's")
                return names[name]
    raise LookupError(f"{path.name} shows no solution that defines {name}")
