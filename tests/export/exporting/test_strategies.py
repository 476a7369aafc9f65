"""Models that torch.export can't export with `strict=False` are exported with torch.onnx's strategies."""

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import ExportError, export, load_program
from support.models.small import capture_of, module_of


def counted(self, x):
    """Add a sum that depends on the number of positive elements to the linear layer's result."""
    count = int((x > 0).sum())
    return self.act(self.linear(x)) + torch.arange(count).sum()


class Branched(nn.Module):
    """Branches on the data, which no strategy supports."""

    def forward(self, x):
        """Double the input unless exactly one element is positive."""
        return x if (x > 0).sum().item() == 1 else x * 2


@pytest.fixture(scope="module")
def exported():
    """Return a capture of the first model, and its program."""
    torch.manual_seed(0)
    model, x = module_of(counted, linear=nn.Linear(4, 4), act=nn.GELU()).eval(), torch.randn(5, 4)
    capture = capture_of(model, x, submodules=True)
    return capture, export(model, (x,))


def test_a_model_is_exported_by_the_first_strategy_that_succeeds(exported):
    """`Program.strategy` is that strategy, and every module tensor is mapped and close."""
    capture, program = exported
    assert program.strategy == "strict=True"
    assert set(program.module_calls) == {("", 0), ("linear", 0), ("act", 0)}
    report = compare(capture, program)
    assert report.close
    assert all(row.value is not None and row.difference is not None and row.difference.close for row in report.modules)


def test_the_strategy_is_saved_in_the_file(exported, tmp_path):
    """A loaded program has it, even without the original."""
    exported[1].save(tmp_path / "m.onnx", original=False)
    assert load_program(tmp_path / "m.onnx").strategy == "strict=True"


def test_a_dynamic_dimension_may_be_of_size_1():
    """torch.onnx keeps it dynamic; torch.export by itself specializes it and fails."""
    program = export(nn.Linear(4, 4), (torch.ones(1, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert program.strategy == "strict=False, backed_size_oblivious"
    assert program.graph.values[program.graph.inputs[0]].shape == ("batch", 4)


def test_the_error_of_torch_export_is_reported_if_all_strategies_fail():
    """The message is not that of the last strategy."""
    with pytest.raises(ExportError, match=r"torch can't export Branched: GuardOnDataDependentSymNode"):
        export(Branched(), (torch.randn(5, 4),))


def test_most_models_are_exported_with_strict_false():
    """The first strategy succeeds for them."""
    assert export(nn.ReLU(), (torch.ones(2),)).strategy == "strict=False"
