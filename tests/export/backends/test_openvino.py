"""OpenVINO: its executed layers are judged, undisturbed, and a fault in one of them is found there."""

import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from filch.compare import compare, compiled_graph
from filch.export import BackendError, Program, export
from filch.export.backends import Compiled, Profiles, get_backend
from filch.steal import steal_forward
from support.models.small import module_of
from support.models.zoo import exported
from support.thorough import kept, slow
from support.versions import since

pytest.importorskip("openvino", reason="backend 'openvino' needs pip install 'filch[openvino]'")
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}


class Block(nn.Module):
    """What OpenVINO fuses: a convolution with its norm and activation, a residual, a linear layer behind a view."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.again = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 5)
        self.layer_norm = nn.LayerNorm(5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.again(x) + x)
        return self.layer_norm(torch.nn.functional.gelu(self.last(x.mean((2, 3)))))


def subject(model, *args, **kwargs):
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    return capture, export(model, args, kwargs)


@cache
def block():
    torch.manual_seed(0)
    return subject(Block().eval(), torch.randn(2, 3, 8, 8))


@cache
def judged(name):
    model, args, kwargs, program = exported(name)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    return program, compare(capture, program, backend=get_backend("openvino", config=FLOAT32))


NAMES = kept(["resnet", "llama"], "resnet")


@slow
@pytest.mark.parametrize("name", NAMES)
def test_a_clean_model_is_silent_and_nearly_all_layers_are_judged(name):
    """At least 95 % of the executed nodes have origins and an error, under 1e-4, and looking changed no bit."""
    _, report = judged(name)
    nodes = {row.node: row for row in report.rows if row.kind in ("node", "fused")}
    good = {row.node for row in report.rows if row.judged and row.origins}

    assert report.close
    assert report.undisturbed
    assert {row.stage for row in report.rows} == {"compiled"}
    assert len(nodes.keys() & good) >= 0.95 * len(nodes)
    assert report.worst.error < 1e-4


@slow
@pytest.mark.parametrize("name", NAMES)
def test_every_exported_node_is_explained(name):
    """It is among the origins of an executed node, or does not depend on the inputs."""
    program, report = judged(name)
    explained = {name for row in report.rows for name in row.origins}
    graph = program.graph

    computed = [node for node in graph.nodes if not {*node.outputs} <= graph.constant_values]
    assert [node.name for node in computed if node.name not in explained] == []


def test_every_value_of_the_graph_has_its_name_and_its_type():
    """Also what OpenVINO alone has, and names by nothing."""
    _, program = block()

    graph = compiled_graph(program, backend="openvino")

    made = [name for node in graph.nodes for name in node.outputs]
    assert {name: value.name for name, value in graph.values.items()} == {name: name for name in graph.values}
    assert made and all(graph.values[name].dtype for name in made)


def test_a_result_that_is_copied_to_another_layout_is_made_once():
    """The copy has its name: a value of two producers would be drawn as reading itself."""
    model = nn.Sequential(nn.ConvTranspose2d(4, 8, 4), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()).eval()

    capture, program = subject(model, torch.randn(2, 4, 1, 1))
    report = compare(capture, program, backend="openvino")

    made = Counter(name for node in report.graphs["compiled"].nodes for name in node.outputs)
    assert made["tanh"] == 1 and made.total() == len(made)
    assert not [node for node in report.graphs["compiled"].nodes if {*node.reads} & {*node.outputs}]
    assert report.close and all(row.judged for row in report.rows)


def test_layers_say_what_was_fused_into_them_and_by_which_kernel_they_run():
    """A convolution has the activation behind it."""
    _, report = judged("resnet")
    _, program = block()

    made = get_backend("openvino", config=FLOAT32).compile(program, optimize=True)

    assert any("Convolution" in row.op and "Relu" in row.operators for row in report.rows if row.kind == "fused")
    assert {node.attributes["precision"] for node in made.graph.nodes if "Convolution" in node.op} == {"f32"}
    assert all(primitive for node in made.graph.nodes for primitive in node.attributes["primitives"])


@contextmanager
def wrong_weight(monkeypatch, shape):
    """OpenVINO reads a model in which the first weight of a shape is 1 % too large."""
    import openvino as ov

    class Core(ov.Core):
        def read_model(self, *args):
            model = super().read_model(*args)
            constants = [op for op in model.get_ordered_ops() if op.get_type_name() == "Constant"]
            old = next(op for op in constants if tuple(op.output(0).get_partial_shape().to_shape()) == shape)
            changed = ov.opset13.constant((old.data * np.float32(1.01)).astype(np.float32))
            for user in old.output(0).get_target_inputs():
                user.replace_source_output(changed.output(0))
            return model

    with monkeypatch.context() as patch:
        patch.setattr(ov, "Core", Core)
        yield


@pytest.mark.parametrize(
    ("shape", "module"), [((8, 3, 3, 3), "conv"), ((8, 8, 3, 3), "again"), ((5, 8), "last")], ids=str
)
def test_a_wrong_weight_is_found_at_its_layer(monkeypatch, shape, module):
    """The first row that differs computes the exported node that has the weight."""
    capture, program = block()
    owner = program.module_calls[module, 0].outputs[0].value

    with wrong_weight(monkeypatch, shape):
        report = compare(capture, program, backend=get_backend("openvino", config=FLOAT32))

    assert not report.close
    assert program.graph.producer[owner].name in report.first_divergence.origins
    assert compare(capture, program, backend=get_backend("openvino", config=FLOAT32)).close


class Attention(nn.Module):
    """Queries are scaled after they were transposed: OpenVINO scales what the linear layer makes instead."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, width) for width in (16, 16, 24))

    def forward(self, x):
        query, key, value = (linear(x).view(2, 6, 4, -1) for linear in (self.query, self.key, self.value))
        scores = (query.transpose(1, 2) * 0.3) @ (key.permute(0, 2, 3, 1) * 0.4)
        return torch.softmax(scores, -1) @ value.transpose(1, 2), scores


