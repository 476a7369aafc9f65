"""ONNX files of other tools against the PyTorch model: all nodes are judged, faults are named, and by the model."""

import copy

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from torch import nn

from filch.compare import CompareError, blame, compare, map_to_export
from filch.export import export
from filch.steal import steal_forward
from support.models.plain_onnx import new_names, plain, renamed, saved_by_onnxruntime
from support.models.small import capture_of, module_of
from support.models.zoo import exported
from support.thorough import slow


def recorded(model, args):
    """Return the exported model and a capture of one call."""
    capture = capture_of(model, *args, submodules=True)
    return export(model, args), capture


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    args = torch.randn(2, 8), torch.randn(16), torch.randn(1)
    # A model with two inputs of different shapes, and one that it does not read.
    model = module_of(
        lambda self, x, scale, unread: self.norm(nn.functional.gelu(self.linear(x))) * scale,
        linear=nn.Linear(8, 16),
        norm=nn.LayerNorm(16),
    ).eval()
    foreign = torch.onnx.export(model, args, verbose=False).model_proto
    return foreign, *recorded(model, args)


def with_epsilon(model, epsilon):
    """Return a copy of a model with another epsilon in its norm."""
    changed = copy.deepcopy(model)
    (norm,) = (node for node in changed.graph.node if node.op_type == "LayerNormalization")
    next(item for item in norm.attribute if item.name == "epsilon").f = epsilon
    return changed


def nodes(report):
    return [row for row in report.rows if row.kind in ("node", "fused")]


@slow
@pytest.mark.parametrize(
    ("name", "change"), [("resnet", renamed), ("bert", saved_by_onnxruntime), ("bert", lambda model: model)]
)
def test_each_node_of_a_sound_file_is_judged_and_none_is_flagged(name, change):
    """Whatever the file's names are, and whatever ONNX Runtime fused or reshaped in it."""
    model, args, kwargs, program = exported(name)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    program = map_to_export(change(plain(name)), program, capture)
    report = compare(capture, program, stages=("exported",))
    assert report.close, str(report)
    assert all(row.judged for row in nodes(report))
    evidence = {row.evidence for row in nodes(report)}
    assert ({"module", "derived"} if name == "bert" else {"module"}) <= evidence and "inferred" not in evidence
    assert {row.float64.verdict for row in nodes(report) if row.float64 is not None} <= {"same", "rounding"}


def test_a_fault_is_named_with_its_module(small):
    """The node has no name that the export has, and no metadata: both come from the node that computes the same."""
    foreign, exported, capture = small
    wrong = with_epsilon(foreign, 1e-3)
    report = compare(capture, map_to_export(renamed(wrong), exported, capture))
    first = report.first_divergence
    assert (first.op, first.module, first.evidence) == ("LayerNormalization", "norm", "module")
    assert first.node in new_names(wrong).values() and first.isolated.verdict == "wrong"
    assert "values are also in the reference" in report.notes[0]


def test_a_fault_that_the_export_shares_is_found(small):
    """The reference is the model, not its translation to ONNX: both files come from one exporter."""
    foreign, exported, capture = small
    exported = copy.copy(exported)
    exported.__dict__["model"] = exported.model.clone()
    norm = next(node for node in exported.model.graph if node.op_type == "LayerNormalization")
    norm.attributes.add(ir.AttrFloat32("epsilon", 1e-3))
    report = compare(capture, map_to_export(with_epsilon(foreign, 1e-3), exported, capture))
    assert report.first_divergence.op == "LayerNormalization"


@pytest.mark.usefixtures("forked_repros")
def test_the_cause_of_a_fault_is_sought(small, tmp_path):
    """`blame` writes a repro of the file's node."""
    foreign, exported, capture = small
    program = map_to_export(with_epsilon(foreign, 1e-3), exported, capture)
    report = blame(compare(capture, program), capture, program, tmp_path / "why")
    assert report.culprits == () and (tmp_path / "why" / "repro.py").is_file()


def test_inputs_of_other_names_are_matched_by_position(small):
    """A note says so."""
    foreign, exported, capture = small
    other = copy.deepcopy(foreign)
    names = {"x": "tokens", "scale": "factor", "unread": "nothing"}
    for value in other.graph.input:
        value.name = names[value.name]
    for node in other.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    report = compare(capture, map_to_export(other, exported, capture))
    assert report.close and "the input 'x' of the reference is 'tokens' in the program" in report.notes[0]


def test_inputs_that_the_model_does_not_read_may_be_missing(small):
    """Exporters remove them; one that is read may not be missing."""
    foreign, exported, capture = small
    without = copy.deepcopy(foreign)
    del without.graph.input[2]
    assert compare(capture, map_to_export(without, exported, capture)).close
    without.graph.initializer.append(onnx.numpy_helper.from_array(torch.ones(16).numpy(), "scale"))
    del without.graph.input[1]
    report = compare(capture, map_to_export(without, exported, capture))
    assert not report.close and "'scale' is missing" in report.interface[0]


def test_an_input_that_the_model_does_not_have_is_refused(small):
    """The message has both lists."""
    foreign, exported, capture = small
    more = copy.deepcopy(foreign)
    more.graph.input.append(helper.make_tensor_value_info("past", onnx.TensorProto.FLOAT, [1]))
    with pytest.raises(CompareError, match="takes x, scale, unread, past, which do not correspond"):
        map_to_export(more, exported, capture)


def test_a_file_for_generation_is_given_an_empty_past_and_its_outputs_are_found_by_name():
    """As of ONNX Runtime GenAI's builder: other names, another order, inputs for earlier keys and values."""
    # A model that returns keys and values as models for generation do.
    model = module_of(
        lambda self, x: {"cache": [{"keys": self.key(x), "values": self.value(x)}]},
        key=nn.Linear(8, 4),
        value=nn.Linear(8, 4),
    ).eval()
    args = (torch.randn(3, 8),)
    exported, capture = recorded(model, args)
    foreign = torch.onnx.export(model, args, verbose=False).model_proto
    graph = foreign.graph
    for output, what in zip(graph.output, ("key", "value"), strict=True):
        past = helper.make_tensor_value_info(f"past.0.{what}", onnx.TensorProto.FLOAT, ["past", 4])
        graph.input.append(past)
        graph.node.append(helper.make_node("Concat", [past.name, output.name], [f"present.0.{what}"], axis=0))
        output.name = f"present.0.{what}"
    outputs = [*graph.output]
    del graph.output[:]
    graph.output.extend(reversed(outputs))
    report = compare(capture, map_to_export(foreign, exported, capture))
    assert report.close, str(report)
    assert "inputs that the model does not have are empty: past.0.key [0, 4], past.0.value [0, 4]" in report.notes
    outputs = [row for row in report.rows if row.kind == "output" and row.stage == "exported"]
    assert [(row.value, row.evidence) for row in outputs] == [
        ("present.0.value", "module"),
        ("present.0.key", "module"),
    ]

    (key, _) = (node for node in graph.node if node.op_type == "Concat")
    key.input[1] = graph.node[-1].input[1]
    report = compare(capture, map_to_export(foreign, exported, capture))
    assert {row.value for row in report.rows if row.kind == "output" and row.diverged} == {"present.0.key"}
