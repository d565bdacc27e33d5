"""The addresses that whoever publishes the book has filled in, in `pyproject.toml`."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from rlbook.paths import ROOT


@dataclass(frozen=True)
class Owner:
    """Addresses of the book; an empty one is one that it has not got."""

    repository: str = ""
    branch: str = "main"
    site: str = ""
    security: str = ""

    def source_of(self, path: str) -> str:
        """Where a file of the repository can be read; empty without a repository."""
        return f"{self.repository}/blob/{self.branch}/{path}" if self.repository else ""

    def page_at(self, path: str) -> str:
        """Where a page of the site can be read; empty without a site."""
        return f"{self.site}/{path}" if self.site else ""

    def colab_of(self, path: str) -> str:
        """Where a notebook of a GitHub repository can be run; empty without one."""
        host, _, name = self.repository.partition("github.com/")
        where = f"https://colab.research.google.com/github/{name}/blob/{self.branch}/{path}"
        return where if host == "https://" and name else ""


def read_owner(path: Path = ROOT / "pyproject.toml") -> Owner:
    """What `[tool.rlbook.owner]` says. Raises `ValueError` for a name that it does not have."""
    tool = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]
    given = tool["rlbook"]["owner"]
    known = {field.name for field in fields(Owner)}
    if unknown := given.keys() - known:
        raise ValueError(f"{path.name}: unknown {sorted(unknown)}, choose from {sorted(known)}")
    return Owner(**{name: text.rstrip("/") for name, text in given.items()})
