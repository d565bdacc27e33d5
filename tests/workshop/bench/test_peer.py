"""TRL and the package are given the same work, and take turns at it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rlbook.objectives import group_normalize
from rlbook.training import Trainer
from workshop.bench.record import Skipped
from workshop.bench.rl_step import find_trl
from workshop.bench.trl_program import grpo_settings, method_settings
from workshop.bench.worker import Worker
from workshop.bench.workload import Workload, setting

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("method", ["grpo", "dapo"])
@pytest.mark.parametrize("completions", [32, 128, 512])
def test_trl_makes_as_many_completions_and_updates(method, completions):
    workload = setting(method, completions=completions)
    settings = grpo_settings(workload)
    slices, accumulated = settings["steps_per_generation"], settings["gradient_accumulation_steps"]
    assert settings["per_device_train_batch_size"] * slices == completions
    assert slices / accumulated == workload.updates
    assert settings["max_steps"] == workload.steps * workload.updates


def test_settings_are_those_of_the_papers():
    grpo, dapo = grpo_settings(setting("grpo")), grpo_settings(setting("dapo"))
    assert (grpo["loss_type"], grpo["epsilon"], grpo["epsilon_high"]) == ("grpo", 0.2, 0.2)
    assert (dapo["loss_type"], dapo["epsilon"], dapo["epsilon_high"]) == ("dapo", 0.2, 0.28)


def test_prompts_are_those_the_trainer_draws():
    workload = Workload(completions=16, max_new_tokens=4, steps=2)
    trainer = Trainer(workload.config)
    trainer.step = 1
    drawn = list(dict.fromkeys(r.problem.prompt for r in trainer.collect()))
    assert drawn == [p.prompt for p in workload.problems(1)]


def test_both_methods_do_the_same_work_whatever_is_sampled():
    for method in ("grpo", "dapo"):
        row = setting(method).row
        assert row.prompt_filter is row.kl is None and row.reward_shaping == "none"


def test_both_compute_old_log_probs_in_a_pass_of_their_own_or_neither():
    """With one update a step TRL takes them from the update itself, with more it does not."""
    for method, who, ours in (("grpo", "neither", "sampler"), ("dapo", "both", "recomputed")):
        workload = setting(method)
        assert (workload.recompute, workload.row.old_logprobs) == (who, ours)
        settings = grpo_settings(workload)
        # TRL's own rule, `gradient_accumulation_steps % generate_every != 0`
        rest = settings["gradient_accumulation_steps"] % settings["steps_per_generation"]
        assert (rest != 0) == (who == "both")


@pytest.mark.parametrize(
    ("method", "choice"),
    [
        ("rloo", "advantage 'leave_one_out'"),
        ("gspo", "ratio 'sequence'"),
        ("cispo", "trust_region {'type': 'WeightClip'"),
        ("dr_grpo", "aggregation 'constant'"),
    ],
)
def test_a_method_that_is_not_translated_is_named_with_its_choice(method, choice):
    row = Workload(method).row
    with pytest.raises(ValueError, match=f"'{method}' cannot be given to TRL here: {choice}"):
        method_settings(row)


def test_options_of_an_advantage_are_not_dropped():
    scaled = replace(setting("grpo").row, advantage=partial(group_normalize, eps=1.0))
    with pytest.raises(ValueError, match=r"advantage .*'eps': 1\.0"):
        method_settings(scaled)


def test_a_method_without_a_workload_is_named():
    with pytest.raises(ValueError, match="no workload for 'ppo': choose from grpo, dapo"):
        setting("ppo")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dapo"])
def test_update_of_both_is_the_same(method):
    try:
        python = find_trl()
    except Skipped as reason:
        pytest.skip(str(reason))
    script = Path(__file__).with_name("one_update.py")
    output = subprocess.run([python, script, method], capture_output=True, text=True, check=True)
    found = json.loads(output.stdout.splitlines()[-1])
    # AdamW's first step is nearly a sign: weights with almost no gradient may go either way.
    assert found["cosine"] > 0.999
    assert found["ratio"] == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_worker_does_the_steps_of_the_trainer():
    workload = Workload(completions=16, max_new_tokens=8, steps=2, lr=1e-3)
    trainer = Trainer(workload.config)
    expected = [trainer.train_one() for _ in range(2)]
    with Worker.of("rlbook", workload) as worker:
        reports = [worker.step() for _ in range(2)]
    assert worker.process.returncode is not None
    for report, metrics in zip(reports, expected, strict=True):
        assert report["accuracy"] == metrics["accuracy"]
        assert sum(len(new) for _, new in report["sequences"]) == metrics["tokens"]
        assert 0 < report["idle_mib"] <= report["peak_mib"]


@pytest.mark.slow
def test_worker_that_fails_says_so():
    with Worker.of("rlbook", Workload(completions=16, max_new_tokens=10_000)) as worker:  # noqa: SIM117
        with pytest.raises(
            RuntimeError, match=r"(?s)rlbook ended with status 1.*exceeds the model's"
        ):
            worker.step()


@pytest.mark.slow
def test_the_peers_process_needs_nothing_beside_the_library_and_trl():
    code = (
        "import sys; sys.modules |= dict.fromkeys(['aiohttp', 'scipy', 'matplotlib', 'pandas'])\n"
        "import workshop.bench.worker, workshop.bench.trl_program, rlbook.training"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
