"""The figures that move in the page: their numbers are the package's, their pages stand alone."""

import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from math import lgamma

import numpy as np
import pytest
import torch

from rlbook.exact import SoftmaxPolicy
from rlbook.objectives import METHODS
from rlbook.scaling import Cluster, Lengths, Sigmoid, generate_then_update, pipeline_rl, simulate
from workshop.ch02 import figures as ch02
from workshop.ch03 import clip
from workshop.ch07.group import LABELS, group_lab, methods_as_data, pushes
from workshop.ch10 import figures as ch10
from workshop.ch17 import figures as ch17
from workshop.ch17.accelerators import split
from workshop.shared.live import PARTS, front_end
from workshop.shared.worlds.baseline_cost import baseline_moments
from workshop.shared.worlds.strategy_mixture import estimator_weight, likelihood_weight

CLUSTER = Cluster(1, 1, 32, 0.01, 1e-4, 1.0, 2e-4, 1.0)
COMPUTE = np.geomspace(1500, 100_000, 30)
FIGURES = {
    "clip": clip.clip_explorer,
    "group": group_lab,
    "cloud": ch02.cloud_explorer,
    "weight": ch10.weight_explorer,
    "fit": lambda: ch17.fit_explorer(
        COMPUTE, Sigmoid(0.6, 2, 7000, 0.38)(COMPUTE), 0.38, 16_000, Sigmoid(0.6, 2, 7000, 0.38)
    ),
    "pipeline": lambda: ch17.pipeline_explorer(CLUSTER, 2000, 8000, batch=128),
}


def node(figure: str, expression: str, **job):
    """What the figure's own functions make of `job`."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = f"{front_end(figure)}\nconst job = JSON.parse(require('fs').readFileSync(0));\n"
    program += f"console.log(JSON.stringify({expression}));"
    done = subprocess.run(
        ["node", "-e", program], input=json.dumps(job), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_figure_has_its_scripts():
    assert PARTS.keys() == FIGURES.keys()


@pytest.mark.parametrize("name", FIGURES)
def test_a_page_is_small_and_needs_nothing_else(name):
    made = FIGURES[name]()
    page = made.html()
    script = page[page.index("<script>") :]
    assert len(script.encode()) < 60_000
    assert len(page.encode()) < 100_000  # with the picture for where no script may run
    assert set(re.findall(r"https?://[\w./]+", page + front_end(name))) == {
        "http://www.w3.org/2000/svg"
    }
    assert re.search(r'<img src="data:image/webp;base64,\w[^"]*" alt="\w', page)
    bundle, _ = made._repr_mimebundle_()
    assert bundle["text/html"] == page == FIGURES[name]().html()
    assert bundle["text/plain"].startswith(f"LiveFigure({name}: ")


def test_the_picture_follows_the_values():
    lab = group_lab()
    before = lab.html()
    lab.values = {**lab.values, "method": "dapo"}  # as the browser sends it
    assert "Advantage, DAPO" in lab.html() and "Advantage, GRPO" in before


# ---- the same numbers ----


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_clip(advantage):
    ratio = torch.linspace(0.4, 1.6, 49, dtype=torch.float64)
    for low, high in ((0.2, 0.2), (0.0, 0.5), (0.33, 0.28)):
        call = "job.ratio.map((r) => clipToken(r, job.advantage, job.low, job.high))"
        job = {"ratio": ratio.tolist(), "advantage": advantage, "low": low, "high": high}
        found, wanted = node("clip", call, **job), clip.clip_curves(ratio, advantage, low, high)
        for name in ("objective", "gradient", "keep"):
            assert [row[name] for row in found] == pytest.approx(wanted[name].tolist(), abs=1e-12)


@pytest.mark.parametrize("method", LABELS)
def test_group(method):
    """Random groups, and those in which all answers are alike."""
    draw = np.random.default_rng(0)
    rewards = [*draw.integers(0, 2, (20, 8)).tolist(), 8 * [0], 8 * [1], [1] + 7 * [0]]
    lengths = draw.integers(1, 81, (len(rewards), 8)).tolist()
    row = next(row for row in methods_as_data() if row["key"] == method)
    call = "job.rewards.map((r, i) => pushesOf(job.row, r, job.lengths[i], 80))"
    found = node("group", call, rewards=rewards, lengths=lengths, row=row)
    for got, *group in zip(found, rewards, lengths, strict=True):
        advantages, tokens = pushes(method, *group)
        assert [x["advantage"] for x in got] == pytest.approx(advantages.tolist(), abs=1e-12)
        assert [x["token"] for x in got] == pytest.approx(tokens.tolist(), abs=1e-14)
        whole = (tokens * torch.tensor(group[1])).tolist()
        assert [x["answer"] for x in got] == pytest.approx(whole, abs=1e-12)
    assert METHODS[method].advantage.__name__ == row["advantage"]


def test_cloud():
    """Noise is the package's; the chance of going downhill is that of every batch, one by one."""
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    grid = [(p, n, b) for p in (0.05, 0.35, 0.9) for n in (1, 3, 8) for b in (-1.2, 0.35, 1.0)]
    call = "job.grid.map(([p, n, b]) => [noiseToSignal(answersAt(p), n, b),"
    call += " downhill(answersAt(p), batchesOf(answersAt(p), n, b))])"
    for (p, n, b), found in zip(grid, node("cloud", call, grid=grid), strict=True):
        policy = SoftmaxPolicy.from_probs([p, 0.625 * (1 - p), 0.375 * (1 - p)])
        lower, pairs = 0.0, [(i, j) for i in range(n + 1) for j in range(n + 1 - i)]
        for i, j in pairs:
            counts = torch.tensor([i, j, n - i - j], dtype=torch.float64)
            ways = np.exp(lgamma(n + 1) - sum(lgamma(c + 1) for c in counts.tolist()))
            estimate = (counts / n * (rewards - b)) @ policy.scores
            chance = ways * (policy.probs**counts).prod().item()
            lower += chance * ch02.downhill(policy, rewards, estimate[None])
        assert found == pytest.approx(
            [baseline_moments(policy, rewards, n, b).noise_to_signal, lower], rel=1e-9
        )


