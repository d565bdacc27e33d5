"""`python -m workshop.chaos configs/cpu-tiny.yaml --minutes 10 steps=200`."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import workshop.chaos as package
from rlbook.scale.config import load_config
from rlbook.verbs import file_and_settings
from workshop.chaos.faults import FAULTS, disk_of_its_own
from workshop.chaos.promises import broken_promises
from workshop.chaos.report import facts_of, markdown, report, write_report
from workshop.chaos.run import MERCILESS, Chaos, say

CONFIG = Path("configs/cpu-tiny.yaml")


def main(words: Sequence[str] | None = None) -> int:
    """Strike at a run of its own for some minutes; 0 if every promise held."""
    words = list(sys.argv[1:] if words is None else words)
    asked = parse(words)
    facts = facts_of(asked.seed, words, load_config(asked.config, asked.settings))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave nothing running or mounted
    home = Path(tempfile.mkdtemp(prefix="chaos_"))
    with disk_of_its_own(home / "disk") as missing:
        run = home / "disk" / "run"
        how = asked.settings, not missing, asked.faults, asked.alone, asked.merciless
        chaos = Chaos(asked.config, run, asked.seed, *how)
        begin = time.monotonic()
        broken = chaos.run(60 * asked.minutes, tuple(asked.pause), 60 * asked.patience)
        minutes = (time.monotonic() - begin) / 60
        broken += broken_promises(chaos.layout, chaos.kept, chaos.config)
        skipped = [f"fill disk ({missing})"] if missing else []
        found = report(chaos, minutes, broken, skipped, facts)
        say(f"the run has ended\n\n{markdown(found)}\n")
        if asked.out:
            say(f"wrote {write_report(chaos, found, asked.out, facts)}")
        if broken:
            shutil.copytree(run, home / "run", symlinks=True)
            say(f"the run is kept in {home / 'run'}")
    if not broken:
        shutil.rmtree(home)
    return bool(broken)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line: options, a settings file, and words section.field=value."""
    parser = argparse.ArgumentParser(
        prog="python -m workshop.chaos",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="settings.yaml | section.field=value",
        help=f"{CONFIG} if absent",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="of striking")
    parser.add_argument("--pause", type=float, nargs=2, default=(2.0, 20.0), help="seconds")
    parser.add_argument("--patience", type=float, default=20.0, help="minutes to end after that")
    parser.add_argument(
        "--merciless",
        type=float,
        default=MERCILESS,
        help="share of strikes that do not wait until the run has recovered from the last",
    )
    parser.add_argument("--out", type=Path, help="folder for the report")
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=FAULTS,
        default=tuple(FAULTS),
        help="all if absent; one that is named twice comes twice as often",
    )
    parser.add_argument("--alone", action="store_true", help="one after the other: what each costs")
    asked = parser.parse_intermixed_args(words)
    try:
        file, asked.settings = file_and_settings(asked.words)
    except ValueError as error:
        parser.error(str(error))
    asked.config = Path(file or CONFIG)
    if not asked.config.is_file():
        parser.error(f"no settings file {asked.config}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
