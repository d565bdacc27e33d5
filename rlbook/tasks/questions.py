r"""What stands in a question and should not: its answer, a template, a missing picture."""

import re

from rlbook.tasks.formats import boxed_answers

TEMPLATED = re.compile(
    r"<[|｜][A-Za-z_▁]{3,}[\w▁]*[|｜]>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
)
PICTURED = re.compile(r"<(?:image|img|video|audio)\b[^>]*>|!\[[^\]]*\]\([^)]*\)|\\includegraphics")
STATED = re.compile(r"(?:\banswer(?: is|:| =)+|####)\s*([^\n]*)", re.I)
OTHER_FORM = re.compile(r"####|</?answer>|\banswer\b\W{0,3}:", re.I)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
OPERATION = re.compile(r"[-+*/^!]|\\[a-z]{3,}")


def template_in(question: str) -> str:
    """A mark of a chat template in it, "" if there is none."""
    return found[0] if (found := TEMPLATED.search(question)) else ""


def picture_in(question: str) -> str:
    """What stands there for a picture or a sound, "" if nothing does."""
    return found[0] if (found := PICTURED.search(question)) else ""


def told_in(question: str, answer: str) -> str:
    """Where the question says its answer, in a box or after "answer:"; "" if it does not."""
    boxes = [(rf"\boxed{{{box}}}", box) for box in boxed_answers(question)]
    stated = [(one[0], one[1].split(". ")[0]) for one in STATED.finditer(question)]
    meant = bare(answer)
    return next((whole for whole, said in boxes + stated if meant and bare(said) == meant), "")


def bare(text: str) -> str:
    """A text without what may stand around it."""
    return text.strip(" \t\n$.*()").replace(" ", "").casefold()


def other_form_in(question: str) -> str:
    """Where it asks for the answer in another form than a box, "" if it does not."""
    found = None if "boxed" in question else OTHER_FORM.search(question)
    return question[max(0, found.start() - 20) : found.end() + 20] if found else ""


def formulas_in(question: str) -> list[str]:
    """Its formulas between dollars or brackets in which something is to be computed."""
    formulas = ["".join(filter(None, found)).strip() for found in FORMULA.findall(question)]
    return [one for one in dict.fromkeys(formulas) if OPERATION.search(one)]
