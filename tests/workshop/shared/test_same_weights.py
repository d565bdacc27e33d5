"""Whether a reader's loop and the package have made the same weights."""

import pytest
import torch

from workshop.shared.checks import same_weights

START, MOVED = [torch.zeros(3)], [torch.tensor([0.0, 0.5, -2.0])]


def test_the_largest_difference_is_told_beside_the_largest_change(capsys):
    package = [torch.tensor([0.0, 0.5, -2.0078125])]
    assert same_weights(START, MOVED, package, name="your loop") == 0.0078125
    told = "weights moved by up to 2.0e+00; your loop and Trainer differ by 7.8e-03\n"
    assert capsys.readouterr().out == told


def test_a_hundredth_of_the_change_is_too_much():
    with pytest.raises(ValueError, match="the loop is not the package's"):
        same_weights(START, MOVED, [torch.tensor([0.0, 0.625, -2.0])])
