"""Export of models with shared modules, buffers, autocast, string arguments and complex numbers."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export, optimize
from filch.steal import steal_forward
from support.models.small import module_of
from support.processes.forked import run_python


def captured(model, *args, dump_file=None, **kwargs):
    """A capture of one call of a model with all its submodules."""
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=dump_file) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return capture


class Shared(nn.Module):
    """One module under two names, called in turn."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first

    def forward(self, x):
        return self.first(self.again(self.first(x) + 1) * 2)


class Cell(nn.Module):
    """An LSTM cell, whose decomposition splits its gates."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x):
        h, c = self.cell(x)
        return h + self.cell(x, (h, c))[1]


class Through(nn.Module):
    """Returns its input and a computed value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x, self.linear(x)


def counting(self, x):
    """Counts its calls in a buffer."""
    self.calls += 1
    return self.linear(x) * self.calls


class Cast(nn.Module):
    """Runs some of its modules with autocast switched off."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.act(self.linear(x))
        with torch.no_grad():
            return self.linear(y)


class Modes(nn.Module):
    """Calls a module with a positional and with a keyword argument."""

    def __init__(self):
        super().__init__()
        # Has a string argument.
        self.mode = module_of(lambda self, x, mode: x * 2 if mode == "double" else x * 3)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.mode(self.linear(x), "double") + self.mode(x, mode="triple")


class Spectrum(nn.Module):
    """Computes with complex numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.fft.fft(self.linear(x)).real + 1


MODELS = (Shared, Cell, Through, Cast, Modes, Spectrum)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_hard_models_are_followed_and_close(make):
    """Every module call is resolved, none wrongly, in the exported and the optimized program."""
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 4)
    capture = captured(model, x)
    program = export(model, (x,))

    plain, optimized = compare(capture, program), compare(capture, optimize(program))

    assert plain.close
    assert optimized.close
    wrong = [
        str(row)
        for report in (plain, optimized)
        for row in report.modules
        if row.difference and not row.difference.close
    ]
    assert not wrong
    assert {row.resolution for row in plain.modules} <= {"exact", "alias", "dead"}


def test_operations_in_regions_keep_their_modules_and_source_lines():
    """torch.onnx runs generated code for a region (autocast, no_grad), whose lines are nowhere in the model."""
    nodes = export(Cast().eval(), (torch.randn(2, 4),)).graph.nodes

    assert [(node.op, node.module) for node in nodes] == [("Gemm", "linear"), ("Tanh", "act"), ("Gemm", "linear")]
    files = [(node.source or "").partition(":")[0] for node in nodes]
    assert [Path(file).name for file in files] == ["linear.py", "activation.py", "linear.py"]


def test_exporting_does_not_change_buffers_and_the_program_has_its_own():
    """The export does not advance a counter, and the model's next call does not change the program."""
    torch.manual_seed(0)
    model, x = module_of(counting, calls=torch.zeros(1), linear=nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    program = export(model, (x,))

    assert model.calls == 0
    capture = captured(model, x)
    captured(model, x)

    proof = compare(capture, program).proof
    assert not proof.is_wrong
    assert [gap.name for gap in proof.gaps] == ["buffer calls, after the call"]  # no output of the program


def test_modules_called_in_two_ways_keep_the_signatures_of_the_others():
    """Only the values of the module itself are matched by value."""
    program = export(Modes().eval(), (torch.randn(2, 4),))

    notes = {path: port.note for (path, _), call in program.module_calls.items() for port in call.outputs}
    assert notes["mode"] == "matched by value"
    assert notes["linear"] == ""


def test_dynamic_dimensions_may_be_given_by_name():
    """torch.onnx.export accepts names, too."""
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)

    program = export(model, (x,), dynamic_shapes=({0: "batch"},))

    assert compare(captured(model, torch.randn(5, 4)), program).close


def test_a_saved_program_with_a_cache_is_compared_where_its_library_is_not_imported(tmp_path):
    """All of its values are compared in a process that does not import transformers."""
    from support.models.zoo import HARD

    model, args, kwargs = HARD["llama_past"]()
    captured(model, *args, dump_file=tmp_path / "ref.onnx", **kwargs)
    export(model, args, kwargs).save(tmp_path / "model.onnx")

    script = (
        "import sys; from filch.compare import compare; report = compare('ref.onnx', 'model.onnx'); "
        "assert 'transformers' not in sys.modules; print(report.headline, report.close, report.notes)"
    )
    (tmp_path / "script.py").write_text(script)
    done = run_python(tmp_path / "script.py", cwd=tmp_path)

    assert done.stdout.startswith("judged 460 of 460 exported values")
    assert done.stdout.strip().endswith("True ()")


def test_branches_of_a_condition_may_call_modules():
    """Dynamo traces them in eager PyTorch, too, and refuses side effects, so the hooks do nothing there."""
    model = module_of(
        lambda self, x: torch.cond(x.sum() > 0, self.yes, self.no, (x,)), yes=nn.Linear(4, 4), no=nn.Linear(4, 4)
    )
    program = export(model.eval(), (torch.ones(2, 4),))

    assert [node.op for node in program.graph.nodes][-1] == "If"
