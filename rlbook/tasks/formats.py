"""Prompt templates and format rewards."""

import re

_R1_STRUCTURE = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_R1_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_FORMAT_CHARS = 200_000


def r1_prompt(question: str) -> str:
    """A question in an R1-Zero style template: reasoning and answer in tags, nothing shown.

    The wording is our own; the structure follows DeepSeek-R1 (arXiv:2501.12948, table 1). The
    prompt ends where the policy begins, before `<think>`. Chapter 05.
    """
    return (
        "A user asks a question and an assistant solves it. The assistant first reasons between "
        "<think> and </think>, then gives only the final answer between <answer> and </answer>.\n"
        f"User: {question}\nAssistant: "
    )


def format_reward(completion: str, think_opened: bool = False) -> float:
    """1.0 if the completion is `<think>…</think><answer>…</answer>` and nothing else, else 0.0.

    Each tag occurs exactly once, in this order; white space between and around the blocks is
    free. `think_opened` says that the prompt already ends with `<think>`. Linear in the length;
    more than 200,000 characters score 0.0. Chapter 05.
    """
    text = "<think>" + completion if think_opened else completion
    if len(text) > MAX_FORMAT_CHARS or any(text.count(tag) != 1 for tag in _R1_TAGS):
        return 0.0
    return float(_R1_STRUCTURE.fullmatch(text) is not None)


def tagged_answer(completion: str) -> tuple[str | None, str]:
    """The text of the one final `<answer>…</answer>` block, or None and why it does not count.

    Faults: `no_answer`, `unclosed_answer`, `two_answers` (any tag twice), `trailing_text`.
    """
    opened, closed = completion.count("<answer>"), completion.count("</answer>")
    if opened > 1 or closed > 1:
        return None, "two_answers"
    if opened != closed:
        return None, "unclosed_answer"
    if not opened:
        return None, "no_answer"
    before, after = completion.split("</answer>")
    if "<answer>" not in before:
        return None, "unclosed_answer"
    if after.strip():
        return None, "trailing_text"
    return before.split("<answer>")[1].strip(), ""


BETWEEN_BOXES = re.compile(
    r"[\s$}]*(?:,|;|and|or|\\text\{ ?(?:and|or) ?\})[\s$]*(?:and|or)?[\s$]*\\f?box(?:ed)?\s*\{?"
)
BOX = re.compile(r"\\f?box(?:ed)?\s*(?:\{|([A-Za-z0-9])(?![A-Za-z0-9]))")


def boxed_answers(completion: str) -> list[str]:
    r"""Contents of every closed top-level `\boxed{…}`, braces balanced, in order; linear time.

    `\fbox{…}`, `\boxed {…}` and, of one character, `\boxed 4` are boxes as well.
    """
    return [completion[start:stop] for start, stop in box_spans(completion)]


def box_spans(completion: str) -> list[tuple[int, int]]:
    """Where the contents of the boxes begin and end."""
    spans: list[tuple[int, int]] = []
    position = 0
    while found := BOX.search(completion, position):
        start, stop = found.span(1) if found[1] else (found.end(), closing(completion, found.end()))
        if stop < 0:
            break
        spans.append((start, stop))
        position = stop
    return spans


def answer_in_boxes(text: str, boxes: list[tuple[int, int]]) -> str:
    """The last box and those before it that only a comma, "and" or "or" keeps from it."""
    chosen = [boxes[-1]]
    for box in boxes[-2::-1]:
        if not BETWEEN_BOXES.fullmatch(text, box[1], chosen[0][0]):
            break
        chosen.insert(0, box)
    return ", ".join(text[slice(*box)].strip() for box in chosen)


def closing(text: str, start: int, pair: str = "{}") -> int:
    r"""Index of what closes the bracket before `start`, or -1; after a backslash it is text."""
    depth, i = 1, start
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] in pair:
            depth += 1 if text[i] == pair[0] else -1
            if depth == 0:
                return i
        i += 1
    return -1
