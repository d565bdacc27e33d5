"""A lecture from a chapter as it is stored: the main line's headings and pictures, its scorecard.

One HTML file without a script. A slide is as high as the window; PageDown turns to the next.
"""

import html
import re

from nbformat import NotebookNode

from workshop.tools.main_line import HEADING, places

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
html{{scroll-snap-type:y mandatory;font:clamp(18px,2.2vw,34px)/1.35 system-ui,sans-serif}}
body{{margin:0}} img{{max-width:100%;max-height:78vh}} table{{font-size:.6em}}
section{{box-sizing:border-box;min-height:100vh;scroll-snap-align:start;padding:5vh 7vw;
break-after:page;display:flex;flex-direction:column;justify-content:center;align-items:center}}
</style>{slides}</html>
"""


def slides(notebook: NotebookNode) -> str:
    """The lecture as a page of HTML."""
    shown = []
    for cell, place in zip(notebook.cells, places(notebook), strict=True):
        if place == "main" and cell.cell_type == "markdown":
            shown += [
                f"<h{min(len(marks), 2)}>{plain(text)}</h{min(len(marks), 2)}>"
                for marks, text in HEADING.findall(cell.source)
            ]
        elif place == "main":
            for data in (output.get("data", {}) for output in cell.outputs):
                if "image/png" in data:
                    png = "".join(data["image/png"].split())
                    shown.append(f'<img alt="" src="data:image/png;base64,{png}">')
                elif "scorecard(" in cell.source:
                    shown.append(data.get("text/html", ""))
    pages = "\n".join(f"<section>{content}</section>" for content in shown if content)
    return PAGE.format(title=plain(notebook.cells[0].source.splitlines()[0]), slides=pages)


def plain(text: str) -> str:
    """A heading without Markdown's marks, as HTML."""
    return html.escape(re.sub(r"[*`]|^#+ ", "", text))
