"""The value that is nearest to a tensor is the one that is found by comparing it with all."""

import random

import pytest
import torch

from filch.compare import compare_tensors
from filch.compare.metrics._nearest import Nearest


def _nearest_of_all(values, tensor):
    found = {name: compare_tensors(value, tensor) for name, value in values.items()}
    close = [(difference.error, name) for name, difference in found.items() if difference.close]
    return min(close)[1] if close else None


def _some(kind, shape, draw):
    if not kind.is_floating_point and not kind.is_complex:
        return torch.randint(0, 2, shape).to(kind)
    values = torch.randn(shape, dtype=torch.float64) * 10 ** draw.uniform(-8, 8)
    for special in (torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).min, 0.0):
        if draw.random() < 0.2:
            values.reshape(-1)[: draw.randint(0, 2)] = special
    return values.to(kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.complex64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)], ids=str)
def test_it_is_the_nearest_of_all(kind, shape):
    draw = random.Random(f"{kind}{shape}")  # noqa: S311  the same ones each time
    torch.manual_seed(0)
    found = 0
    for _ in range(20):
        wanted = _some(kind, shape, draw)
        values = {f"v{i}": _some(kind, shape, draw) for i in range(10)}
        for place in range(10):  # of which some are hardly different, and some are the same
            moved = wanted if wanted.dtype in {torch.int64, torch.bool} else wanted * (1 + 10 ** draw.uniform(-9, -1))
            values[f"n{place}"] = moved.to(kind)
        values |= {f"again{place}": values[f"n{place}"].clone() for place in range(3)}
        nearest = _nearest_of_all(values, wanted)
        found += nearest is not None
        assert Nearest(values).find(wanted) == nearest
    assert found >= 10


def test_large_integers_that_float64_does_not_hold_are_told_apart():
    values = {"a": torch.tensor([2**62 + 1]), "b": torch.tensor([2**62])}
    assert Nearest(values).find(torch.tensor([2**62])) == "b"


def test_none_is_close():
    assert Nearest({"a": torch.zeros(3), "b": torch.ones(3)}).find(torch.full((3,), 0.5)) is None
    assert Nearest({"a": torch.zeros(3)}).find(torch.tensor([0.0, 0.0, torch.nan])) is None
    assert Nearest({"a": torch.eye(3)}).find(torch.eye(3).to_sparse()) is None
