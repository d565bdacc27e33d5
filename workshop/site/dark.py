"""Figures for a dark page: what was lighter is darker, and every colour keeps its hue.

Lightness is that of OKLab (B. Ottosson, "A perceptual color space for image processing", 2020).
White becomes the paper of the dark page, so that a figure has no edge there.
"""

import io
import re

import numpy as np
from PIL import Image

PAPER = "#131416"  # of the theme's dark page
BRIGHTEST = 0.93  # lightness of what was black
LIFT = 0.65  # below 1: colours of middle lightness come out lighter than they went in

CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OPPONENTS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
COLOUR = re.compile(r'(?<=[\s:"])#[0-9a-f]{6}(?=[;"\s])')


def dark(rgb: np.ndarray) -> np.ndarray:
    """Colours (..., 3) in sRGB, 0 to 255, as they are on the dark page."""
    lab = to_lab(np.asarray(rgb) / 255)
    paper = to_lab(np.array(parsed(PAPER)) / 255)
    share = np.clip(1 - lab[..., :1], 0, 1) ** LIFT
    lightness = paper[0] + (BRIGHTEST - paper[0]) * share
    # A colour that no screen has at this lightness fades until there is one; grey always is.
    tint = lab[..., 1:] + (1 - share) * paper[1:]
    made = np.concatenate([lightness, tint], -1)
    for _ in range(24):
        shown = from_lab(made)
        beyond = ((shown < -0.002) | (shown > 1.002)).any(-1, keepdims=True)
        if not beyond.any():
            break
        made = np.concatenate([lightness, np.where(beyond, 0.93, 1) * made[..., 1:]], -1)
    return np.rint(255 * np.clip(from_lab(made), 0, 1)).astype(np.uint8)


def to_lab(srgb: np.ndarray) -> np.ndarray:
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ CONES.T) @ OPPONENTS.T


def from_lab(lab: np.ndarray) -> np.ndarray:
    linear = (lab @ np.linalg.inv(OPPONENTS).T) ** 3 @ np.linalg.inv(CONES).T
    curved = 1.055 * np.maximum(linear, 0) ** (1 / 2.4) - 0.055
    return np.where(linear <= 0.0031308, 12.92 * linear, curved)


def parsed(colour: str) -> tuple[int, ...]:
    """#rrggbb as three numbers."""
    return tuple(bytes.fromhex(colour[1:]))


def dark_colour(colour: str) -> str:
    """#rrggbb as it is on the dark page."""
    return "#" + bytes(dark(np.array(parsed(colour)))).hex()


def dark_svg(drawn: str) -> str:
    """A drawing for the dark page."""
    made = {colour: dark_colour(colour) for colour in set(COLOUR.findall(drawn))}
    return COLOUR.sub(lambda at: made[at[0]], drawn)


def dark_png(png: bytes) -> bytes:
    """A picture for the dark page."""
    picture = Image.open(io.BytesIO(png))
    buffer = io.BytesIO()
    if picture.mode == "P" and "transparency" not in picture.info:
        colours = np.array(picture.getpalette("RGB")).reshape(-1, 3)
        picture.putpalette(dark(colours).ravel().tolist())
        picture.save(buffer, "PNG", optimize=True)
    else:
        opaque = Image.alpha_composite(
            Image.new("RGBA", picture.size, "white"), picture.convert("RGBA")
        )
        Image.fromarray(dark(np.asarray(opaque.convert("RGB")))).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
