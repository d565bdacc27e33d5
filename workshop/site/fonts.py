"""The font of the formulas: STIX Two Math, cut down to the signs that the pages use."""

import html
import re
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

# A single letter of a formula is set in another alphabet: italic, script, double-struck.
ALPHABETS = (0x1D434, 0x1D468), (0x1D49C, 0x1D504), (0x1D538, 0x1D56C), (0x1D6E2, 0x1D71C)
PLANCK = 0x210E  # the italic h, which stands elsewhere


def write_math_font(pages: Iterable[Path], path: Path) -> None:
    """Write a WOFF2 font that can set every formula of the pages.

    The font comes with `ziamath`, under the SIL Open Font License, which its name table tells.
    """
    from fontTools import subset

    options = subset.Options(flavor="woff2", layout_features=["ssty"], name_IDs=["*"])
    font = subset.load_font(str(source()), options)
    cutter = subset.Subsetter(options)
    signs = {ord(sign) for page in pages for sign in signs_of(page.read_text(encoding="utf-8"))}
    letters = chain.from_iterable(range(first, end) for first, end in ALPHABETS)
    cutter.populate(unicodes=[*signs, *range(32, 127), *letters, PLANCK])
    cutter.subset(font)
    path.parent.mkdir(parents=True, exist_ok=True)
    subset.save_font(font, str(path), options)


def source() -> Path:
    """The whole font."""
    package = find_spec("ziamath")
    assert package and package.submodule_search_locations, "ziamath is in the extra `site`"
    return Path(package.submodule_search_locations[0], "fonts", "STIXTwoMath-Regular.ttf")


def signs_of(page: str) -> set[str]:
    """The signs of a page's formulas."""
    formulas = re.findall(r"<math .*?</math>", page, re.DOTALL)
    return {sign for text in formulas for sign in html.unescape(re.sub(r"<[^>]*>", "", text))}
