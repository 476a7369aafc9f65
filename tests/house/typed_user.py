"""What a user's type checker makes of Filch's names; `make lint` checks it, nothing runs it."""

from typing import Any, assert_type

import filch
from filch import Dump, Report, blame, compare, export, restore, steal_forward
from filch.export import Program


def use(model: Any, dump: Dump) -> None:
    """Call what is lazy at run time by its types."""
    with steal_forward(model) as capture:
        assert_type(capture, filch.Capture)
    assert_type(restore("ref.onnx"), filch.steal.Dump)
    assert_type(export.export(model, ()), Program)
    report = compare.compare(dump, "model.onnx")
    assert_type(report, Report)
    assert_type(filch.__version__, str)
    assert_type(filch.Key("a", 0, "I").name, str)
    assert_type(blame(report, capture, "model.onnx").close, bool)
