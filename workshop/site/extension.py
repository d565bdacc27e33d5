"""What Sphinx does not do by itself: formulas set at build, folded sections, a page's head."""

import html
import re
import tomllib
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from rlbook.paths import data_dir
from workshop.site.formulas import mathml
from workshop.site.owner import Owner, read_owner

# What a link to the front page says of the book.
TITLE = "RL for reasoning LLMs: train a language model in your browser"
ABOUT = (
    "Train a language model with PPO, GRPO or DAPO in your browser, and see which differences are "
    "real: a book of notebooks with a small tested package, from REINFORCE to ScaleRL."
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this when it starts."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("doctree-resolved", fold_sections)
    app.connect("html-page-context", complete_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# ---- formulas ----


def visit_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>\n')
    raise nodes.SkipNode


# ---- folded sections ----


def fold_sections(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Put what is not on the main line, and every solution, into a `<details>` that is closed."""
    for section in list(tree.findall(nodes.section)):
        title = section[0]
        folded = title.astext().startswith("Deeper") or (
            "/solutions/" in page and isinstance(section.parent, nodes.section)
        )
        if not folded:
            continue
        for place, text in (
            (0, '<details class="fold"><summary>'),
            (2, "</summary>"),
            (len(section) + 2, "</details>"),
        ):
            section.insert(place, nodes.raw("", text, format="html"))


# ---- the page ----

# Search leads to headings by their own names, and Sphinx names the sections around them.
HEADING = re.compile(r'(<section[^>]* id="([^"]+)"[^>]*>(?:\s|<(?!h\d|section)[^>]+>)*)<h([2-4])>')
TERM = re.compile(r"<strong>([^<]+)</strong>")
PAPER = re.compile(r'href="(https://(?:arxiv\.org/abs/|doi\.org/)([^"#]+))"')


@cache
def papers() -> dict[str, str]:
    """Authors, year and title of every paper of the bibliography, by the end of its link."""
    listed = tomllib.loads((data_dir() / "bibliography.toml").read_text(encoding="utf-8"))
    return {
        link.removeprefix("arXiv:").removeprefix("doi:"): "{authors} ({year}): {title}".format(
            **paper
        )
        for link, paper in listed.items()
    }


def cited(link: re.Match) -> str:
    """A link to a paper, which says what paper it is when it is pointed at."""
    told = papers().get(re.sub(r"v\d+$", "", link[2]))
    return f'{link[0]} title="{html.escape(told)}"' if told else link[0]


@cache
def terms() -> dict[str, str]:
    """What every term of the notation means, by its name."""
    listed = tomllib.loads((data_dir() / "notation.toml").read_text(encoding="utf-8"))
    return {term["name"].lower(): term["meaning"] for term in listed["term"]}


def explained(term: re.Match) -> str:
    """A word in bold, which says what it means when it is pointed at and the notation has it."""
    meaning = terms().get(html.unescape(term[1]).lower())
    return f'<strong title="{html.escape(meaning)}">{term[1]}</strong>' if meaning else term[0]


def complete_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Links to the neighbours above the text, tags for those who show a link to it, search data."""
    if tree is None:
        return
    owner = read_owner()
    body = context["body"]
    body = body.replace("<table>", '<table class="docutils">')
    body = re.sub(
        r'(<table class="[^"]*(?:dataframe|docutils)[^"]*".*?</table>)',
        r'<div class="wide" tabindex="0">\1</div>',
        body,
        flags=re.DOTALL,
    )
    body = body.replace("<th></th>", "<td></td>")  # a corner is no heading
    body = re.sub(r'<summary aria-label="[^"]*"', "<summary", body)
    body = HEADING.sub(r'\1<h\3 id="at-\2">', TERM.sub(explained, PAPER.sub(cited, body)))
    context["body"] = neighbours(page, context, owner) + body
    context["metatags"] = context.get("metatags", "") + head(page, context["title"], tree, owner)
    context["kind"] = kind_of(page)
    context["front_title"] = TITLE
    context["has_lab"] = "data-mask-lab" in body
    context["has_model"] = "data-ask" in body
    context["has_training"] = "data-train" in body


def kind_of(page: str) -> str:
    """The room of the site in which a page stands: search ranks by it."""
    if "solutions" in page:
        return "solutions"
    return {"chapters": "chapter", "api": "reference"}.get(PurePosixPath(page).parts[0], "page")


def neighbours(page: str, context: dict[str, Any], owner: Owner) -> str:
    """previous · contents · next, and where the notebook itself can be had."""
    if not page.startswith("chapters/"):
        return ""
    contents = {"link": context["pathto"]("index"), "title": "contents"}
    links = [
        f'<a href="{found["link"]}" rel="{rel}">{before}{short(found["title"])}{after}</a>'
        for rel, found, before, after in (
            ("prev", context.get("prev"), "← ", ""),
            ("contents", contents, "", ""),
            ("next", context.get("next"), "", " →"),
        )
        if found and not (rel == "prev" and found["link"] == contents["link"])
    ]
    notebook = f"{page}.ipynb"
    links += [
        f'<a href="{address}">{text}</a>'
        for text, address in (
            ("notebook", owner.source_of(notebook)),
            ("run on Colab", owner.colab_of(notebook)),
        )
        if address
    ]
    return f'<nav class="neighbours" aria-label="Chapters">{"".join(links)}</nav>\n'


def short(title: str) -> str:
    """A title without what follows its colon."""
    return title.split(": ")[0]


def head(page: str, title: str, tree: nodes.document, owner: Owner) -> str:
    """Description and Open Graph tags of a page."""
    about = ABOUT if page == "index" else describe(tree)
    tags = {
        "og:title": TITLE if page == "index" else re.sub(r"<[^>]*>", "", title),
        "og:description": about,
        "og:type": "book" if page == "index" else "article",
        "og:site_name": "rlbook",
        "og:url": owner.page_at(f"{page}.html"),
        "og:image": owner.page_at("_static/card.png"),
    }
    lines = [f'<meta name="description" content="{html.escape(about)}">']
    lines += [
        f'<meta property="{name}" content="{html.escape(html.unescape(text))}">'
        for name, text in tags.items()
        if text
    ]
    return "\n".join(lines)


def describe(tree: nodes.document, words: int = 40) -> str:
    """The first paragraph of a page, cut to some words."""
    for paragraph in tree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text.split()) > 8:
            cut = text.split()[:words]
            return " ".join(cut) + ("" if len(cut) == len(text.split()) else " …")
    return "RL for reasoning LLMs, from REINFORCE to ScaleRL"
