"""The mask lab: two masks compared, everything movable, drawn in the browser."""

import base64
import gzip
import hashlib
import html
import io
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import anywidget
import traitlets
from matplotlib.figure import Figure

from rlbook.exact import FOUR
from rlbook.exact.four_completions import Completions
from rlbook.objectives import (
    DivergenceMask,
    NoTrustRegion,
    RatioClip,
    Region,
    WeightClip,
)
from rlbook.objectives.specs import read, write
from workshop.shared.masks.atlas import mask_atlas
from workshop.shared.masks.rules import MASKS, Mask, advantages_of, find_mask, token_names

UPDATES = 16
DRAWN = (NoTrustRegion, RatioClip, WeightClip, DivergenceMask)  # what numbers.js can calculate
PARTS = ("paint.css", "lab.css", "numbers.js", "paint.js", "plane.js", "charts.js", "lab.js")
WIDGET_END = """
export default { render({ model, el }) {
  const names = ["left", "right", "update", "token", "masks"];
  const given = ["answers", "updates", "hint", ...names].map((name) => [name, model.get(name)]);
  const host = document.createElement("div");
  el.append(host);
  const lab = mountMaskLab(host, Object.fromEntries(given), (choices) => {
    for (const [name, value] of Object.entries(choices)) model.set(name, value);
    model.save_changes();
  });
  for (const name of names) model.on(`change:${name}`, () => lab.set({ [name]: model.get(name) }));
  return () => lab.remove();
} };
"""
PAGE = """\
<div data-mask-lab="{key}"><img src="data:image/webp;base64,{picture}" alt="{words}" \
style="max-width:100%"><p><em>The mask lab, {what}, as it stands after {updates} updates. It moves \
where scripts may run: run this cell, or read the book as a web page.</em></p></div>
<script>(async () => {{
{code}
for (const host of document.querySelectorAll('[data-mask-lab="{key}"]'))
  if (!host.shadowRoot) mountMaskLab(host, {state});
}})();</script>"""


def mask_lab(
    left: str = "ppo",
    right: str = "dppo",
    *,
    token: str = "B2",
    update: int = UPDATES,
    hint: str = "",
    masks: Mapping[str, Mask] = MASKS,
    completions: Completions = FOUR,
) -> "MaskLab":
    """Two masks over the tokens of the four completions; interactive with and without a kernel.

        mask_lab("ppo", "dapo")                # last line of a cell

    `left` and `right` name two of `masks`, `token` the one that is taken apart first (its
    completion's letter and position), `update` where the tokens stand: from 0, as sampled, to 16,
    as the completions have them, each on a straight line in its logit. Sliders move the limits of
    the two masks; arrow keys walk over the tokens. `hint` says what to try, in a line below.
    The drawing is made in the browser and answers at once. A stored notebook keeps it as HTML of
    its own, which a web page shows, and `mask_atlas` of both where scripts are taken out.
    Of `masks` it has those with a region of `trust_regions` that the browser can calculate.
    Raises `ValueError` for a mask or token that it does not have, and an update outside [0, 16].
    """
    drawn = {key: mask for key, mask in masks.items() if isinstance(mask.region, DRAWN)}
    for name in (left, right):
        region = type(find_mask(name, masks).region)
        if name not in drawn:
            raise ValueError(f"the lab cannot draw {region.__name__}, the region of {name!r}")
    known = [name for names in token_names(completions) for name in names]
    if token not in known:
        raise ValueError(f"no token {token!r}: choose from {', '.join(known)}")
    if not 0 <= update <= UPDATES:
        raise ValueError(f"update is from 0 to {UPDATES}, got {update}")
    return MaskLab(
        completions,
        left=left,
        right=right,
        token=token,
        update=update,
        hint=hint,
        masks=[mask_as_data(key, mask) for key, mask in drawn.items()],
        answers=answers_as_data(completions),
    )


