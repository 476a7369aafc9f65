"""Reports as graphs to draw, as JSON that is read back, and what values are like."""

import json
import math
import operator
from functools import reduce

import pytest
import torch
from torch import nn

from filch.compare import CompareError, Report, compare, compiled_graph, load_report, tiny_llm
from filch.compare.metrics._spread import spread_of
from filch.export import export
from filch.export.views import draw
from support.faults.fakes import WrongBackend
from support.models.small import capture_of, module_of
from support.thorough import slow


@pytest.fixture(scope="module")
def program():
    """The tiny language model, exported."""
    model, args = tiny_llm()
    return export(model, args)


@pytest.fixture(scope="module")
def report(program):
    """Return its report on ONNX Runtime, with statistics."""
    model, args = tiny_llm()
    capture = capture_of(model, *args, submodules=True)
    return compare(capture, program, statistics=True)


@pytest.fixture(scope="module")
def wrong():
    """Return a report with one fault, in the linear layer."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), torch.ones(1, 2)
    capture = capture_of(model, x, submodules=True)
    return compare(capture, export(model, (x,)), backend=WrongBackend({"linear": lambda t: t + 1}), statistics=True)


def measures(row):
    """Return the measures of a row's difference besides its error, and its error as a multiple of rounding."""
    measured = dict(row.difference.measures) if row.difference else {}
    measured.pop("error", None)
    return measured if row.float64 is None else measured | {"times rounding": row.float64.ratio}


def test_the_graph_of_a_report_has_every_row_at_its_value(report):
    """It is the compiled graph, with the exported one as its source; all numbers are those of the report."""
    drawn = report.graph
    assert drawn.source_graph is not None

    for stage, graph in (("exported", drawn.source_graph), ("compiled", drawn)):
        rows = [row for row in report.rows if row.stage == stage]
        found = [(value, one) for value, findings in graph.findings.items() for one in findings]
        assert len(found) == len(rows)
        for row in rows:
            assert any(
                value == row.value
                and (one.status, one.error, one.kind, one.call) == (row.status, row.error, row.kind, row.call)
                and one.measures == measures(row)
                for value, one in found
            )


def test_compiled_nodes_name_the_exported_ones_that_they_compute(report, program):
    """The names are those of the rows, with and without running the program."""
    exported = {node.name for node in program.graph.nodes}
    rows = {row.node: row.origins for row in report.rows if row.stage == "compiled" and row.kind != "output"}

    drawn = {node.name: node.origins for node in compiled_graph(program).nodes}

    assert {name: drawn[name] for name in rows} == rows
    assert {name for names in drawn.values() for name in names} <= exported


def test_compiled_nodes_are_in_the_module_calls_of_the_nodes_they_compute(program):
    """A fused node is in the calls that all of its parts have in common."""
    exported = {node.name: node for node in program.graph.nodes}

    nodes = compiled_graph(program).nodes

    assert any(len(node.stack) > 1 for node in nodes)
    for node in nodes:
        stacks = [exported[name].stack for name in node.origins]
        assert all(stack[: len(node.stack)] == node.stack for stack in stacks)
        assert node.stack or not node.origins


def test_one_finding_is_the_first_divergence(wrong, report):
    """A clean report has none."""
    first = [value for value, findings in wrong.graph.findings.items() if any(one.first for one in findings)]
    assert first == ["linear"]
    drawn = (report.graph, report.graph.source_graph)
    assert not any(one.first for graph in drawn if graph for found in graph.findings.values() for one in found)


def test_the_compiled_graph_of_a_backend_without_one_is_refused(program):
    """The message says that it runs the exported program unchanged."""
    with pytest.raises(CompareError, match="'reference' has no compiled graph: it runs the exported program unchanged"):
        compiled_graph(program, backend="reference")


@pytest.mark.parametrize("name", ["report", "wrong"])
def test_a_report_is_read_back_as_it_was(name, request, tmp_path):
    """Rows, graphs, operators and statistics are equal, and so are its text and its drawing."""
    given: Report = request.getfixturevalue(name)
    given.to_json(tmp_path / "report.json")

    found = load_report(tmp_path / "report.json")

    assert found == given
    assert found.graph == given.graph
    assert found.table("operators", wide=True) == given.table("operators", wide=True)


