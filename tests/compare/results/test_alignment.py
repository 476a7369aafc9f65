"""Tests of the graphs of an alignment: what is said of each value of A and of B, and where it is in the other one."""

import json
from dataclasses import replace

import pytest

from filch.compare import align
from filch.export import graph_from_json
from support.models.small import capture_of
from support.thorough import slow

from ...support.models.port import port


def linked(result):
    """Return the graphs of A and of B with their findings."""
    other = result.graph
    assert other.reference_graph is not None
    return other.reference_graph, other


def finding(graph, module, op):
    """Return the first finding of an operator in a module."""
    (found, *_) = (
        graph.findings[name][0]
        for node in graph.nodes
        for name in node.outputs
        if (node.module, node.op) == (module, op) and name in graph.findings
    )
    return found


@pytest.fixture(scope="module")
def clean():
    a, b, args = port()
    return align(a, b, args)


@pytest.fixture(scope="module")
def wrong():
    a, b, args = port({1: "epsilon"})
    return align(a, b, args)


def test_values_of_a_correct_port_are_linked_in_both_directions(clean):
    """Each place is a value of the other graph, which names this one in turn; none diverges or is inherited."""
    own, other = linked(clean)
    for graph, beside in ((own, other), (other, own)):
        assert graph.findings.keys() <= graph.known
        for found in (item for items in graph.findings.values() for item in items):
            assert found.places.keys() <= beside.known
            assert found.status in ("proved", "anchored", "by value", "ambiguous", "uncovered", "found")
            assert bool(found.places) or found.status == "uncovered"
            assert ("same weight, other numbers" in found.places.values()) <= (found.status == "uncovered")
    query = finding(own, "layers.1.attention.query", "addmm")
    joined = finding(other, "blocks.1.qkv", "addmm")
    (place,) = query.places
    assert query.status == "anchored"
    assert other.producer[place].module == "blocks.1.qkv"
    assert len(joined.places) == 3
    assert {own.producer[name].module for name in joined.places} == {
        f"layers.1.attention.{name}" for name in ("query", "key", "value")
    }
    (order,) = query.places.values()
    assert order.endswith(" of B") and order in joined.places.values()
    assert clean.graph.close is True


@slow
def test_the_graphs_say_where_a_port_leaves_a_and_what_inherits_it(wrong):
    """The departure names the operation of A; what depends on it is inherited, but linked by its weights."""
    own, other = linked(wrong)
    (departure,) = wrong.departures
    (left,) = other.findings[departure.value]
    assert (left.status, left.first, left.text) == ("leaves A", True, departure.note)
    assert left.diverged
    (name,) = left.places
    assert own.producer[name].module == "layers.1.norm_1"
    assert own.findings[name][0].status == "not in B"
    assert finding(other, "blocks.0.ln1", "native_layer_norm").status == "proved"
    later = finding(other, "blocks.2.proj", "addmm")
    assert later.status == "inherited" and not later.diverged
    assert [(own.producer[name].module, order) for name, order in later.places.items()] == [
        ("layers.2.attention.output", "same weight, other numbers")
    ]
    assert finding(own, "layers.2.attention.output", "addmm").status == "inherited"
    assert other.close is False


def test_weights_have_findings(clean):
    """Transposed and joined ones name each other; the findings of weights alone say what is missing and unused."""
    own, other = linked(clean)
    assert own.findings["layers.1.up.weight"][0].places == {"blocks.1.w1": "transposed"}
    assert other.findings["blocks.1.w1"][0].places == {"layers.1.up.weight": "transposed"}
    assert len(other.findings["blocks.1.qkv.weight"][0].places) == 3
    a, b, _ = port()
    states = a.state_dict(), b.state_dict()
    states[1]["blocks.1.w1"] = states[1]["blocks.1.w1"] + 1
    own, other = linked(align(*states, weights_only=True))
    assert other.findings["blocks.1.w1"][0].status == "not found"
    assert own.findings["layers.1.up.weight"][0].status == "unused"
    assert own.findings["layers.0.up.weight"][0].status == "found"
    assert not own.nodes and not other.nodes


def test_named_arrays_have_findings():
    """The first wrong array leaves A, and those before it are linked."""
    a, b, args = port({1: "gelu"})
    capture = capture_of(b, *args, submodules=True)
    own, other = linked(align(a, capture, args))
    assert other.findings["blocks.1"][0].status == "leaves A"
    (place,) = other.findings["blocks.0"][0].places
    assert own.producer[place].module == "layers.0"


def test_rows_of_a_mapping_are_marked(clean):
    """A given row says so; one with other numbers is contradicted, and names the wrong place."""
    changes = {"layers.0.norm_1": ("given", "blocks.0.ln1"), "layers.0.norm_2": ("contradicted", "blocks.1.ln2")}
    values = (
        replace(value, evidence=changes[value.module][0], places=changes[value.module][1:])
        if value.module in changes
        else value
        for value in clean.values
    )
    own, _ = linked(replace(clean, values=tuple(values)))
    given, contradicted = (finding(own, name, "native_layer_norm") for name in changes)
    assert (given.status, given.diverged, given.text) == ("given", False, "")
    assert (contradicted.status, contradicted.text) == ("contradicted", "mapped to blocks.1.ln2")
    assert contradicted.diverged


def test_json_has_the_graphs_and_the_links(wrong):
    """Names in the links are values of the graphs, which can be read back."""
    record = json.loads(wrong.to_json())
    graphs = {side: graph_from_json(graph) for side, graph in record["graphs"].items()}
    assert [graph.nodes for graph in graphs.values()] == [graph.nodes for graph in linked(wrong)]
    for side, other in (("A", "B"), ("B", "A")):
        for item in record["linked"][side]:
            assert item["value"] in graphs[side].known
            assert {*item["places"]} <= graphs[other].known
            assert len(item["orders"]) == len(item["places"])
    assert record["departures"][0]["reference_value"] in graphs["A"].known
    assert {value["value"] for value in record["values"]} <= graphs["A"].known
