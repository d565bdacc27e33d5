"""The mask lab without a browser: its masks are the package's, its page stands alone."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rlbook.book.hygiene import MAX_IMAGE_BYTES, WIDGET, cell_problems, machine_paths
from rlbook.book.runner import clean, small_png
from rlbook.exact import FOUR
from rlbook.objectives import METHODS, RatioClip, SoftGate, WeightClip
from rlbook.viz import MASKS, METHOD_COLOURS, Mask, mask_atlas, mask_lab
from rlbook.viz.masks.atlas import finding
from rlbook.viz.masks.rules import apply_mask, token_names
from rlbook.viz.widgets import png_bytes

# By hand, from the numbers of the four completions (`rlbook.exact.four_completions`).
SILENCED = {
    "none": "",
    "ppo": "A1 A2 B2 C2 D2",
    "dual": "A1 A2 B2 C2 D2",
    "dapo": "A2 B2 C2 D2",
    "cispo": "",
    "dppo": "A2 C6 D2",
    "dppo_kl": "A2 C6 D2",
    "gspo": "A1 A2 A3 A4 B1 B2 D1 D2",
}


def silenced(mask: Mask) -> str:
    keep = apply_mask(mask).keep
    return " ".join(
        name
        for n, names in enumerate(token_names())
        for t, name in enumerate(names)
        if not keep[n, t]
    )


@pytest.mark.parametrize("name", MASKS)
def test_silenced_tokens_by_hand(name):
    assert silenced(MASKS[name]) == SILENCED[name]


def test_masks_are_rows_of_the_table_in_their_colours():
    for name in MASKS.keys() & METHODS.keys():
        assert MASKS[name].region == METHODS[name].trust_region
        assert MASKS[name].ratio == METHODS[name].ratio
        assert MASKS[name].colour == METHOD_COLOURS[name]
    assert {"ppo", "dapo", "cispo", "dppo", "dppo_kl", "gspo"} <= MASKS.keys()
    assert len({mask.colour for mask in MASKS.values()}) == len(MASKS)


# ---- the static face ----


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
    import base64

    stored = small_png(base64.b64encode(png_bytes(mask_atlas())).decode())
    assert len(stored) < MAX_IMAGE_BYTES


def test_finding_counts():
    assert finding([MASKS["ppo"], MASKS["cispo"]]) == "Of 16 tokens PPO silences 5, CISPO none"
    assert finding([MASKS["none"]]) == ""
    wide = replace(MASKS["ppo"], label="Wide", region=RatioClip(0.6, 2.0))
    assert finding([wide]) == "Of 16 tokens Wide silences none"


def test_own_masks_and_unknown_ones():
    own = {**MASKS, "tight": Mask("Tight cap", WeightClip(max=1.5), "#123456")}
    assert "Tight cap" in mask_lab("ppo", "tight", masks=own).html()
    assert hollow_dots(mask_atlas("tight", masks=own)) == [0, 0]
    with pytest.raises(ValueError, match="no mask 'pppo': choose from none, ppo"):
        mask_atlas("pppo")
    with pytest.raises(ValueError, match="no mask 'tight'"):
        mask_lab("tight")
    soft = {**MASKS, "sapo": Mask("SAPO", SoftGate(), "#123456")}
    assert "SAPO" not in mask_lab("ppo", "dapo", masks=soft).html()
    with pytest.raises(ValueError, match=r"cannot draw SoftGate: see mask_atlas\('sapo'\)"):
        mask_lab("ppo", "sapo", masks=soft)
    with pytest.raises(ValueError, match="no token 'E1': choose from A1"):
        mask_lab(token="E1")
    with pytest.raises(ValueError, match="update is from 0 to 16, got 17"):
        mask_lab(update=17)


# ---- the page ----


class Tags(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def state_of(page: str) -> dict:
    return json.loads(re.search(r"mountMaskLab\(host, (\{.*\})\);", page)[1])


def test_the_page_is_small_and_needs_nothing_else():
    page = mask_lab().html()
    assert len(page.encode()) < 100_000  # of 150,000
    assert [tag for tag, _ in Tags(page).found] == ["div", "p", "em", "script"]
    assert set(re.findall(r"https?://[\w./]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(fetch|import|require|XMLHttpRequest|localStorage)\b\s*\(", page)
    assert not list(machine_paths(page))


def test_the_same_lab_gives_the_same_bytes():
    assert mask_lab("ppo", "dapo").html() == mask_lab("ppo", "dapo").html()
    assert mask_lab("ppo", "dapo").html() != mask_lab("ppo", "cispo").html()


def test_the_page_holds_the_completions_and_the_regions():
    state = state_of(mask_lab("dapo", "gspo", token="A1", update=3, hint="a </script> hint").html())
    assert (state["left"], state["right"], state["token"], state["update"]) == (
        "dapo",
        "gspo",
        "A1",
        3,
    )
    assert [len(answer["tokens"]) for answer in state["answers"]] == FOUR.lengths.tolist()
    probs = [token["pi"] for answer in state["answers"] for token in answer["tokens"]]
    assert probs == pytest.approx(FOUR.logp.exp()[FOUR.mask].tolist())
    assert [answer["advantage"] for answer in state["answers"]] == pytest.approx(
        [0.866, 0.866, -0.866, -0.866], abs=1e-3
    )


def test_choices_come_back_as_regions():
    lab = mask_lab()
    assert lab.regions == {name: mask.region for name, mask in MASKS.items()}
    moved = [dict(mask, region=dict(mask["region"])) for mask in lab.masks]
    moved[1]["region"]["high"] = 0.5  # as the browser sends it
    lab.masks = moved
    assert lab.regions["ppo"] == RatioClip(0.2, 0.5)
    assert state_of(lab.html())["masks"][1]["region"]["high"] == 0.5


def test_a_stored_notebook_keeps_the_page_and_no_model():
    data, _ = mask_lab()._repr_mimebundle_()
    assert WIDGET in data and data["text/plain"].startswith("MaskLab(left='ppo', right='dppo'")
    output = nbformat.v4.new_output("display_data", data=data)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("lab", outputs=[output])])
    clean(notebook, "03")
    assert set(output.data) == {"text/html", "text/plain"}
    assert not list(cell_problems(notebook))
    assert output.data["text/html"] == mask_lab().html()


def test_a_widget_without_a_page_keeps_its_model():
    """The rule of the runner above is for pages that stand alone."""
    output = nbformat.v4.new_output(
        "display_data", data={WIDGET: {"model_id": "x"}, "image/png": ""}
    )
    output.data["image/png"] = small_picture()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output])])
    clean(notebook, "03")
    assert WIDGET in output.data


def small_picture() -> str:
    import base64

    from matplotlib.figure import Figure

    return base64.b64encode(png_bytes(Figure(figsize=(0.2, 0.2)))).decode()


def test_weights_follow_the_ratio():
    """The lab's underlines: w of a kept token is its ratio, for GSPO the answer's."""
    ppo, gspo = apply_mask(MASKS["ppo"]), apply_mask(MASKS["gspo"])
    ratio = (FOUR.logp - FOUR.logp_old).exp()
    assert torch.equal(ppo.weight[ppo.keep], ratio[ppo.keep])
    assert gspo.weight[2, :8].tolist() == pytest.approx(8 * [1.0])
