"""The book as a PDF; needs the extra `site`, and for the printing Chromium and a built site.

.venv-site/bin/python -m pytest --noconftest tests/workshop/site/test_pdf.py
"""

import re
import shutil

import pytest

from rlbook.paths import ROOT
from workshop.site.owner import Owner

bs4 = pytest.importorskip("bs4", reason="the extra `site` is not installed")

from workshop.site.pdf import CHROMIUM, book_pdf, one_page, pages_of  # noqa: E402

PAGE = """<!doctype html><body><article><div data-pagefind-body>
<nav class="neighbours">← before</nav>
<h1 id="at-top">{title}<a class="headerlink" href="#top">¶</a></h1>
<p><a href="02_b.html#there">on</a> <a href="#at-top">up</a> <a href="../api/x.html">out</a>
<a href="https://arxiv.org/abs/1">paper</a> <a href="02_b.html">whole</a></p>
<details><summary>folded</summary><img loading="lazy" class="only-light" src="../figures/a.svg">
<img class="only-dark" src="../figures/a-dark.svg"></details><button>press</button>
<details class="admonition hide"><summary>Setup</summary>import torch</details>
</div></article></body>"""


@pytest.fixture
def site(tmp_path):
    for name, title in (
        ("chapters/01_a", "One · A: <b>why</b>"),
        ("chapters/02_b", "Two"),
        ("chapters/appendix_c", "Three"),
        ("chapters/solutions/01_a_solutions", "Four"),
        ("api/x", "Five"),
    ):
        path = tmp_path / f"html/{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(title=title))
    return tmp_path / "html"


def test_the_book_is_chapters_appendices_solutions(site):
    names = ["01_a", "02_b", "appendix_c", "solutions/01_a_solutions"]
    assert pages_of(site) == [f"chapters/{name}.html" for name in names]
    assert pages_of(site, ["02_b"]) == ["chapters/02_b.html"]
    with pytest.raises(SystemExit, match=r"no such page: \['3'\], choose from \['01_a"):
        pages_of(site, ["3"])


@pytest.mark.parametrize("address", ["", "https://x.org/b"])
def test_links_and_anchors_stay_inside(site, address):
    together = one_page(site, pages_of(site, ["01_a", "02_b"]), Owner(site=address))
    read = bs4.BeautifulSoup(together, "html.parser")
    first = read.find(id="p0")
    led = {link.get_text(): link.get("href") for link in first.find_all("a")}
    assert led.pop("out") == (f"{address}/api/x.html" if address else None)
    assert led == {
        "on": "#p1-there",
        "up": "#p0-at-top",
        "paper": "https://arxiv.org/abs/1",
        "whole": "#p1",
    }
    assert first.h1["id"] == "p0-at-top" and first.h1.get_text() == "One · A: why"
    (picture,) = first.find_all("img")
    assert picture["src"] == "html/figures/a.svg" and "loading" not in picture.attrs
    assert first.details.has_attr("open")
    assert first.find(class_="hide").name == "div"  # without "Details", the browser's own word
    assert not read.find_all(["nav", "button"]) and "¶" not in together
    listed = [link["href"] for link in read.select(".listed a")]
    assert listed == ["#p0", "#p1"]
    assert '@page p0 { @top-left { content: "One · A"' in together


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, CHROMIUM)), reason="no Chromium")
@pytest.mark.skipif(not (ROOT / "build/site/html").is_dir(), reason="no site: make site")
def test_a_chapter_is_printed(tmp_path):
    """Its text, bookmarks that lead to their headings, a number on every page but the first."""
    pypdf = pytest.importorskip("pypdf")
    (tmp_path / "html").symlink_to(ROOT / "build/site/html")
    path = book_pdf(tmp_path, ["06_rloo"])
    read = pypdf.PdfReader(path)
    pages = [page.extract_text() for page in read.pages]
    assert [path.name for path in tmp_path.iterdir() if path.name != "html"] == ["rlbook.pdf"]
    assert "RL for reasoning LLMs" in pages[0]
    for number, text in enumerate(pages[1:], 2):
        assert str(number) in (text.split()[0], text.split()[-1], *text.split()[:6])
    page = (ROOT / "build/site/html/chapters/06_rloo.html").read_text(encoding="utf-8")
    titles = {
        re.sub(r"\W", "", bs4.BeautifulSoup(each, "html.parser").get_text())
        for each in re.findall(r"<h2[^>]*>(.*?)<a class=.headerlink", page)
    }
    marks = {once(re.sub(r"\W", "", mark.title)): mark for mark in flat(read.outline)}
    assert len(titles) > 4 and titles <= marks.keys()
    for title in titles:
        there = pages[read.get_destination_page_number(marks[title])]
        assert title[:12] in re.sub(r"\W", "", there)


def once(title):
    """Chromium says a heading twice that it has moved to the next page."""
    half = title[: len(title) // 2]
    return half if 2 * half == title else title


def flat(outline):
    for entry in outline:
        yield from flat(entry) if isinstance(entry, list) else [entry]
