"""Integers that rounding decides: they explain the errors of what depends on them only where they may differ."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir
import pytest
import torch
from torch import fx

from filch.compare import Report, compare
from filch.compare.float64._decisions import Decisions
from filch.compare.float64._values import RecordedValues
from filch.compare.runs._evaluation import Float64Evaluator
from filch.compare.runs._mode import float64_values
from filch.export import Program, export
from filch.steal import Capture
from support.faults.fakes import WrongBackend
from support.models.decisions import ALMOST_TEN, COUNT, WIDTH, Buckets, above_integers
from support.models.small import capture_of


@dataclass(frozen=True)
class Subject:
    """A capture and the program of `Buckets`, and the names of two of its values.

    Attributes:
        inputs: the inputs by name.
        buckets: the name of the integers; noise changes some of them.
        sums: the name of the values to which their embeddings were added.
    """

    capture: Capture
    program: Program
    inputs: Mapping[str, torch.Tensor]
    buckets: str
    sums: str


@pytest.fixture(scope="module")
def subject():
    """Return a model with numbers so near to the next lower integer that noise changes the integer."""
    torch.manual_seed(0)
    model, x = Buckets().eval(), torch.randn(COUNT, WIDTH)
    numbers = above_integers()
    program = export(model, (x, numbers))
    values = {name: node for node in program.graph.nodes for name in node.outputs}
    buckets = next(read for node in values.values() if node.op == "Gather" for read in node.reads[1:])
    sums = next(name for name, node in values.items() if node.op == "Add")
    value = Float64Evaluator(program).of({"x": x, "numbers": numbers}, [buckets], keep=True).get(buckets)
    assert value is not None
    changed = value.value != value.noisy
    assert 0 < int(changed.sum()) < COUNT
    numbers = torch.where(changed, numbers, numbers + 0.05)  # only these are near an integer
    capture = capture_of(model, x, numbers, submodules=True)
    return Subject(capture, program, {"x": x, "numbers": numbers}, buckets, sums)


def test_a_small_error_is_found_although_noise_changes_decisions_before_it(subject):
    """The error is a hundredth of what another bucket would change."""
    assert compare(subject.capture, subject.program).close

    backend = WrongBackend({subject.sums: lambda tensor: tensor * (1 + 3e-5)})
    report = compare(subject.capture, subject.program, backend=backend)

    assert {row.value for row in report.introduced} == {subject.sums}
    (row,) = report.introduced
    assert row.float64 is not None
    assert row.float64.verdict == "wrong"


def test_another_decision_of_a_backend_explains_the_values_that_depend_on_it(subject):
    """The backend multiplies by a number one unit below 10, so that each number near an integer is rounded down."""
    model = subject.program.model.clone()
    (multiply,) = (node for node in model.graph if node.op_type == "Mul")
    other = ir.Value(name="almost_ten", const_value=ir.tensor(ALMOST_TEN, dtype=ir.DataType.FLOAT, name="almost_ten"))
    model.graph.register_initializer(other)
    multiply.replace_input_with(1, other)

    report = compare(subject.capture, replace(subject.program, model=model), stages=["exported"])

    rows = {row.value: row for row in report.rows if row.kind == "node"}
    assert rows[subject.buckets].decides
    assert rows[subject.sums].difference is not None
    assert rows[subject.sums].difference.absolute > 0.1
    assert report.close, str(report)


def test_noise_changes_a_decision_in_its_own_value_alone(subject):
    """Both kinds of noisy values are available, and are of the same exact ones."""
    values = Float64Evaluator(subject.program).of(subject.inputs, [subject.buckets, subject.sums], keep=False)

    frozen, changed = values.get(subject.sums), values.get_with_changed_decisions(subject.sums)

    assert values.changed_decisions == {subject.buckets}
    assert frozen is not None
    assert changed is not None
    assert torch.equal(frozen.value, changed.value)
    assert float((frozen.noisy - frozen.value).abs().max()) < 1e-5
    assert float((changed.noisy - changed.value).abs().max()) > 0.1


def compiled_report(change):
    """Return the report of a compiler that changes the results of some operations."""

    def compile_wrong(module, _inputs):
        class Wrong(fx.Interpreter):
            def run_node(self, n):
                return change(n, super().run_node(n))

        return Wrong(module).run

    torch.manual_seed(0)
    torch._dynamo.reset()  # noqa: SLF001  torch documents it
    reports: list[Report] = []
    options = {"correctness_report": reports, "inner": compile_wrong}
    with torch.no_grad():
        torch.compile(Buckets().eval(), backend="filch", options=options)(torch.randn(COUNT, WIDTH), above_integers())
    return reports[0]


def test_a_small_error_of_a_compiler_is_found_although_noise_changes_decisions_before_it():
    """As for an exported program."""
    assert compiled_report(lambda _node, tensor: tensor).close

    report = compiled_report(lambda node, tensor: tensor * (1 + 3e-5) if node.name == "add" else tensor)

    first = report.first_divergence
    assert first is not None
    assert first.value == "add"


def test_another_decision_of_a_compiler_explains_the_values_that_depend_on_it():
    """As for an exported program; behind it, a small error is found."""
    factors = {"mul": 1 - 6e-8}
    report = compiled_report(lambda node, tensor: tensor * factors.get(node.name, 1))

    rows = {row.value: row for row in report.rows}
    assert rows["long"].decides
    assert rows["embedding"].difference is not None
    assert rows["embedding"].difference.absolute > 0.1
    assert report.close, str(report)

    factors["tanh"] = 1 + 3e-5
    first = compiled_report(lambda node, tensor: tensor * factors.get(node.name, 1)).first_divergence
    assert first is not None
    assert first.value == "tanh"


def test_a_tensor_is_affected_by_a_changed_decision_that_it_is_computed_from():
    """Also through writes, and without the names of the values in between."""
    numbers, x = above_integers(), torch.randn(COUNT)

    def run():
        indices = (numbers * 10).long()
        written = torch.zeros(COUNT)
        written[1:] = x[indices - 1][1:]
        return {"before": numbers * 10, "indices": indices, "after": x[indices - 1] * 2, "written": written[:1] + 1}

    values = float64_values(run)

    assert values.changed_decisions == {"indices", "after", "written"}
    after, changed = values.get("after"), values.get_with_changed_decisions("after")
    assert after is not None
    assert changed is not None
    assert float((after.noisy - after.value).abs().max()) < 1e-5
    assert float((changed.noisy - changed.value).abs().max()) > 0.1


def test_decisions_that_noise_does_not_change_take_no_second_run():
    """The function runs once, with noise and without."""
    calls = []

    def run():
        calls.append(None)
        return {"it": (torch.tensor([0.25, 0.75]) * 10).long()}

    assert float64_values(run).changed_decisions == set()
    assert len(calls) == 1


class Chain(RecordedValues):
    """Values that are computed from each other: a from b from c and d."""

    def __init__(self, changed):
        super().__init__({})
        self.changed_decisions = changed

    def reads(self, name):
        return {"a": ("b",), "b": ("c", "d")}.get(name, ())


@pytest.mark.parametrize(
    ("changed", "unaffected", "expected"),
    [
        ({"c"}, (), True), ({"a"}, ("b",), True), ({"c"}, ("b",), False), ({"c"}, ("c",), False),
        ({"c"}, ("d",), True), ({"c", "d"}, ("d",), True), ({"x"}, (), False), (set(), (), False),
    ],
)  # fmt: skip
def test_an_unaffected_value_stands_between(changed, unaffected, expected):
    """A value may be affected by what it is computed from, unless a value on the way shows no error."""
    decisions = Decisions(Chain(changed))
    for name in unaffected:
        decisions.record_unaffected(name)

    assert decisions.may_affect("a") is expected
    assert decisions.may_affect("a") is expected