def test_weight():
    p = [0.0005, 0.01, 0.2, 0.5, 0.9, 0.999]
    for n in (2, 5, 16, 64):
        for estimator in ch10.ESTIMATORS.values():
            call = "job.p.map(estimatorWeight(job.name, job.n))"
            found = node("weight", call, p=p, n=n, name=estimator.__name__)
            wanted = estimator_weight(estimator, n)(torch.tensor(p, dtype=torch.float64))
            assert found == pytest.approx(wanted.tolist(), rel=1e-9)
        wanted = likelihood_weight(torch.tensor(p, dtype=torch.float64), n).tolist()
        assert node("weight", "job.p.map((p) => likelihoodWeight(p, job.n))", p=p, n=n) == (
            pytest.approx(wanted, rel=1e-12)
        )


def test_fit():
    curves = [Sigmoid(A, B, C, 0.38) for A in (0.45, 0.8) for B in (0.5, 4) for C in (2000, 30_000)]
    points = np.column_stack([COMPUTE, 0.4 + 0.003 * np.arange(30)])
    call = "job.curves.map(sigmoidCurve).map((f) => [rootMeanSquare(f, job.points),"
    call += " ...job.points.map(([c]) => f(c))])"
    found = node("fit", call, curves=[asdict(c) for c in curves], points=points.tolist())
    for curve, (error, *values) in zip(curves, found, strict=True):
        assert values == pytest.approx(curve(COMPUTE).tolist(), rel=1e-12)
        assert error == pytest.approx(np.sqrt(((curve(COMPUTE) - points[:, 1]) ** 2).mean()))


@pytest.mark.parametrize("accelerators", [2, 16, 64])
def test_pipeline(accelerators):
    """Event by event the package's simulation: shape, rate, shares of time, ages."""
    grid = [(k, sigma) for k in (0, 1, 4, 16) for sigma in (0.0, 0.8, 1.4)]
    data = {"cluster": asdict(CLUSTER), "lengths": {"mean": 2000, "max_tokens": 8000}}
    call = "job.grid.map(([staleness, sigma]) => pipelineRun(job, "
    call += "{ staleness, sigma, accelerators: job.accelerators }))"
    job = {"grid": grid, "batch": 128, "noise": ch17.NOISE.tolist(), "accelerators": accelerators}
    for (k, sigma), got in zip(grid, node("pipeline", call, **job, **data), strict=True):
        law, schedule = Lengths(2000, sigma, 8000), pipeline_rl(k)
        shape = split(schedule, CLUSTER, law, 128, accelerators)
        tokens = ch17.lengths_from(ch17.NOISE, law)
        run = simulate(schedule, shape, tokens, 128, 20, 6)
        turns = replace(CLUSTER, generators=accelerators, trainers=accelerators)
        slow = simulate(generate_then_update(), turns, tokens, 128, 12, 4)
        assert (got["shape"]["generators"], got["shape"]["trainers"]) == (
            shape.generators,
            shape.trainers,
        )
        assert got["run"]["ages"] == pytest.approx(run.staleness_shares.tolist(), abs=1e-9)
        names = ("tokensPerSecond", "occupancy", "trainingShare", "syncShare", "trainerIdle")
        wanted = (run.tokens_per_second, run.occupancy, run.training / run.seconds)
        wanted += (run.sync_share, run.trainer_idle)
        assert [got["run"][name] for name in names] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert got["speedup"] == pytest.approx(run.tokens_per_second / slow.tokens_per_second)
