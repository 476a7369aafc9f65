"""Models that are hard to export: how they are exported after all, and which are refused."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.compare._compare_export import compare_export
from filch.compare.models._subject import Subject
from filch.export import BackendError, ExportError, export, load_program, optimize
from filch.steal import steal_forward
from support.models.small import capture_of, module_of, recorded
from support.processes.compilers import needs_compiler
from support.processes.forked import run_python
from support.thorough import slow


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


def through():
    """Returns its input and a computed value."""
    return module_of(lambda self, x: (x, self.linear(x)), linear=nn.Linear(4, 4))


def counting(self, x):
    """Counts its calls in a buffer."""
    self.calls += 1
    return self.linear(x) * self.calls


def cast():
    """Runs some of its modules with autocast switched off."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.act(self.linear(x))
        with torch.no_grad():
            return self.linear(y)

    return module_of(forward, linear=nn.Linear(4, 4), act=nn.Tanh())


class Modes(nn.Module):
    """Calls a module with a positional and with a keyword argument."""

    def __init__(self):
        super().__init__()
        # Has a string argument.
        self.mode = module_of(lambda self, x, mode: x * 2 if mode == "double" else x * 3)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.mode(self.linear(x), "double") + self.mode(x, mode="triple")


def spectrum():
    """Computes with complex numbers."""
    return module_of(lambda self, x: torch.fft.fft(self.linear(x)).real + 1, linear=nn.Linear(4, 4))


MODELS = (Shared, Cell, through, cast, Modes, spectrum)


@slow
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
    nodes = export(cast().eval(), (torch.randn(2, 4),)).graph.nodes

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


@slow
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
    return recorded(model, x, submodules=True)


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


def singular():
    """Computes singular values, for which torch has no translation to ONNX."""
    return module_of(
        lambda self, x: (
            {"values": torch.linalg.svdvals(self.linear(x)).reshape(x.shape[0], -1) * torch.tensor(2.0)},
            None,
        ),
        linear=nn.Linear(6, 6),
    )


@pytest.fixture(scope="module")
def subject():
    torch.manual_seed(0)
    return Subject.of(singular().eval(), torch.randn(2, 6, 6), None)


def test_it_is_refused_if_onnx_is_what_is_asked_for(subject):
    """In one sentence, with the reason."""
    with pytest.raises(ExportError, match=r"torch.onnx can't translate the exported program: .*linalg_svd"):
        subject.export(onnx_only=True)


def test_its_graph_has_the_operations_the_modules_and_the_dtypes(subject):
    """And the lines of the model's code."""
    program = subject.export()

    node = program.graph.nodes[0]
    assert (node.op, node.module, program.graph.values[node.outputs[0]].shape) == ("torch::linear", "linear", (2, 6, 6))
    assert "linalg_svd" in program.untranslated
    assert program.graph.constants[:2] == ("linear.weight", "linear.bias")


@slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=needs_compiler)])
def test_backends_that_run_pytorch_are_judged(subject, backend):
    """Each value, and a note says why there is no ONNX."""
    report = compare_export(subject.steal(), subject.export(), backend=backend)

    assert report.close and all(row.judged for row in report.rows if row.kind == "output")
    assert report.notes[0].startswith("the graph has PyTorch's operations: torch.onnx can't translate")


def test_what_else_such_a_backend_refuses_is_said_as_it_is(subject):
    """It does run PyTorch's operations, so that another one would not help."""
    with pytest.raises(BackendError, match=r"^backend 'eager' has no attention 'fast'"):
        compare_export(subject.steal(), subject.export(), backend="eager", options={"attention": "fast"})


def test_a_wrong_value_of_it_is_found(subject):
    """By a weight that is not that of the model."""
    other = Subject.of(singular().eval(), *subject.args, None)

    assert compare_export(subject.steal(), other.export(), backend="eager").outcome == "different"


def test_a_runtime_for_onnx_refuses_it_with_torchs_reason(subject):
    """And says which backends don't."""
    with pytest.raises(BackendError, match=r"linalg_svd.*; compare it on a backend that runs PyTorch's operations"):
        compare_export(subject.steal(), subject.export(), backend="onnxruntime-cpu")


@slow
@needs_compiler
def test_inductor_compiles_what_the_exporter_decomposes_to_views_of_prims():
    """`prims.broadcast_in_dim` can't be functionalized."""
    # A variance, which the exporter decomposes to `prims`.
    model = module_of(lambda self, x: x / (torch.var(x, -1, correction=1, keepdim=True) + 1.0)).eval()
    x = torch.randn(4, 3)
    program = export(model, (x,))
    assert any("prims" in str(node.target) for node in program.exported_program.graph.nodes)

    capture = capture_of(model, x)

    assert compare(capture, program, backend="inductor").close


BUFFERS = {
    "sparse": lambda: torch.eye(8).to_sparse(),
    "rows": lambda: torch.eye(8).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


def linear_with(buffer):
    """Return a model with a further buffer, which it does not use."""
    model = torch.nn.Linear(8, 8)
    model.register_buffer("held", buffer)
    return model


@pytest.mark.filterwarnings("ignore:.*(prototype|beta state)")
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_that_is_not_dense_is_exported(kind):
    """Buffers are restored after the run that records the calls, as far as a run can change them."""
    program = export(linear_with(BUFFERS[kind]()), (torch.randn(4, 8),))
    assert [node.op for node in program.graph.nodes] == ["Gemm"]


def test_weights_on_the_device_meta_are_refused():
    """They have no numbers; torch would fail somewhere behind the export."""
    with pytest.raises(ExportError, match="Linear has weights on the device meta, which have no numbers: load them"):
        export(linear_with(torch.empty(3, device="meta")), (torch.randn(4, 8),))
