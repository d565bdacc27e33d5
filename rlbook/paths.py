"""Where the book keeps its data."""

import os
from pathlib import Path


def data_dir() -> Path:
    """Folder with the tiny base model, task sets and reference results.

    `RLBOOK_DATA` overrides the default, `data/` beside the package.
    Raises `FileNotFoundError` if the folder does not exist.
    """
    folder = Path(os.environ.get("RLBOOK_DATA") or Path(__file__).parent.parent / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data folder {folder} not found: run from a clone of the repository, "
            "or set RLBOOK_DATA to its data/ folder"
        )
    return folder
