"""Pictures as files: text, hidet's and Model Explorer's JSON, views of other packages, and none that fails."""

import dataclasses
import io
import json
import math
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch

from filch.export import Graph, Node, ViewError, graph_from_fx
from filch.export.views import Drawing, draw, get_view, netron, save, view_names
from support.hostile.graphs import TEXTS, hostile_graph
from support.views.pictures import fused_graph, judged_graph, save_with_note

DOCS = Path(__file__).resolve().parents[3] / "docs" / "views.md"
FILES = [(name, suffix) for name in ("text", "hidet", "netron", "dot") for suffix in get_view(name).suffixes]


def test_a_fused_node_names_the_operators_that_it_computes():
    """As in hidet's document: before, and after."""
    graph = fused_graph()

    assert str(graph.source_graph).splitlines() == [
        "Graph(x: float32[2, n]){",
        "  w = Constant(float32[2, n])",
        "  a: float32[2, n] = Reshape(x, shape=[2, -1])",
        "  b: float32[2, n] = Rearrange(a)",
        "  y: float32[2, n] = BatchMatmul(w, b)",
        "  return y",
        "}",
    ]
    assert str(graph).splitlines()[2] == (
        '  y: float32[2, n] = FusedMatmul(w, x, mma="simt", fusion="Reshape Rearrange BatchMatmul")'
    )


def test_what_was_found_is_a_comment_with_an_arrow_for_what_deserves_attention():
    """Two spaces before it; the constant in order of its first use, remarks above."""
    assert str(judged_graph()).splitlines() == [
        "# 1 of 7 differs",
        "# it is y",
        "Graph(x: float32[batch, 4], c: bool[]){",
        "  w = Constant(float32[4, 4])  # error 0.0e+00",
        "  h: ?[?] = MatMul(x, w)  # error 3.1e-02 <------",
        "  a: ?[?], b: ?[?] = Split(h, axis=1, num_outputs=2)  # error nan <------",
        "  r: ?[?] = Relu(a)  # no value",
        "  k: ?[?] = Clip(b, _)",
        "  y: float32[batch, 2] = If(c, then_branch=graph of 1 nodes, else_branch=graph of 1 nodes)  # not mapped",
        "  z: float32[batch, 4] = Concat(r, y, axis=1)  # error 7.0e+00 <------",
        "  return y, z",
        "}",
    ]


def test_constants_stand_in_the_order_of_their_first_use():
    """Not in the one in which the file has them; one that nobody reads is left out."""
    nodes = (Node("n", "Add", ("v", "u"), ("y",)),)

    lines = Graph("", (), ("y", "w"), ("u", "w", "idle", "v"), nodes, {}).text().splitlines()

    assert [line.split()[0] for line in lines[1:4]] == ["v", "u", "w"]


def test_a_torch_graph_has_a_text_too():
    """Of Dynamo, of ATen: a line an operation."""
    program = torch.export.export(torch.nn.Sequential(torch.nn.ReLU()), (torch.zeros(2),))

    assert re.search(r"^  relu: float32\[2\] = .*relu.*\(input\)$", str(graph_from_fx(program.graph)), re.MULTILINE)


def test_a_name_can_end_neither_its_line_nor_its_quotes():
    """What is no plain name is written as JSON does, and is read back from there."""
    graph = hostile_graph()
    one = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\'(),=;#{}\\]+')

    lines = str(graph).splitlines()

    count = len(graph.nodes)
    assert len(lines) == len(graph.remarks) + 1 + 2 * count + 2
    written = [one.match(line.strip()).group() for line in lines if line.startswith("  ") and ": " in line][-count:]
    assert [json.loads(name) for name in written] == [node.outputs[0] for node in graph.nodes]
    assert all(sign.isprintable() for line in lines for sign in line)


def test_an_attribute_is_quoted_whatever_it_looks_like():
    """A tensor's short form is not; a text that begins with the same sign is."""
    attributes = {"value": "<float32[2, 3]>", "mode": "<script>", "equation": 'a"b\n', "flags": ["x", 1], "axis": -1}
    node = Node("n", "Op", (), ("y",), attributes)

    line = Graph("", (), ("y",), (), (node,), {}).text().splitlines()[1]

    assert line == (r'  y: ?[?] = Op(value=float32[2, 3], mode="<script>", equation="a\"b\n", flags=["x", 1], axis=-1)')


