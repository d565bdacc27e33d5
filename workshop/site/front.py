"""The front page: a model that learns, how to get the book, three doors, labs, the chapters."""

import html
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from workshop.shared.evidence import load_results
from workshop.site.film import host
from workshop.site.notebooks import lab_host
from workshop.site.owner import Owner

HERE = Path(__file__).parent
ADDRESS = "ADDRESS-OF-THE-REPOSITORY"  # in a command, while the book has none


def front_page(titles: Mapping[str, str], owner: Owner) -> str:
    """The source of the front page: `pages/index.md` with its gaps filled in.

    `titles` names every page by its place, in reading order.
    """
    told = results()
    chapters = {page: text for page, text in titles.items() if re.match(r"chapters/\d", page)}
    appendices = [page for page in titles if page.startswith("chapters/appendix")]
    gaps = {
        "train": host("index", auto=True),
        "address": owner.repository or ADDRESS,
        "colab": colab(owner),
        "lab": lab(),
        "cards": "\n".join(
            card(page, text, told.get(page.removeprefix("chapters/")[:2], ""))
            for page, text in chapters.items()
        ),
        "chapters": "\n".join(chapters),
        "appendices": "\n".join(appendices),
    }
    return filled("index", gaps)


def filled(page: str, gaps: Mapping[str, str]) -> str:
    """A page of `pages` with its gaps filled in."""
    source = (HERE / f"pages/{page}.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda gap: gaps[gap[1]], source)


def figures_page() -> str:
    """The page of all figures that move without a kernel."""
    import numpy as np

    from rlbook.scaling import Cluster, Sigmoid
    from workshop.ch02 import figures as ch02
    from workshop.ch03.clip import clip_explorer
    from workshop.ch07.group import group_lab
    from workshop.ch10 import figures as ch10
    from workshop.ch17 import figures as ch17
    from workshop.ch17.scalerl import published_curves

    compute = np.arange(2, 75) * 100_000 / 74
    noise = 0.004 * np.random.default_rng(0).standard_normal(len(compute))
    reward = published_curves()["batch 2048"](compute) + noise
    costs = Cluster(1, 1, 32, 0.01, 1e-4, update_fixed=1.0, update_per_token=2e-4, sync=1.0)
    figures = {
        "clip": clip_explorer(),
        "group": group_lab(),
        "cloud": ch02.cloud_explorer(),
        "weight": ch10.weight_explorer(),
        "fit": ch17.fit_explorer(compute, reward, 0.38, 16_000, Sigmoid(0.6, 2.0, 9000, 0.38)),
        "pipeline": ch17.pipeline_explorer(costs, mean=2000, max_tokens=8000, batch=128),
    }
    shown = {name: f"```{{raw}} html\n{made.html()}\n```" for name, made in figures.items()}
    return filled("figures", shown)


def lab() -> str:
    """The mask lab of the front page."""
    from workshop.shared.masks import mask_lab

    shown = mask_lab("ppo", "dppo", hint="Move a slider, click a token, press play.")
    names = ("left", "right", "token", "update", "updates", "hint", "masks", "answers")
    state = json.dumps({name: getattr(shown, name) for name in names}, ensure_ascii=False)
    return lab_host(state.replace("<", "\\u003c"))


def results() -> dict[str, str]:
    """A result for each chapter that has one, by the chapter's number in two digits."""
    listed = tomllib.loads((HERE / "pages/results.toml").read_text(encoding="utf-8"))["result"]
    words = {(each["claim"], each["world"]): each["words"] for each in listed}
    found = {}
    for row in load_results("verdicts").to_dict("records"):
        if about := words.get((row["claim"], row["world"])):
            mean, *ends = (f"{row[key]:+.2g}" for key in ("mean", "low", "high"))
            told = f"{html.escape(about)}: <b>{mean}</b> [{', '.join(ends)}]"
            found[str(row["chapter"]).zfill(2)] = told.replace("-0", "−0")
    return found


def colab(owner: Owner) -> str:
    """A way without any installing, where there is one."""
    address = owner.colab_of("chapters/01_policy.ipynb")
    link = f'<a href="{address}">chapter 1 on Colab</a>'
    return f" Without installing anything: {link}." if address else ""


def open_graph(picture: Path, path: Path) -> None:
    """What is shown where somebody shares a link: the title over `picture` without its margin."""
    from matplotlib import font_manager

    card = Image.new("RGB", (1200, 630), "white")
    figure = Image.open(picture).convert("RGB")
    figure = figure.crop(ImageOps.invert(figure).getbbox())  # no margin of its own
    figure = ImageOps.contain(figure, (1100, 430), Image.Resampling.LANCZOS)
    card.paste(figure, ((1200 - figure.width) // 2, 175))
    face = font_manager.findfont("DejaVu Sans")
    draw = ImageDraw.Draw(card)
    for text, size, top in (
        ("RL for reasoning LLMs", 60, 28),
        ("from REINFORCE to ScaleRL", 34, 108),
    ):
        font = ImageFont.truetype(face, size)
        draw.text((600, top), text, fill="#222222", font=font, anchor="ma")
    path.parent.mkdir(parents=True, exist_ok=True)
    card.save(path, optimize=True)


def card(page: str, title: str, result: str) -> str:
    """A chapter on the front page: number, name, what it asks, one result."""
    number, _, rest = title.partition(" · ")
    name, _, question = rest.partition(": ")
    return (
        f'<a class="card" href="{page}.html">'
        f"<b><i>{html.escape(number)}</i> {html.escape(name)}</b>"
        f"<span>{html.escape(question[:1].upper() + question[1:])}</span>"
        + f'<span class="result">{result}</span>' * bool(result)
        + "</a>"
    )
