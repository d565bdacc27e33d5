"""Figures on a dark page: as far from their paper as on a light one, in the same hue."""

import colorsys
import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from rlbook.viz.style import BAD, GOOD, INK, METHOD_COLOURS, MUTED
from workshop.shared.evidence import ARM_COLOURS, FAMILY_COLOURS
from workshop.site.dark import PAPER, dark, dark_colour, dark_png, dark_svg, parsed

INKS = sorted(
    {*map(to_hex, [*METHOD_COLOURS.values(), *ARM_COLOURS.values(), *FAMILY_COLOURS.values()])}
    | {to_hex(colour) for colour in (INK, MUTED, GOOD, BAD)}
)


def contrast(ink, paper):
    """WCAG 2.1's ratio, 1 to 21."""
    share = np.array([parsed(ink), parsed(paper)]) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ink", INKS)
def test_no_ink_of_the_book_pales(ink):
    """At least nine tenths of its contrast on white, of which 5 is enough."""
    assert contrast(dark_colour(ink), PAPER) > 0.9 * min(contrast(ink, "#ffffff"), 5)


@pytest.mark.parametrize("ink", [to_hex(c) for c in (GOOD, BAD, METHOD_COLOURS["dapo"])])
def test_a_colour_keeps_its_hue(ink):
    before, after = (
        colorsys.rgb_to_hsv(*(part / 255 for part in parsed(each)))[0]
        for each in (ink, dark_colour(ink))
    )
    assert abs(before - after) < 0.05


def test_white_is_the_paper_and_order_turns_round():
    assert dark_colour("#ffffff") == PAPER
    greys = dark(np.repeat(np.arange(0, 256, 15)[:, None], 3, 1)).astype(int)
    assert (np.diff(greys.sum(1)) < 0).all()
    assert (np.ptp(greys, axis=1) <= 4).all()


def test_only_colours_of_a_drawing_change():
    drawn = '<svg fill="#000000"><use href="#m0b1c2d" style="fill: #ffffff; stroke: #FFF"/></svg>'
    made = dark_svg(drawn)
    assert 'href="#m0b1c2d"' in made and f"fill: {PAPER};" in made and "stroke: #FFF" in made
    assert '<svg fill="#e8e8e8"' in made


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA"])
def test_pictures_of_every_kind(mode):
    image = Image.new("RGB", (4, 4), "white")
    image.putpixel((1, 2), (0, 114, 178))
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    made = Image.open(io.BytesIO(dark_png(buffer.getvalue()))).convert("RGB")
    assert made.getpixel((0, 0)) == parsed(PAPER)
    assert made.getpixel((1, 2)) == parsed(dark_colour("#0072b2"))
