"""A lecture from a chapter as it is stored: the questions, formulas and figures of the main line.

One HTML file without a script. A slide is as high as the window; PageDown turns to the next.
"""

import html
import re
from collections.abc import Iterator

from mistune import create_markdown  # of nbconvert
from nbformat import NotebookNode

from workshop.site.formulas import mathml
from workshop.site.navigation import without_navigation
from workshop.tools.main_line import HEADING, places

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
html{{scroll-snap-type:y mandatory;font:clamp(16px,1.9vw,30px)/1.4 system-ui,sans-serif}}
body{{margin:0;color:#222}} h1{{font-size:1.9em}} h2{{font-size:1.25em;margin:0 0 .8em}}
section{{box-sizing:border-box;min-height:100vh;scroll-snap-align:start;padding:4vh 7vw;
break-after:page;display:flex;flex-direction:column;justify-content:center}}
img{{width:100%;max-height:74vh;object-fit:contain}} p{{margin:.4em 0;max-width:46em}}
table{{font-size:.62em;border-collapse:collapse}} td,th{{padding:.25em .7em;text-align:left;
border-bottom:1px solid #d9d9d9;vertical-align:top}} pre{{font-size:.62em!important;
white-space:pre-wrap!important}} .formula{{font-size:1.2em;text-align:center;margin:1em 0}}
.roomy table{{font-size:.9em}}
.dense table{{font-size:.46em}} .dense td{{overflow-wrap:anywhere}}
.vote h2::before{{content:"Vote: ";color:#0072b2}} .vote p{{font-size:1.2em}} code{{font-size:.9em}}
</style>{slides}</html>
"""
FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
VOTE = re.compile(r"\*\*Predict\*\*[,.:]?\s*")
PICTURE = re.compile(r'<img src="data:image/[^"]+"')
SENTENCES = 2  # of a section's first paragraph
LONGEST = 12_000  # characters of a table or of answers that a slide holds


def slides(notebook: NotebookNode) -> str:
    """The lecture as a page of HTML; every slide has a heading and something below it."""
    shown = "\n".join(lecture(notebook))
    return PAGE.format(title=plain(notebook.cells[0].source.splitlines()[0]), slides=shown)


def lecture(notebook: NotebookNode) -> Iterator[str]:
    """The slides of the main line, in its order."""
    heading = ""
    for cell, place in zip(notebook.cells, places(notebook), strict=True):
        if place != "main":
            continue
        if cell.cell_type == "code":
            for output in cell.outputs:
                data, is_scorecard = output.get("data", {}), "scorecard(" in cell.source
                if is_scorecard and (claims := claims_of(data)):
                    yield slide("helps, hurts, or no difference found?", claims, kind="vote")
                if content := result(data, is_scorecard):
                    yield slide(heading, content)
            continue
        text = without_navigation(cell.source)
        if found := HEADING.search(text):
            heading, first = found[2], not heading
            body = HEADING.sub("", text).strip()
            opening = lede(body) + "".join(map(display, FORMULA.findall(body)[:1]))
            if opening:
                yield slide(heading, opening, level=1 if first else 2)
        else:
            for formula in FORMULA.findall(text)[:1]:
                yield slide(heading, lede(text) + display(formula))
        for paragraph in text.split("\n\n"):
            if VOTE.match(paragraph):
                asked = VOTE.sub("", " ".join(paragraph.split()))
                yield slide(heading, words(asked[:1].upper() + asked[1:]), kind="vote")


def slide(heading: str, content: str, level: int = 2, kind: str = "") -> str:
    """One slide."""
    title = f"<h{level}>{plain(heading)}</h{level}>"
    kind = kind or density(content)
    return f"<section{f' class={kind}' if kind else ''}>{title}{content}</section>"


def density(content: str) -> str:
    """The class of a slide with a table: the more it holds, the smaller it is set."""
    rows = re.findall(r"<tr\b.*?</tr>", content, re.DOTALL)
    columns = max((len(re.findall(r"<t[hd]\b", row)) for row in rows), default=0)
    letters = len(re.sub(r"<[^>]*>", "", content))
    if columns > 12 or letters > 1400:
        return "dense"
    return "roomy" if 0 < columns < 8 and letters < 400 else ""


def result(data: dict[str, str | list[str]], is_scorecard: bool) -> str:
    """A figure, a table, answers or a scorecard as HTML; empty for anything else."""
    text = {kind: "".join(value) for kind, value in data.items()}
    if png := text.get("image/png"):
        return f'<img alt="" src="data:image/png;base64,{"".join(png.split())}">'
    if is_scorecard and "text/markdown" in text:
        return words(text["text/markdown"])
    shown = text.get("text/html", "")
    if picture := PICTURE.search(shown):  # of a figure that moves
        return f'{picture[0]} alt="">'
    is_read = shown.lstrip().startswith(("<pre", "<div><table", "<table"))
    return shown if is_read and len(shown) < LONGEST else ""


def claims_of(data: dict[str, str | list[str]]) -> str:
    """The claims of a scorecard without what became of them, to be voted on before it is shown."""
    rows = "".join(data.get("text/markdown", "")).splitlines()[2:]
    return words("\n".join(f"* {row.strip('| ').split(' | ')[0]}" for row in rows if "|" in row))


def lede(text: str) -> str:
    """How a section begins: the first sentences of its first paragraph of prose."""
    for paragraph in FORMULA.sub("", text).split("\n\n"):
        line = " ".join(paragraph.split())
        if (line and line[0] not in "*|#<`!>[") or line.startswith("**"):
            return words(" ".join(re.split(r"(?<=[.?!:])\s+", line)[:SENTENCES]))
    return ""


def words(text: str) -> str:
    """Markdown as HTML with its formulas set; a link is its text, for its target stays at home."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    held = re.split(r"(?<!\\)\$([^$]+)\$", text)
    marked = "".join(f"@@{n}@@" if n % 2 else part for n, part in enumerate(held))
    made = str(create_markdown(escape=False, plugins=["table"])(marked))
    return re.sub(r"@@(\d+)@@", lambda place: mathml(held[int(place[1])], "inline"), made)


def display(source: str) -> str:
    """A formula by itself."""
    return f'<div class="formula">{mathml(source, "block")}</div>'


def plain(text: str) -> str:
    """A heading without Markdown's marks, as HTML."""
    return html.escape(re.sub(r"[*`$]|^#+ ", "", text))
