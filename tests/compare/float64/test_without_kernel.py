"""Tests of operators in float64 that have no kernel for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from filch.compare import align, compare
from filch.export import export
from filch.export.operators._in_float64 import float64_operator
from support.models.small import capture_of

ENDS = torch.tensor([4, 4, 8], dtype=torch.int32)  # the second group is empty
ROWS, STACK = torch.randn(8, 8), torch.randn(3, 8, 8)


@pytest.mark.parametrize(
    ("first", "second", "ends"), [(ROWS, STACK, ENDS), (STACK, ROWS, ENDS), (ROWS, ROWS, ENDS), (STACK, STACK, None)]
)
def test_products_of_groups_are_those_of_torch(first, second, ends):
    """For groups of rows, of columns and of terms, and for matrices that are all of one size."""
    operator = torch.ops.aten._grouped_mm.default  # noqa: SLF001  `grouped_mm` is no operator
    expected = operator(first, second, ends)
    result = float64_operator(operator)(first.double(), second.double(), ends)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.float(), expected)


def test_fake_quantization_of_channels_is_that_of_torch_in_float64():
    """PyTorch takes scales in float32 alone; it rounds before it adds the zero point."""
    x = torch.randint(-300, 300, (3, 7, 5)) * 0.25
    scale, zero_point = torch.tensor([0.5, 1.0, 0.25, 2.0, 0.5, 1.0, 4.0]), torch.arange(7, dtype=torch.int32)
    aten = torch.ops.aten
    for operator in (aten.fake_quantize_per_channel_affine, aten.fake_quantize_per_channel_affine_cachemask):
        expected = operator.default(x, scale, zero_point, 1, -20, 20)
        found = float64_operator(operator.default)(x.double(), scale.double(), zero_point, 1, -20, 20)
        pairs = zip(expected, found, strict=True) if isinstance(found, tuple) else [(expected, found)]
        for one, other in pairs:
            torch.testing.assert_close(other.to(one.dtype), one, rtol=0, atol=0)


class Grouped(nn.Module):
    """Multiplies groups of rows with matrices of their own at once."""

    def __init__(self):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(3, 8, 8)), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.nn.functional.grouped_mm(x, self.weight, offs=ENDS))


class OneByOne(Grouped):
    """Multiplies them one by one; `order` are their matrices."""

    order: tuple[int, ...] = (0, 1, 2)

    def forward(self, x):
        return self.last(torch.cat([x[:4] @ self.weight[self.order[0]], x[4:] @ self.weight[self.order[2]]]))


def test_products_of_groups_are_judged_in_float64():
    """Not by tolerance, which a right port and one with the matrices in another order would both need."""
    a, b = Grouped(), OneByOne()
    b.load_state_dict(a.state_dict())
    x = torch.randn(8, 8)
    result = align(a, b, x)
    assert result.outcome == "close", str(result)
    assert not any("float64 has no numbers" in remark for remark in result.remarks)
    b.order = (2, 1, 0)
    result = align(a, b, x)
    assert {item.operator for item in result.departures} == {"mm"}, str(result)


def test_an_exported_product_of_groups_is_judged_in_float64():
    """With bfloat16, in which alone torch exports it; torch.onnx can't translate it."""
    model, x = Grouped().eval().bfloat16(), torch.randn(8, 8, dtype=torch.bfloat16)
    capture = capture_of(model, x, submodules=True)
    report = compare(capture, export(model, (x,), onnx_only=False), backend="eager")
    assert report.close and not any("by tolerance" in note for note in report.notes)
    with torch.no_grad():
        model.weight[2].mul_(2)
    wrong = compare(capture, export(model, (x,), onnx_only=False), backend="eager")
    assert wrong.first_divergence is not None and "grouped_mm" in wrong.first_divergence.op