def _hidet(graph):
    return json.loads(draw(graph, "hidet").content)


SCHEMA = {
    "type": {"string": str, "shape": {"dimensions": [str]}, "dataType": str},
    "attribute": {"name": str, "type": str, "value": str, "visible": bool, "description": str},
}
SCHEMA["argument"] = {"name": str, "type": SCHEMA["type"], "initializer?": {"kind": str, "value": str}}
SCHEMA["parameter"] = {"name": str, "arguments": [SCHEMA["argument"]], "visible": bool}
SCHEMA["node"] = {
    "name": str,
    "type": {"name": str, "category": (str, type(None))},
    "inputs": [SCHEMA["parameter"]],
    "outputs": [SCHEMA["parameter"]],
    "attributes": [SCHEMA["attribute"]],
    "description": [str],
    "location": str,
    "group": str,
}
SCHEMA["model"] = {
    "graphs": [
        {
            "name": str,
            "groups": bool,
            "inputs": [SCHEMA["parameter"]],
            "outputs": [SCHEMA["parameter"]],
            "nodes": [SCHEMA["node"]],
        }
    ],
    **dict.fromkeys(("author", "company", "license", "domain", "description", "source", "format"), str),
}


def _conforms(value, schema, place="model"):
    if isinstance(schema, dict):
        optional = {key.rstrip("?") for key in schema if key.endswith("?")}
        known = {key.rstrip("?"): inner for key, inner in schema.items()}
        assert {*known} - optional <= {*value} <= {*known}, place
        for key in value:
            _conforms(value[key], known[key], f"{place}.{key}")
    elif isinstance(schema, list):
        for i, item in enumerate(value):
            _conforms(item, schema[0], f"{place}[{i}]")
    else:
        assert isinstance(value, schema), place


@pytest.mark.parametrize("graph", [judged_graph(), fused_graph(), hostile_graph()], ids=["judged", "fused", "hostile"])
def test_hidets_viewer_gets_the_json_that_it_reads(graph):
    """Every field of its type, and each value of one source: a node, an input, or itself a weight."""
    model = _hidet(graph)

    _conforms(model, SCHEMA["model"])
    assert model["format"] == "netron"
    (drawn,) = model["graphs"]
    made = [item["arguments"][0]["name"] for node in drawn["nodes"] for item in node["outputs"]]
    made += [item["arguments"][0]["name"] for item in drawn["inputs"]]
    assert len(made) == len({*made})
    read = [item["arguments"][0] for node in drawn["nodes"] for item in node["inputs"]]
    read += [item["arguments"][0] for item in drawn["outputs"]]
    assert all(("initializer" in argument) != (argument["name"] in made) for argument in read)
    assert len(drawn["nodes"]) == len(graph.nodes)


def test_hidets_viewer_is_told_what_was_found_and_where_nodes_belong():
    """In a node's description, every number to its last digit; in groups, as deep as modules are."""
    graph = judged_graph()

    nodes = _hidet(graph)["graphs"][0]["nodes"]

    for name, findings in graph.findings.items():
        if name in graph.producer:
            described = nodes[graph.nodes.index(graph.producer[name])]["description"]
            for finding in findings:
                several = len(findings) > 1 or len(graph.producer[name].outputs) > 1
                brief = finding.status if finding.error is None else f"{finding.status}, error {finding.error!r}"
                assert (f"call {finding.call} of {name}: {brief}" in described) == several
            worst = max(findings, key=lambda finding: finding.weight)
            assert worst.error is None or any(f"error: {worst.error!r}" in line for line in described)
    before = _hidet(fused_graph().source_graph)["graphs"][0]
    assert before["groups"] is True
    assert [node["group"] for node in before["nodes"]] == ["/head", "/head", "/head"]
    assert before["nodes"][2]["location"] == "app.py:3"
    assert [node["type"]["category"] for node in before["nodes"]] == ["shape", "transform", "layer"]


