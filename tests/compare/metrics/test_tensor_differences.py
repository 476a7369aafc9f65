"""`compare_tensors` and `diff` detect every kind of difference between two values."""

import numpy as np
import pytest
import torch
from torch import nn

from filch.compare import compare_tensors, diff
from filch.steal import steal_forward

NAN, INF = float("nan"), float("inf")


LARGEST = torch.finfo(torch.float64).max


def _doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


DIFFERENT = {
    "imaginary parts": (torch.tensor([1 + 1j]), torch.tensor([1 + 9j])),
    "imaginary parts of numpy's": (torch.from_numpy(np.array([1 + 1j])), torch.from_numpy(np.array([1 + 9j]))),
    "NaN and 1e10": (_doubles(NAN), _doubles(1e10)),
    "1e10 and NaN": (_doubles(1e10), _doubles(NAN)),
    "NaN at different places": (_doubles(NAN, 1.0), _doubles(1.0, NAN)),
    "inf and the largest number": (_doubles(INF), _doubles(LARGEST)),
    "inf and -inf": (_doubles(INF), _doubles(-INF)),
    "integers that float64 rounds to one": (torch.tensor([2**53]), torch.tensor([2**53 + 1])),
    "dtypes": (torch.ones(1, dtype=torch.float16), torch.ones(1)),
    "shapes": (torch.ones(1), torch.tensor(1.0)),
    "shapes of nothing": (torch.empty(0, 3), torch.empty(3, 0)),
    "None and a tensor": (None, torch.ones(1)),
    "a tensor and None": (torch.ones(1), None),
    "float8": (torch.ones(1).to(torch.float8_e4m3fn), torch.full((1,), 2.0).to(torch.float8_e4m3fn)),
    "booleans": (torch.tensor([True]), torch.tensor([False])),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_are_not_close(name):
    """The result has a problem or a positive error."""
    expected, actual = DIFFERENT[name]

    found = compare_tensors(actual, expected)

    assert not found.close
    assert found.problem or (found.absolute > 0 and found.error > 0 and found.mismatched)


def test_the_error_of_complex_numbers_includes_the_imaginary_part():
    """The distance of 1+1j and 1+9j is 8."""
    expected, actual = DIFFERENT["imaginary parts of numpy's"]
    assert compare_tensors(actual, expected).absolute == 8


@pytest.mark.parametrize("value", [_doubles(NAN, 1.0), _doubles(INF, -INF), torch.empty(0), torch.tensor([2**53 + 1])])
def test_equal_values_are_close(value):
    """With NaN and infinities at the same places."""
    found = compare_tensors(value.clone(), value)

    assert found.close
    assert found.absolute == 0


@pytest.mark.parametrize(("first", "second", "close"), [("a", "b", False), ("a", "a", True), (None, "a", False)])
def test_diff_compares_values_that_are_not_tensors(first, second, close):
    """A different string is a divergence, not an error."""

    def stolen(value):
        module = nn.Identity()
        with steal_forward(("m", module)) as capture:
            module([torch.ones(1), value])
        return capture

    found = diff(stolen(first), stolen(second))

    assert found.close == close
    assert all("'a'" in row.what + row.reason for row in found.diverged)
