"""The explorer: moves with its controls, shows a real picture without a kernel."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from workshop.shared.explorer import Explorer, choice, slider


def draw_level(fig, level, colour="black"):
    fig.subplots().axhline(level, color=colour, lw=8, clip_on=False)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("L"))


@pytest.fixture
def explorer():
    return Explorer(
        draw_level,
        hint="raise it",
        figsize=(2, 1),
        level=slider(0.0, 1.0, 0.25, label="level"),
        colour=choice({"black": "black", "white": "white"}),
    )


def test_moving_a_control_redraws(explorer):
    before = explorer.image.value
    explorer.controls["level"].value = 0.75
    after = explorer.image.value
    assert before != after
    explorer.controls["level"].value = 0.25
    assert explorer.image.value == before  # same values, same bytes
    explorer.controls["colour"].value = "white"
    assert explorer.image.value != before


def test_draw_gets_the_plain_values_of_the_controls():
    got = []
    explorer = Explorer(
        lambda fig, **values: got.append(values), n=slider(0, 10, 3, 1), kind=choice(["a", "b"])
    )
    explorer.controls["n"].value = 7
    assert got == [{"n": 3, "kind": "a"}, {"n": 7, "kind": "a"}]
    assert all(type(v["n"]) is int for v in got)
    assert explorer.controls["n"].continuous_update is False  # one drawing a move, not fifty


def test_bundle_has_a_static_picture_and_stable_text(explorer):
    bundle = explorer._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == explorer.image.value
    assert bundle["text/plain"] == "Explorer(level=0.25, colour=black)"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_an_error_in_draw_is_not_swallowed(explorer):
    explorer.draw = lambda fig, **values: 1 / 0
    with pytest.raises(ZeroDivisionError):
        explorer.controls["level"].value = 0.5


def test_at_most_three_controls():
    controls = {name: slider(0, 1, 0.5) for name in "abcd"}
    with pytest.raises(ValueError, match="1 to 3 controls, got 4"):
        Explorer(draw_level, **controls)