def test_hidets_viewer_is_given_no_html():
    """It writes names of values and types of attributes into its page without escaping them."""
    drawn = _hidet(hostile_graph())["graphs"][0]

    names = {item["arguments"][0]["name"] for node in drawn["nodes"] for item in (*node["inputs"], *node["outputs"])}
    types = {attribute["type"] for node in drawn["nodes"] for attribute in node["attributes"]}
    assert len(names) == 2 * len(TEXTS) + 1
    assert not any(set("<>&") & {*text} for text in names | types)


def test_hidets_viewer_joins_no_two_values_that_look_alike_to_it():
    """It draws an edge wherever two names are equal."""
    nodes = (Node("n", "Relu", ("a<b",), ("a\u2039b",)), Node("m", "Relu", ("a\u2039b",), ("a\u2039b_",)))

    drawn = _hidet(Graph("", ("a<b",), ("a\u2039b_",), (), nodes, {}))["graphs"][0]["nodes"]

    ends = [(node["inputs"][0]["arguments"][0]["name"], node["outputs"][0]["arguments"][0]["name"]) for node in drawn]
    assert ends[0][1] == ends[1][0]
    assert len({ends[0][0], ends[0][1], ends[1][1]}) == 3


def test_hidets_viewer_gets_functions_as_further_graphs():
    """Under the names of the operators that call them."""
    called = Graph("", ("x",), ("y",), (), (), {}, functions={"own::f": fused_graph()})

    graphs = _hidet(called)["graphs"]

    assert [graph["name"] for graph in graphs] == ["", "own::f"]
    assert graphs[1]["nodes"][0]["type"]["name"] == "FusedMatmul"


def test_netron_dump_is_called_as_in_hidet():
    """`from filch.export.views import netron`, and a file that is open for text."""
    file = io.StringIO()

    netron.dump(fused_graph(), file)

    assert json.loads(file.getvalue()) == _hidet(fused_graph())


@pytest.mark.parametrize(
    ("op", "category"),
    [
        ("MatMul", "layer"),
        ("com.microsoft::FusedConv", "layer"),
        ("addmm", "layer"),
        ("relu", "activation"),
        ("_softmax", "activation"),
        ("Softmax", "activation"),
        ("GlobalAveragePool", "pool"),
        ("native_layer_norm", "normalization"),
        ("SkipSimplifiedLayerNormalization", "normalization"),
        ("Transpose", "transform"),
        ("view", "shape"),
        ("Dropout", "dropout"),
        ("Constant", "constant"),
        ("com.microsoft::MultiHeadAttention", "layer"),  # hidet's viewer has no color for attention
        ("DequantizeLinear", "transform"),
        ("If", "custom"),
        ("Add", None),
    ],
)
def test_an_operator_is_colored_by_its_kind(op, category):
    """ONNX's, ONNX Runtime's and ATen's."""
    node = Node("n", op, (), ("y",))

    (drawn,) = _hidet(Graph("", (), ("y",), (), (node,), {}))["graphs"][0]["nodes"]

    assert drawn["type"]["category"] == category


def _node_data(graph, name="model-explorer"):
    return json.loads(draw(graph, name).content)


def test_model_explorer_gets_the_error_of_each_node_and_its_color():
    """By the ids that its adapter for ONNX gives: names, its own where there is none, and `[value] w` for a weight."""
    graph = judged_graph()

    data = _node_data(graph)

    assert {key: result["value"] for key, result in data["results"].items()} == {
        "[value] w": 0.0,
        "multiply": 0.03125,
        "split": "nan",
        "node": "no value",  # what onnx-ir calls the first that has no name
        "choose": "not mapped",
        "last": 7.0,
    }
    assert data["name"] == "error"
    assert all(re.fullmatch(r"#[0-9a-f]{6}", result["bgColor"]) for result in data["results"].values())
    assert len({result["bgColor"] for result in data["results"].values()}) == 4  # close, not judged, and two errors


def test_model_explorer_gets_one_quantity_a_file():
    """The format has no room for two: the status and the time are views of their own."""
    graph = judged_graph()

    assert _node_data(graph, "model-explorer-status")["results"]["split"]["value"] == "different"
    assert {key: item["value"] for key, item in _node_data(graph, "model-explorer-time")["results"].items()} == {
        "last": 0.25
    }


