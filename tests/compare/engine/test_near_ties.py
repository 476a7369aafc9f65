"""What a nearest `Resize` may choose; see `tests/compare/test_unusual_files.py` for whole files."""

import torch

from filch.compare.float64._verdict import Float64Value
from filch.compare.judging._open_choices import with_near_ties


def test_a_value_of_another_rank_has_no_near_ties():
    """It is compared as it is: a compiled graph may have it in another layout."""
    numbers = torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 4)
    exact = Float64Value(numbers, numbers, 2.0**-24)
    for tensor, shape in ((torch.zeros(4), torch.Size([1, 1, 2])), (torch.zeros(1, 1, 4), torch.Size([1, 2]))):
        assert with_near_ties(exact, tensor, None, shape, lambda _: numbers) == (exact, None)
