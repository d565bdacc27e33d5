"""Formulas, folds and heads of the site, by a small site of their own; needs the extra `site`.

.venv-site/bin/python -m pytest --noconftest tests/workshop/site/test_extension.py
"""

import re
from importlib import import_module

import pytest

pytest.importorskip("sphinx", reason="the extra `site` is not installed")
latex2mathml = pytest.importorskip("latex2mathml")

from sphinx.cmd.build import build_main  # noqa: E402

from rlbook.objectives import advantages, divergences, ratios, soft_regions  # noqa: E402
from workshop.site.extension import cited, mathml, short  # noqa: E402
from workshop.site.fonts import signs_of, write_math_font  # noqa: E402
from workshop.site.owner import Owner  # noqa: E402
from workshop.site.reference import entry, equations, prose, public  # noqa: E402

PAGE = """# One · A chapter: what it asks

The first paragraph has enough words in it to say what the page is about, doesn't it?

$$L^{CPI}=\\hat E\\big[\\rho_t\\hat A_t\\big]$$

| a | b |
| - | - |
| 1 | 2 |

## Main

Text with $|y|_{<t}$, of a **Rollout** and **no term**.

### Deeper: why a half?

Because.

#### A part of it

More.

## After

[PPO](https://arxiv.org/abs/1707.06347v2)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "chapters").mkdir()
    (folder / "index.md").write_text("# Book\n\n```{toctree}\nchapters/01_a\nchapters/02_b\n```\n")
    (folder / "chapters/01_a.md").write_text(PAGE)
    (folder / "chapters/02_b.md").write_text("# Two · B: more\n\nText.\n")
    (folder / "conf.py").write_text(
        'extensions = ["myst_parser", "workshop.site.extension"]\n'
        'myst_enable_extensions = ["dollarmath"]\nhtml_math_renderer = "mathml"\n'
    )
    words = ["-q", "-W", "-b", "html", str(folder), str(folder / "out")]
    assert build_main(words) == 0
    return (folder / "out/chapters/01_a.html").read_text()


def test_a_deeper_section_is_folded_with_all_that_is_in_it(page):
    fold = re.search(r'<details class="fold">(.*?)</details>', page, re.DOTALL)[1]
    summary, inside = fold.split("</summary>")
    assert "Deeper: why a half?" in summary and "<h3" in summary
    assert "Because." in inside and "A part of it" in inside and "More." in inside
    assert "After" not in fold
    assert page.count("<details") == 1
    assert page.index('<section id="deeper-why-a-half">') < page.index("<details")


def test_neighbours_stand_above_the_text(page):
    nav = re.search(r'<nav class="neighbours".*?</nav>', page)[0]
    assert 'href="../index.html" rel="contents"' in nav
    assert 'href="02_b.html" rel="next">Two · B →' in nav
    assert page.index("neighbours") < page.index("<h1")


def test_a_shared_link_says_what_the_page_is(page):
    assert '<meta property="og:title" content="One · A chapter: what it asks">' in page
    assert re.search(r'name="description" content="The first paragraph has enough words', page)
    assert "og:image" not in page or 'content="http' in page


def test_formulas_need_no_script(page):
    assert "mathjax" not in page.lower().replace("mathjax_ignore", "")
    assert page.count("<math ") == 2 and 'alttext="L^{CPI}' in page
    assert '<div class="wide" tabindex="0"><table' in page


def test_a_term_says_what_it_means(page):
    assert '<strong title="a completion that was sampled, with its log-probabilities' in page
    assert ">Rollout</strong>" in page and "<strong>no term</strong>" in page


def test_a_paper_is_named_at_its_link(page):
    assert re.search(r'abs/1707.06347v2" title="Schulman[^"]*\(2017\): Proximal Policy', page)
    link = re.match(r'href="(https://arxiv.org/abs/(\d+))"', 'href="https://arxiv.org/abs/1"')
    assert cited(link) == 'href="https://arxiv.org/abs/1"'


@pytest.mark.parametrize(
    "source", [r"\mathrm{KL}\big(\pi\,\big\|\,\pi^*\big)", r"\texttt{a\_b}", "a<b"]
)
def test_no_sign_of_latex_is_left_in_a_formula(source):
    made = mathml(source, "inline")
    assert "\\" not in re.sub(r'alttext="[^"]*"', "", made)
    assert "<merror" not in made


def test_titles_are_short_in_the_navigation():
    assert short("3 · PPO: use a batch more than once") == "3 · PPO"


def test_docstrings_keep_their_signs_and_their_code():
    text = "A mean |y| of `a*b`, x_t and <b>.\n\nUse:\n\n    f(a_b)\n    g()\n\nThen * more."
    made = prose(text)
    assert r"\|y\| of `a*b`, x\_t and \<b\>." in made
    assert "```text\nf(a_b)\ng()\n\n```" in made and made.endswith(r"Then \* more.")
    assert prose("x\n\n===  ===\n1    2").startswith("```text") and prose(None) == ""


def test_the_font_has_the_signs_of_the_pages(tmp_path):
    pytest.importorskip("ziamath")
    from fontTools.ttLib import TTFont

    page = tmp_path / "a.html"
    page.write_text("<p>ж</p><math display='x'><mi>&#x3c0;</mi><mo>⟹</mo></math>")
    assert signs_of(page.read_text()) == {"π", "⟹"}
    write_math_font([page], tmp_path / "fonts/math.woff2")
    font = TTFont(tmp_path / "fonts/math.woff2")
    assert {0x3C0, 0x27F9, 0x1D70B, 0x1D465} <= font.getBestCmap().keys()
    assert "MATH" in font and 0x436 not in font.getBestCmap()
    assert "OPEN FONT LICENSE" in font["name"].getDebugName(13).upper()
    assert (tmp_path / "fonts/math.woff2").stat().st_size < 200_000


@pytest.mark.parametrize("site", ["", "https://x.org/book"])
def test_what_robots_and_lost_readers_find(tmp_path, site):
    pytest.importorskip("ziamath")
    from PIL import Image

    from workshop.site.build import finish
    from workshop.site.owner import Owner

    for name in ("index.html", "chapters/01_a.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('<script src="_static/book.js"></script>')
    for name in ("_static/doctools.js", "_static/book.js", "searchindex.js", "_sources/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (400, 200)).save(tmp_path / "figures/01_policy-1.png")
    finish(tmp_path, Owner(site=site))
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert "_static/book.js" in left
    assert not left & {"_static/doctools.js", "searchindex.js", "_sources/a.txt"}
    home = f"{site}/index.html" if site else "index.html"
    assert f'<a href="{home}">' in (tmp_path / "404.html").read_text()
    assert ("sitemap.xml" in left) == ("robots.txt" in left) == bool(site)
    if site:
        listed = re.findall("<loc>(.*?)</loc>", (tmp_path / "sitemap.xml").read_text())
        assert listed == [f"{site}/chapters/01_a.html", f"{site}/index.html"]
        assert Image.open(tmp_path / "_static/card.png").size == (1200, 630)


def test_the_reference_has_the_equation_of_whatever_weighs_an_answer():
    for room, told in equations().items():
        shown = public(import_module(f"rlbook.{room}"))
        assert told.keys() <= shown.keys(), (
            f"rlbook.{room} shows none of {told.keys() - shown.keys()}"
        )
        for name, equation in told.items():
            made = mathml(equation, "block")
            assert "\\" not in re.sub(r'alttext="[^"]*"', "", made) and "<merror" not in made, name
    weighs = [advantages, ratios, divergences, soft_regions]
    wanted = {name for module in weighs for name in module.__all__}
    wanted |= {"NoTrustRegion", "RatioClip", "WeightClip", "DivergenceMask", "kl_estimate"}
    assert (
        wanted - {"Tokens", "listed_logps", "topk_tokens", "MAX_LOG_RATIO"}
        <= equations()["objectives"].keys()
    )


def test_an_equation_stands_below_the_first_line():
    made = entry("leave_one_out", advantages.leave_one_out, Owner(), "A_i")
    summary, formula = made.index("Reward minus the mean reward"), made.index("$$\nA_i\n$$")
    assert summary < formula < made.index("Unbiased for")