@slow
def test_a_factor_that_openvino_moved_is_in_no_value_s_way(monkeypatch):
    """What the linear layer makes is not exported with the factor in it; transposed it is, and is judged as that."""
    torch.manual_seed(0)
    capture, program = subject(Attention().eval(), torch.randn(2, 6, 16))
    clean = compare(capture, program, backend=get_backend("openvino", config=FLOAT32))
    with wrong_weight(monkeypatch, (16, 16)):
        wrong = compare(capture, program, backend=get_backend("openvino", config=FLOAT32))

    assert clean.close and clean.undisturbed
    assert all(row.judged for row in clean.rows if row.kind in ("node", "fused"))
    first = wrong.first_divergence
    assert "Transpose" in first.op and {"node_linear", "node_linear_1"} & {*first.origins}


class Rotated(nn.Module):
    """Rotates half of the channels, as GPT-NeoX does: OpenVINO makes one layer of it, with all of them."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(16, 16)
        angles = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
        self.cos, self.sin = nn.Buffer(angles.cos()[None, None]), nn.Buffer(angles.sin()[None, None])

    def forward(self, x):
        query = self.query(x).view(2, 6, 2, 8).transpose(1, 2)
        part, rest = query[..., :4], query[..., 4:]
        turned = torch.cat((-part[..., 2:], part[..., :2]), -1)
        query = torch.cat((part * self.cos + turned * self.sin, rest), -1)
        return query @ query.transpose(-1, -2)


def test_a_layer_is_not_called_by_a_value_of_another_size():
    """Asked for the sum of the rotated channels, OpenVINO gives all of them under its name."""
    torch.manual_seed(0)
    report = compare(*subject(Rotated().eval(), torch.randn(2, 6, 16)), backend=get_backend("openvino", config=FLOAT32))

    assert report.close
    row = next(row for row in report.rows if row.op == "RoPE")
    assert (row.shape, row.status) == ((2, 2, 6, 8), "same")


def unrolled(self, x):
    """A recurrent cell whose first state is zero: a product of constants, which OpenVINO adds to the other bias."""
    hidden = cell = torch.zeros(2, 8)
    for step in x.unbind(1):
        hidden, cell = self.cell(step, (hidden, cell))
    return hidden


@slow
def test_what_is_asked_for_in_vain_changes_no_result():
    """Values inside of layers are asked for, not found, and then not asked for along with those that are."""
    torch.manual_seed(0)
    capture, program = subject(module_of(unrolled, cell=nn.LSTMCell(4, 8)).eval(), torch.randn(2, 4, 4))

    report = compare(capture, program, backend=get_backend("openvino", config=FLOAT32))

    assert report.close
    assert report.undisturbed, report.headline


@slow
def test_a_large_model_is_compiled_for_each_run_instead_of_kept(monkeypatch):
    """Each compiled model has a copy of the weights; the rows are those of models that are kept."""
    capture, program = block()
    kept = compare(capture, program, backend="openvino")
    monkeypatch.setattr("filch.export.backends.openvino._backend._LARGE", 0)
    backend = get_backend("openvino")

    handle = backend.compile(program, optimize=True).handle
    assert [item.compiled for item in (handle.plain, *handle.observing)] == [None] * (1 + len(handle.observing))
    rows = compare(capture, program, backend=backend).rows
    assert [(row.value, row.difference, row.float64) for row in rows] == [  # names of nodes have numbers of OpenVINO
        (row.value, row.difference, row.float64) for row in kept.rows
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_a_compilation_that_observing_changed_is_left_out_or_told(alone, monkeypatch):
    """One that gives another result is believed only where there is no other; the report's first line says so then."""
    import openvino as ov

    capture, program = block()
    backend = get_backend("openvino", config=FLOAT32)
    real = type(backend).run

    def disturbed(self, compiled, inputs, watch=()):
        changed = ov.Core()
        model = changed.read_model(program_file)
        bias = next(op for op in model.get_ordered_ops() if op.get_friendly_name() == "last.bias")
        for user in bias.output(0).get_target_inputs():
            user.replace_source_output(ov.opset13.constant(bias.data + np.float32(0.5)).output(0))
        other = replace(compiled.handle.plain, compiled=changed.compile_model(model, "CPU", FLOAT32))
        handle = replace(compiled.handle, observing=(other,) if alone else (other, *compiled.handle.observing))
        return real(self, Compiled(compiled.graph, handle), inputs, watch)

    from filch.export.backends import _files

    write = _files.write_model
    program_file = ""

    def kept(model, path):
        nonlocal program_file
        program_file = str(write(model, path))
        return write(model, path)

    monkeypatch.setattr("filch.export.backends.openvino._backend.write_model", kept)
    monkeypatch.setattr(type(backend), "run", disturbed)

    report = compare(capture, program, backend=backend)

    assert report.undisturbed is not alone
    assert ("instrumentation CHANGED the outputs" in report.headline) is alone
    assert report.close is not alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_values_of_every_kind_go_in_and_out(dtype):
    """With a dynamic dimension, of two sizes."""
    shapes = {name: {0: torch.export.Dim.DYNAMIC} for name in ("x", "mask")}
    inputs = [(torch.randint(0, 2, (size, 4)).to(dtype), torch.rand(size, 4) > 0.5) for size in (3, 5)]
    model = module_of(lambda self, x, mask: (torch.where(mask, x, x.flip(1)), mask & mask.flip(1)))
    with steal_forward(model) as capture:
        for args in inputs:
            model(*args)

    report = compare(capture, export(model, inputs[0], dynamic_shapes=shapes), backend="openvino")

    assert report.close
    assert report.calls == (2, 2)


