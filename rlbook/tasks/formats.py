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


def boxed_answers(completion: str) -> list[str]:
    r"""Contents of every closed top-level `\boxed{…}`, braces balanced, in order; linear time."""
    answers, position = [], 0
    while (start := completion.find("\\boxed{", position)) >= 0:
        start += len("\\boxed{")
        stop = _closing_brace(completion, start)
        if stop < 0:
            break
        answers.append(completion[start:stop])
        position = stop + 1
    return answers


def _closing_brace(text: str, start: int) -> int:
    """Index of the brace that closes the one before `start`, or -1; `\\{` and `\\}` are text."""
    depth, i = 1, start
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1
