"""The mask lab in a real browser: the package's numbers, mouse, keyboard, without a kernel."""

import json
import subprocess
import time
from itertools import product
from pathlib import Path

import browser
import nbformat
import pytest
import torch
from nbformat.sign import NotebookNotary

from rlbook.exact import FOUR
from rlbook.objectives import (
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    Tokens,
    WeightClip,
    binary_divergence,
    sequence_ratio,
    token_ratio,
    weigh,
)
from rlbook.objectives.specs import write
from workshop.shared.masks import MASKS, mask_lab
from workshop.shared.masks.lab import front_end
from workshop.shared.masks.rules import advantages_of, apply_mask, token_names
from workshop.tools.runner import clean

ROOT = Path(__file__).parents[3]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
sync_api.expect.set_options(timeout=1000 * browser.PATIENCE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]

REGIONS = [
    NoTrustRegion(),
    *(RatioClip(low, high) for low, high in product((0.0, 0.2, 0.6), (0.0, 0.28, 1.0))),
    *(RatioClip(0.2, 0.2, dual=dual) for dual in (1.1, 3.0)),
    *(WeightClip(max=cap, min=low) for cap, low in product((1.0, 1.28, 5.0), (0.0, 0.5))),
    *(
        DivergenceMask(kind, delta, 2 * delta, ratio_cap=cap)
        for kind, delta, cap in product(("tv", "kl"), (0.0, 0.01, 0.15), (None, 2.0))
    ),
]
REGION_IDS = [json.dumps(write("trust_region", region)) for region in REGIONS]


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as chromium:
        yield chromium


class Page:
    """A browser page that is offline: it keeps what it asked the network for, and its errors."""

    def __init__(self, page):
        self.page, self.requests, self.errors = page, [], []
        page.set_default_timeout(1000 * browser.PATIENCE)
        page.route("**/*", self.answer)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))

    def answer(self, route):
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def show(self, html: str, path: Path, paper: str = "#fff", width: int = 960):
        """A page that holds `html` and nothing else; returns the lab in it."""
        self.page.set_viewport_size({"width": width, "height": 1100})
        path.write_text(
            f'<!doctype html><meta charset="utf-8"><body style="background: {paper}">{html}</body>'
        )
        self.page.goto(path.as_uri())
        return self.lab()

    def lab(self):
        lab = self.page.locator("[data-mask-lab] .lab").first
        lab.locator("path.area, .dot").first.wait_for(state="attached")
        return lab


@pytest.fixture
def page(chromium):
    context = chromium.new_context()
    page = Page(context.new_page())
    yield page
    context.close()
    assert not page.errors


# ---- the same numbers ----


@pytest.fixture(scope="module")
def numbers(chromium):
    """A page in which the functions of the front end can be called by name."""
    page = chromium.new_page()
    page.add_script_tag(content=front_end())
    yield page
    page.close()


def grid() -> tuple[torch.Tensor, torch.Tensor]:
    """(μ, π) from rare to nearly certain: every pair, and pairs a few parts from each other."""
    p = torch.tensor(
        [1e-6, 0.001, 0.01, 0.05, 0.13, 0.29, 0.5, 0.67, 0.81, 0.93, 0.99, 0.999],
        dtype=torch.float64,
    )
    mu, pi = (x.flatten() for x in torch.meshgrid(p, p, indexing="ij"))
    near = torch.cartesian_prod(p, torch.tensor([0.71, 0.97, 1.0, 1.03, 1.27], dtype=p.dtype))
    near = near[near.prod(1) < 1]
    return torch.cat([mu, near[:, 0]]), torch.cat([pi, near.prod(1)])


