"""The package by itself: a wheel without the clone, and the base without the extras."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")
OPTIONAL = """
    accelerate aiohttp anywidget datasets ipywidgets math_verify matplotlib nbclient nbformat pandas
    mlflow ray reasoning_gym scipy tensorboard trackio wandb
"""

WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *how):
        missing = name.split(".")[0] in {missing}
        return None if missing else self.finder.find_spec(name, *how)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""

BASE = """
import rlbook.cli, rlbook.evaluation, rlbook.exact, rlbook.objectives, rlbook.policy
import rlbook.stats, rlbook.tasks, rlbook.training
rlbook.policy.load_policy("tiny")
rlbook.stats.wilson_interval(3, 10)
"""

TWO_STEPS = """
import rlbook
from rlbook.training import RunConfig, Trainer

config = RunConfig(method="grpo", steps=2, prompts=2, group_size=2, minibatches=1)
print(len(list(Trainer(config))), rlbook.__file__)
"""


def python(code: str, missing: list[str]) -> subprocess.CompletedProcess:
    """Code in a Python in which these libraries are not installed."""
    command = [sys.executable, "-c", WITHOUT.replace("{missing}", str(missing)) + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_the_base_needs_no_extra():
    done = python(BASE, OPTIONAL.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("rlbook.viz", ["matplotlib"], "figures"),
        ("workshop.tools", ["nbclient"], "book"),
        ("rlbook.scaling", ["scipy"], "stats"),
    ],
)
def test_a_missing_library_names_the_extra(module, missing, extra):
    done = python(f"import {module}", missing)
    message = done.stderr.splitlines()[-1]
    assert message == (
        f"ImportError: {' and '.join(missing)} not found: pip install -e '.[{extra}]'"
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: a `build/` left in the clone would bring modules back that are gone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, source)
    for name in ("rlbook", "workshop", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "-w", out, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("rlbook-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel]
    subprocess.run(pip, check=True)
    return target


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_models_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < 20e6
    assert "rlbook/py.typed" in names
    for model in ROOT.glob("data/tiny-*"):
        packed = f"rlbook/data/{model.name}"
        assert {f"{packed}/model.safetensors", f"{packed}/tokenizer.json"} <= set(names)
    assert not [
        n for n in names if n.startswith(("data/", "tests/", "workshop/", "rlbook/data/results"))
    ]


@pytest.mark.slow
def test_an_installed_wheel_trains_in_an_empty_folder(installed, tmp_path):
    """`-P` and PYTHONPATH: the wheel comes before the clone that this environment points to."""
    environment = {k: v for k, v in os.environ.items() if k != "RLBOOK_DATA"}
    environment["PYTHONPATH"] = str(installed)
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
    done = subprocess.run([sys.executable, "-P", "-c", TWO_STEPS], **how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", str(installed / "rlbook" / "__init__.py")]
    shell = [installed / "bin" / "rlbook", "train", "steps=1", "prompts=2"]
    done = subprocess.run([*shell, "group_size=2", "minibatches=1"], **how)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "train").is_dir()


@pytest.mark.slow
def test_the_only_data_folder_of_an_install_is_its_own(installed, tmp_path):
    (installed / "data").mkdir()  # another package's
    code = "from rlbook.paths import data_dir; print(data_dir())"
    environment = {"PYTHONPATH": str(installed), "PATH": os.environ["PATH"]}
    how = {"capture_output": True, "text": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, **how)
    assert done.stdout.strip() == str(installed / "rlbook" / "data"), done.stderr
    environment["RLBOOK_DATA"] = str(ROOT / "data")
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, **how)
    assert done.stdout.strip() == str(ROOT / "data"), done.stderr
