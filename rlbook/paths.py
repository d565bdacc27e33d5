"""Where the book and its data are."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent  # of the clone the package runs from


def data_dir() -> Path:
    """Folder with the tiny base model, task sets and reference results.

    `RLBOOK_DATA` overrides the default, `data/` beside the package.
    Raises `FileNotFoundError` if the folder does not exist.
    """
    folder = Path(os.environ.get("RLBOOK_DATA") or ROOT / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data folder {folder} not found: run from a clone of the repository, "
            "or set RLBOOK_DATA to its data/ folder"
        )
    return folder
