"""The figures that move in the page, in a real browser: keys, themes, widths, and with a kernel."""

import json
import time

import browser
import nbformat
import pytest

from rlbook.scaling import Cluster
from workshop.ch02.figures import cloud_explorer
from workshop.ch03.clip import clip_explorer
from workshop.ch07.group import group_lab
from workshop.ch10.figures import weight_explorer
from workshop.ch17.figures import pipeline_explorer
from workshop.tools.runner import clean

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
sync_api.expect.set_options(timeout=1000 * browser.PATIENCE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
CUT_OFF = """lab => {
  const edge = lab.getBoundingClientRect(), bad = [];
  for (const text of lab.querySelectorAll("svg[role] text")) {
    const box = text.getBoundingClientRect(), svg = text.ownerSVGElement.getBoundingClientRect();
    if (box.left < svg.left - 1 || box.right > svg.right + 1 || box.top < svg.top - 1
        || box.bottom > svg.bottom + 1) bad.push(text.textContent);
  }
  if (lab.scrollWidth > edge.width + 1) bad.push("wider than the page");
  return bad;
}"""
FAINTEST = """(lab) => {
  const light = (text) => {
    const rgb = text.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255);
    const [r, g, b] = rgb.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...lab.querySelectorAll("svg text, h3, th, td, label, .hint")];
  return Math.min(...texts.map((node) => {
    const style = getComputedStyle(node);
    const ink = light(node.closest("svg") ? style.fill : style.color);
    return Math.max(ink, paper) / Math.min(ink, paper);
  }));
}"""


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as chromium:
        yield chromium


@pytest.fixture
def show(chromium, tmp_path):
    """Puts a figure on an offline page of its own; no error and no request comes of it."""
    errors = []
    context = chromium.new_context(offline=True)
    context.set_default_timeout(1000 * browser.PATIENCE)
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: m.type == "error" and errors.append(m.text))

    def shown(figure, paper="#fff", width=900):
        page.set_viewport_size({"width": width, "height": 900})
        path = tmp_path / "figure.html"
        path.write_text(
            f'<!doctype html><meta charset="utf-8"><body style="background: {paper}">'
            f"{figure.html()}</body>"
        )
        page.goto(path.as_uri())
        return page.locator("[data-live] .lab")

    yield shown
    context.close()
    assert not errors


def pipeline():
    costs = Cluster(1, 1, 32, 0.01, 1e-4, 1.0, 2e-4, 1.0)
    return pipeline_explorer(costs, 2000, 8000, batch=128)


FIGURES = (clip_explorer, group_lab, cloud_explorer, weight_explorer, pipeline)


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize(("paper", "width"), [("#fff", 900), ("#111", 700), ("#fff", 390)])
def test_keys_move_it_and_all_its_words_can_be_read(show, make, paper, width):
    lab = show(make(), paper, width)
    assert lab.evaluate(CUT_OFF) == []
    assert lab.evaluate(FAINTEST) > 4.3
    assert lab.get_attribute("data-theme") == ("dark" if paper == "#111" else "light")
    told = lab.locator("h3").inner_text()
    for control in lab.locator("input[type=range]").all()[:3]:
        control.focus()
        for _ in range(4):
            lab.page.keyboard.press("ArrowRight")
    assert lab.locator("h3").inner_text() != told
    assert lab.evaluate(CUT_OFF) == []
    lab.get_by_role("button", name="reset").click()
    assert lab.locator("h3").inner_text() == told


def test_a_click_or_a_key_makes_an_answer_right(show):
    lab = show(group_lab("rloo", rewards=(1, 0, 0, 0), lengths=(10, 10, 10, 10)))
    assert lab.locator("tbody td:nth-child(3)").all_inner_texts() == ["+1", *3 * ["−0.333"]]
    lab.get_by_role("button", name="B is wrong").focus()
    lab.page.keyboard.press("Enter")
    lab.get_by_role("button", name="C is wrong").click()
    lab.get_by_role("button", name="D is wrong").click()
    assert lab.locator("h3").inner_text() == "RLOO, 4 of 4 right: no token is pushed"


def test_without_scripts_the_picture_stays(chromium, tmp_path):
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(1000 * browser.PATIENCE)
    page = context.new_page()
    (tmp_path / "figure.html").write_text(clip_explorer().html())
    page.goto((tmp_path / "figure.html").as_uri())
    assert page.locator("img").evaluate("image => image.naturalWidth") > 500
    assert "masked" in page.locator("img").get_attribute("alt")
    context.close()


def test_in_jupyterlab_its_values_are_pythons(chromium, tmp_path_factory):
    source = "from workshop.ch07.group import group_lab\n\nlab = group_lab()\nlab"
    cells = [nbformat.v4.new_code_cell(text) for text in (source, "lab.values['rewards']")]
    with browser.running_lab(tmp_path_factory.mktemp("live")) as jupyter:
        notebook = nbformat.v4.new_notebook(cells=cells)
        clean(notebook, "lab")  # which names the kernel
        nbformat.write(notebook, jupyter.folder / "lab.ipynb")
        page = chromium.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(1000 * browser.PATIENCE)
        jupyter.open(page, "lab.ipynb")
        page.evaluate(browser.RUN_ALL)
        page.get_by_role("button", name="C is wrong").click()
        again = """async () => {
          const panel = window.jupyterapp.shell.currentWidget;
          panel.content.activeCellIndex = 1;
          await window.jupyterapp.commands.execute("notebook:run-cell");
          return panel.content.model.sharedModel.toJSON().cells[1].outputs[0].data["text/plain"];
        }"""
        within = time.monotonic() + browser.PATIENCE
        while (values := json.loads(page.evaluate(again))) != [1, 1, 1, 0, 0, 0, 0, 0]:
            assert time.monotonic() < within, values
        page.close()
