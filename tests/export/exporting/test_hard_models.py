"""Models that are written as models are: what they do to names, buffers and structures is followed all the same."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import export, optimize
from filch.steal import Capture, steal_forward


def stolen(model: nn.Module, *args: object, dump_file: Path | None = None, **kwargs: object) -> Capture:
    """A capture of one call of a model with all its submodules."""
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=dump_file) as capture:
        model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return capture


class Shared(nn.Module):
    """One module under two names, called in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.again(self.first(x) + 1) * 2)


class Cell(nn.Module):
    """A cell with two states, whose decomposition splits its gates."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x)
        return h + self.cell(x, (h, c))[1]


class Through(nn.Module):
    """Gives back what it is given, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.linear(x)


class Counting(nn.Module):
    """Keeps count of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


class Cast(nn.Module):
    """Runs a part of itself with autocast switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            y = self.act(self.linear(x))
        with torch.no_grad():
            return self.linear(y)


class Mode(nn.Module):
    """Is told by a string what to do."""

    def forward(self, x: torch.Tensor, how: str) -> torch.Tensor:
        return x * 2 if how == "double" else x * 3


class Modes(nn.Module):
    """Calls a module in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mode(self.linear(x), "double") + self.mode(x, how="triple")


class Spectrum(nn.Module):
    """Goes through complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(self.linear(x)).real + 1


MODELS = (Shared, Cell, Through, Cast, Modes, Spectrum)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_hard_models_are_followed_and_close(make: type[nn.Module]) -> None:
    """Unoptimised and optimised: every call resolved, none wrong."""
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 4)
    capture = stolen(model, x)
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


def test_exporting_leaves_buffers_alone_and_the_program_has_its_own() -> None:
    """A counter is neither advanced by the export, nor does the model's next call change the program."""
    torch.manual_seed(0)
    model, x = Counting().eval(), torch.randn(2, 4)
    program = export(model, (x,))

    assert model.calls == 0
    capture = stolen(model, x)
    stolen(model, x)

    assert compare(capture, program).close


def test_modules_called_in_two_ways_keep_the_signatures_of_the_others() -> None:
    """Only the module itself is found by its numbers."""
    program = export(Modes().eval(), (torch.randn(2, 4),))

    found = {path: port.note for (path, _), call in program.module_calls.items() for port in call.outputs}
    assert found["mode"] == "found by its numbers"
    assert found["linear"] == ""


def test_dynamic_dimensions_may_be_given_by_name() -> None:
    """As torch.onnx.export takes them."""
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)

    program = export(model, (x,), dynamic_shapes=({0: "batch"},))

    assert compare(stolen(model, torch.randn(5, 4)), program).close


def test_a_saved_program_with_a_cache_is_compared_where_its_library_is_not_imported(tmp_path: Path) -> None:
    """All of its values are judged in a process that knows nothing of transformers."""
    from support.models.zoo import HARD

    model, args, kwargs = HARD["llama_past"]()
    stolen(model, *args, dump_file=tmp_path / "ref.onnx", **kwargs)
    export(model, args, kwargs).save(tmp_path / "model.onnx")

    script = (
        "import sys; from filch.compare import compare; report = compare('ref.onnx', 'model.onnx'); "
        "assert 'transformers' not in sys.modules; print(report.headline(), report.close, report.notes)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("judged 460 of 460 exported values")
    assert done.stdout.strip().endswith("True ()")


def test_branches_of_a_condition_may_call_modules() -> None:
    """Dynamo traces them in eager PyTorch, too, and refuses what has effects: looking on has none there."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, self.yes, self.no, (x,))

    program = export(Either().eval(), (torch.ones(2, 4),))

    assert [node.op for node in program.graph.nodes][-1] == "If"
