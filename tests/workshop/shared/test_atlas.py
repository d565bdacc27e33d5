"""The static face of the mask lab: hollow dots, walls and windows are the regions'; labels fit."""

import base64
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rlbook.objectives import RatioClip, WeightClip
from rlbook.viz.live import png_bytes
from workshop.shared.masks import MASKS, Mask, finding, mask_atlas
from workshop.tools.hygiene import MAX_IMAGE_BYTES
from workshop.tools.runner import small_png


def hollow_dots(fig) -> list[int]:
    """White dots of each plane, column by column and good tokens first."""
    planes = [ax for ax in fig.axes if ax.images]
    return [sum(line.get_mfc() == "white" for line in ax.lines) for ax in planes]


def test_a_column_per_mask_with_hollow_dots_where_silenced():
    fig = mask_atlas("none", "ppo", "dapo", "cispo", "dppo")
    assert hollow_dots(fig) == [0, 0, 3, 2, 2, 2, 0, 0, 1, 2]


def test_the_pictured_plane_is_the_region():
    """Masked pixels of the good plane of PPO are those above the ray π = 1.2 μ."""
    image = np.ma.filled(mask_atlas("ppo").axes[0].images[0].get_array().astype(float), np.nan)
    logits = np.linspace(-6.2, 4.4, len(image))
    p = 1 / (1 + np.exp(-logits))
    ratio = p[:, None] / p[None, :]
    clear = np.abs(ratio - 1.2) > 1e-6
    assert (np.isnan(image) == (ratio > 1.2))[clear].all()
    assert image[~np.isnan(image)] == pytest.approx(ratio[~np.isnan(image)])


def test_answers_of_a_sequence_mask_lie_on_a_line():
    fig = mask_atlas("gspo")
    (line,) = fig.axes
    dots = {
        round(float(d.get_xdata()[0]), 3): d.get_mfc() for d in line.lines if d.get_marker() == "o"
    }
    assert set(dots) == {1.057, 1.4, 1.0, 0.873}
    assert [s for s, face in dots.items() if face != "white"] == [1.0]


@pytest.mark.parametrize("names", [(), ("ppo", "dapo"), ("cispo", "gspo"), ("dual",), ("gspo",)])
def test_no_label_is_cut_off_or_covers_another(names):
    fig = mask_atlas(*names)
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw(renderer)
    texts = [*fig.texts, *(t for ax in fig.axes for t in [*ax.texts, ax.title, ax._left_title])]
    boxes = [t.get_window_extent(renderer) for t in texts if t.get_text() and t.get_visible()]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1
    assert not [1 for a, b in combinations(boxes, 2) if a.shrunk(0.9, 0.7).overlaps(b)]


def test_the_stored_picture_is_small():
    stored = small_png(base64.b64encode(png_bytes(mask_atlas())).decode())
    assert len(stored) < MAX_IMAGE_BYTES


def test_finding_counts():
    assert finding([MASKS["ppo"], MASKS["cispo"]]) == "Of 16 tokens PPO silences 5, CISPO none"
    assert finding([MASKS["none"]]) == ""
    wide = replace(MASKS["ppo"], label="Wide", region=RatioClip(0.6, 2.0))
    assert finding([wide]) == "Of 16 tokens Wide silences none"


def test_own_masks_and_unknown_ones():
    own = {**MASKS, "tight": Mask("Tight cap", WeightClip(max=1.5), "#123456")}
    assert hollow_dots(mask_atlas("tight", masks=own)) == [0, 0]
    with pytest.raises(ValueError, match="no mask 'pppo': choose from none, ppo"):
        mask_atlas("pppo")
