"""What ONNX Runtime made of each node: origins, outcomes, values in other forms; and faults inside of what it made."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from filch.compare import compare
from filch.export import Program, export, load_program, optimize
from filch.export.backends import get_backend
from filch.export.lowering._integers import products_saturate
from support.faults.fakes import IsolatingPlantedBackend
from support.models.compiled_graphs import measure
from support.models.small import capture_of
from support.thorough import slow


class Net(nn.Module):
    """Convolutions with a shortcut, which are blocked; a norm of what is permuted; products of three dimensions."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.side = (nn.Conv2d(n, 16, 3, padding=1) for n in (3, 16, 16))
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x) + self.side(x))
        y = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + x
        y = y.flatten(2).transpose(1, 2)
        return y + self.down(nn.functional.gelu(self.up(self.norm(y))))


def given(model, *args):
    """A capture of a model's call, and its optimized program."""
    capture = capture_of(model, *args, submodules=True)
    return capture, optimize(export(model, args))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return given(Net().eval(), torch.randn(2, 3, 8, 8))


@pytest.fixture(scope="module")
def half():
    torch.manual_seed(0)
    return given(Net().eval().half(), torch.randn(2, 3, 8, 8).half())


def compiled_rows(report):
    return [row for row in report.rows if row.stage == "compiled" and row.kind != "output"]


def check_is_explained(report, exported):
    """Every exported node has an outcome, every compiled one its origins, and what it is made of is what it is in."""
    nodes = {row.node for row in compiled_rows(report)}
    assert len({outcome.node for outcome in report.outcomes}) == exported
    assert all(row.origins or row.kind == "inserted" for row in compiled_rows(report))
    for outcome in report.outcomes:
        assert set(outcome.into) <= nodes
        assert bool(outcome.into) or outcome.note or outcome.kind == "folded", outcome
        assert (outcome.kind == "removed") == bool(outcome.note), outcome
    alone = {row.node: row.origins for row in compiled_rows(report) if row.kind == "node"}
    for outcome in report.outcomes:
        if outcome.kind == "survives":
            assert any(outcome.node in alone.get(name, (outcome.node,)) for name in outcome.into), outcome


@slow
@pytest.mark.parametrize("name", ["resnet", "bert", "whisper"])
def test_every_node_of_a_model_is_explained_and_judged_at_each_level(name):
    """Every node has an outcome or origins, and every value is right; `tools/evidence_tables.py` has more models."""
    levels = {level: get_backend("onnxruntime-cpu", level=level) for level in ("basic", "all")}
    for line in measure(name, levels):
        check_is_explained(line.report, len({outcome.node for outcome in line.report.outcomes}))
        assert line.report.undisturbed
        assert [str(row) for rows in line.nodes for row in rows if not row.judged] == []
        assert line.report.close, line.report.first_divergence


@slow
def test_what_the_exporter_left_in_is_folded_removed_or_kept():
    """Without the exporter's optimizations: constants, no-ops and repetitions are ONNX Runtime's to remove."""
    (line,) = measure("bert", {"all": get_backend("onnxruntime-cpu")}, optimized=False)

    check_is_explained(line.report, len({outcome.node for outcome in line.report.outcomes}))
    notes = {outcome.note.partition(":")[0] for outcome in line.report.outcomes if outcome.kind == "removed"}
    assert notes == {"no-op", "duplicate"}
    assert any(outcome.kind == "folded" and outcome.into for outcome in line.report.outcomes)
    assert line.report.close


def scale(model, weight):
    """Make one weight 1.1 times as large."""
    held = next(item for item in model.graph.initializer if item.name == weight)
    held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * np.float32(1.1), weight))


def weights_of(capture, program):
    """The float weights that one compiled node alone reads first, by the node's name."""
    found: dict[str, str] = {}

    def look(model):
        floats = {item.name for item in model.graph.initializer if item.data_type == onnx.TensorProto.FLOAT}
        uses = Counter(name for node in model.graph.node for name in node.input)
        for node in model.graph.node:
            own = [name for name in node.input if name in floats and uses[name] == 1]
            if own and node.name:
                found[node.name] = own[0]

    compare(capture, program, backend=IsolatingPlantedBackend(look), stages=["compiled"])
    return found


@slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_wrong_weight_inside_the_compiled_graph_is_found_at_its_node(dtype, request):
    """Of every node that has one: blocked, fused, moved, reshaped, cast. A sound graph has none."""
    capture, program = request.getfixturevalue("net" if dtype == "float32" else "half")
    weights = weights_of(capture, program)
    sound = compare(capture, program, backend=IsolatingPlantedBackend(lambda model: None))

    assert sound.close
    assert len(weights) >= 5
    for node, weight in weights.items():
        report = compare(
            capture, program, backend=IsolatingPlantedBackend(partial(scale, weight=weight)), stages=["compiled"]
        )
        assert report.first_divergence.node == node, weight


def change(model, op, name, to):
    """Change an attribute of the first node that has it."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == op and attribute.name == name:
                to(attribute)
                return node.name
    raise AssertionError(f"no {op} has {name}")


@pytest.mark.parametrize(
    ("op", "name", "to"),
    [
        ("Transpose", "perm", lambda attribute: attribute.ints.__setitem__(slice(None), [0, 3, 2, 1])),
        ("LayerNormalization", "epsilon", lambda attribute: setattr(attribute, "f", 0.1)),
        ("Conv", "activation", lambda attribute: setattr(attribute, "s", b"Tanh")),
    ],
)
def test_a_wrong_attribute_inside_the_compiled_graph_is_found_at_its_node(net, op, name, to):
    """Also of a node that only permutes: its value is compared with the exported value that it permutes."""
    changed: list[str] = []

    report = compare(*net, backend=IsolatingPlantedBackend(lambda model: changed.append(change(model, op, name, to))))

    assert next(row.node for row in report.diverged if row.stage == "compiled") == changed[0]


def test_blocked_values_are_shown_as_the_model_has_them(net):
    """Each under its own node, whose name is that of what it was before a sum and an activation joined it."""
    report = compare(*net)
    blocked = [row for row in compiled_rows(report) if "nchwc" in row.op]
    if not blocked:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")

    assert all(row.judged for row in blocked)
    assert ("Conv", "Add", "Relu") in {row.operators for row in blocked}
    assert {row.shape for row in blocked if row.kind == "fused"} == {(2, 16, 8, 8)}


def test_channels_that_fill_the_last_block_are_left_out():
    """Of 24 channels in blocks of 16, a third block's worth is not the model's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 16, 3), nn.ReLU()).eval()
    report = compare(*given(model, torch.randn(1, 3, 8, 8)))

    assert {row.shape[1] for row in compiled_rows(report) if row.kind == "fused"} == {24, 16}
    assert all(row.judged for row in compiled_rows(report))
    assert report.close


class Gated(nn.Module):
    """Products of blocked values and their sigmoids, one of them scaled."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x):
        x = nn.functional.silu(self.first(x))
        x = self.second(x)
        return self.last(x * torch.sigmoid(1.7 * x))


def test_a_blocked_value_times_its_sigmoid_is_judged():
    """ONNX Runtime fuses both into a node whose name, and whose value's, are new."""
    torch.manual_seed(0)
    report = compare(*given(Gated().eval(), torch.randn(1, 16, 8, 8)))
    fused = [row for row in compiled_rows(report) if row.op == "com.microsoft::QuickGelu"]
    if not fused:
        pytest.skip("ONNX Runtime has no blocked layout on this processor, or does not fuse this")

    assert len(fused) == 2
    assert not [str(row) for row in compiled_rows(report) if not row.judged]
    assert report.close


