"""Modules, parameters and buffers may have any name that torch accepts."""

import pytest
import torch
from torch import nn

from filch.compare import align, compare
from filch.export import export
from filch.export.graph._nodes import split_call
from filch.steal import restore, steal_forward

NAMES = ("a@b", "a@1", "a", "@", "a b", "a/b", "a:b#", "日本", "0", "class", 'a"b', "a'b", "[x]", "x" * 300)


class Named(nn.Module):
    """Calls a layer for each name, with a parameter and a buffer of that name, and the layer `a` twice."""

    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Linear(4, 4))
            self.register_parameter(f"{name}+", nn.Parameter(torch.rand(4)))
            self.register_buffer(f"{name}*", torch.rand(4))

    def forward(self, **inputs):
        x = inputs["x"] + inputs["y"]
        for name in (*NAMES, "a"):
            x = self._modules[name](x) + self._parameters[f"{name}+"] * self._buffers[f"{name}*"]
        return x


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    return Named().eval(), {"x": torch.rand(2, 4), "y": torch.rand(2, 4)}


def test_values_are_judged_under_the_names_of_their_modules(subject, tmp_path):
    """Also those whose weights torch can't write as code, and those whose names look like a second call."""
    model, inputs = subject
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx"):
        model(**inputs)

    report = compare(restore(tmp_path / "dump.onnx"), export(model, (), inputs))

    assert report.close and all(row.judged for row in report.rows), str(report)
    assert {*NAMES, ""} <= {row.module for row in report.rows}


def test_weights_and_values_are_aligned(subject):
    """As those of any other module."""
    model, inputs = subject

    assert align(model, model, kwargs=inputs).close


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("a", ("a", 0)),
        ("a@2", ("a", 2)),
        ("a@b", ("a@b", 0)),
        ("@", ("@", 0)),
        ("a@1@1", ("a@1", 1)),
        ("a@²", ("a@²", 0)),
    ],
)
def test_a_call_is_a_module_and_a_number(name, call):
    """What follows the last @, if it is a number."""
    assert split_call(name) == call
