"""Readers' words, and the sections that search shows first for them."""

import html
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
TITLE = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)
HEADING = re.compile(r'<h[2-4] id="at-([^"]+)">(.*?)</h[1-4]>', re.DOTALL)


def entries() -> list[dict[str, str]]:
    """Page, section and words of every entry."""
    listed = tomllib.loads((HERE / "pages/keywords.toml").read_text(encoding="utf-8"))
    return listed["entry"]


def page_named(name: str, paths: Iterable[Path]) -> Path:
    """The page or notebook of this name, which may begin with a number of its own.

    Raises `ValueError` where there is none, or more than one.
    """
    found = [path for path in paths if re.fullmatch(rf"(\d+_)?{name}", path.stem)]
    if len(found) != 1:
        raise ValueError(f"keywords.toml: {len(found)} pages are called {name!r}")
    return found[0]


def write_keywords(pages: Path) -> None:
    """Write `_static/keywords.json` for the built pages: words, title and address of each section.

    A section that has another name by now leads to the top of its page.
    """
    chapters, found = sorted((pages / "chapters").glob("*.html")), []
    for entry in entries():
        page = page_named(entry["page"], chapters)
        text = page.read_text(encoding="utf-8")
        texts = [(anchor, plain(heading)) for anchor, heading in HEADING.findall(text)]
        anchor, title = next(((a, t) for a, t in texts if entry["section"] in t), ("", ""))
        chapter = plain(TITLE.findall(text)[0]).split(": ")[0]
        place = f"chapters/{page.name}" + f"#{anchor}" * bool(anchor)
        told = {"title": f"{chapter}: {title}" if title else chapter, "url": place}
        found.append({"words": f"{title} {entry['words']}", **told})
    data = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (pages / "_static/keywords.json").write_text(data, encoding="utf-8")


def plain(text: str) -> str:
    """A heading of a page without its link and its marks, with plain quotes."""
    text = re.sub(r'<a class="headerlink".*?</a>', "", text, flags=re.DOTALL)
    text = html.unescape(" ".join(re.sub(r"<[^>]*>", "", text).split()))
    return text.translate(str.maketrans("’‘“”", "''\"\""))
