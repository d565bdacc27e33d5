"""Files and folders that are there whole or not at all, whoever is killed; checksums; a lock."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKSUMS = "checksums.json"  # SHA-256 of a folder's other files


def write_json(path: Path, value: Any) -> None:
    """Replace a small JSON file in one step: see `replace_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(value))


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace a file in one step, also if the machine loses power: old or new, never half.

    `mode` says who may read it, as in `open(2)`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    sync_to_disk(partial)
    os.replace(partial, path)
    sync_to_disk(path.parent)


def read_json(path: Path, default: Any = None) -> Any:
    """The file's content, or `default` if it does not exist yet, or is torn."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return default


def publish_folder(final: Path, write: Callable[[Path], object], durable: bool = True) -> Path:
    """Let `write` fill a scratch folder, make it durable, then give it its final name.

    A folder under its final name is complete, whenever the writer was killed; if it is `durable`,
    also if the machine lost power.
    """
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        for path in (*partial.rglob("*"), partial) if durable else ():
            sync_to_disk(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        if durable:
            sync_to_disk(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def publish_once(final: Path, write: Callable[[Path], object]) -> Path:
    """The same for a folder that several processes may make alike: the first of them wins.

    Nothing is taken from a process that already reads the folder.
    """
    own = publish_folder(final.with_name(f".{final.name}.{os.getpid()}.made"), write)
    try:
        os.replace(own, final)
    except OSError:
        if not final.is_dir():
            raise
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return final


def sync_to_disk(path: Path) -> None:
    """Wait until a file or folder would outlive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a folder, but of these themselves."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): checksum(path) for path in files if path.name != CHECKSUMS
    }


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """What is wrong with a folder's files; None if they are as they were written.

    Those who look together take every `parts`-th file each.
    """
    known = read_json(folder / CHECKSUMS)
    if known is None:
        return f"no {CHECKSUMS}"
    names = sorted(known)[part::parts]
    changed = [name for name in names if not unchanged(folder / name, known[name])]
    return f"changed or missing: {', '.join(changed)}" if changed else None


def unchanged(path: Path, known: str) -> bool:
    """Whether a file is there with this SHA-256."""
    return path.is_file() and checksum(path) == known


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends.

    Raises `ValueError` if another process holds it, or files cannot be locked there.
    """
    import fcntl  # not on Windows

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is at work in {folder}: stop it") from None
        except OSError as error:
            raise ValueError(f"{folder} cannot be locked ({error}): take another") from None
        yield
