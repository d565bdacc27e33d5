"""A run's file from four choices: what is written is a plan that fits, and loads as itself."""

import shlex

import pytest

from rlbook.cli import VERBS
from rlbook.paths import ROOT
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.dry_run import measure_shape
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.choose import USUAL, as_file, chosen
from rlbook.scale.plan.fit import check
from rlbook.training.config import with_settings

CHOICES = ["model.policy=tiny", "data.task=sums", "rollout.max_new_tokens=40", "--gpus", "1"]


def asked(file, memory, **more):
    """What is known before: the model of a shipped file, and GPUs of so many GB."""
    published = load_config(ROOT / f"configs/{file}.yaml")
    model = {"policy": published.model.policy, "device": "cuda"}
    known = {"gpu_memory_gb": memory, "mean_tokens": 900}
    config = ScaleConfig(**USUAL, model=model, budget=known).replace(**more)
    return Budget(config, measure_shape(published), Prompts(110, 350))


@pytest.mark.parametrize(("file", "memory", "gpus"), [("one-gpu", 80, 1), ("one-node-8", 80, 8)])
def test_the_chosen_plan_fits_takes_all_gpus_and_loads_as_itself(file, memory, gpus, tmp_path):
    best = chosen(asked(file, memory), gpus)
    check(best)
    assert best.config.gpus == gpus
    (tmp_path / "own.yaml").write_text(as_file(best))
    assert load_config(tmp_path / "own.yaml") == best.config


@pytest.mark.parametrize("file", ["one-gpu", "one-gpu-24"])
def test_no_way_to_share_a_gpu_is_faster_than_the_chosen_one(file):
    memory = {"one-gpu": 80, "one-gpu-24": 24}[file]
    best = chosen(asked(file, memory), 1)
    for staleness, sleep in ((0, True), (0, False), (4, False)):
        way = {"max_staleness": staleness, "sleep": sleep, "colocated": True}
        other = chosen(asked(file, memory, **way), 1, way)
        assert best.step_seconds <= 1.001 * other.step_seconds


def command_of(path):
    """The words behind `rlbook scale` and the number of GPUs, as the head of a file has them."""
    head = path.read_text().replace("\\\n#", "").partition("\n#     make gpu")[0]
    *words, flag, gpus = shlex.split(head.partition("rlbook scale ")[2].strip(" #\n"))
    assert flag == "--gpus"
    return words, int(gpus)


FILES = sorted((ROOT / "configs").glob("*.yaml"))
WRITTEN = [path for path in FILES if "#         --gpus" in path.read_text()]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_shipped_file_is_what_its_command_writes(path):
    """With the sizes of the model, which the hub has, from the file."""
    words, gpus = command_of(path)
    shape = {"shape": load_config(path).budget.shape}
    config = with_settings(ScaleConfig(**USUAL, model={"device": "cuda"}), words)
    config = config.replace(budget=shape)
    budget = Budget(config, measure_shape(config), Prompts(*config.budget.prompt_tokens))
    fixed = {word.partition("=")[0].rpartition(".")[2] for word in words}
    assert as_file(chosen(budget, gpus, fixed), f"configs/{path.name}", words) == path.read_text()


def test_the_files_of_gpus_are_written():
    assert {path.stem for path in WRITTEN} == {
        *("one-gpu", "one-gpu-24", "one-gpu-lora", "one-node-8", "multi-node")
    }
    assert load_config(ROOT / "configs/one-gpu-24.yaml").generate.sleep
    assert load_config(ROOT / "configs/one-gpu-lora.yaml").model.lora.rank == 32
    first, *_ = (ROOT / "configs/multi-node.yaml").read_text().splitlines()
    assert "a file system that all nodes see" in first


def test_a_method_of_ones_own_is_in_the_file(tmp_path):
    method = {"name": "grpo", "kl": None, "trust_region": {"high": 0.28}}
    best = chosen(asked("one-gpu", 80, method=method), 1)
    (tmp_path / "own.yaml").write_text(as_file(best))
    assert load_config(tmp_path / "own.yaml") == best.config


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
