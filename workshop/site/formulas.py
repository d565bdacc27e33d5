"""Formulas as MathML, which every browser sets by itself."""

import html
import re

from latex2mathml.converter import convert


def mathml(source: str, display: str) -> str:
    """A formula as MathML, which every browser sets itself, with its LaTeX for who copies it.

    `display` is "inline" or "block".
    """
    source = source.strip()
    set_text = convert(plainer(source), display=display)
    opened = set_text.replace("<math ", f'<math alttext="{html.escape(source)}" ', 1)
    return re.sub(r'(?<=<mo)( stretchy="false")?>&#x02225;', ">&#x02016;", opened)


def plainer(source: str) -> str:
    """LaTeX without what the converter does not know."""
    source = re.sub(r"\\(big|Big|bigg|Bigg)([lrm]?)\\\|", r"\\Vert ", source)
    source = re.sub(r"(\\text\{[^{}]*)(\\textbf\{[^{}]*\})", r"\1}\2\\text{", source)
    source = re.sub(r"\\arg(?![a-z])", r"\\operatorname{arg}", source)
    return re.sub(
        r"\\text(tt)?\{([^{}]*)\}",
        lambda found: f"\\text{found[1] or ''}{{{found[2].replace(chr(92) + '_', '_')}}}",
        source,
    )