def test_infinities_are_read_back_from_json(tmp_path):
    """The report has an infinite error, and the graph an infinite limit."""
    model, x = module_of(lambda self, x: x.clamp(min=0.0) + 1).eval(), torch.ones(1, 2)
    capture = capture_of(model, x)
    backend = WrongBackend({"clamp": lambda t: t * math.inf})
    given = compare(capture, export(model, (x,)), backend=backend, statistics=True)
    given.to_json(tmp_path / "report.json")

    found = load_report(tmp_path / "report.json")

    assert found.worst is not None and found.worst.error == math.inf
    assert found.rows[1].difference == given.rows[1].difference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("filch_report"), "is JSON, but no report: `filch check --output"),
        (lambda found: found.update(filch_report=99), "is a report of version 99; this Filch reads version 7"),
        (lambda found: found["rows"][0].pop("status"), "is damaged: KeyError: 'status'"),
        (lambda found: found["graphs"]["exported"]["nodes"][0].update(name=7), "damaged: TypeError: 7 is not a string"),
        (lambda found: found["graphs"]["exported"]["nodes"][0].update(inputs="x"), "'x' is a string, not a list"),
        (lambda found: found["graphs"]["exported"]["values"].append(["v", None, [{}]]), "{} is not a dimension"),
        (lambda found: found["graphs"].update(other={}), "graphs is 'other', not one of 'exported', 'compiled'"),
        (lambda found: found["rows"][1].update(index=True), r"rows\[1\].index is True, not of type int"),
        (lambda found: found["rows"][1].update(status="fine"), r"rows\[1\].status is 'fine', not one of 'same', 'diff"),
        (lambda found: found["rows"][1]["difference"].update(snr="x" * 99), r"snr is 'x{59}…, not of type float"),
        (lambda found: found["rows"][1]["difference"].update(snr=10**400), r"snr is 10+…, not of type float"),
        (
            lambda found: found["rows"][1]["difference"]["tolerance"].update(scale=-1.0),
            "a tolerance is a number from 0",
        ),
        (lambda found: found.update(calls=[1]), "calls has 1 items, not 2"),
    ],
)
def test_a_file_that_is_no_report_is_refused(wrong, tmp_path, change, message):
    """The message has the file and the reason."""
    found = json.loads(wrong.to_json())
    change(found)
    (tmp_path / "report.json").write_text(json.dumps(found))

    with pytest.raises(CompareError, match=message):
        load_report(tmp_path / "report.json")


def places(found, path=()):
    """Yield the paths of all entries of a JSON value; of a list, those of the first two items."""
    items = found.items() if isinstance(found, dict) else list(enumerate(found))[:2] if isinstance(found, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


PLANTED = [None, -1, "x", [], {}, 10**400, [[]], {"a": 1}]


@slow
@pytest.mark.parametrize("planted", PLANTED, ids=repr)
def test_a_report_with_something_else_in_any_place_is_refused_or_can_be_drawn(wrong, tmp_path, planted):
    """It is refused with one sentence, without a traceback, when it is read or when it is drawn."""
    whole = json.loads(wrong.to_json())
    found = whole | {name: whole[name][:3] for name in ("rows", "modules", "outcomes")} | {"operators": []}
    path = tmp_path / "report.json"
    refused: list[str] = []
    path.write_text(json.dumps(found))
    as_it_was = load_report(path).graph
    every = [*places(found)]
    for place in every:
        *way, last = place
        around = reduce(operator.getitem, way, found)
        kept, around[last] = around[last], planted
        path.write_text(json.dumps(found))
        around[last] = kept
        try:
            read = load_report(path)
        except CompareError as error:
            refused.append(str(error))
        else:
            if read.graph != as_it_was:
                assert draw(read.graph, "html").content and draw(read.graph, "text").content, place
            assert str(read)

    assert len(refused) > len(every) / 4
    assert not [text for text in refused if "\n" in text]


def test_json_that_is_nested_too_deeply_is_refused(tmp_path):
    """The depth is refused with one sentence instead of a RecursionError."""
    (tmp_path / "report.json").write_text("[" * 200_000)

    with pytest.raises(CompareError, match=r"report.json' is not JSON: it is nested too deep"):
        load_report(tmp_path / "report.json")


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path):
    """The reason is that of the operating system or of the parser."""
    with pytest.raises(CompareError, match=r"can't read '.*none.json': No such file"):
        load_report(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(CompareError, match=r"text.json' is not JSON: Expecting"):
        load_report(tmp_path / "text.json")


def test_a_spread_counts_every_finite_number_of_both():
    """The bins are equal, from the least to the largest number of both; other numbers are counted apart."""
    expected = torch.tensor([0.0, 1.0, 2.0, 4.0])
    actual = torch.tensor([0.0, math.nan, 8.0, math.inf])

    spread = spread_of(actual, expected)

    assert spread.histogram is not None
    assert (spread.histogram.low, spread.histogram.high) == (0.0, 8.0)
    assert {place: count for place, count in enumerate(spread.histogram.expected) if count} == {0: 1, 4: 1, 8: 1, 16: 1}
    assert {place: count for place, count in enumerate(spread.histogram.actual) if count} == {0: 1, 31: 1}
    assert (spread.actual.nan, spread.actual.inf) == (1, 1)
    assert (spread.expected.minimum, spread.expected.mean, spread.expected.maximum) == (0.0, 1.75, 4.0)


@pytest.mark.parametrize(
    ("tensor", "bars"),
    [
        (torch.zeros(0), None),
        (torch.full((3,), math.nan), None),
        (torch.ones(2, dtype=torch.complex64), None),
        (torch.full((5,), 2.0), 5),
        (torch.tensor([True, False]), 2),
        (torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64), 2),
        (torch.tensor([2**62, -(2**62)]), 2),
    ],
)
def test_a_spread_is_computed_for_any_tensor(tensor, bars):
    """The tensors are empty, without a finite number, complex, constant, and of the widest range."""
    histogram = spread_of(tensor, tensor).histogram

    assert (None if histogram is None else sum(histogram.expected)) == bars


def test_statistics_are_computed_only_on_request(program):
    """They make a comparison a third longer."""
    model, args = tiny_llm()
    capture = capture_of(model, *args)

    assert all(row.spread is None for row in compare(capture, program, backend="reference").rows)
