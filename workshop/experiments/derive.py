"""What can be said afterwards of results whose manifests did not say it when they were made.

`python -m workshop.experiments.derive` adds every arm's method and settings, the hashes of the
tables and a date to such manifests, and under `derived` where each comes from. Nothing is run;
what was recorded stays, and so do manifests that were complete from the start.
"""

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlbook.manifest import SUFFIX, run_as_data, write_manifest
from rlbook.paths import ROOT, data_dir
from workshop.bench import ARMS as BENCH_ARMS
from workshop.experiments.catalogue import EXPERIMENTS

SOURCES = {
    "arms": "the catalogue of commit {head}, equal to that of the commit that wrote the table",
    "tables": "SHA-256 of the tables as committed",
    "date": "the commit that last wrote the table",
    "seconds": "not recorded, cannot be derived",
}


def derive(path: Path) -> bool:
    """Complete one manifest; whether there was anything to derive."""
    recorded = json.loads(path.read_text())
    if "tables" in recorded and "derived" not in recorded:
        return False
    name = path.name.removesuffix(SUFFIX)
    tables = [p for end in ("", "_eval") if (p := path.with_name(f"{name}{end}.csv")).is_file()]
    added = {"date": date_of(tables[0]), "seconds": None, "arms": arms_of(name, recorded)}
    known = {key: value for key, value in added.items() if key == "seconds" or value}
    head = git("rev-parse", "--short=12", "HEAD")
    sources = {key: SOURCES[key].format(head=head) for key in (*known, "tables")}
    write_manifest(path, {**recorded, **known, "derived": sources}, tables)
    return True


def arms_of(name: str, recorded: Mapping[str, Any]) -> dict[str, dict] | None:
    """Every arm of an experiment, or of a benchmark that trains, as data."""
    if "part" in recorded:
        return BENCH_ARMS[name](recorded["size"]) if name in BENCH_ARMS else None
    return {arm.label: run_as_data(arm.config) for arm in EXPERIMENTS[name].arms}


def date_of(table: Path) -> str:
    """When the commit was made that last wrote a table, in UTC."""
    written = datetime.fromisoformat(git("log", "-1", "--format=%cI", "--", str(table)))
    return written.astimezone(UTC).isoformat(timespec="seconds")


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    for manifest in sorted((data_dir() / "results").rglob(f"*{SUFFIX}")):
        print(manifest.name, "completed" if derive(manifest) else "was complete")
