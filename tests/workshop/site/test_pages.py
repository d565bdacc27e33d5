"""The built site in a real browser, page by page; skipped where `make site` has not been run."""

import functools
import http.server
import re
import threading
from urllib.parse import unquote, urlsplit

import browser
import pytest
from PIL import Image

from rlbook.paths import ROOT
from workshop.site.build import weight

SITE = ROOT / "build/site/html"
FIRST_VIEW = 600_000  # bytes, compressed
WIDTHS = (390, 768, 1280)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
sync_api.expect.set_options(timeout=1000 * browser.PATIENCE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.skipif(not SITE.is_dir(), reason="no site: make site"),
]
PAGES = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def address():
    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as chromium:
        yield chromium


class Reader:
    """A browser page: what it asked for, on this machine and elsewhere, and what went wrong."""

    def __init__(self, context, address):
        self.page, self.address = context.new_page(), address
        self.files, self.elsewhere, self.errors = set(), [], []
        self.page.set_default_timeout(1000 * browser.PATIENCE)
        self.page.on("request", self.note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))

    def note(self, request):
        if request.url.startswith(self.address):
            self.files.add(unquote(urlsplit(request.url).path).lstrip("/") or "index.html")
        elif not request.url.startswith(("data:", "blob:")):
            self.elsewhere.append(request.url)

    def open(self, page):
        self.files.clear()
        self.page.goto(self.address + page, wait_until="load")


@pytest.fixture
def reader(chromium, address):
    context = chromium.new_context(
        color_scheme="light", viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
    )
    reader = Reader(context, address)
    yield reader
    context.close()
    assert reader.elsewhere == []
    assert reader.errors == []


