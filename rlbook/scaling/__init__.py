"""Compute curves, the asynchronous pipeline and memory: what a run costs and where it ends."""

from rlbook.extras import require

require("stats", "scipy")

from rlbook.scaling.compute_curves import (
    Bootstrap,
    Extrapolation,
    Fit,
    PowerLaw,
    SaturatingPowerLaw,
    Sigmoid,
    bootstrap_sigmoid,
    compare_curves,
    extrapolate,
    fit_power_law,
    fit_saturating_power_law,
    fit_sigmoid,
    fit_sigmoid_grid,
    published_curves,
)
from rlbook.scaling.pipeline import (
    Cluster,
    Lengths,
    PipelineRun,
    Schedule,
    ceilings,
    generate_then_update,
    knee,
    pipeline_rl,
    ppo_off_policy,
    scaling,
    simulate,
    split,
)

__all__ = [
    "Bootstrap",
    "Cluster",
    "Extrapolation",
    "Fit",
    "Lengths",
    "PipelineRun",
    "PowerLaw",
    "SaturatingPowerLaw",
    "Schedule",
    "Sigmoid",
    "bootstrap_sigmoid",
    "ceilings",
    "compare_curves",
    "extrapolate",
    "fit_power_law",
    "fit_saturating_power_law",
    "fit_sigmoid",
    "fit_sigmoid_grid",
    "generate_then_update",
    "knee",
    "pipeline_rl",
    "ppo_off_policy",
    "published_curves",
    "scaling",
    "simulate",
    "split",
]
