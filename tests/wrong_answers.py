"""Planted comparisons: pairs of tensors, and whether a comparer has to call them close."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NAN = float("nan")
INF = float("inf")


# eq=False: the generated __eq__ would compare tensors element by element and fail on the ambiguous truth value.
@dataclass(frozen=True, eq=False)
class Case:
    """One comparison with a known answer.

    Args:
        name: What was planted, as a short sentence.
        expected: The reference value; None if there is none.
        actual: The value to be judged; None if it is missing.
        close: True if the two have to pass as the same value, False if they must never pass.
    """

    name: str
    expected: torch.Tensor | None
    actual: torch.Tensor | None
    close: bool


def _close(name: str, expected: torch.Tensor, actual: torch.Tensor) -> Case:
    return Case(name, expected, actual, close=True)


def _different(name: str, expected: torch.Tensor | None, actual: torch.Tensor | None) -> Case:
    return Case(name, expected, actual, close=False)


def _a_million_with_one_wrong() -> Case:
    expected = torch.linspace(1.0, 2.0, 1_000_000)
    actual = expected.clone()
    actual[765_432] += 0.5
    return _different("one element among a million is wrong", expected, actual)


def _one_float32_step() -> Case:
    expected = torch.arange(1, 9) / 3
    return _close("float32 is one rounding step (1e-7) away", expected, torch.nextafter(expected, torch.tensor(INF)))


def _float8(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn)


NOT_A_NUMBER = (
    _different("a NaN stands where a number is expected", torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN])),
    _different("a number stands where NaN is expected", torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0])),
    _close("NaN is at the same place in both", torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
    _different("a wrong number stands beside an equal NaN", torch.tensor([NAN, 5.0]), torch.tensor([NAN, 7.0])),
    _different("NaN is at different places", torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])),
    # 1e10 is what some comparers replace NaN by.
    _different("1e10 stands where NaN is expected", torch.tensor([1.0, NAN]), torch.tensor([1.0, 1e10])),
    _close("+inf is at the same place in both", torch.tensor([1.0, INF]), torch.tensor([1.0, INF])),
    _different("-inf stands where +inf is expected", torch.tensor([1.0, INF]), torch.tensor([1.0, -INF])),
    # nan_to_num turns inf into the largest number.
    _different(
        "the largest float64 stands where +inf is expected",
        torch.tensor([1.0, INF], dtype=torch.float64),
        torch.tensor([1.0, torch.finfo(torch.float64).max], dtype=torch.float64),
    ),
)

# All elements are equal, so that broadcasting leaves no difference to see.
SHAPES_AND_TYPES = (
    _different("shape (2, 1) is compared with (1, 2)", torch.ones(2, 1), torch.ones(1, 2)),
    _different("shape (3, 1) is compared with (3, 3)", torch.ones(3, 1), torch.ones(3, 3)),
    _different("a scalar is compared with shape (1,)", torch.tensor(1.0), torch.ones(1)),
    _close("both are empty", torch.empty(0, 3), torch.empty(0, 3)),
    _different("shape (0,) is compared with (0, 3)", torch.empty(0), torch.empty(0, 3)),
    _different("a tensor is compared with an empty one", torch.ones(1, 3), torch.empty(0, 3)),
    _different(
        "float32 is compared with float64 of the same numbers", torch.ones(3), torch.ones(3, dtype=torch.float64)
    ),
    _different("the value is missing", torch.ones(3), None),
)

EXACT_TYPES = (
    _different("int64 2**53 is one too large", torch.tensor([2**53]), torch.tensor([2**53 + 1])),
    _different("int64 2**24 is one too large", torch.tensor([2**24]), torch.tensor([2**24 + 1])),
    # 127 - -1 is -128 in int8, and so is its absolute value: less than any tolerance.
    _different(
        "int8 difference overflows to -128",
        torch.tensor([127], dtype=torch.int8),
        torch.tensor([-1], dtype=torch.int8),
    ),
    _different(
        "uint8 difference wraps around from -255 to 1",
        torch.tensor([0, 7], dtype=torch.uint8),
        torch.tensor([255, 7], dtype=torch.uint8),
    ),
    _different("one bool is flipped", torch.tensor([True, False, True]), torch.tensor([True, True, True])),
)

PRECISION = (
    _different(
        "float64 is off by one part in a million",
        torch.tensor([1000.0, 1.0], dtype=torch.float64),
        torch.tensor([1000.0 + 1e-3, 1.0], dtype=torch.float64),
    ),
    # Nine million rounding steps of float64 and ten times 1e-10 as |a - e| / (|e| + 1), yet nothing in float32.
    _different(
        "float64 is off by one part in a billion",
        torch.tensor([1000.0, 1.0], dtype=torch.float64),
        torch.tensor([1000.0 + 1e-6, 1.0], dtype=torch.float64),
    ),
    _one_float32_step(),
    _different(
        "float16 difference overflows to inf",
        torch.tensor([65504.0], dtype=torch.float16),
        torch.tensor([-65504.0], dtype=torch.float16),
    ),
    _close(
        "bfloat16 is equal",
        torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
        torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
    ),
    _close("float8_e4m3fn is equal", _float8(1.0, -2.0), _float8(1.0, -2.0)),
    _different("float8_e4m3fn differs", _float8(1.0, -2.0), _float8(1.0, -4.0)),
)

VALUES = (
    _different("the sign is flipped", torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])),
    _close("-0.0 is compared with 0.0", torch.tensor([-0.0]), torch.tensor([0.0])),
    _different("0.1 stands where 0.0 is expected", torch.tensor([0.0, 1.0]), torch.tensor([0.1, 1.0])),
    # No absolute tolerance sees it: only an error relative to the tensor's own scale does.
    _different("every tiny value is twice too large", torch.full((4,), 1e-7), torch.full((4,), 2e-7)),
    _different("complex64 has another imaginary part", torch.tensor([1 + 1j, 2 + 0j]), torch.tensor([1 + 9j, 2 + 0j])),
    _close("complex64 is equal", torch.tensor([1 + 1j, 2 + 0j, 3j]), torch.tensor([1 + 1j, 2 + 0j, 3j])),
    _a_million_with_one_wrong(),
)

CASES = NOT_A_NUMBER + SHAPES_AND_TYPES + EXACT_TYPES + PRECISION + VALUES
