"""Chapter 18's checks name each likely mistake; nbval shows that they accept the solutions."""

import os

import pytest

from workshop.ch18 import checks as ch18


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        ((7, 7), "place of a rejected group"),
        ((-1, 0), "being formed besides"),
        ((47, 48), "already trained count"),
        ((7, 6), "gives one back"),
        ((3, 4), "batches 0 to 4"),
    ],
)
def test_credit(answer, words, said):
    assert words in said(ch18.check_credit, answer)


def recovery(checkpoint, batches, every):
    replayed = [batch for batch in batches if batch >= checkpoint]
    waits_for = checkpoint + len(replayed)
    return replayed, waits_for, (waits_for // every + 1) * every


def changed(position, value):
    """The right answer with one of its three parts exchanged."""

    def answer(checkpoint, batches, every):
        parts = list(recovery(checkpoint, batches, every))
        parts[position] = value(checkpoint, batches, every)
        return tuple(parts)

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *_: None, "not attempted"),
        (changed(0, lambda c, batches, e: [b for b in batches if b > c]), "Count from batch 0"),
        (changed(1, lambda c, batches, e: c), "waits for the next"),
        (changed(1, lambda c, batches, e: max(batches, default=0) + 1), "batch of its own version"),
        (lambda c, batches, e: (batches, max([c - 1, *batches]) + 1, 12), "superfluous"),
        (changed(2, lambda c, batches, e: c + len(batches)), "multiples of `every`"),
        (changed(2, lambda c, batches, e: -(-(c + len(batches)) // e) * e), "is not that one"),
    ],
)
def test_recovery(answer, words, said):
    assert words in said(ch18.check_recovery, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "not attempted"),
        (2, "weights alone"),
        (4, "two moments"),
        (5, "at the same time"),
        (6, "rounded down"),
        (525 / 80, "no parts of GPUs"),
        (13, "all in float32"),
    ],
)
def test_least_gpus(answer, words, said):
    assert words in said(ch18.check_least_gpus, answer)


def beside_and_renamed(path, text):
    partial = path.with_name("partial")
    partial.write_text(text)
    os.replace(partial, path)


def removed_first(path, text):
    path.unlink()
    beside_and_renamed(path, text)


def renamed(path, text):
    path.with_name("partial").write_text(text)
    path.with_name("partial").rename(path)


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (lambda path, text: None, "not attempted"),
        (lambda path, text: path.write_text(text), "write beside it"),
        (removed_first, "no file at all"),
        (renamed, "right"),
    ],
)
def test_save(save, words, said):
    assert words in said(ch18.check_save, save)


MEASURED = {
    ("wait", 2): (85, 0.069),
    ("drop", 2): (149, 0.0),
    ("wait", 8): (149, 0.062),
    ("drop", 8): (149, 0.062),
}


@pytest.mark.parametrize(
    ("predicted", "measured", "words"),
    [
        (MEASURED, MEASURED, "right: at K = 2 dropping makes 149 updates instead of 85"),
        (None, MEASURED, "not attempted"),
        (MEASURED, {("wait", 2): (85, 0.07)}, "a pair is asked"),
        (MEASURED, MEASURED | {("drop", 2): (149, 0.05)}, "five updates"),
        (MEASURED, MEASURED | {("wait", 2): (149, 0.06)}, "does your trainer"),
        (MEASURED, MEASURED | {("wait", 2): (85, 0.0)}, "trains everything"),
        (MEASURED, MEASURED | {("wait", 8): (120, 0.06)}, "nothing is late"),
        (MEASURED, MEASURED | {("wait", 8): (149, 6.2)}, "a share"),
        (MEASURED | {("drop", 2): (149, 0.05)}, MEASURED, "your prediction"),
    ],
)
def test_lab(predicted, measured, words, said):
    assert words in said(ch18.check_lab, predicted, measured)
