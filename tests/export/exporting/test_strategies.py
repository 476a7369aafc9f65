"""Models that torch.export refuses with `strict=False` are exported as torch.onnx does."""

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import ExportError, Program, export, load_program
from filch.steal import Capture, steal_forward


class Counted(nn.Module):
    """Reads a number off a tensor, which torch.export can follow with `strict=True` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear layer's result, raised by a sum that depends on how many numbers are positive."""
        count = int((x > 0).sum())
        return self.act(self.linear(x)) + torch.arange(count).sum()


class Branched(nn.Module):
    """Branches on the data, which no strategy can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the input, unless one number is positive."""
        return x if (x > 0).sum().item() == 1 else x * 2


@pytest.fixture(scope="module")
def exported() -> tuple[Capture, Program]:
    """What the first model did, and what became of it."""
    torch.manual_seed(0)
    model, x = Counted().eval(), torch.randn(5, 4)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(x)
    return capture, export(model, (x,))


def test_a_model_is_exported_by_the_first_strategy_that_can(exported):
    """The program says which one it was, and its module calls are right: every value of a module is judged."""
    capture, program = exported
    assert program.strategy == "strict=True"
    assert set(program.module_calls) == {("", 0), ("linear", 0), ("act", 0)}
    report = compare(capture, program)
    assert report.close
    assert all(row.value is not None and row.difference is not None and row.difference.close for row in report.modules)


def test_the_strategy_travels_with_the_file(exported, tmp_path):
    """Somebody who has the file alone knows it, too."""
    exported[1].save(tmp_path / "m.onnx", original=False)
    assert load_program(tmp_path / "m.onnx").strategy == "strict=True"


def test_a_dynamic_dimension_may_be_of_size_1():
    """torch.onnx lets it be dynamic; torch.export by itself makes a constant of it and refuses."""
    program = export(nn.Linear(4, 4), (torch.ones(1, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert program.strategy == "strict=False, backed_size_oblivious"
    assert program.graph.values[program.graph.inputs[0]].shape == ("batch", 4)


def test_torch_exports_own_error_is_told_if_all_strategies_fail():
    """Not that of the last one that was tried."""
    with pytest.raises(ExportError, match=r"torch can't export Branched: GuardOnDataDependentSymNode"):
        export(Branched(), (torch.randn(5, 4),))


def test_most_models_are_exported_with_strict_false():
    """The first strategy is enough for them."""
    assert export(nn.ReLU(), (torch.ones(2),)).strategy == "strict=False"
