"""Where the reference of a value comes from, and the values of the exported program, computed as they are asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.compare.references._decomposition_replay import DecompositionGroup, DecompositionReplay
from filch.compare.references._inputs import CapturedCall, captured_calls
from filch.compare.references._references import References, captured_values
from filch.compare.references._resolver import EagerReplay, Reference, ReferenceResolver
from filch.export import ExportError, ModuleCall, Original, Port, Program, export
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


LARGE = 2**20


@dataclass
class Walked:
    """Stands for the exported program: its values are `x` plus 1, 2 and so on.

    Attributes:
        names: its values.
        ends: how many of them it can compute.
        computed: those that were computed.
        wanted: those that it was asked to yield.
    """

    names: list[str] = field(default_factory=lambda: [*"abcd"])
    ends: int = 4
    computed: list[str] = field(default_factory=list)
    wanted: frozenset[str] = frozenset()

    def walk(self, inputs, *, known, wanted):
        self.wanted = frozenset(wanted)

        def values():
            for place, name in enumerate(self.names[: self.ends]):
                self.computed.append(name)
                if name in wanted:
                    yield name, known.get(name, inputs["x"] + place + 1)

        return values()


@dataclass
class Derived:
    """Fake decompositions: one group computes `p` and `q` from `a` and `c`."""

    group: DecompositionGroup = field(default_factory=lambda: DecompositionGroup((), frozenset("pq"), frozenset("ac")))
    runs: list[Mapping[str, torch.Tensor]] = field(default_factory=list)

    def group_of(self, name):
        return self.group if name in self.group.inside else None

    def run(self, group, known):
        self.runs.append(dict(known))
        return {"p": X * 10, "q": X * 20} if group.needs <= known.keys() else {}


def replay(walked, wanted, *, derived=None, buffer=0, captured=None):
    return EagerReplay({}, walked, derived or Derived(), {"x": X}, captured or {}, {}, wanted, buffer, print)


def test_the_program_runs_only_as_far_as_it_is_asked():
    """It yields only values that may be requested."""
    walked = Walked()
    eager = replay(walked, "bd")
    found = eager.get("b")
    assert torch.equal(found.tensor, X + 2)
    assert (found.evidence, walked.computed, walked.wanted) == ("eager", ["a", "b"], {"b", "d"})
    assert eager.get("unknown") is None


def test_a_captured_tensor_is_not_computed_again():
    """The program continues with the captured value."""
    found = replay(Walked(), "b", captured={"b": X * 7}).get("b")
    assert torch.equal(found.tensor, X * 7)


@pytest.mark.parametrize(("buffer", "held"), [(0, False), (LARGE, True)])
def test_a_released_value_is_held_only_if_all_fits_the_buffer(buffer, held):
    """Then all values can be requested again."""
    eager = replay(Walked(), "ab", buffer=buffer)
    assert eager.get("b") is not None
    assert eager.get("a") is not None  # it was passed, and nobody has released it
    eager.release("a")
    assert (eager.get("a") is not None) is held
    assert eager.fully_cached is held


def test_a_translation_runs_once_on_the_inputs_and_the_values_that_it_needs():
    """All of its wanted values are derived in that run."""
    derived = Derived()
    eager = replay(Walked(), "pq", derived=derived)
    found = {name: eager.get(name) for name in "pq"}
    assert {name: one.evidence for name, one in found.items()} == {"p": "derived", "q": "derived"}
    assert torch.equal(found["q"].tensor, X * 20)
    (known,) = derived.runs
    assert known.keys() == {"x", "a", "c"}
    assert eager.get("a") is None  # it was dropped after its last use
    assert eager.get("d") is None  # it was not wanted


def test_a_derived_value_that_is_not_wanted_is_not_held():
    """It is computed together with a wanted one."""
    eager = replay(Walked(), "p")
    assert eager.get("p") is not None
    assert eager.get("q") is None


def test_a_translation_whose_values_are_not_wanted_does_not_run():
    """Its inputs are not computed either."""
    walked, derived = Walked(), Derived()
    eager = replay(walked, "b", derived=derived)
    assert eager.get("p") is None
    assert (walked.computed, derived.runs) == ([], [])


def test_values_after_the_end_of_a_run_are_unknown():
    """A program that stops early does not run again, and values that a decomposition lacks are None."""
    walked = Walked(ends=2)
    eager = replay(walked, "bdp")
    assert eager.get("d") is None
    assert eager.get("p") is None
    assert eager.get("b") is not None
    assert walked.computed == ["a", "b"]


def test_an_error_is_noted_once_and_nothing_is_computed_after_it():
    """The fallback still has its values."""

    class Failing(Walked):
        def walk(self, inputs, *, known, wanted):
            yield "a", X
            raise ExportError("it needs a GPU")

    notes = []
    eager = EagerReplay({}, Failing(), Derived(), {"x": X}, {}, {}, "abc", 0, notes.append)
    eager.set_fallback({"b": Reference(X, "derived")})
    assert eager.get("a").evidence == "eager"
    assert not eager.fully_cached
    assert [eager.get("b").evidence, eager.get("c")] == ["derived", None]
    assert notes == ["it needs a GPU"]
    assert eager.fully_cached
