"""The whole book as one PDF: the pages of the site one after the other, printed by Chromium.

Folds are open, links between pages lead on inside the PDF, every heading is a bookmark; a page has
the chapter at its head and its number at its foot. Nothing is asked of any other machine.
"""

import html
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlbook.paths import ROOT
from workshop.site.owner import Owner, read_owner

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--allow-file-access-from-files", "--no-pdf-header-footer"),
    "--generate-pdf-document-outline",
)
# What has no use on paper, or stands there a second time.
UNPRINTED = ".neighbours, .headerlink, .only-dark, .hide > summary, [data-ask], button, noscript"
STYLE = """
@page { size: A4; margin: 19mm 17mm 20mm; }
@page { @bottom-center { content: counter(page); font: 9pt sans-serif; color: #6b6b6b; } }
@page :first { @bottom-center { content: none; } }
body { font-size: 10.2pt; background: #fff; }
article { max-width: none; padding: 0; }
.chapter { break-before: page; }
.cover { padding-top: 60mm; }
.cover h1 { font-size: 30pt; margin: 0 0 4mm; }
.listed { line-height: 1.7; list-style: none; padding: 0; }
h1, h2, h3, h4, summary { break-after: avoid; }
img.figure, tr, .formula, .lab svg, .highlight pre { break-inside: avoid; }
img.figure { max-height: 200mm; width: auto; }
div.cell .highlight pre, div.cell_output pre { font-size: 7.6pt; }
pre { white-space: pre-wrap !important; overflow-wrap: anywhere; }
.formula, .wide, div.cell_output { overflow: visible; background: none; }
.wide table { font-size: 8pt; width: 100%; }
.wide :is(td, th) { padding: 0.2em 0.4em; }
.wide :is(td, th) { overflow-wrap: anywhere; white-space: normal !important; }
details > summary { list-style: none; }
input, select { display: none; }
"""


def book_pdf(out: Path = ROOT / "build/site", chosen: Sequence[str] = ()) -> Path:
    """Print the pages of a built site, or those `chosen` by name, into `out/rlbook.pdf`.

    Raises `SystemExit` where there is no site, no such page or no Chromium.
    """
    site, browser = out / "html", next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        raise SystemExit("the PDF is printed by Chromium: apt-get install chromium")
    if not (site / "index.html").is_file():
        raise SystemExit("the PDF is printed from the site: make site")
    together, made = out / "book.html", out / "rlbook.pdf"
    together.write_text(one_page(site, pages_of(site, chosen), read_owner()), encoding="utf-8")
    made.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *SWITCHES, f"--user-data-dir={profile}"]
        command += [f"--print-to-pdf={made}", together.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True)
    if not made.is_file():
        raise SystemExit(f"Chromium printed nothing:\n{done.stderr}")
    together.unlink()
    return made


def pages_of(site: Path, chosen: Sequence[str] = ()) -> list[str]:
    """The pages of the book in reading order: chapters, appendices, solutions."""
    chapters = [path.relative_to(site).as_posix() for path in (site / "chapters").rglob("*.html")]
    pages = sorted(chapters, key=lambda page: ("/solutions/" in page, "appendix" in page, page))
    names = {page: posixpath.splitext(posixpath.basename(page))[0] for page in pages}
    if unknown := set(chosen) - set(names.values()):
        raise SystemExit(f"no such page: {sorted(unknown)}, choose from {sorted(names.values())}")
    return [page for page in pages if not chosen or names[page] in chosen]


def one_page(site: Path, pages: Sequence[str], owner: Owner) -> str:
    """All pages as one, to lie beside the folder of the site."""
    from bs4 import BeautifulSoup

    names = {page: f"p{number}" for number, page in enumerate(pages)}
    heads, listed, chapters = [], [], []
    for page, name in names.items():
        read = BeautifulSoup((site / page).read_text(encoding="utf-8"), "html.parser")
        text = printed(read, page, names, owner)
        title = text.h1.get_text()
        # the head of its pages: what stands before the colon
        head = title.split(": ")[0].replace("\\", "").replace('"', "”")
        heads.append(
            f'@page {name} {{ @top-left {{ content: "{head}"; font: 8.5pt sans-serif; '
            f"color: #6b6b6b; }} }}\n#{name} {{ page: {name}; }}"
        )
        listed.append(f'<li><a href="#{name}">{html.escape(title)}</a></li>')
        chapters.append(f'<div class="chapter" id="{name}">{text}</div>')
    styles = [
        f'<link rel="stylesheet" href="{site.name}/_static/{name}">'
        for name in ("pygments.css", "styles/furo.css", "styles/furo-extensions.css", "book.css")
        if (site / "_static" / name).is_file()
    ]
    lab = f'<script src="{site.name}/_static/mask-lab.js"></script>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>RL for reasoning LLMs</title>{''.join(styles)}"
        f"<style>{STYLE}{''.join(heads)}</style></head>"
        '<body data-theme="light"><article><div class="cover"><h1>RL for reasoning LLMs</h1>'
        f"<p>From REINFORCE to ScaleRL</p><p>rlbook {version('rlbook')}. Text and figures: "
        "CC BY 4.0. Code: Apache-2.0.</p></div>"
        f'<div class="chapter"><h2>Contents</h2><ul class="listed">{"".join(listed)}</ul></div>'
        f"{''.join(chapters)}</article>{lab}</body></html>"
    )


def printed(read: Any, page: str, names: dict[str, str], owner: Owner) -> Any:
    """The text of a page for paper: all of it shown, its anchors its own, its links leading on."""
    text = read.select_one("[data-pagefind-body], [data-pagefind-ignore=all]") or read.article
    for part in text.select(UNPRINTED):
        part.decompose()
    own, folder = names[page], posixpath.dirname(page)
    for fold in text.find_all("details"):
        if "hide" in fold.get("class", ()):  # a fold without its summary has the browser's own
            fold.name = "div"
        else:
            fold["open"] = ""
    for image in text.find_all("img"):
        image.attrs.pop("loading", None)
        image["src"] = posixpath.normpath(posixpath.join("html", folder, image["src"]))
    for anchored in text.find_all(id=True):
        anchored["id"] = f"{own}-{anchored['id']}"
    for link in text.find_all("a", href=True):
        to, _, anchor = link["href"].partition("#")
        if re.match(r"[a-z]+:", to):
            continue
        target = posixpath.normpath(posixpath.join(folder, to)) if to else page
        if target in names:
            link["href"] = f"#{names[target]}" + (f"-{anchor}" if anchor else "")
        elif address := owner.page_at(target):
            link["href"] = address + (f"#{anchor}" if anchor else "")
        else:
            del link["href"]
    return text
