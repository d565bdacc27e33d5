"""How large the asynchronous pipeline is, and how much of it has to be read:

    python -m workshop.tools.rooms

Files and lines of every room of `rlbook/scale`, and what one rollout, update and push take: the
modules of `rlbook.scale` that its three processes import, directly or not, beside other libraries.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from rlbook.paths import ROOT

PACKAGE = "rlbook.scale"
PATHS = {  # where each of its processes begins
    "nano, without its server": ("nano",),
    "the rooms, without their server": ("rollout.orchestrator", "train.trainer"),
    "the rooms, with the book's own server": (
        *("rollout.orchestrator", "train.trainer", "generate.builtin_server"),
    ),
}
PEERS = {  # files and lines of the same way through, on top of what they import; counted by hand
    "TRL, AsyncGRPO": (4, 2_400),
    "SkyRL a956457, fully asynchronous": (5, 1_900),
    "verl 1dda039, fully_async": (5, 3_400),
    "prime-rl 559b447": (9, 3_900),
}


def lines(files: Iterable[Path]) -> int:
    """All of them, empty ones and comments too."""
    return sum(len(file.read_text().splitlines()) for file in files)


def rooms(folder: Path) -> dict[str, list[Path]]:
    """Modules by the room they are in; those of the folder itself under its own name."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.py")):
        room = file.relative_to(folder).parts[:-1]
        found.setdefault("/".join((folder.name, *room)), []).append(file)
    return dict(sorted(found.items()))


def imported(file: Path, package: str) -> set[str]:
    """Names below a package that a module imports at its top, relative to the package."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            base = str(node.module).removeprefix(package).strip(".")
            found |= {base} | {f"{base}.{alias.name}".strip(".") for alias in node.names}
    return found


def to_read(folder: Path, package: str, starts: Iterable[str]) -> list[Path]:
    """The package's modules that the `starts` import, and what those import, and so on."""
    waiting, found = list(starts), set()
    while waiting:
        file = folder.joinpath(*waiting.pop().split(".")).with_suffix(".py")
        if file.is_file() and file not in found:
            found.add(file)
            waiting += imported(file, package)
    return sorted(found)


def table(heads: tuple[str, str, str], rows: Iterable[tuple[str, int, int]]) -> str:
    """Markdown."""
    body = (f"| {name} | {files:,} | {count:,} |" for name, files, count in rows)
    return "\n".join(["| {} | {} | {} |".format(*heads), "|---|---:|---:|", *body])


def report(folder: Path = ROOT / "rlbook/scale") -> str:
    """Both tables."""
    sizes = [(name, len(files), lines(files)) for name, files in rooms(folder).items()]
    sizes.append(("all", sum(n for _, n, _ in sizes), sum(n for _, _, n in sizes)))
    ways = [(name, to_read(folder, PACKAGE, starts)) for name, starts in PATHS.items()]
    read = [(name, len(files), lines(files)) for name, files in ways]
    read += [(name, *size) for name, size in PEERS.items()]
    heads = "one rollout, update and push", "files", "lines"
    return f"{table(('room', 'files', 'lines'), sizes)}\n\n{table(heads, read)}"


if __name__ == "__main__":
    print(report())