@pytest.mark.parametrize("region", REGIONS, ids=REGION_IDS)
@pytest.mark.parametrize("advantage", [0.866, -2.0])
def test_masks_and_weights_are_the_packages(numbers, region, advantage):
    mu, pi = grid()
    logp, logp_old = pi.log(), mu.log()
    expected = weigh(region, Tokens.of(logp, logp_old, torch.full_like(pi, advantage)))
    got = numbers.evaluate(
        """([region, points, advantage]) => points.map(([mu, pi]) =>
             applyRegion(region, { mu, pi, ratio: ratioOf(mu, pi), advantage }))""",
        [write("trust_region", region), torch.stack([mu, pi], 1).tolist(), advantage],
    )
    clear = ~on_a_wall(region, mu, pi)
    assert clear.float().mean() > 0.8
    keep = torch.tensor([found["keep"] for found in got])
    weight = torch.tensor([found["weight"] for found in got], dtype=torch.float64)
    assert torch.equal(keep[clear], expected.keep[clear])
    torch.testing.assert_close(weight[clear], expected.weight[clear], rtol=1e-12, atol=0)


def on_a_wall(region, mu, pi) -> torch.Tensor:
    """Points so near a limit that the last digit of the processor decides."""
    ratio, walls = pi / mu, []
    if isinstance(region, RatioClip):
        walls = [(ratio, 1 - region.low), (ratio, 1 + region.high), (ratio, region.dual or -1)]
    if isinstance(region, DivergenceMask):
        far = binary_divergence(pi.log(), mu.log(), region.kind)
        walls = [(far, region.low), (far, region.high), (ratio, 1.0)]
    return sum(((x - wall).abs() < 1e-9 for x, wall in walls), torch.zeros_like(mu)) > 0


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_divergences_are_the_packages(numbers, kind):
    mu, pi = grid()
    got = numbers.evaluate(
        "([kind, points]) => points.map(([mu, pi]) => divergence(kind, mu, pi))",
        [kind, torch.stack([mu, pi], 1).tolist()],
    )
    expected = binary_divergence(pi.log(), mu.log(), kind)
    torch.testing.assert_close(torch.tensor(got, dtype=mu.dtype), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_tokens_of_the_completions_have_the_packages_weights(numbers, name):
    """At the last update every token is where the completions have it, and its ratio s too."""
    lab = mask_lab()
    mask = next(m for m in lab.masks if m["key"] == name)
    got = numbers.evaluate(
        """([answers, mask]) => answersAt(answers, 16, 16).map(({ tokens }) =>
             tokens.map((t) => [applyMask(mask, t).weight, t.ratio, t.sequence, t.advantage]))""",
        [lab.answers, mask],
    )
    expected = torch.stack(
        [
            apply_mask(MASKS[name]).weight,
            token_ratio(FOUR.logp, FOUR.logp_old),
            sequence_ratio(FOUR.logp, FOUR.logp_old, FOUR.mask),
            advantages_of(FOUR),
        ],
        -1,
    )[FOUR.mask]
    found = torch.tensor([token for answer in got for token in answer], dtype=expected.dtype)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_tokens_move_on_straight_lines_in_their_logits(numbers):
    got = numbers.evaluate(
        """(answers) => [0, 4, 12, 16].map((update) =>
             answersAt(answers, 16, update).flatMap(({ tokens }) => tokens.map(({ pi }) => pi)))""",
        mask_lab().answers,
    )
    start, end = (x.exp()[FOUR.mask].logit() for x in (FOUR.logp_old, FOUR.logp))
    for part, probs in zip((0, 0.25, 0.75, 1), got, strict=True):
        found = torch.tensor(probs, dtype=start.dtype).logit()
        torch.testing.assert_close(found, start + part * (end - start))


def test_walls_are_where_the_limits_say(numbers):
    wall = "([region, mu, sign]) => wallOf(region, mu, sign)"
    ask = lambda region, mu, sign: numbers.evaluate(wall, [write("trust_region", region), mu, sign])  # noqa: E731
    assert ask(RatioClip(0.2, 0.28), 0.01, 1) == pytest.approx(1.28)
    assert ask(RatioClip(0.2, 0.28), 0.9, 1) is None  # π = 1 comes first
    assert ask(RatioClip(0.2, 0.28), 0.9, -1) == pytest.approx(0.8)
    assert ask(DivergenceMask("tv", 0.15, 0.15), 0.01, 1) == pytest.approx(16)
    assert ask(DivergenceMask("tv", 0.15, 0.15), 0.1, -1) is None  # it cannot fall by .15
    assert ask(WeightClip(max=5.0), 0.01, 1) is None


@pytest.mark.parametrize("name", ["ppo", "dual", "dapo", "dppo", "dppo_kl"])
def test_the_hatched_area_is_what_the_region_masks(page, tmp_path, name):
    """Points of both planes, at least half a pixel from any wall: inside the path, or not."""
    lab = page.show(mask_lab(name, "none").html(), tmp_path / "lab.html")
    region = MASKS[name].region
    inside = """(svg, points) => {
      const area = svg.querySelector("path.area"), frame = svg.querySelector("rect.frame");
      const [x, y, w, h] = ["x", "y", "width", "height"].map((n) => Number(frame.getAttribute(n)));
      return points.map(([across, up]) =>
        area.isPointInFill(new DOMPoint(x + across * w, y + (1 - up) * h)));
    }"""
    parts = torch.rand(1500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = -6.2 + 10.6 * parts
    for plane, sign in enumerate((1.0, -1.0)):
        svg = lab.locator(".planes svg").nth(plane)
        got = torch.tensor(svg.evaluate(inside, parts.tolist()))

        def masked(dx=0.0, dy=0.0, sign=sign):
            mu, pi = (
                torch.nn.functional.logsigmoid(logits[:, i] + d) for i, d in ((0, dx), (1, dy))
            )
            return ~weigh(region, Tokens.of(pi, mu, torch.full_like(mu, sign))).keep

        around = [masked(dx, dy) for dx, dy in product((-0.03, 0.03), repeat=2)]
        clear = torch.stack([masked(), *around]).float().std(0) == 0
        assert clear.float().mean() > 0.9
        assert got.float().mean() > 0.05
        assert torch.equal(got[clear], masked()[clear])


def test_the_table_says_what_every_mask_does_to_a_token(page, tmp_path):
    lab = page.show(mask_lab(token="C6").html(), tmp_path / "lab.html")
    rows = {
        row.get_attribute("data-mask"): row.locator("td").all_text_contents()[1:]
        for row in lab.locator("tr[data-mask]").all()
    }
    assert rows["ppo"] == ["ρ 0.833", "≥ 0.8", "0.833", "−0.722"]
    assert rows["dual"] == ["ρ 0.833", "0.8 … 3", "0.833", "−0.722"]
    assert rows["cispo"] == ["ρ 0.833", "all, w ≤ 5", "0.833", "−0.722"]
    assert rows["dppo"] == ["TV 0.16", "≤ 0.15, or ρ ≥ 1", "silenced", "0"]
    assert rows["gspo"] == ["s 1", "≥ 0.9997", "1", "−0.866"]
    assert list(rows) == list(MASKS)


# ---- the reader's hands ----


def silent(lab) -> dict[str, str]:
    """What each token of the strip says of itself."""
    titles = [token.get_attribute("title") for token in lab.locator(".token").all()]
    return dict(title.split(": ", 1) for title in titles)


def test_it_opens_in_an_informative_state(page, tmp_path):
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    assert lab.locator("h3").text_content() == (
        "PPO silences 5 of 16 tokens, DPPO-TV 3; both silence A2, D2"
    )
    states = silent(lab)
    assert list(states) == [name for names in token_names() for name in names]
    assert states["B2"] == "silenced by PPO" and states["C6"] == "silenced by DPPO-TV"
    assert states["D2"] == "silenced by PPO and DPPO-TV" and states["A3"] == "learns"
    areas = set(lab.locator(".planes .area-name").all_text_contents())
    assert areas == {"only PPO", "both"}
    assert page.requests == []


def test_dragging_a_slider_changes_the_drawing(page, tmp_path):
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    area = lab.locator('path.area[data-mask="ppo"]').first
    before, headline = area.get_attribute("d"), lab.locator("h3").text_content()
    slider = lab.locator('input[data-setting="high"]')
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    page.page.mouse.move(box["x"] + 0.2 * box["width"], y)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=4)
    page.page.mouse.up()
    assert float(slider.input_value()) == pytest.approx(0.6, abs=0.1)
    assert area.get_attribute("d") != before
    assert silent(lab)["A1"] == "learns" and silent(lab)["A2"] == "silenced by DPPO-TV"
    assert lab.locator("h3").text_content() != headline


def test_delta_cap_and_window_move_too(page, tmp_path):
    lab = page.show(mask_lab("cispo", "dppo_kl").html(), tmp_path / "lab.html")
    lab.locator('input[data-setting="max"]').fill("1")
    assert lab.locator('tr[data-mask="cispo"] td').nth(3).text_content() == "1"  # B2: min(2, 1)
    assert lab.locator(".planes .area-name").first.text_content() == "CISPO: w held at 1"
    lab.locator('input[data-setting="low high"]').fill("0")
    assert silent(lab)["B2"] == "silenced by DPPO-KL"


def test_gspo_silences_whole_answers_by_their_ratio(page, tmp_path):
    lab = page.show(mask_lab("gspo", "none").html(), tmp_path / "lab.html")

    def answers() -> str:
        return "".join(sorted({n[0] for n, said in silent(lab).items() if "GSPO" in said}))

    assert answers() == "ABD"
    paths = lab.locator("path.area, path.wall")
    assert not any(paths.evaluate_all("all => all.map((path) => path.getAttribute('d'))"))
    lab.locator('input[data-setting="high"]').fill("-1")  # s up to 1.1
    assert answers() == "BD"
    lab.locator('input[data-setting="low"]').fill("-0.5")
    assert answers() == "B"
    needles = lab.locator(".needle").evaluate_all("all => all.map((n) => n.textContent)")
    assert needles == ["s = 1.057", "s = 1.400, silenced", "s = 1.000", "s = 0.873"]


def test_clicking_a_token_or_its_dot_takes_it_apart(page, tmp_path):
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    lab.locator('.token[data-token="C6"]').click()
    assert lab.locator(".facts b").first.text_content() == "C6"
    cut = lab.locator(".planes .cut").get_attribute("x1")
    lab.locator('.dot[data-token="A2"]').click()
    assert lab.locator(".facts b").first.text_content() == "A2"
    assert lab.locator(".planes .cut").get_attribute("x1") != cut
    assert "A2" in lab.locator(".details .title").text_content()


def test_the_whole_lab_by_keyboard(page, tmp_path):
    """Tab through every control; arrows move masks, limits, updates and tokens."""
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    focused = "() => document.querySelector('[data-mask-lab]').shadowRoot.activeElement?.ariaLabel"
    press, seen = page.page.keyboard.press, []
    for _ in range(8):
        press("Tab")
        seen.append(page.page.evaluate(focused))
    assert seen == [
        "first mask", "ε low of PPO", "ε high of PPO", "second mask", "δ of DPPO-TV",
        "play the updates", "updates since the tokens were sampled",
        "B2: silenced by PPO, <answer>49</answer>",
    ]  # fmt: skip
    press("ArrowRight")
    assert page.page.evaluate(focused).startswith("C1: learns")
    press("ArrowDown")
    press("End")
    assert page.page.evaluate(focused).startswith("D2: silenced by PPO and DPPO-TV")
    press("Home")
    press("ArrowUp")
    assert lab.locator(".facts b").first.text_content() == "C1"
    press("Shift+Tab")
    for _ in range(6):
        press("ArrowLeft")
    assert lab.locator(".player input").input_value() == "10"
    assert lab.locator("h3").text_content().startswith("Update 10: PPO silences")
    lab.locator("select").first.focus()
    press("ArrowDown")
    assert lab.locator("h3").text_content().startswith("Update 10: Dual clip silences")
    lab.get_by_role("button", name="reset").click()
    assert lab.locator("h3").text_content().startswith("PPO silences 5 of 16")


def test_playing_moves_and_silences_the_tokens(page, tmp_path):
    clock = page.page.clock  # the page's time goes on when the test says so
    clock.install(time=0)
    lab = page.show(mask_lab(update=0).html(), tmp_path / "lab.html")
    assert lab.locator("h3").text_content() == "Update 0: neither silences a token"
    dot = lab.locator('.dot[data-token="B2"] circle').nth(1)
    play, update = lab.locator(".player button"), lab.locator(".player input")
    heights = [float(dot.get_attribute("cy"))]
    clock.pause_at(600)  # seconds
    play.dispatch_event("click")
    for _ in range(2):
        clock.run_for(1500)
        heights.append(float(dot.get_attribute("cy")))
    assert heights == sorted(heights, reverse=True) and len(set(heights)) == 3
    assert play.text_content() == "❚❚ pause" and play.get_attribute("aria-label") == "pause"
    assert update.input_value() == "8"  # half of six seconds
    play.dispatch_event("click")
    clock.run_for(1500)
    assert update.input_value() == "8" and play.text_content() == "▶ play"
    assert lab.locator("h3").text_content().startswith("Update 8: PPO silences")
    play.dispatch_event("click")
    clock.run_for(4000)
    assert update.input_value() == "16" and play.text_content() == "▶ play"
    assert lab.locator("h3").text_content().startswith("PPO silences 5 of 16 tokens")


def test_the_counters_count(page, tmp_path):
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    rows = [
        row.locator("td").all_text_contents()
        for row in lab.locator(".row table").first.locator("tbody tr").all()
    ]
    assert rows == [
        ["PPO", "5/16", "3/6", "2/10", "1/1", "2/3", "1/7", "1/5"],
        ["DPPO-TV", "3/16", "1/6", "2/10", "0/1", "0/3", "1/7", "2/5"],
    ]


# ---- its looks ----

CUT_OFF = """lab => {
  const bad = [], own = lab.getBoundingClientRect();
  const boxOf = (node) => node.getBoundingClientRect(), start = (node) => node.textContent.slice(0, 30);
  for (const text of lab.querySelectorAll("svg text")) {
    const box = boxOf(text), svg = boxOf(text.closest("svg"));
    const out = [svg.left - box.left, box.right - svg.right, svg.top - box.top, box.bottom - svg.bottom];
    if (text.textContent && Math.max(...out) > 1) bad.push(`${start(text)} leaves its drawing`);
  }
  for (const node of lab.querySelectorAll("td, th, span, label, button, select, output, h3, div, p")) {
    const inline = getComputedStyle(node).display === "inline", box = boxOf(node);
    if (!inline && node.scrollWidth > node.clientWidth + 1) bad.push(`${start(node)} is cut`);
    if (box.right > own.right + 1 || box.left < own.left - 1) bad.push(`${start(node)} is outside`);
  }
  const names = [...lab.querySelectorAll(".planes .area-name, .planes .title, .planes .readout")];
  const apart = (p, q) => p.right < q.left || q.right < p.left || p.bottom < q.top || q.bottom < p.top;
  for (const [i, a] of names.entries())
    for (const b of names.slice(i + 1).filter((b) => b.textContent && a.textContent))
      if (!apart(boxOf(a), boxOf(b))) bad.push(`${start(a)} over ${start(b)}`);
  return bad;
}"""  # noqa: E501


LETTERS = """letters => {
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function (...how) {
    const root = attach.apply(this, how), style = document.createElement("style");
    style.textContent = `* { ${letters} }`;
    root.append(style);
    return root;
  };
}"""
FONTS = ("DejaVu Sans", "Noto Sans", "Liberation Sans")


def has_font(family):
    found = subprocess.run(["fc-list", family], capture_output=True, text=True).stdout
    return bool(found)


@pytest.mark.parametrize("width", [420, 760, 1000])
@pytest.mark.parametrize("letters", [*FONTS, "wide"])
def test_no_label_is_cut_off(page, tmp_path, width, letters):
    """Whatever the font is: three families, and letters far apart."""
    if letters in FONTS and not has_font(letters):
        pytest.skip(f"no {letters} here")
    family = f"font-family: '{letters}' !important"
    style = "letter-spacing: 1px !important" if letters == "wide" else family
    page.page.add_init_script(f"({LETTERS})({json.dumps(style)})")
    lab = page.show(mask_lab(hint="move it").html(), tmp_path / "lab.html", width=width)
    for left, right in (("ppo", "dppo"), ("dual", "gspo"), ("cispo", "dppo_kl"), ("gspo", "gspo")):
        for side, name in enumerate((left, right)):
            lab.locator("select").nth(side).select_option(name)
        for update in (0, 9, 16):
            lab.locator(".player input").fill(str(update))
            assert lab.evaluate(CUT_OFF) == [], (left, right, update)


TEXTS = "svg text, td, th, h3, .rule, .who, .token span, select, .facts"
CONTRASTS = """(lab, texts) => {
  const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const paper = luminance(parse(getComputedStyle(document.body).backgroundColor));
  const contrasts = [...lab.querySelectorAll(texts)].map((node) => {
    const style = getComputedStyle(node);
    const ink = luminance(parse(node.closest("svg") ? style.fill : style.color));
    const [dark, light] = [ink, paper].sort((a, b) => a - b);
    return [(light + 0.05) / (dark + 0.05), node.textContent.slice(0, 20)];
  });
  return contrasts.reduce((a, b) => (b[0] < a[0] ? b : a));
}"""


@pytest.mark.parametrize("paper", ["#fff", "#f7f5ee", "#111", "#2b2b2b"])
def test_text_is_readable_on_light_and_dark_paper(page, tmp_path, paper):
    lab = page.show(mask_lab("dppo", "gspo").html(), tmp_path / "lab.html", paper=paper)
    page.page.add_script_tag(content=front_end())  # for luminance
    least, text = lab.evaluate(CONTRASTS, TEXTS)
    assert least >= 4.3, text
    dark = paper in ("#111", "#2b2b2b")
    assert lab.get_attribute("data-theme") == ("dark" if dark else "light")


def test_the_theme_follows_the_page(page, tmp_path):
    lab = page.show(mask_lab().html(), tmp_path / "lab.html")
    page.page.evaluate("document.body.style.background = '#111'")
    sync_api.expect(lab).to_have_attribute("data-theme", "dark")


# ---- without a kernel ----


def notebook_with(lab) -> nbformat.NotebookNode:
    """A notebook as the runner stores it: a cell whose output is the lab."""
    source = "from workshop.shared.masks import mask_lab\n\nlab = mask_lab()\nlab"
    asked = "(lab.token, lab.left, lab.regions['dapo'].high)"
    cells = [nbformat.v4.new_code_cell(source, execution_count=1), nbformat.v4.new_code_cell(asked)]
    cells[0].outputs = [
        nbformat.v4.new_output("execute_result", data=lab._repr_mimebundle_()[0], execution_count=1)
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    clean(notebook, "lab")
    return notebook


def test_two_labs_of_a_notebook_on_a_web_page(page, tmp_path):
    """What nbconvert makes of the stored notebook, offline."""
    nbconvert = pytest.importorskip("nbconvert")
    notebook = notebook_with(mask_lab())
    notebook.cells += notebook_with(mask_lab("ppo", "dapo")).cells[:1]
    notebook.cells[-1].id = "second"
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "book.html").write_text(html)
    page.page.goto((tmp_path / "book.html").as_uri())
    labs = page.page.locator("[data-mask-lab] .lab")
    assert labs.count() == 2
    assert labs.nth(0).locator("h3").text_content().startswith("PPO silences 5 of 16 tokens, DPPO")
    assert (
        labs.nth(1).locator("h3").text_content().startswith("PPO silences 5 of 16 tokens, DAPO 4")
    )
    assert labs.nth(0).evaluate(CUT_OFF) == []
    assert not [error for error in page.errors if "ERR_FAILED" not in error]
    page.errors.clear()  # nbconvert's own page asks the network for MathJax and require.js


def test_without_scripts_there_is_a_picture_and_a_sentence(chromium, tmp_path):
    """As on GitHub."""
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    (tmp_path / "lab.html").write_text(f'<meta charset="utf-8">{mask_lab().html()}')
    page.goto((tmp_path / "lab.html").as_uri())
    picture = page.get_by_alt_text("Of 16 tokens PPO silences 5, DPPO-TV 3")
    assert picture.evaluate("image => image.naturalWidth") > 300
    assert "It moves where scripts may run" in page.locator("body").inner_text()
    assert "function" not in page.locator("body").inner_text()
    context.close()


# ---- with one ----


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    root = tmp_path_factory.mktemp("jupyter")
    with browser.running_lab(root) as lab:
        lab.notary = NotebookNotary(data_dir=str(root / "data"))
        yield lab


def test_a_trusted_notebook_draws_before_anything_runs(jupyter, chromium):
    """As on the machine of somebody who made the chapter, or trusted it."""
    notebook = notebook_with(mask_lab("ppo", "cispo"))
    nbformat.write(notebook, jupyter.folder / "trusted.ipynb")
    jupyter.notary.sign(nbformat.read(jupyter.folder / "trusted.ipynb", 4))
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(1000 * browser.PATIENCE)
    jupyter.open(page, "trusted.ipynb")
    lab = page.locator("[data-mask-lab] .lab").first
    lab.locator(".dot").first.wait_for()
    assert lab.locator("h3").text_content() == "PPO silences 5 of 16 tokens, CISPO none"
    lab.locator('.token[data-token="D2"]').click()
    page.keyboard.press("ArrowLeft")
    assert lab.locator(".facts b").first.text_content() == "D1"
    page.close()
    jupyter.close_sessions()


def test_in_jupyterlab_before_and_after_running(jupyter, chromium):
    """Unrun and not trusted: a picture and a sentence. Run: the lab, its choices Python's."""
    nbformat.write(notebook_with(mask_lab()), jupyter.folder / "lab.ipynb")
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(1000 * browser.PATIENCE)
    jupyter.open(page, "lab.ipynb")
    stored = page.locator(".jp-OutputArea").first
    sync_api.expect(stored).to_contain_text("It moves where scripts may run")
    cells = page.evaluate(browser.RUN_ALL)
    assert not [o for c in cells for o in c.get("outputs", []) if o["output_type"] == "error"]

    lab = page.locator(".lab").first
    lab.locator(".dot").first.wait_for()
    assert lab.evaluate(CUT_OFF) == []
    lab.locator('.token[data-token="B2"]').focus()
    page.keyboard.press("ArrowLeft")
    assert lab.locator(".facts b").first.text_content() == "B1"
    lab.locator("select").first.select_option("dapo")
    slider = lab.locator('input[data-setting="high"]')
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.3"  # the notebook leaves the arrows to the lab
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:move-cursor-down')")
    again = """async () => {
      const panel = window.jupyterapp.shell.currentWidget;
      panel.content.activeCellIndex = 1;
      await window.jupyterapp.commands.execute("notebook:run-cell");
      return panel.content.model.sharedModel.toJSON().cells[1].outputs[0].data["text/plain"];
    }"""
    # The widget keeps a change back while the one before is on its way to the kernel.
    within = time.monotonic() + browser.PATIENCE
    while (choices := page.evaluate(again)) != "('B1', 'dapo', 0.3)":
        assert time.monotonic() < within, choices
    shots = ROOT / "build/browser"
    shots.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=shots / "mask_lab.png")
    page.close()
