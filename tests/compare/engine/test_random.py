"""Random numbers, and memory that nothing has written to: what can't be compared is not, and what reads it is."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from onnx_ir import serde
from torch import nn

from filch.compare import Report, compare, load_report
from filch.compare.engine._random import NESTED, distance_of_distributions
from filch.export import Program
from filch.export.backends import get_backend
from filch.export.backends.inductor._backend import _with_eager_random
from support.models.small import module_of, recorded
from support.thorough import kept


class Reserving(nn.Module):
    """A model that writes all of two uninitialized tensors before it reads them."""

    def forward(self, x):
        whole, parts = x.new_empty(x.shape), torch.empty_like(x)
        whole.copy_(x * 2)
        parts[:, 0] = x[:, 0]
        parts[:, 1:] = x[:, 1:] + 1
        return whole + parts


def case_of(model, x):
    return recorded(model, x, submodules=True)


@pytest.fixture(scope="module")
def x():
    return torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def noisy(x):
    # A model that adds noise and computes with the sum.
    return case_of(module_of(lambda self, x: (x + torch.rand_like(x)).tanh()), x)


@pytest.fixture(scope="module")
def dropping(x):
    # A dropout in training mode between two layers.
    model = module_of(
        lambda self, x: self.last(self.drop(self.first(x)).relu()),
        first=nn.Linear(16, 16),
        drop=nn.Dropout(0.5),
        last=nn.Linear(16, 8),
    )
    return case_of(model.train(), x)


@pytest.fixture(scope="module")
def reserving(x):
    """Fill freed memory, which `empty` may return, with large numbers."""
    freed = [torch.full((16, 16), 1e30 * number) for number in range(1, 50)]
    freed.clear()
    return case_of(Reserving(), x)


def planted(case, op, instead):
    """Return the case with another operator in the program."""
    capture, program = case
    model = program.model.clone()
    node = next(node for node in model.graph if node.op_type == op)
    node.op_type = instead
    for bound in ("low", "high"):  # of uniform numbers alone
        node.attributes.pop(bound, None)
    return capture, replace(program, model=model)


@pytest.mark.parametrize("every_node", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "reference"])
def test_what_reads_random_numbers_is_judged_on_the_references(noisy, backend, every_node):
    """Every value is judged, and none differs."""
    report = compare(*noisy, backend=backend, every_node=every_node)

    assert report.close, report
    assert report.undisturbed
    assert all(row.judged for row in report.rows)
    assert report.random == ("node_rand_like",)
    assert "random numbers of the same distribution" in next(row.reason for row in report.rows if row.random)


@pytest.mark.parametrize("every_node", [False, True])
def test_a_fault_behind_random_numbers_is_found(noisy, every_node):
    """It is found at the node that is wrong."""
    report = compare(*planted(noisy, "Add", "Sub"), every_node=every_node)

    assert not report.close
    assert report.first_divergence is not None
    assert report.first_divergence.node == "node_add"
    assert not any(row.diverged for row in report.rows if row.random)


@pytest.mark.parametrize("every_node", [False, True])
def test_random_numbers_of_another_distribution_are_found(noisy, every_node):
    """They are normal instead of uniform; the nodes that read them are right."""
    report = compare(*planted(noisy, "RandomUniformLike", "RandomNormalLike"), every_node=every_node)

    assert {row.node for row in report.diverged} == {"node_rand_like"}
    assert report.first_divergence is not None
    assert "random numbers of another distribution" in report.first_divergence.reason


def test_random_numbers_where_the_model_draws_none_are_a_fault(reserving):
    """A random operator alone does not exempt a value."""
    capture, program = planted(reserving, "Mul", "RandomUniformLike")
    node = next(node for node in program.model.graph if node.op_type == "RandomUniformLike")
    node.resize_inputs(1)

    report = compare(capture, program, stages=["exported"])

    assert not report.close
    assert report.random == ()


def test_a_dropout_that_trains_is_no_fault(dropping):
    """The values computed from it are judged, including the output."""
    report = compare(*dropping, stages=["exported"])
    assert report.close, report
    assert all(row.judged for row in report.rows)


def test_what_a_compiler_draws_inside_of_a_kernel_is_not_called_wrong(dropping):
    """ONNX Runtime removes the dropout from its graph: nothing is judged there, and the reason is reported."""
    report = compare(*dropping)

    assert not report.diverged
    assert not report.close
    unjudged = [row for row in report.rows if row.kind == "output" and not row.judged]
    assert [row.stage for row in unjudged] == ["compiled"]
    assert "other random numbers than the reference, or from none" in unjudged[0].reason


def test_another_exporters_random_results_are_not_judged(noisy):
    """They have no reference."""
    capture, program = noisy

    report = compare(capture, Program(program.model))

    assert not report.diverged
    assert not report.close
    assert report.random == ("node_rand_like",)


@pytest.mark.parametrize("every_node", [False, True])
def test_unwritten_memory_is_not_judged_and_what_is_written_there_is(reserving, every_node):
    """A clean run is close, and a fault in the written values is found."""
    report = compare(*reserving, every_node=every_node)
    assert report.close, report
    reasons = {row.value: row.reason for row in report.rows if not row.judged}
    made = reserving[1].graph.values.keys()  # torch 2.11 removes what is written as a whole
    assert "empty_like" in {"new_empty", "empty_like"} & made <= reasons.keys()
    assert {*reasons.values()} == {"uninitialized memory: its content differs between runs"}

    (culprit,) = (node.name for node in reserving[1].graph.nodes if node.op == "Mul")
    wrong = compare(*planted(reserving, "Mul", "Add"), every_node=every_node)
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.node == culprit


def test_random_nodes_stand_in_text_and_json(noisy, tmp_path):
    """They are also in a report that is read back."""
    report: Report = compare(*noisy)
    report.to_json(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())

    assert found["random"] == ["node_rand_like"]
    assert load_report(tmp_path / "report.json").random == report.random
    assert "random numbers are drawn by node_rand_like: their distribution is compared" in " ".join(str(report).split())


def test_a_comparison_leaves_the_random_numbers_to_come_as_they_were(noisy):
    """Its own reference draws the same numbers each time."""
    before = torch.get_rng_state()
    compare(*noisy, backend="eager")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (torch.rand, torch.rand, True),
        (torch.randn, torch.rand, False),
        (torch.randn, lambda *size: torch.randn(*size) + 0.5, False),
        (torch.rand, lambda *size: torch.rand(*size) * 2, False),
    ],
)
def test_distributions_are_told_apart(first, second, same):
    """They differ in shape, mean or width; a few numbers are not enough to distinguish them."""
    torch.manual_seed(0)

    found = distance_of_distributions(second(40, 50), first(40, 50))

    assert found is not None
    assert (found[0] <= found[1]) is same
    assert distance_of_distributions(second(99), first(99)) is None


def test_inductor_lets_pytorch_draw(dropping, noisy, reserving):
    """This is the default for graphs that draw random numbers, unless the user sets the option."""
    options = get_backend("inductor").options
    told = get_backend("inductor", config={"fallback_random": False}).options

    for _, program in (dropping, noisy):
        module = program.exported_program.graph_module
        assert _with_eager_random(options, module).config == {"fallback_random": True}
        assert _with_eager_random(told, module) is told
    assert _with_eager_random(options, reserving[1].exported_program.graph_module) is options


class Branching(nn.Module):
    """A conditional with a result that is random in one branch, and a further node that reads it."""

    def forward(self, x):
        noisy, plain = torch.cond(
            x.sum() > -1e9, lambda v: (v + torch.rand_like(v), v * 3.0), lambda v: (v * 2.0, v * 1.0), (x,)
        )
        return noisy.tanh(), plain.sigmoid()


@pytest.fixture(scope="module")
def branching(x):
    return case_of(Branching(), x)


RUNS = [*itertools.product(["onnxruntime-cpu", "reference", "eager"], [False, True])]


@pytest.mark.parametrize(("backend", "every_node"), kept(RUNS, *RUNS[:3], RUNS[4]))
def test_what_a_branch_draws_is_not_judged_and_what_reads_it_is(branching, backend, every_node):
    capture, program = branching
    report = compare(capture, program, backend=backend, every_node=every_node)
    assert not report.diverged
    assert len(report.random) == 1
    rows = {row.value: row for row in report.rows if row.stage == report.rows[0].stage and row.kind != "output"}
    assert [name for name, row in rows.items() if row.reason == NESTED] == ["getitem"]
    assert all(rows[name].status == "same" for name in ("getitem_1", "tanh", "sigmoid"))
    if backend == "eager":
        return
    for operator, wrong, value in (("Tanh", "Sin", "tanh"), ("Sigmoid", "Softplus", "sigmoid")):
        model = serde.serialize_model(program.model)
        next(node for node in model.graph.node if node.op_type == operator).op_type = wrong
        changed = replace(program, model=serde.deserialize_model(model))
        found = compare(capture, changed, backend=backend, every_node=every_node, stages=("exported",)).first_divergence
        assert found is not None
        assert found.value == value


def test_branches_of_a_foreign_file_that_draw_are_known(branching):
    _, program = branching
    assert Program(program.model).unpredictable.nested == {"getitem", "getitem_1"}
