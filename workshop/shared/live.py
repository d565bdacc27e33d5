"""Figures that move where they stand: in a notebook, and in a page without a kernel."""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workshop.shared.explorer import Explorer
from workshop.shared.masks import lab as mask_lab
from workshop.shared.masks.lab import as_script, packed, small

HERE = Path(__file__).parent / "front"
SHARED = Path(mask_lab.__file__).parent / "front"
BASE = (SHARED / "paint.css", HERE / "live.css", SHARED / "paint.js", HERE / "base.js")
PARTS = {  # the scripts of each figure, after the shared ones
    "clip": ("clip",),
    "group": ("estimators", "group"),
    "cloud": ("cloud",),
    "weight": ("estimators", "weight"),
    "fit": ("estimators", "fit"),
    "pipeline": ("pipeline",),
}
WIDGET_END = """
export default { render({ model, el }) {
  const { name, ...given } = model.get("state"), host = document.createElement("div");
  el.append(host);
  const live = mountFigure(host, name, { ...given, values: model.get("values") }, (values) => {
    model.set("values", values);
    model.save_changes();
  });
  model.on("change:values", () => live.set(model.get("values")));
  return () => live.remove();
} };
"""
PAGE = """\
<div data-live="{key}"><img src="data:image/webp;base64,{picture}" alt="{words}" \
style="max-width:100%"></div>
<script>(async () => {{
{code}
for (const host of document.querySelectorAll('[data-live="{key}"]'))
  if (!host.shadowRoot) mountFigure(host, "{name}", {state});
}})();</script>"""


class LiveFigure(anywidget.AnyWidget):
    """A figure of `front/NAME.js` with its controls; a picture where no script may run.

    `values` holds what the controls say, in Python and in the browser alike; `figure()` is what
    `draw(fig, **values)` makes of them. `data` is what the script needs besides.
    """

    values = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        name: str,
        draw: Callable[..., None],
        values: Mapping[str, Any],
        hint: str = "",
        figsize: tuple[float, float] = (7.2, 3.6),
        **data: Any,
    ):
        self._esm = front_end(name) + WIDGET_END
        self.draw, self.figsize = draw, figsize
        state = {"name": name, "hint": hint, "data": data}
        super().__init__(values=dict(values), state=state)

    figure, png = Explorer.figure, Explorer.png

    def html(self) -> str:
        """The figure as it stands as HTML that needs no kernel, no network and no other file."""
        state = json.dumps({**self.state, "values": self.values}, ensure_ascii=False)
        titles = (ax.get_title(side) for ax in self.figure().axes for side in ("left", "center"))
        return PAGE.format(
            key=hashlib.sha256(state.encode()).hexdigest()[:12],
            picture=base64.b64encode(small(self.png())).decode(),
            words=html.escape(". ".join(filter(None, titles))),
            code=packed(front_end(self.state["name"]), "mountFigure"),
            name=self.state["name"],
            state=state.replace("<", "\\u003c"),  # no </script> inside the script
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return f"LiveFigure({self.state['name']}: {values})"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/html": self.html()}, metadata


@cache
def front_end(name: str) -> str:
    """Style, base and the figure's own scripts as one, without comments and indentation."""
    files = [*BASE, *(HERE / f"{part}.js" for part in PARTS[name])]
    return as_script({file.name: file.read_text(encoding="utf-8") for file in files})
