"""Planted comparisons: pairs of tensors, and whether a comparer has to call them close."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan

import torch

from faults._expressions import Names, load

__all__ = ["CASES", "Case"]


# eq=False: the generated __eq__ would compare tensors element by element and fail on the ambiguous truth value.
@dataclass(frozen=True, eq=False)
class Case:
    """One comparison whose correct result is known.

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


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed numbers, the same ones for the same shape."""
    made = torch.Generator().manual_seed(sum(size * 100**place for place, size in enumerate(shape)))
    return (torch.randn(*shape, generator=made, dtype=torch.float64) * scale).to(dtype)


def uniform(*shape: int) -> torch.Tensor:
    """Return uniformly distributed numbers."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def steps(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the numbers that are `count` rounding steps further from 0."""
    kind = torch.finfo(tensor.dtype)
    return (tensor.double() * (1 + count * kind.eps)).to(tensor.dtype)


def put(tensor: torch.Tensor, index: int, number: complex) -> torch.Tensor:
    """Return a copy with another number at one place."""
    changed = tensor.clone()
    changed.view(-1)[index] = number
    return changed


def _cases() -> Iterator[Case]:
    functions = {function.__name__: function for function in (normal, uniform, steps, put)}
    for group in load(__file__, "answers.toml")["groups"]:
        shared = group.get("names", {}) | {"dtype": "getattr(torch, kind)"}
        for one in group.get("each", [{}]):
            names = Names(shared, **functions, **one, t=torch.tensor, nan=nan, inf=inf)
            for case in group["cases"]:
                names["e"] = expected = names.evaluate(case["expected"])
                actual = names.evaluate(case["actual"])
                yield Case(case["name"].format(**one), expected, actual, case.get("close", False))


CASES = tuple(_cases())