OPEN = "() => document.querySelectorAll('details').forEach((fold) => { fold.open = true })"
SHIFT = """() => new Promise((tell) => {
  let sum = 0;
  const add = (list) => list.getEntries().forEach(({ value }) => (sum += value));
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => tell(sum), 500);
})"""
OVERFLOW = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
FAULTS = """() => [
  ...[...document.images].filter((image) => !image.hasAttribute("alt")
      || image.complete && !image.naturalWidth).map((image) => `image ${image.src}`),
  ...[...document.images].filter((image) => !image.alt && !image.closest(".card"))
    .map((image) => `no words for ${image.src}`),
  ...[...document.querySelectorAll("merror, .problematic, .system-message")]
    .map((node) => node.textContent),
]"""
# Text of paragraphs, tables and outputs whose ink is too near to what is behind it (WCAG 2.1).
PALE = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const seen = new Map();
  const rgba = (colour) => {
    if (!seen.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      seen.set(colour, [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255));
    }
    return seen.get(colour);
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((part, i) => a * part + (1 - a) * under[i]);
  const behind = (node) => node ? over(rgba(getComputedStyle(node).backgroundColor),
    behind(node.parentElement)) : [1, 1, 1];
  const light = (rgb) => rgb.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walk = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    const read = walk.currentNode.data.trim() && node.getClientRects().length;
    if (!read || node.closest(".highlight, script, style, svg, button, [data-mask-lab]")) continue;
    const ground = behind(node), ink = over(rgba(getComputedStyle(node).color), ground);
    const [dark, bright] = [light(ground), light(ink)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(1)} for "${walk.currentNode.data.trim()}"`);
  }
  return found;
}"""


def test_every_page_is_light_fits_and_can_be_read(reader):
    """One visit to each, with every fold open. First view: bytes. Then widths, and both schemes."""
    wrong = []
    for page in PAGES:
        reader.open(page)
        heavy = sum(weight(SITE / name) for name in reader.files)
        found = [f"{heavy} bytes in the first view"] if heavy > FIRST_VIEW else []
        found += reader.page.evaluate(FAULTS)
        reader.page.evaluate(OPEN)
        for width in WIDTHS:
            reader.page.set_viewport_size({"width": width, "height": 900})
            if (over := reader.page.evaluate(OVERFLOW)) > 0:
                found.append(f"{over} pixels too wide for {width}")
        for scheme in () if page == "404.html" else ("dark", "light"):
            reader.page.emulate_media(color_scheme=scheme)
            found += [f"contrast in {scheme}: {pale}" for pale in reader.page.evaluate(PALE)]
        wrong += [f"{page}: {fault}" for fault in found]
    assert wrong == []
    assert len(PAGES) > 40


def test_the_paper_follows_the_scheme_and_the_button(reader):
    reader.open("index.html")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    button = reader.page.locator(".theme-toggle-content .theme-toggle")
    seen = {reader.page.evaluate(ground)}
    for _ in range(2):
        button.click()
        seen.add(reader.page.evaluate(ground))
    assert len(seen) == 2


def test_chapters_are_linked_one_after_the_other():
    page, seen = "01_policy.html", []
    while page and len(seen) < 40:
        seen.append(page)
        text = (SITE / "chapters" / page).read_text(encoding="utf-8")
        links = re.findall(r'<a href="(\d\w+\.html)" rel="next"', text)
        page = links[0] if links else ""
    assert seen == [each.name for each in sorted((SITE / "chapters").glob("[0-9]*.html"))]


@pytest.mark.parametrize(
    ("words", "chapter"),
    [("staleness", "18"), ("GAE", "03"), ("leave-one-out", "06"), ("total variation", "11")],
)
def test_search_finds_the_chapter_before_the_source(reader, words, chapter):
    reader.open("index.html")
    reader.page.locator(".sidebar-search").fill(words)
    links = reader.page.locator(".found a")
    links.first.wait_for()
    found = [link.get_attribute("href") for link in links.all()]
    assert "/chapters/" in found[0]
    assert any(f"/chapters/{chapter}_" in link for link in found)
    assert not any("/solutions/" in link for link in found)


def test_a_link_opens_the_fold_that_it_leads_into(reader):
    page = next(page for page in PAGES if "/solutions/" in page)
    reader.open(page)
    fold = reader.page.locator("details.fold").nth(1)
    assert not fold.evaluate("fold => fold.open")
    name = fold.evaluate("fold => fold.closest('section').id")
    reader.page.evaluate("name => { location.hash = name }", name)
    reader.page.wait_for_function(
        "name => document.getElementById(name).querySelector('details').open", arg=name
    )


# ---- the front page ----


def test_the_mask_lab_moves_without_a_kernel(reader):
    reader.open("index.html")
    lab = reader.page.locator("[data-mask-lab] .lab").first
    lab.locator(".dot").first.wait_for(state="attached")
    told = lab.inner_text()
    slider = lab.locator("input[type=range]").first
    slider.focus()
    for _ in range(5):
        reader.page.keyboard.press("ArrowRight")
    assert lab.inner_text() != told


def ask(reader, model="tiny-sums", problem="5+7", opening=""):
    reader.open("index.html")
    host = reader.page.locator("[data-ask]")
    host.locator("select").select_option(model)
    host.locator("input").nth(0).fill(problem)
    host.locator("input").nth(1).fill(opening)
    host.locator("button[type=submit]").click()
    judged = "() => document.querySelectorAll('.mark:is(.good, .bad)').length === 8"
    reader.page.wait_for_function(judged)
    return host


def test_eight_answers_are_written_and_judged(reader):
    """An easy sum is mostly answered rightly; the verdicts are those of the texts."""
    host = ask(reader)
    texts = host.locator(".answers .text").all_inner_texts()
    marks = host.locator(".answers .mark").all_inner_texts()
    right = [text.strip().endswith("<answer>12</answer>") for text in texts]
    assert right == ["right" in mark for mark in marks]
    assert sum(right) >= 1  # pass@8 of two operands is above .99
    assert f"{sum(right)} of 8 say 12" in host.locator(".score").inner_text()
    host.locator(".answers .text button").nth(2).click()
    shares = [
        float(text) for text in host.locator(".bars > div > span:last-child").all_inner_texts()
    ]
    assert 0.9 < sum(shares[:6]) <= 1.01
    assert host.locator(".bar.drawn").count() == 1


def test_an_opening_is_forced_on_all_answers(reader):
    host = ask(reader, opening="<think>5+7=13;")
    texts = host.locator(".answers .text").all_inner_texts()
    assert all(text.startswith("<think>5+7=13;") for text in texts)
    assert host.locator(".forced").count() == 8 * 8


def test_a_step_is_learned_in_the_page_and_forgotten(reader):
    """Of eight answers to four numbers some are right, as a rule; all alike are asked again."""
    host = ask(reader, problem="37+8-5+9")
    learn, forget = (host.get_by_role("button", name=name) for name in ("Learn", "Forget"))
    score, judged = host.locator(".score"), re.compile("of 8 say 49, pass@1")
    for _ in range(30):
        sync_api.expect(score).to_have_text(judged)
        learn.click()
        if "worth the same" not in score.inner_text():
            break
        host.locator("button[type=submit]").click()
    sync_api.expect(score).to_have_text(re.compile("After 1 step of REINFORCE"))
    forget.click()
    sync_api.expect(score).to_have_text(re.compile("^[0-9] of 8 say 49"))
    sync_api.expect(forget).to_be_hidden()


def test_two_methods_train_in_the_page(reader, tmp_path):
    """By keys alone: train, pause, keep a picture, put a method together, start anew."""
    reader.open("index.html")
    host = reader.page.locator("[data-train]")
    go = host.get_by_role("button", name="Train", exact=True)
    go.focus()
    reader.page.keyboard.press("Enter")
    columns = host.locator(".columns section")
    for column in columns.all():
        sync_api.expect(column.locator("dd").nth(2)).to_contain_text("nats")
        sync_api.expect(column.locator("dd").first).to_contain_text("%")
        assert column.locator(".answers li:is(.good, .bad)").count() == 8
    host.get_by_role("button", name="Pause").press("Enter")
    with reader.page.expect_download() as kept:
        host.get_by_role("button", name="Save a picture of this run").press("Enter")
    kept.value.save_as(tmp_path / "run.png")
    assert Image.open(tmp_path / "run.png").size == (1200, 675)
    columns.first.locator("summary").press("Enter")
    columns.first.get_by_label("mask").select_option("gspo")
    assert columns.first.get_by_label("first method").input_value() == "own"
    sync_api.expect(host.locator(".status")).to_contain_text("Nothing has been trained yet")
    assert columns.first.locator(".answers li:is(.good, .bad)").count() == 0


def test_nothing_on_the_front_page_shifts(reader):
    reader.open("index.html")
    reader.page.locator("[data-train].ready").wait_for()
    assert reader.page.evaluate(SHIFT) <= 0.02


def test_without_scripts_a_film_is_shown(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(1000 * browser.PATIENCE)
    page = context.new_page()
    page.goto(f"{address}index.html")
    assert page.locator("[data-train] circle").count() == 2 * 8 * 8
    context.close()


def test_readers_words_find_the_section_first(reader):
    reader.open("index.html")
    reader.page.locator(".sidebar-search").fill("why divide by std")
    first = reader.page.locator(".found a").first
    sync_api.expect(first).to_contain_text("σ")
    assert "_grpo.html#" in first.get_attribute("href")


def test_what_it_cannot_read_is_said(reader):
    reader.open("index.html")
    host = reader.page.locator("[data-ask]")
    host.locator("input").nth(0).fill("5+x")
    host.locator("button[type=submit]").click()
    sync_api.expect(host.locator(".score")).to_have_text("that is no sum.")


def test_the_pages_model_is_in_the_site():
    """Every model in the site is offered on its front page, and has its weights there."""
    source = "".join((SITE / "_static" / name).read_text() for name in ("ask.js", "train.json"))
    for path in (SITE / "_static/models").glob("*.json"):
        assert f'"{path.stem}"' in source
        assert path.with_suffix(".bin").is_file()


def test_the_figures_move_without_a_kernel(reader):
    """Each answers to the arrow keys on its first slider, and none is told what another does."""
    reader.open("figures.html")
    labs = reader.page.locator("[data-live] .lab").all()
    assert len(labs) == 6
    for lab in labs:
        told = [each.inner_text() for each in labs]
        lab.locator("input[type=range]").first.focus()
        for _ in range(4):
            reader.page.keyboard.press("ArrowRight")
        changed = [a != each.inner_text() for a, each in zip(told, labs, strict=True)]
        assert changed == [each == lab for each in labs]


def test_base_and_trained_answer_side_by_side(reader):
    reader.open("index.html")
    host = reader.page.locator("[data-ask]")
    host.locator("select").select_option("tiny-habits")
    reader.page.wait_for_function(
        "() => document.querySelectorAll('.mark:is(.good, .bad)').length === 16"
    )
    assert host.locator("h4").all_inner_texts() == ["the base", "after 80 steps of RL"]
    after = host.locator(".answers").nth(1).locator(".good").count()
    assert after >= 4  # of 8: training made this rule the usual one
