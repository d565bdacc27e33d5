"""Explorer: controls beside a picture that a function of the package draws."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as W
import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rlbook.viz.live import png_bytes
from rlbook.viz.style import STYLE

MAX_CONTROLS = 3


def slider(low: float, high: float, value: float, step: float = 0.01, label: str = "") -> W.Widget:
    """A slider over [low, high] that speaks when it is let go; whole if all four are `int`."""
    whole = all(isinstance(x, int) for x in (low, high, value, step))
    kind = W.IntSlider if whole else W.FloatSlider
    return kind(
        value=value,
        min=low,
        max=high,
        step=step,
        continuous_update=False,  # a picture takes longer to draw than a hand to move on
        description=label,
        style={"description_width": "8em"},
        layout=W.Layout(width="26em"),
    )


def choice(options: list | Mapping[str, Any], value: Any = None, label: str = "") -> W.Widget:
    """A drop-down list; `options` maps what is shown to what `draw` gets, or lists the values."""
    values = list(options.values()) if isinstance(options, Mapping) else list(options)
    return W.Dropdown(
        options=list(options.items()) if isinstance(options, Mapping) else values,
        value=values[0] if value is None else value,
        description=label,
        style={"description_width": "8em"},
        layout=W.Layout(width="26em"),
    )


class Explorer(W.VBox):
    """`draw(fig, **values)` again whenever a control moves; a plain PNG where no kernel runs.

        Explorer(draw, ratio=slider(0, 2, 1.3, label="ratio ρ"), hint="Move ρ past 1 + ε.")

    `draw` gets an empty `Figure` and the plain values of the controls. `controls` and `image` are
    ordinary widgets, so a test needs no browser: set `ex.controls["ratio"].value` and compare
    `ex.image.value`. An error in `draw` is raised where it happens.
    Raises `ValueError` unless there are one to three controls.
    """

    def __init__(
        self,
        draw: Callable[..., None],
        /,
        hint: str = "",
        figsize: tuple[float, float] = (7.2, 3.6),
        **controls: W.Widget,
    ):
        if not 1 <= len(controls) <= MAX_CONTROLS:
            raise ValueError(f"an explorer has 1 to {MAX_CONTROLS} controls, got {len(controls)}")
        for name, control in controls.items():
            control.description = control.description or name
            control.observe(self._refresh, names="value")
        self.draw, self.figsize, self.hint, self.controls = draw, figsize, hint, controls
        self.image = W.Image(format="png", layout=image_layout(figsize))
        note = [W.HTML(f"<i>Try: {hint}</i>")] if hint else []
        self._refresh()
        super().__init__([*controls.values(), *note, self.image])

    @property
    def values(self) -> dict[str, Any]:
        """The value of every control."""
        return {name: control.value for name, control in self.controls.items()}

    def figure(self) -> Figure:
        """The current picture as a new matplotlib figure, outside pyplot."""
        with mpl.rc_context(STYLE):
            fig = Figure(figsize=self.figsize)
            FigureCanvasAgg(fig)
            self.draw(fig, **self.values)
        return fig

    def png(self) -> bytes:
        """`figure` as PNG."""
        with mpl.rc_context(STYLE):
            return png_bytes(self.figure())

    def _refresh(self, change: Any = None) -> None:
        self.image.value = self.png()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        data = super()._repr_mimebundle_(**kwargs)
        bundle = data[0] if isinstance(data, tuple) else data
        controls = ", ".join(f"{name}={value}" for name, value in self.values.items())
        return {
            **bundle,
            "text/plain": f"Explorer({controls})",
            "image/png": base64.b64encode(self.image.value).decode(),
        }


def image_layout(figsize: tuple[float, float]) -> W.Layout:
    """A picture in its own size, narrower only where the page is."""
    width = figsize[0] * STYLE["savefig.dpi"]  # one pixel of the picture to one of the screen
    return W.Layout(width=f"{width:.0f}px", flex="0 0 auto", max_width="100%")
