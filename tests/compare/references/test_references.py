"""Where the reference of a value comes from: which source takes precedence, and what is noted if one is missing."""

from dataclasses import replace
from types import SimpleNamespace

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.compare.references._decomposition_replay import DecompositionReplay
from filch.compare.references._inputs import CapturedCall, captured_calls
from filch.compare.references._references import References, captured_values
from filch.compare.references._resolver import Reference, ReferenceResolver
from filch.export import ModuleCall, Original, Port, Program, export
from support.models.small import capture_of, module_of

X = torch.arange(1.0, 5.0)


class Computed(ReferenceResolver):
    """A fake eager replay with the same result for four values."""

    def _compute(self, name):
        return Reference(X, "eager") if name in "abcd" else None


def test_known_references_precede_what_is_computed():
    """Preferred references come before all others, and the fallback comes last."""
    resolver = Computed({"a": Reference(X, "module"), "b": Reference(X, "given")})
    resolver.set_fallback({name: Reference(X, "derived") for name in "abcde"})

    def evidence():
        return [None if (found := resolver.get(name)) is None else found.evidence for name in "abcdef"]

    assert evidence() == ["module", "given", "eager", "eager", "derived", None]
    resolver.set_preferred({name: Reference(X, "inferred") for name in "ac"})
    assert evidence() == ["inferred", "given", "inferred", "eager", "derived", None]


@pytest.fixture(scope="module")
def called():
    """Return a captured call of a model with one submodule, which is called twice."""
    model = module_of(lambda self, x: self.inner(-self.inner(x)), inner=nn.ReLU())
    capture = capture_of(model, X, submodules=True)
    keys = {("", 0): ("", 0), ("inner", 0): ("inner", 0), ("inner", 1): ("inner", 1)}
    return capture, CapturedCall(0, "", {"x": X}, keys)


def module_call(path, iteration, taken, returned):
    return ModuleCall(path, iteration, (Port("input", taken, "exact"),), (Port("", returned, "exact"),))


def test_a_captured_tensor_is_the_reference_of_the_value_that_its_port_names(called):
    """Each module call has its own; inputs, fused values and calls that the program lacks have none."""
    capture, call = called
    calls = {("inner", 0): module_call("inner", 0, "x", "a"), ("inner", 1): module_call("inner", 1, "b", None)}
    found = captured_values(capture, SimpleNamespace(module_calls=calls), call)
    assert found.keys() == {"a", "b"}
    assert torch.equal(found["a"], X)
    assert torch.equal(found["b"], -X)


def test_without_the_exported_program_only_modules_are_references_and_this_is_noted(called):
    """A requested weight is its own reference."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    main (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { a = Relu(x) b = Neg(a) y = Mul(b, w) }"""
    capture, call = called
    calls = {("inner", 0): module_call("inner", 0, "x", "a")}
    program = Program(ir.from_onnx_text(text), module_calls=calls, missing="model.pt2")
    references = References(capture, program, wanted={"a", "b", "w"}, buffer=0)
    resolver = references.of(call, {"a", "b", "w"})
    evidence = {name: found.evidence for name in "abwx" if (found := resolver.get(name)) is not None}
    assert evidence == {"a": "module", "w": "given", "x": "given"}
    assert references.notes == ["'model.pt2' is not beside the ONNX file: only modules have reference values"]


def test_a_transposed_weight_is_computed_without_a_decomposition(monkeypatch):
    """The layer is not replayed for it, and the backend's own Transpose is judged by it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    x = torch.randn(2, 3, 4)
    program = export(model, (x,))
    names = {node.outputs[0] for node in program.graph.nodes if node.op == "Transpose"}
    assert len(names) == 2
    capture = capture_of(model, x, submodules=True)
    call = captured_calls(capture, program).calls[0]
    wanted = frozenset(program.graph.producer)
    monkeypatch.setattr(DecompositionReplay, "run", lambda *_: pytest.fail("a decomposition was replayed"))

    resolver = References(capture, program, wanted=wanted, buffer=2**20).of(call, wanted)

    found = {name: resolver.get(name) for name in names}
    for reference in found.values():
        assert reference is not None
        assert reference.evidence == "derived"
        assert any(torch.equal(reference.tensor, weight.T) for weight in model.state_dict().values())
    wrong = replace(program, model=ir.from_proto(ir.to_proto(program.model)))
    for node in wrong.model.graph:
        if node.op_type == "Transpose" and node.outputs[0].name == max(names):
            node.attributes["perm"] = ir.AttrInt64s("perm", [0, 1])
    monkeypatch.undo()
    assert compare(capture, wrong, stages=["exported"]).first_divergence.value == max(names)


@pytest.mark.parametrize("perm", [[0, 0], [1], [2, 0]])
def test_a_transpose_of_impossible_dimensions_has_no_reference(perm):
    """The file of the original may declare any order."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4, bias=False), torch.randn(2, 3, 4)
    program = export(model, (x,))
    capture = capture_of(model, x)
    changed = ir.from_proto(ir.to_proto(program.original.model))
    names = [node.outputs[0].name for node in changed.graph if node.op_type == "Transpose"]
    for node in changed.graph:
        if node.op_type == "Transpose":
            node.attributes["perm"] = ir.AttrInt64s("perm", perm)

    original = Original(lambda: (program.exported_program, changed), program.original.identity)
    report = compare(capture, replace(program, original=original), stages=["exported"])

    assert [row.judged for row in report.rows if row.value in names] == [False]