class MaskLab(anywidget.AnyWidget):
    """What `mask_lab` returns. Choices made in the browser are here: `left`, `token`, `regions`."""

    left = traitlets.Unicode().tag(sync=True)
    right = traitlets.Unicode().tag(sync=True)
    token = traitlets.Unicode().tag(sync=True)
    update = traitlets.Float().tag(sync=True)
    hint = traitlets.Unicode().tag(sync=True)
    updates = traitlets.Int(UPDATES).tag(sync=True)
    masks = traitlets.List(traitlets.Dict()).tag(sync=True)
    answers = traitlets.List(traitlets.Dict()).tag(sync=True)

    def __init__(self, completions: Completions = FOUR, **choices: Any):
        self._esm, self.completions = front_end() + WIDGET_END, completions
        super().__init__(**choices)

    @property
    def regions(self) -> dict[str, Region]:
        """The trust region of every mask, as the sliders stand."""
        return {mask["key"]: read("trust_region", mask["region"]) for mask in self.masks}

    def picture(self) -> Figure:
        """Both masks as areas, with the tokens where the last update leaves them."""
        masks = {
            mask["key"]: Mask(mask["label"], region, mask["colour"], mask["ratio"])
            for mask, region in zip(self.masks, self.regions.values(), strict=True)
        }
        both = dict.fromkeys((self.left, self.right))
        return mask_atlas(*both, masks=masks, completions=self.completions)

    def html(self) -> str:
        """The lab as it stands as HTML that needs no kernel, no network and no other file."""
        names = ("left", "right", "token", "update", "updates", "hint", "masks", "answers")
        state = json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)
        state = state.replace("<", "\\u003c")  # no </script> inside the script
        labels = {mask["key"]: mask["label"] for mask in self.masks}
        picture, png = self.picture(), io.BytesIO()
        picture.savefig(png, format="png", dpi=110)
        return PAGE.format(
            key=hashlib.sha256(state.encode()).hexdigest()[:12],
            picture=base64.b64encode(small(png.getvalue())).decode(),
            words=html.escape(picture.texts[0].get_text()),
            updates=self.updates,
            what=f"{labels[self.left]} against {labels[self.right]}",
            code=packed(front_end(), "mountMaskLab"),
            state=state,
        )

    def __repr__(self) -> str:
        return f"MaskLab(left={self.left!r}, right={self.right!r}, token={self.token!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/html": self.html()}, metadata


def mask_as_data(key: str, mask: Mask) -> dict[str, Any]:
    """A mask as the page takes it."""
    return {
        "key": key,
        "label": mask.label,
        "colour": mask.colour,
        "ratio": mask.ratio,
        "region": write("trust_region", mask.region),
    }


def answers_as_data(completions: Completions) -> list[dict[str, Any]]:
    """The completions as the page takes them: names, advantages, tokens with π then and now."""
    advantages = advantages_of(completions)[:, 0].tolist()
    rows = zip(
        completions.names, completions.tokens, completions.probs_old, completions.probs, strict=True
    )
    return [
        {
            "name": name[0],
            "title": name[1:].lstrip(": "),
            "advantage": advantage,
            "tokens": [
                {"text": text, "mu": mu, "pi": pi}
                for text, mu, pi in zip(texts, probs_old, probs, strict=True)
            ],
        }
        for advantage, (name, texts, probs_old, probs) in zip(advantages, rows, strict=True)
    ]


@cache
def front_end() -> str:
    """Numbers, drawing and style as one script, without comments and indentation."""
    folder = files("workshop.shared.masks") / "front"
    return as_script({name: (folder / name).read_text(encoding="utf-8") for name in PARTS})


def as_script(sources: Mapping[str, str]) -> str:
    """Files of a front end as one script; those of style become the constant STYLE in it."""
    style = "\n".join(lean(text) for name, text in sources.items() if name.endswith(".css"))
    scripts = [lean(text) for name, text in sources.items() if name.endswith(".js")]
    return "\n".join([f"const STYLE = {json.dumps(style, ensure_ascii=False)};", *scripts])


@cache
def packed(script: str, name: str) -> str:
    """Lines of an asynchronous function that unpack a script and take one of its functions out.

    Stored notebooks hold it with every figure: packed it is two fifths as long.
    """
    data = base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()
    return (
        f'const packed = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));\n'
        'const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));\n'
        f"const {name} = new Function(`${{await new Response(plain).text()}}\\nreturn {name}`)();"
    )


def small(png: bytes) -> bytes:
    """A picture with 32 colours, which is enough for charts, as WebP."""
    from PIL import Image

    buffer = io.BytesIO()
    few = (
        Image.open(io.BytesIO(png))
        .convert("RGB")
        .quantize(32, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.convert("RGB").save(buffer, "WEBP", lossless=True, method=6)
    return buffer.getvalue()


def lean(source: str) -> str:
    """Source without comments of a whole line, indentation and empty lines."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not re.match(r"//", line))
