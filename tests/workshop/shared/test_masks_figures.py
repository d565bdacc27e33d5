"""The mask lab without a browser: its masks are the package's, its page stands alone."""

import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
import torch

from rlbook.exact import FOUR
from rlbook.objectives import METHODS, RatioClip, SoftGate, WeightClip
from rlbook.viz import METHOD_COLOURS
from rlbook.viz.live import png_bytes
from workshop.shared.masks import MASKS, Mask, mask_lab
from workshop.shared.masks.lab import front_end
from workshop.shared.masks.rules import apply_mask, token_names
from workshop.tools.hygiene import WIDGET, cell_problems, machine_paths
from workshop.tools.runner import clean

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


def test_own_masks_and_unknown_ones():
    own = {**MASKS, "tight": Mask("Tight cap", WeightClip(max=1.5), "#123456")}
    assert "Tight cap" in mask_lab("ppo", "tight", masks=own).html()
    with pytest.raises(ValueError, match="no mask 'pppo': choose from none, ppo"):
        mask_lab("pppo")
    with pytest.raises(ValueError, match="no mask 'tight'"):
        mask_lab("tight")
    soft = {**MASKS, "sapo": Mask("SAPO", SoftGate(), "#123456")}
    assert "SAPO" not in mask_lab("ppo", "dapo", masks=soft).html()
    with pytest.raises(ValueError, match="cannot draw SoftGate, the region of 'sapo'"):
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
    assert [tag for tag, _ in Tags(page).found] == ["div", "img", "p", "em", "script"]
    assert set(re.findall(r"https?://[\w./]+", page + front_end())) == {
        "http://www.w3.org/2000/svg"
    }
    asks = r"\b(fetch|import|require|XMLHttpRequest|localStorage)\b\s*\("
    assert not re.search(asks, page + front_end())
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
