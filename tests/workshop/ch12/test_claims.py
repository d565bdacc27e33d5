"""What seeds can tell, and how far optimisers go."""

import pandas as pd
import pytest
import torch

from workshop.ch12.claims import distances, seeds_can_tell


def test_sgd_feels_a_factor_and_adam_does_not():
    gradients = torch.ones(5, 3)
    table = distances(gradients, {"none": torch.ones(5), "seven": torch.full((5,), 7.0)})
    assert table.loc["seven"].tolist() == pytest.approx([7, 1], abs=1e-4)


def test_an_interval_is_that_of_its_pairs():
    """Four pairs of mean 2 and scatter 1: t(3 degrees, 95 %) = 3.182, over the root of 4."""
    gaps = pd.Series([1.0, 3.0, 2 - 0.5**0.5, 2 + 0.5**0.5])
    row = seeds_can_tell({"switch": gaps}).loc["switch"]
    assert row["one seed scatters by"] == pytest.approx(1)
    assert row["high"] == pytest.approx(2 + 3.1824 / 2, abs=1e-3)
    assert "4 seeds detect" in row
