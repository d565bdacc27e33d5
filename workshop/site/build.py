"""Build the site: notebooks → pages → search index, all into one folder of plain files."""

import gzip
import html
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat

from rlbook.extras import require
from rlbook.paths import ROOT, data_dir
from workshop.site.film import with_training
from workshop.site.fonts import write_math_font
from workshop.site.front import figures_page, front_page, open_graph
from workshop.site.keywords import write_keywords
from workshop.site.notebooks import anchors_of, page_of
from workshop.site.owner import Owner, read_owner
from workshop.site.reference import write_reference
from workshop.site.train import write_scripts
from workshop.site.weights import MODELS, write_weights

HERE = Path(__file__).parent
# What Sphinx writes for its own search, which Pagefind replaces, and for other tools.
LEFTOVERS = ("searchindex.js", "search.html", "objects.inv", ".buildinfo", "_sources", ".doctrees")
MISSING = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<link rel="icon" href="data:,"><title>Not here · rlbook</title>
<style>:root{{color-scheme:light dark}}body{{font:18px/1.5 system-ui,sans-serif;margin:20vh auto;
max-width:32em;padding:0 1em;background:Canvas;color:CanvasText}}</style>
<h1>A token that was never sampled</h1><p>There is no page at this address. The book begins at its
<a href="{home}">contents</a>.</p></html>
"""


@dataclass(frozen=True)
class Built:
    """What a build came to: where, how long, how much."""

    folder: Path
    seconds: float
    pages: int
    size: int

    def __str__(self) -> str:
        return (
            f"{self.pages} pages, {self.size / 1e6:.1f} MB, in {self.seconds:.0f} s. Read them: "
            f"python -m http.server -d {self.folder}"
        )


def build(out: Path = ROOT / "build/site") -> Built:
    """Build the whole site into `out/html`. Raises `SystemExit` when Sphinx warns of anything."""
    require("site", "sphinx", "myst_nb", "furo", "latex2mathml", "pagefind", "ziamath")
    start = time.perf_counter()
    source, pages = out / "source", out / "html"
    for folder in (source, pages):
        shutil.rmtree(folder, ignore_errors=True)
    prepare(source, pages, read_owner())
    run_sphinx(source, pages)
    write_keywords(pages)
    finish(pages, read_owner())
    run_pagefind(pages)
    files = [path for path in pages.rglob("*") if path.is_file()]
    return Built(
        pages,
        time.perf_counter() - start,
        sum(path.suffix == ".html" for path in files),
        sum(path.stat().st_size for path in files),
    )


def notebooks() -> list[Path]:
    """Every notebook of the book: chapters, appendices, solutions."""
    folder = ROOT / "chapters"
    return sorted(folder.glob("*.ipynb")) + sorted(folder.glob("solutions/*.ipynb"))


def prepare(source: Path, pages: Path, owner: Owner) -> None:
    """Write what Sphinx reads, and what goes to the site as it is."""
    titles: dict[str, str] = {}
    read = {path: nbformat.read(path, as_version=4) for path in notebooks()}
    anchors = {p.relative_to(ROOT).as_posix(): anchors_of(notebook) for p, notebook in read.items()}
    for path, notebook in read.items():
        name = path.relative_to(ROOT).as_posix()
        titles[name.removesuffix(".ipynb")] = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        page = page_of(notebook, name, pages / "figures", owner, anchors)
        nbformat.write(with_training(page, path.stem), target)
    static = pages / "_static"
    static.mkdir(parents=True)
    for name in MODELS:
        write_weights(data_dir() / name, static / "models")
    write_scripts(static)
    (static / "mask-lab.js").write_text(mask_lab_script(), encoding="utf-8")
    (source / "index.md").write_text(front_page(titles, owner))
    (source / "figures.md").write_text(figures_page())
    (source / "solutions.md").write_text(solutions_page(titles))
    write_reference(source / "api", owner)


def mask_lab_script() -> str:
    """The code of the mask lab, once for all pages; it fills every host that a page has."""
    from workshop.shared.masks.lab import front_end

    mount = (
        'for (const host of document.querySelectorAll("[data-mask-lab]"))\n'
        '  mountMaskLab(host, JSON.parse(host.querySelector("script").textContent));\n'
    )
    return f"(() => {{\n{front_end()}\n{mount}}})();\n"


def solutions_page(titles: dict[str, str]) -> str:
    """The page that leads to the solutions."""
    rows = "\n".join(name for name in titles if "/solutions/" in name)
    return (
        "# Solutions\n\nTry first: every exercise has a check that names what is wrong.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{rows}\n```\n"
    )


def run_sphinx(source: Path, pages: Path) -> None:
    """Set the pages; any warning is an error."""
    from sphinx.cmd.build import build_main

    doctrees = source.parent / "doctrees"
    shutil.rmtree(doctrees, ignore_errors=True)
    words = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE), "-d", str(doctrees)]
    if code := build_main([*words, str(source), str(pages)]):
        raise SystemExit(code)


def finish(pages: Path, owner: Owner) -> None:
    """What Sphinx leaves over goes; a page for lost readers, a map and rules for robots come."""
    for path in [*(pages / name for name in LEFTOVERS), *unused(pages)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    write_math_font(sorted(pages.rglob("*.html")), pages / "_static/fonts/math.woff2")
    home = owner.page_at("index.html") or "index.html"
    (pages / "404.html").write_text(MISSING.format(home=html.escape(home)))
    (pages / ".nojekyll").touch()
    if owner.site:
        open_graph(data_dir() / "results/eight_answers.png", pages / "_static/card.png")
        addresses = (
            owner.page_at(path.relative_to(pages).as_posix())
            for path in sorted(pages.rglob("*.html"))
            if path.name != "404.html"
        )
        rows = "".join(f"<url><loc>{html.escape(address)}</loc></url>\n" for address in addresses)
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        (pages / "sitemap.xml").write_text(
            f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{space}">\n{rows}</urlset>\n'
        )
        (pages / "robots.txt").write_text(
            f"User-agent: *\nAllow: /\nSitemap: {owner.page_at('sitemap.xml')}\n"
        )


def unused(pages: Path) -> list[Path]:
    """Scripts and styles of Sphinx, its extensions and the theme that no page asks for."""
    sources = [*pages.rglob("*.html"), *(HERE / "static").iterdir()]
    asked = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    kinds = (".js", ".css", ".map", ".txt", ".png", ".svg")
    files = [path for path in (pages / "_static").rglob("*") if path.suffix in kinds]
    return [path for path in files if path.name not in asked]


def run_pagefind(pages: Path) -> None:
    """Index the text of the pages; each has said how much it weighs."""
    unread = "div.cell_input, .cell_output pre, .cell_output table, .headerlink, .neighbours, form"
    unread += ", [data-ask], [data-train], [data-mask-lab], [data-live]"
    command = [sys.executable, "-m", "pagefind", "--site", str(pages), "--quiet"]
    command += ["--exclude-selectors", unread]
    subprocess.run(command, check=True)
    kept = ("pagefind.js", "pagefind-entry.json", "pagefind-worker.js")
    for path in (pages / "pagefind").iterdir():  # its ready-made interfaces, which ours replaces
        if path.suffix in (".js", ".css") and path.name not in kept:
            path.unlink()


def weight(path: Path) -> int:
    """Bytes of a file as a server sends it: compressed, unless it is so already."""
    data = path.read_bytes()
    return len(data if path.suffix in (".png", ".webp", ".woff2") else gzip.compress(data, 6))