def test_a_quantised_graph_is_the_same_in_other_forms(tmp_path):
    """QLinearConv and QGemm: what they make is, without its new type and layout, what the exported graph has."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4)).eval(),
        torch.randn(1, 3, 8, 8),
    )
    program = optimize(export(model, (x,)))
    program.save(tmp_path / "float.onnx", original=False)
    feeds = iter([{program.graph.inputs[0]: x.numpy()}])
    reader = type("Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(feeds, None)})()
    narrow = products_saturate()
    quantization.quantize_static(tmp_path / "float.onnx", tmp_path / "int8.onnx", reader, reduce_range=narrow)
    quantised, backend = load_program(tmp_path / "int8.onnx"), get_backend("onnxruntime-cpu")

    made = [backend.compile(quantised, optimize=optimized) for optimized in (False, True)]
    exported, compiled = (backend.run(one, {quantised.graph.inputs[0]: x}, one.graph.producer) for one in made)

    assert {"QLinearConv", "QGemm"} <= {node.op.rpartition("::")[2] for node in made[1].graph.nodes}
    known = {name: exported.get(made[1].value_aliases.get(name, name)) for name in compiled}
    assert sum(reference is not None for reference in known.values()) >= 4
    for name, reference in known.items():
        if reference is None:  # moved past a Reshape: it has no name that tells
            continue
        tensor = compiled[name]
        assert (tensor.shape, tensor.dtype) == (reference.shape, reference.dtype), name
        step = 1 if tensor.dtype == torch.int8 else 0.05
        assert (tensor.float() - reference.float()).abs().max() <= step, name


class Branches(nn.Module):
    """Control flow whose bodies ONNX Runtime optimizes too."""

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: torch.relu(x) * 2, lambda x: x - 1, (x,))
        return y @ y.T + 1


def test_control_flow_is_judged_by_what_comes_out_of_it():
    """The node computes what runs in the branch that it takes."""
    torch.manual_seed(0)
    report = compare(*given(Branches().eval(), torch.rand(3, 3)))

    outcomes = {outcome.op: outcome for outcome in report.outcomes}
    assert outcomes["Relu"].kind == "fused"
    assert {row.op for row in compiled_rows(report) if row.node in outcomes["Relu"].into} == {"If"}
    assert report.close
    check_is_explained(report, len({outcome.node for outcome in report.outcomes}))
    assert all(row.judged for row in compiled_rows(report))


FUNCTION = """
<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
agraph (float[2, 3] x) => (float[2, 3] y) {
   h = local.Twice (x)
   y = Relu (h)
}
<domain: "local", opset_import: ["" : 18]>
Twice (a) => (b) {
   c = Add (a, a)
   b = Tanh (c)
}
"""


class Twice(nn.Module):
    """What the function computes."""

    def forward(self, x):
        return torch.relu(torch.tanh(x + x))


def test_a_function_that_was_inlined_is_the_origin_of_what_was_in_it():
    """Its last node makes the call's value; those before have other names in each call."""
    program = Program(ir.serde.deserialize_model(onnx.parser.parse_model(FUNCTION)))
    model = Twice()
    capture = capture_of(model, torch.randn(2, 3))
    report = compare(capture, program)

    rows = {row.op: row for row in compiled_rows(report)}
    assert rows["Tanh"].operators == rows["Add"].operators == ("Add", "Tanh")
    assert rows["Add"].reason == "the exported graph has no such value: see " + rows["Tanh"].node
    check_is_explained(report, 3)
    assert report.close


def test_each_node_of_either_graph_has_its_time(net):
    """Beside its error, in both tables, where it was asked for."""
    report = compare(*net, profile=True)

    rows = [row for row in report.rows if row.kind != "output"]
    assert all(row.seconds is not None and 0 < row.seconds < 1 for row in rows)
    assert " µs " in report.table("nodes", width=80)
    assert " µs " in report.table(wide=True)
    assert " µs " not in compare(*net).table(wide=True)


def test_the_outcomes_are_a_view(net):
    """A line a node, after their numbers; also in JSON."""
    report = compare(*net)
    text = report.table("outcomes", wide=True)

    assert f"of {len(report.outcomes)} exported nodes " in text
    assert all(outcome.node in text for outcome in report.outcomes)
    assert "fused" in {outcome["kind"] for outcome in json.loads(report.to_json())["outcomes"]}
    assert "compiles no graph of its own" in replace(report, outcomes=()).table("outcomes")


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8e4m3fn", "float8e5m2"])
def test_values_that_torch_can_not_share_are_left_out(dtype, optimize):
    """The other values of the graph are observed, and come from those that are left out."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 21]>
        quantized (float[4] x) => (float[4] y) <float scale = {{0.5}}> {{
            q = QuantizeLinear <output_dtype = {onnx.TensorProto.DataType.Value(dtype.upper())}> (x, scale)
            r = DequantizeLinear (q, scale)
            y = Neg (r)
        }}""")
    backend = get_backend("onnxruntime-cpu")
    compiled = backend.compile(Program(model), optimize=optimize)
    x = torch.tensor([0.0, 0.5, 1.0, 3.5])

    observed = dict(backend.observe(compiled, {"x": x}, buffer=1))

    assert {"q", "r", "y"} <= {name for node in compiled.graph.nodes for name in node.outputs}
    assert observed.keys() == {"r", "y"}
    assert torch.equal(observed["y"], -x)
