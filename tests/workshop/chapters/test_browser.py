"""In a real browser: open a notebook, run it, move a slider, see another picture."""

import json
import shutil
from pathlib import Path

import browser
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHAPTER = next(iter(sorted((ROOT / "chapters").glob("02_*.ipynb"))), None)
EXPLORER = "baseline_explorer("  # in a cell that needs nothing of those before it
RUN_CELL = """async (index) => {
  const app = window.jupyterapp, { content } = app.shell.currentWidget;
  await app.commands.execute("notebook:expand-all-headings");
  content.activeCellIndex = index;
  await content.scrollToItem(index);
  await app.commands.execute("notebook:run-cell");
  return content.model.sharedModel.toJSON().cells[index];
}"""

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
sync_api.expect.set_options(timeout=1000 * browser.PATIENCE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with browser.running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def page(lab):
    with browser.chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(1000 * browser.PATIENCE)
        yield page
    lab.close_sessions()


def assert_run(*cells) -> None:
    assert not [o for cell in cells for o in cell["outputs"] if o["output_type"] == "error"]
    assert all(cell["execution_count"] for cell in cells if "".join(cell["source"]).strip())


def move_the_slider(page, name: str) -> None:
    """One key on an explorer's first slider changes its picture."""
    explorer = page.locator(".widget-vbox:has(> img.widget-image)").first
    image = explorer.locator("img.widget-image")
    image.scroll_into_view_if_needed()
    page.wait_for_function("image => image.naturalWidth > 0", arg=image.element_handle())
    before, source = image.evaluate(browser.PIXELS), image.get_attribute("src")
    handle = explorer.locator(".widget-hslider .noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    sync_api.expect(image).not_to_have_attribute("src", source)
    page.wait_for_function("image => image.complete", arg=image.element_handle())
    shots = ROOT / "build/browser"
    shots.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=shots / f"{name}.png")
    assert image.evaluate(browser.PIXELS) != before


def test_explorer_in_a_small_notebook(lab, page):
    shutil.copy(HERE / "fixtures/explorer.ipynb", lab.folder)
    lab.open(page, "explorer.ipynb")
    assert_run(*(c for c in page.evaluate(browser.RUN_ALL) if c["cell_type"] == "code"))
    move_the_slider(page, "explorer")


def test_the_stored_picture_shows_before_anything_runs(lab, page):
    """Opened by somebody who runs nothing: the explorer's PNG is there."""
    shutil.copy(HERE / "fixtures/explorer.ipynb", lab.folder / "unrun.ipynb")
    lab.open(page, "unrun.ipynb")
    picture = page.locator(".jp-OutputArea .jp-RenderedImage img").first
    picture.scroll_into_view_if_needed()
    sync_api.expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300


@pytest.mark.skipif(CHAPTER is None, reason="chapter 02 is not written yet")
def test_an_explorer_of_a_chapter(lab, page):
    """Its cell alone, among the folds and stored outputs of the others: nbval runs all cells."""
    shutil.copy(CHAPTER, lab.folder)
    cells = json.loads(CHAPTER.read_text())["cells"]
    code = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code"]
    (wanted,) = (i for i in code if EXPLORER in "".join(cells[i]["source"]))
    lab.open(page, CHAPTER.name)
    assert_run(*(page.evaluate(RUN_CELL, i) for i in (*code[:2], wanted)))
    move_the_slider(page, CHAPTER.stem)