def test_model_explorer_says_what_it_has_nothing_of():
    """A graph that nobody has compared has no errors."""
    with pytest.raises(ViewError, match=r"graph 'after' has no error for Model Explorer to show: draw the graph of a "):
        draw(fused_graph(), "model-explorer")


def test_model_explorer_gets_hostile_names_as_its_keys():
    """And numbers that JSON has not, as text."""
    graph = hostile_graph()

    results = _node_data(graph)["results"]

    assert [*results] == [node.name for node in graph.nodes]
    for node, result in zip(graph.nodes, results.values(), strict=True):
        (finding,) = graph.findings[node.outputs[0]]
        expected = finding.status if finding.error is None else finding.error
        assert result["value"] == (expected if isinstance(expected, str) or math.isfinite(expected) else repr(expected))


@pytest.mark.parametrize(("name", "suffix"), FILES)
def test_every_view_draws_a_graph_of_nothing(name, suffix):
    """No nodes, no names, nothing known."""
    graph = Graph("", (), (), (), (), {})

    if (name, suffix) == ("netron", ".onnx"):
        with pytest.raises(ViewError, match=r"choose the suffix \.netron"):
            draw(graph, name, suffix)
    else:
        assert draw(graph, name, suffix).content


@pytest.mark.parametrize(("name", "suffix"), [file for file in FILES if file[1] != ".onnx"])
def test_every_file_is_unicode(name, suffix, tmp_path):
    """Whatever halves of characters a model's names have."""
    path, _ = save_with_note(hostile_graph(), name, tmp_path / f"g{suffix}")

    path.read_text("utf-8")


def test_a_wrong_suffix_is_told_with_the_right_ones():
    """In one sentence."""
    with pytest.raises(ViewError, match=r"view 'netron' writes .onnx and .netron and .json, not .pdf"):
        draw(judged_graph(), "netron", ".pdf")


class Counting:
    suffixes = (".count",)

    def draw(self, graph, suffix):
        return Drawing.of(f"{len(graph.nodes)} nodes, {len(graph.findings)} findings", suffix)


@pytest.fixture
def installed(monkeypatch):
    """Lets an entry point `filch.views` be found that no package has."""
    module = ModuleType("foreign_views")
    module.__dict__.update(Counting=Counting, Shapeless=type("Shapeless", (), {"suffixes": "txt"}))
    monkeypatch.setitem(sys.modules, "foreign_views", module)
    there = []

    def found(*, group, name=None):
        return [entry for entry in there if entry.group == group and name in (None, entry.name)]

    monkeypatch.setattr("filch.export.common._extensions.entry_points", found)
    return lambda name, value: there.append(EntryPoint(name, value, "filch.views"))


def test_a_view_of_another_package_draws_like_our_own(installed, tmp_path):
    """It is listed, found by its name, and given the graph with its findings."""
    installed("count", "foreign_views:Counting")

    path = save(judged_graph(), "count", tmp_path / "made" / "g")

    assert "count" in view_names()
    assert path == tmp_path / "made" / "g.count"
    assert path.read_text() == "6 nodes, 7 findings"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lost", "no_such_module:View", r"view 'lost' of no_such_module \(.*\) can't be loaded: ModuleNotFoundError"),
        ("poor", "foreign_views:Shapeless", r"view 'poor' is a Shapeless, which needs both `suffixes`, a tuple of "),
        ("text", "foreign_views:Counting", r"view 'text' is provided by filch itself and foreign_views"),
    ],
)
def test_a_broken_view_of_another_package_is_one_sentence(installed, name, value, message):
    """It can't be imported, is no view, or has a name that is taken."""
    installed(name, value)

    with pytest.raises(ViewError, match=message):
        draw(judged_graph(), name)


def test_findings_do_not_reach_a_graph_without_them():
    """A graph that nobody has compared is drawn as before: no comment, no color of an error."""
    clean = dataclasses.replace(judged_graph(), findings={}, remarks=())

    assert "#" not in str(clean)
    assert b"error" not in draw(clean, "dot").content
    assert b"filch.status" not in draw(clean, "netron", ".onnx").content


def test_every_view_is_in_the_docs():
    """By its name, in the table of docs/views.md."""
    table = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| `")]
    named = {name for line in table for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}

    assert {*view_names()} <= named
