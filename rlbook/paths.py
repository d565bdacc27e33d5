"""Where the book and its data are."""

import os
from pathlib import Path

PACKAGE = Path(__file__).parent
ROOT = PACKAGE.parent  # of the clone the package runs from


def data_dir() -> Path:
    """Folder with the tiny base models, and in a clone the reference results.

    `RLBOOK_DATA` if that is set, else the clone's `data/`, else what a wheel brings along.
    Raises `FileNotFoundError` if the folder does not exist.
    """
    if chosen := os.environ.get("RLBOOK_DATA"):
        folder = Path(chosen)
    else:  # site-packages may hold somebody else's data/
        folder = (ROOT if (ROOT / "pyproject.toml").is_file() else PACKAGE) / "data"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data folder {folder} not found: run from a clone of the repository, "
            "or set RLBOOK_DATA to its data/ folder"
        )
    return folder
