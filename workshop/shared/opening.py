"""The first screen of a chapter, which stands above its imports."""

import io
from contextlib import redirect_stdout

from rlbook.viz import setup


def quiet_setup() -> None:
    """The style, threads and seeds of `rlbook.viz.setup`, without its line of versions."""
    with redirect_stdout(io.StringIO()):
        setup()
