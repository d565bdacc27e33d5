"""A run's file from four choices: what is written is a plan that fits, and loads as itself."""

import pytest

from rlbook.cli import VERBS
from rlbook.paths import ROOT
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.dry_run import measure_shape
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.choose import USUAL, as_file, chosen
from rlbook.scale.plan.fit import check

CHOICES = ["model.policy=tiny", "data.task=sums", "rollout.max_new_tokens=40", "--gpus", "1"]


def asked(file, memory, **more):
    """What is known before: the model of a shipped file, and GPUs of so many GB."""
    published = load_config(ROOT / f"configs/{file}.yaml")
    model = {"policy": published.model.policy, "device": "cuda"}
    known = {"gpu_memory_gb": memory, "mean_tokens": 900}
    config = ScaleConfig(**USUAL, model=model, budget=known).replace(**more)
    return Budget(config, measure_shape(published), Prompts(110, 350))


@pytest.mark.parametrize(
    ("file", "memory", "gpus"), [("one-gpu", 80, 1), ("one-gpu-24", 24, 1), ("one-node-8", 80, 8)]
)
def test_the_chosen_plan_fits_takes_all_gpus_and_is_no_slower_than_the_shipped_one(
    file, memory, gpus, tmp_path
):
    budget = asked(file, memory)
    best = chosen(budget, gpus)
    check(best)
    assert best.config.gpus == gpus
    (tmp_path / "own.yaml").write_text(as_file(best))
    assert load_config(tmp_path / "own.yaml") == best.config
    shipped = load_config(ROOT / f"configs/{file}.yaml")
    names = ("count", "colocated", "gpu_memory", "slots", "max_staleness", "tensor_parallel")
    generate = {name: getattr(shipped.generate, name) for name in names}
    micro = {"micro_batch_tokens": shipped.optimizer.micro_batch_tokens}
    trainers = {"processes": shipped.train.processes}
    same = asked(file, memory, generate=generate, optimizer=micro, train=trainers)
    assert best.step_seconds <= 1.01 * same.step_seconds


def test_what_is_fixed_stays():
    budget = asked("one-gpu", 80, max_staleness=4, slots=64)
    best = chosen(budget, 1, {"max_staleness", "slots"})
    assert (best.config.generate.max_staleness, best.config.generate.slots) == (4, 64)


def test_what_no_plan_fits_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"a trainer needs 1\d\d\.\d GB of 80\.0 GB"):
        chosen(asked("one-node-8", 80), 1)


def test_the_shell_writes_the_file_and_starts_nothing_unasked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert VERBS["scale"](CHOICES) == 0
    said, config = capsys.readouterr().out, load_config("tiny-1gpu.yaml")
    assert "GPU-hours" in said and "rlbook scale tiny-1gpu.yaml" in said
    assert (config.run, config.gpus, config.rollout.max_new_tokens) == ("runs/tiny-1gpu", 1, 40)
    with pytest.raises(ValueError, match=r"tiny-1gpu\.yaml exists"):
        VERBS["scale"](CHOICES)
    with pytest.raises(ValueError, match=r"data\.task is yours to choose"):
        VERBS["scale"](["model.policy=tiny", "--gpus", "1"])
