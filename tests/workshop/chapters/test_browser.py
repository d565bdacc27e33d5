"""In a real browser: open a notebook, run it, move a slider, see another picture."""

import shutil
from pathlib import Path

import browser
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHAPTER = next(iter(sorted((ROOT / "chapters").glob("03_*.ipynb"))), None)

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


def run_and_move_the_slider(lab, page, notebook: Path) -> None:
    """Every cell runs without error; one key on an explorer's first slider changes its picture.

    What is folded is opened first, as a reader would open it.
    """
    shutil.copy(notebook, lab.folder)
    lab.open(page, notebook.name)
    cells = [c for c in page.evaluate(browser.RUN_ALL) if c["cell_type"] == "code"]
    failed = [o for cell in cells for o in cell["outputs"] if o["output_type"] == "error"]
    assert not failed
    assert all(cell["execution_count"] for cell in cells if "".join(cell["source"]).strip())

    page.evaluate('window.jupyterapp.commands.execute("notebook:expand-all-headings")')
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
    page.screenshot(path=shots / f"{notebook.stem}.png")
    assert image.evaluate(browser.PIXELS) != before


def test_explorer_in_a_small_notebook(lab, page):
    run_and_move_the_slider(lab, page, HERE / "fixtures/explorer.ipynb")


def test_the_stored_picture_shows_before_anything_runs(lab, page):
    """Opened by somebody who runs nothing: the explorer's PNG is there."""
    shutil.copy(HERE / "fixtures/explorer.ipynb", lab.folder / "unrun.ipynb")
    lab.open(page, "unrun.ipynb")
    picture = page.locator(".jp-OutputArea .jp-RenderedImage img").first
    picture.scroll_into_view_if_needed()
    sync_api.expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300


@pytest.mark.skipif(CHAPTER is None, reason="chapter 03 is not written yet")
def test_an_explorer_of_chapter_03(lab, page):
    run_and_move_the_slider(lab, page, CHAPTER)