def test_doubles_that_are_computed_in_float32_are_said():
    """They differ, as they have to."""
    capture, program = subject(nn.Linear(4, 3).double(), torch.randn(2, 4, dtype=torch.float64))

    report = compare(capture, program, backend="openvino")

    assert not report.close
    assert "OpenVINO's CPU computes float64 in float32" in report.notes
    assert not any("float64" in note for note in judged("resnet")[1].notes)


def test_a_precision_other_than_openvinos_own_is_said():
    """OpenVINO takes bfloat16 where the CPU has it; float32 is kept unless it is left alone, and either is said."""
    import openvino as ov

    capture, program = block()
    own = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()

    kept, left = (compare(capture, program, backend="openvino", options={"precision": how}) for how in ("f32", None))

    assert kept.close
    assert any(f"in {own} here" in note for note in kept.notes) == (own != "f32")
    assert any(f"computes in {own} here" in note for note in left.notes) == (own != "f32")


def test_each_node_has_its_time():
    """By the names of the compiled graph."""
    _, program = block()
    backend = get_backend("openvino")
    made = backend.compile(program, optimize=True)

    assert isinstance(backend, Profiles)
    taken = backend.profile(made, {"x": torch.randn(2, 3, 8, 8)})

    assert taken.keys() == {node.name for node in made.graph.nodes}
    assert sum(taken.values()) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "NPU.7"}, r"OpenVINO has no device 'NPU.7' here; there are CPU"),
        ({"config": {"INFERENCE_PRECISION_HIN": "f32"}}, "no property .*; did you mean 'INFERENCE_PRECISION_HINT'"),
        pytest.param(
            {"config": {"INFERENCE_PRECISION_HINT": "f31"}},
            "Wrong value f31 for property key INFERENCE_PRECISION_HINT",
            marks=since("openvino", "2026", "any precision is accepted"),
        ),
        ({"nothing": 1}, "backend 'openvino' has no option 'nothing'; there are device, config, precision"),
    ],
)
def test_options_that_openvino_does_not_know_are_errors(options, message):
    """Each with a name, in one sentence."""
    _, program = block()

    with pytest.raises(BackendError, match=message) as caught:
        get_backend("openvino", **options).compile(program, optimize=True)
    assert "\n" not in str(caught.value)


def test_an_operator_that_openvino_does_not_have_is_named():
    """In one sentence, not in its traceback."""
    import onnx_ir as ir

    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape([2]))
    node = ir.node("Unheard", [x], domain="nobody")
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18, "nobody": 1}, name="g")

    with pytest.raises(BackendError, match=r"OpenVINO refuses the program: .*nobody\.Unheard") as caught:
        get_backend("openvino").compile(Program(ir.Model(graph, ir_version=10)), optimize=True)
    assert "\n" not in str(caught.value)


def test_without_openvino_the_error_says_what_to_install(monkeypatch):
    """The library is an extra."""
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.delitem(sys.modules, "filch.export.backends.openvino._backend", raising=False)

    with pytest.raises(BackendError, match=r"backend 'openvino' needs openvino.*pip install 'filch\[openvino\]'"):
        get_backend("openvino")
