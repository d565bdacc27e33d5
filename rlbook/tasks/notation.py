r"""One notation for mathematical answers: everyday clothes off, plain LaTeX left.

`plain(r"$\textcolor{red}{1\,234\tfrac12}$")` is `1234\frac{1}{2}`. No value is judged here.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from rlbook.tasks.formats import closing

SYMBOLS = {
    **{"∞": "infty", "√": "sqrt", "π": "pi", "≤": "le", "≥": "ge", "≠": "ne", "≈": "approx"},
    **{"∪": "cup", "∩": "cap", "∈": "in", "∅": "emptyset", "⟨": "langle", "⟩": "rangle"},
    **{"×": "times", "·": "cdot", "⋅": "cdot", "∙": "cdot", "∖": "setminus", "±": "pm"},
    **{"…": "ldots"},
}
CHARACTERS = {
    **{symbol: rf"\{name} " for symbol, name in SYMBOLS.items()},
    **dict.fromkeys("°˚º", r"^\circ "),
    **dict.fromkeys("⁄∕÷", "/"),
    **{letter: rf"\mathbb{{{name}}}" for letter, name in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
    **{"−": "-", "’": "'", "∛": r"\sqrt[3]", "。": ".", "、": ", "},
}
STYLES = (
    "left|right|displaystyle|textstyle|limits|bf|it|rm|sf|tt|bfseries|itshape|normalsize|tiny|small|"
    "[lL]arge|LARGE|[hH]uge|[bB]igg?[lr]?|mathbf|mathsf|mathit|mathtt|bm|boldsymbol|underline|"
    "ensuremath|f?box|boxed|hbox|mathstrut|pounds|euro|therefore|checkmark"
)
ALIASES = {
    alias: command
    for command, aliases in {
        **{r"\frac": "dfrac tfrac cfrac", r"\binom": "dbinom tbinom", r"\le": "leq leqslant"},
        **{r"\ge": "geq geqslant", r"\ne": "neq", r"\ldots": "dots cdots dotsc"},
        **{r"\approx": "simeq thickapprox", r"\emptyset": "varnothing", r"^\circ": "degree"},
        **{"/": "div", "*": "ast", "<": "lt", ">": "gt", r"\{": "lbrace", r"\}": "rbrace"},
        **{":": "colon", r"\mathbb{R}": "R reals", r"\setminus": "backslash"},
        **{r"\overline": "bar", "|": "vert lvert rvert mid"},
    }.items()
    for alias in aliases.split()
}
TEXTS = "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|operatorname|mbox"
PREFIX = (  # what may stand before an answer
    r"^(\s*\{?)(?:(?:so |thus )?(?:the |my )?(?:final )?answers?(?: is| are|:| =)+|"
    r"(?:最终|最后)?答案[是为:]+ *|"
    r"(?:option|choice) (?=\(?[A-J]\)?\.?\s*$)|(?:USD|EUR|GBP|INR|Rs)\b\.?)\s*"
)


ORDINAL = r"(?:\\text\{(?:st|nd|rd|th)\}|(?:st|nd|rd|th)(?![A-Za-z]))"  # after a number


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """The same answer in plain LaTeX: one name for each symbol, no fonts, colours or spaces."""
    if not text.isascii():
        text = "".join(map(latin, re.sub(r"([√∛]) ?([^\W\d_]|\d+)", r"\1{\2}", text)))
    for pattern, new in RULES:
        text = pattern.sub(new, text)
    text = in_braces(in_braces(text, r"\sqrt"), r"\exp", "e^")
    return bare(" ".join(text.split()))


def latin(one: str) -> str:
    """One character in LaTeX: a symbol, a digit of any script, a fraction, a power, a letter."""
    if one.isascii() or one in CHARACTERS:
        return CHARACTERS.get(one, one)
    kind, form = unicodedata.category(one), unicodedata.decomposition(one).split()
    if kind in ("Cf", "Sc") or one == "¢":
        return ""
    if kind in ("Zs", "Pd"):
        return "~" if kind == "Zs" else "-"
    if kind == "Nd":
        return str(unicodedata.decimal(one))
    simple = unicodedata.normalize("NFKC", one)
    if form and form[0] == "<fraction>":
        return r"\frac{{{}}}{{{}}}".format(*simple.split("⁄"))
    if form and form[0] in ("<super>", "<sub>"):
        return f"{'^' if form[0] == '<super>' else '_'}{{{simple}}}"
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(one, ""))
    return (
        f"\\{greek[2].title() if greek[1] == 'CAPITAL' else greek[2].lower()} " if greek else simple
    )


def alias(found: re.Match[str]) -> str:
    """The one name of a command."""
    return f"{ALIASES[found[1]]} " if found[1] in ALIASES else found[0]


def word(found: re.Match[str]) -> str:
    r"""Words in any font as `\text{…}`; a number or one letter in a font as it is."""
    inside = " ".join(found[1].replace("~", " ").replace("\\ ", " ").split())
    inside = re.sub(PREFIX, r"\1", inside, flags=re.I)
    if re.fullmatch(r"[A-Za-z] ?= ?[^A-Za-z]+", inside):
        return inside
    single = len(inside) == 1 and found[0].startswith((r"\mathrm", r"\operator"))
    if single or not re.search(r"[^\W\d_]", inside):
        return f" {inside} "
    number, _, words = inside.partition(" ")
    if not re.fullmatch(r"-?\d[\d.,]*", number):
        return rf" \text{{{inside}}} "
    words = re.sub(r" (\d+) ", r"} \1 \\text{", words)
    return rf" {number} \text{{{words}}} "


def joined(found: re.Match[str]) -> str:
    """The digits of a number written in thousands."""
    return re.sub(r"\D", "", found[0])


def repeating(found: re.Match[str]) -> str:
    """A decimal whose last digits repeat, as a fraction."""
    whole, fixed, again = found[1] or "0", found[2], next(filter(None, found.groups()[2:]))
    below = 10 ** len(fixed) * (10 ** len(again) - 1)
    value = Fraction(int(whole + fixed + again) - int(whole + fixed), below)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def in_braces(text: str, command: str, new: str = "") -> str:
    """`command(…)` with its argument in braces, under a `new` name if there is one."""
    for start in reversed([m.end() for m in re.finditer(re.escape(command) + r" ?\(", text)]):
        stop, before = closing(text, start, "()"), text.rindex(command, 0, start)
        if stop >= 0:
            text = f"{text[:before]}{new or command}{{{text[start:stop]}}}{text[stop + 1 :]}"
    return text


def bare(text: str) -> str:
    """Without what stands around it: spaces, full stops, braces that hold all of it."""
    while (text := text.strip().rstrip(".;:,").strip()).startswith("{"):
        if closing(text, 1) != len(text) - 1:
            break
        text = text[1:-1]
    return text


Rule = tuple[str, str | Callable[[re.Match[str]], str]]
CLOTHES: list[Rule] = [  # fonts, colours, sizes; one name for each command
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"),
    (r"\\(?:textcolor|colorbox|color)\s*(?:\[\w*\])?\{[^{}]*\}|\\color\s+\w+", ""),
    (r"\\[hv]?phantom\s*\{[^{}]*\}", ""),
    (r"\\(?:q?quad|enspace|thinspace|hspace\*?\{[^{}]*\})(?![A-Za-z])", " "),
    (rf"\\(?:{STYLES})(?![A-Za-z])", ""),
    (r"\\mathbb ?([A-Z])(?![A-Za-z])", r"\\mathbb{\1}"),
    (r"\\([A-Za-z]+)", alias),
    (r"\\(begin|end)\{array\}(?:\{[lcr|]*\})?", r"\\\1{matrix}"),
    (r"\\begin\{cases\}([^&]*)\\end\{cases\}", lambda found: found[1].replace(r"\\", ",")),
    (r"\{([^{}]*)\\choose([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"\\?\$|(?<!\\)\\[()\[\]]|\\(?=%)|(?:\\\\\s*)+$", ""),
]
WORDS: list[Rule] = [
    (rf"\\(?:{TEXTS})\*?\s*\{{([^{{}}]*)\}}", word),
    (PREFIX, r"\1"),
    (r"^\s*([A-J])\)(?=\s|$)", r"(\1)"),
    (rf"(?<=\d) ?(?:\^ ?\{{ ?{ORDINAL} ?\}}|\^? ?{ORDINAL})", ""),
    (r"\\text\{([^{}]*)\}\s*\\text\{([^{}]*)\}", r"\\text{\1 \2}"),
    (r"(?<=\\text\{)(\w+), ?(?=\w+(?:, ?\w+)*\})", r"\1}, \\text{"),
    (r"(?<=\\text\{)(\w+) (and|or) (?!a half)(\w+)(?=\})", r"\1} \\text{\2} \\text{\3"),
]
NUMBERS: list[Rule] = [  # thousands, repeating, of programs, mixed; powers and roots in braces
    (r"(?<![\d.,\w])(\d{1,3}(?:(?:(?<!\\)\\[,;:! ]|\{,\}|,\\!|[ ~'])\d{3})+)(?![\d,'/])", joined),
    (r"(?<![\d.,\w])(\d{1,3}(?:\.\d{3}){2,})(?![\d.,])", joined),
    (r"(?<![\d.,\w])(\d{1,3}(?:_\d{3})+)(?![\w{])", joined),
    (r"(?<!\\)\\[,;:! ]|~", " "),
    (r"(?<!\d)(\d*)\.(\d*?)(\d)\3\3+(?:\.\.\.|\\ldots)", repeating),
    (
        r"(?<!\d)(\d*)\.(\d*)(?:\\overline ?\{?(\d+)\}?|\\dot ?\{?(\d)\}?|\((\d+)\)(?! *[\d(]))",
        repeating,
    ),
    (r"(?<![\w.])(\d+\.?\d*|\.\d+)[eE]([+-]?\d{1,4})(?!\w)", r"(\1\\cdot 10^{\2})"),
    (r"(?<![\d./]) ?\b(\d+) (\d+)/(\d+)(?![\d/])", r" \1\\frac{\2}{\3}"),
    (r"(?<=\d) ?[xX] ?(?=10 ?\^)", r"\\cdot "),
    (r"\\frac ?(\d|\b[a-z]) ?(\d|[a-z])", r"\\frac{\1}{\2}"),
    (r"\\frac ?(\d|[a-z]) ?\{", r"\\frac{\1}{"),
    (r"(\\frac ?\{[^{}]*\}) ?(\d|[a-z])", r"\1{\2}"),
    (r"(?<![A-Za-z\\])C\((\d+), ?(\d+)\)", r"\\binom{\1}{\2}"),
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
    (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
    (r"(?<![\\A-Za-z])(sqrt|exp|log|ln|sin|cos|tan)(?= ?\()", r"\\\1"),
    (r"\\sqrt ?(\d+|[A-Za-z])(?![A-Za-z])", r"\\sqrt{\1}"),
    (r"(\^\{\d)\}\^\{(?=\d\})", r"\1"),  # a power of several digits, each raised by itself
    (r"\^ ?(-?\d\d+|-\d)", r"^{\1}"),
]
RULES = [
    (re.compile(old, re.S | re.I * (old == PREFIX)), new) for old, new in CLOTHES + WORDS + NUMBERS
]
