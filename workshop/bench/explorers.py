"""What one move of a control costs in every explorer of the book: `python -m` this module.

Explorers that matplotlib draws: CPU milliseconds in the kernel, where a slider draws once, when it
is let go. Figures that run in the page: milliseconds of the page's script for each of many moves.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from shutil import which
from statistics import median

import ipywidgets as W
import numpy as np
import torch

from rlbook.exact import FOUR
from rlbook.policy import set_threads
from rlbook.scaling import Cluster, Sigmoid
from workshop.ch02 import figures as ch02
from workshop.ch03.clip import clip_explorer
from workshop.ch06 import figures as ch06
from workshop.ch07 import figures as ch07
from workshop.ch07.group import group_lab
from workshop.ch08 import figures as ch08
from workshop.ch10 import figures as ch10
from workshop.ch11 import figures as ch11
from workshop.ch13 import figures as ch13
from workshop.ch17 import figures as ch17
from workshop.shared.explorer import Explorer
from workshop.shared.live import LiveFigure

MOVES = 6  # values that each control is moved to


def milliseconds(explorer: Explorer) -> dict[str, float]:
    """CPU milliseconds from a new value of each control to a new picture, median over its range."""
    return {name: median(moves(control)) for name, control in explorer.controls.items()}


def moves(control: W.Widget) -> list[float]:
    """What it took to set the control to values spread over its range."""
    if hasattr(control, "options"):
        values = [option[1] if isinstance(option, tuple) else option for option in control.options]
    else:
        spread = np.linspace(control.min, control.max, MOVES + 1)
        values = [type(control.value)(value) for value in spread]
    taken, first = [], control.value
    for value in [*(value for value in values if value != first), first]:
        start = time.process_time()
        control.value = value
        taken.append(1000 * (time.process_time() - start))
    return taken


MOVE_ALL = """host => {
  const lab = host.shadowRoot, taken = [];
  for (const input of lab.querySelectorAll("input[type=range]"))
    for (let i = 0; i <= 20; i++) {
      const start = performance.now();
      input.value = Number(input.min) + ((input.max - input.min) * i) / 20;
      input.dispatchEvent(new Event("input"));
      taken.push(performance.now() - start);
    }
  return taken.sort((a, b) => a - b);
}"""


def milliseconds_in_page(figures: Mapping[str, LiveFigure]) -> dict[str, list[float]]:
    """What every move of every slider of the figures took in Chromium, sorted; needs playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=which("chromium"))
        page, taken = chromium.new_page(), {}
        for name, figure in figures.items():
            page.set_content(figure.html())
            taken[name] = page.locator("[data-live]").evaluate(MOVE_ALL)
        chromium.close()
    return taken


def divergence() -> Explorer:
    advantages = (FOUR.rewards - 0.5)[:, None].expand(4, 8)
    moved = tuple(x[FOUR.mask].repeat(60) for x in (FOUR.logp, FOUR.logp_old, advantages))
    return ch11.divergence_explorer({"sixty times the four completions": moved})


def fit() -> LiveFigure:
    compute, truth = np.geomspace(1500, 100_000, 70), Sigmoid(0.6, 2.0, 7000, 0.38)
    return ch17.fit_explorer(compute, truth(compute), 0.38, 16_000, truth)


def pipeline() -> LiveFigure:
    costs = Cluster(1, 1, 32, 0.01, 1e-4, 1.0, 2e-4, 1.0)
    return ch17.pipeline_explorer(costs, mean=2000, max_tokens=8000, batch=128)


EXPLORERS: dict[str, Callable[[], Explorer | LiveFigure]] = {
    "02 gradient cloud": ch02.cloud_explorer,
    "02 baseline": ch02.baseline_explorer,
    "03 clip": clip_explorer,
    "07 group": group_lab,
    "06 cost": ch06.cost_explorer,
    "07 drift": ch07.drift_explorer,
    "08 rare token": ch08.rare_explorer,
    "10 weight": ch10.weight_explorer,
    "10 mixture": ch10.mixture_explorer,
    "11 divergence": divergence,
    "13 election": partial(ch13.election_explorer, 16, 4),
    "16 fit": fit,
    "16 pipeline": pipeline,
}


def main() -> None:
    """Print the table, one row per explorer."""
    set_threads(1)
    made = {name: make() for name, make in EXPLORERS.items()}
    for name, explorer in made.items():
        if isinstance(explorer, Explorer):
            taken = ", ".join(f"{key} {ms:.0f}" for key, ms in milliseconds(explorer).items())
            print(f"{name:<18} ms of CPU in the kernel, when let go: {taken}", flush=True)
    live = {name: figure for name, figure in made.items() if isinstance(figure, LiveFigure)}
    for name, all_moves in milliseconds_in_page(live).items():
        print(f"{name:<18} ms in the page: median {median(all_moves):.1f}, max {all_moves[-1]:.1f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
