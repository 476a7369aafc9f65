"""Graphs for Graphviz: its language, and the pictures that it makes where it is there."""

import re
import shutil
import sys
import xml.etree.ElementTree as ET

import onnx
import onnx_ir as ir
import pytest

from filch.export import Graph, Node, ProgramError
from filch.export.views import draw, plot_dot, save
from filch.export.views._colors import UNJUDGED
from support.hostile.graphs import TEXTS, hostile_graph
from support.thorough import slow
from support.views.pictures import MODEL, fused_graph, judged_graph, netron_finds, save_with_note

STATEMENT = re.compile(r'^  (\d+) \[label="([^"]*)", tooltip="([^"]*)", fillcolor="(#\w{6})"', re.MULTILINE)
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed: there is no dot on PATH")


def _statements(text):
    """By the number of each box: its lines, its tooltip's lines and its color."""
    return {
        int(number): (label.split(r"\n"), tooltip.split(r"\n"), fill)
        for number, label, tooltip, fill in STATEMENT.findall(text)
    }


def test_operations_inputs_outputs_and_constants_are_told_apart():
    """Each has its own color, and stands in the frame of its module."""
    text = draw(fused_graph().source_graph, "dot").content.decode()

    boxes = _statements(text)
    assert [label[0] for label, _, _ in boxes.values()] == ["Reshape", "Rearrange", "BatchMatmul", "x", "w", "y"]
    fills = [fill for _, _, fill in boxes.values()]
    assert fills[0] == fills[1] == fills[2]
    assert len({*fills[2:]}) == 4
    assert '  subgraph cluster_0 { label="head (Linear)"; 0; 1; 2; 4; }' in text.splitlines()
    edges = re.findall(r"^  (\d+) -> (\d+) ", text, re.MULTILINE)
    assert edges == [("3", "0"), ("0", "1"), ("4", "2"), ("1", "2"), ("2", "5")]


def test_what_was_found_is_written_upon_the_boxes_and_colors_them():
    """All the numbers, in the tooltip to the last digit; the worse, the darker."""
    graph = judged_graph()

    text = draw(graph, "dot").content.decode()

    boxes = _statements(text)
    assert boxes[0][0] == ["MatMul", "error 3.1e-02"]
    assert {"error: 0.03125", "call 0 of h: same, error 1.25e-07", f"max_abs: {0.1 / 3!r}"} <= {*boxes[0][1]}
    assert {"error: nan", "max_rel: inf", "count: 3"} <= {*boxes[1][1]}
    assert boxes[2][0] == ["Relu", "no value"] and boxes[2][2] == UNJUDGED
    assert boxes[5][1][1:3] == ["error: 7.0", "status: different"]
    assert any(label[:2] == ["w", "error 0.0e+00"] for label, _, _ in boxes.values())
    assert r'label="1 of 7 differs\nit is y";' in text


def test_hostile_names_stay_inside_of_their_quotes():
    """None ends a string, is an escape of Graphviz's or HTML's, turns a line around, or goes on for ever."""
    graph = hostile_graph()

    text = draw(graph, "dot").content.decode()

    boxes = _statements(text)
    assert len(boxes) == 2 * len(TEXTS) + 1 + len(graph.outputs)
    assert [
        text for text in text.splitlines() if not re.match(r"digraph|\}|  (subgraph|graph|node|edge|label|\d)", text)
    ] == []
    assert not re.search(r"\\[^\\n]", text.replace("\\\\", ""))
    assert max(map(len, (line for label, _, _ in boxes.values() for line in label))) < 500
    assert all(sign.isprintable() for line in text.splitlines() for sign in line)


def test_stock_netron_reads_all_boxes_with_their_labels(tmp_path):
    """Its parser is not Graphviz's: it knows no escapes, and drops what a frame declares."""
    for graph in (judged_graph(), hostile_graph()):
        path, _ = save_with_note(graph, "dot", tmp_path / "g.dot")
        boxes = _statements(path.read_text("utf-8"))

        nodes = netron_finds(tmp_path, path)["nodes"]

        labels = [dict(node["metadata"])["label"] for node in nodes]
        assert labels == [r"\n".join(label) for label, _, _ in boxes.values()]


@slow
@needs_dot
@pytest.mark.parametrize("graph", [judged_graph(), hostile_graph(), fused_graph()], ids=["judged", "hostile", "fused"])
def test_graphviz_draws_it(graph, tmp_path):
    """As a picture, and as XML that holds no element that could do anything."""
    path, note = save_with_note(graph, "svg", tmp_path / "g.svg")
    image, _ = save_with_note(graph, "png", tmp_path / "g.png")

    assert note == ""
    elements = {element.tag.rpartition("}")[2] for element in ET.parse(path).iter()}  # noqa: S314  our own file
    assert elements <= {"svg", "g", "title", "polygon", "path", "text", "a"}
    assert image.read_bytes().startswith(b"\x89PNG")


@needs_dot
def test_graphviz_shows_names_as_they_are(tmp_path):
    """Quotes, backslashes and what looks like HTML come back out of the picture."""
    path, _ = save_with_note(hostile_graph(), "svg", tmp_path / "g.svg")

    shown = {element.text for element in ET.parse(path).iter() if element.tag.endswith("}text")}  # noqa: S314  as above
    for name in ("script", "quotes", "ticks", "backslashes", "html", "comment", "brackets", "path"):
        assert TEXTS[name] in shown


@pytest.fixture
def fake_dot(tmp_path, monkeypatch):
    """Puts a program of this name on PATH, alone there."""

    def put(script):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "dot").write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
        (folder / "dot").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return put


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_program_is_given_the_text_and_gives_the_picture(kind, fake_dot, tmp_path):
    """Without a shell, through pipes."""
    fake_dot("print(sys.argv[1:], sys.stdin.buffer.read() != b'')")

    path, note = save_with_note(judged_graph(), kind, tmp_path / f"g.{kind}")

    assert (path.name, note) == (f"g.{kind}", "")
    assert path.read_text().strip() == f"['-T{kind}'] True"


def test_without_graphviz_the_text_is_written_and_how_to_go_on(tmp_path, monkeypatch, caplog):
    """One sentence says what to install and what to run."""
    monkeypatch.setenv("PATH", "")

    path = save(judged_graph(), "svg", tmp_path / "g.svg")

    assert path == tmp_path / "g.dot"
    assert path.read_text("utf-8").startswith("digraph")
    assert not (tmp_path / "g.svg").exists()
    assert caplog.messages == [
        "Graphviz is not installed: with it (apt install graphviz), `dot -Tsvg FILE.dot -o FILE.svg` draws this file"
    ]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("sys.exit('no fonts\\nat all')", r"Graphviz could not draw it \(no fonts\): `dot -Tpng FILE.dot -o FILE.png`"),
        ("", r"Graphviz could not draw it \(0\)"),
        ("import time; time.sleep(60)", r"Graphviz has not drawn it in 0.5 s: `dot -Tpng .*` may, given longer"),
    ],
)
def test_a_graphviz_that_fails_leaves_the_text(script, said, fake_dot, tmp_path, monkeypatch):
    """It is told why."""
    monkeypatch.setattr("filch.export.views._graphviz._TIMEOUT", 0.5)
    fake_dot(script)

    path, note = save_with_note(judged_graph(), "png", tmp_path / "g.png")

    assert path.suffix == ".dot"
    assert re.match(said, note)


def test_a_graphviz_that_cannot_be_run_leaves_the_text(fake_dot, tmp_path, monkeypatch):
    """A file of that name that is not a program of this machine."""
    fake_dot("")
    (tmp_path / "bin" / "dot").write_bytes(b"\x00not a program")

    _, note = save_with_note(judged_graph(), "png", tmp_path / "g.png")

    assert re.match(r"Graphviz can't be run \(Exec format error\): ", note)


def test_plot_dot_takes_what_holds_a_graph_and_changes_nothing(tmp_path):
    """A Graph, an ONNX model of either kind, or a program; the text is the same."""
    model = ir.from_onnx_text(MODEL)
    proto = ir.to_proto(model)
    before = proto.SerializeToString()

    text = plot_dot(proto, tmp_path / "m.dot")

    assert (tmp_path / "m.dot").read_text("utf-8") == text == plot_dot(model)
    assert proto.SerializeToString() == before
    assert [node.name for node in proto.graph.node].count("") == 1
    assert plot_dot(fused_graph()).startswith("digraph")
    onnx.checker.check_model(proto)


def test_plot_dot_says_what_it_takes():
    """In one sentence."""
    with pytest.raises(ProgramError, match="'dict' has no graph: give a Graph, a Program, an ONNX model"):
        plot_dot({})


def test_modules_nest_as_deep_as_they_like():
    """A path may have as many dots as a file says."""
    node = Node("n", "Relu", ("x",), ("y",), module="a" + ".a" * 3000)
    graph = Graph("deep", ("x",), ("y",), (), (node,), {})

    assert draw(graph, "dot").content.count(b"subgraph") == 3001


def test_names_that_look_alike_stay_apart():
    """Edges are drawn between numbers: `a.b` and `a_b` are two values, and each line ends at a box."""
    nodes = (
        Node("r", "Relu", ("in.1",), ("a.b",)),
        Node("n", "Neg", ("in_1",), ("a_b",)),
        Node("+", "Add", ("a.b", "a_b"), ("o",)),
    )

    text = plot_dot(Graph("alike", ("in.1", "in_1"), ("o",), (), nodes, {}))

    assert re.findall(r"^  (\d+) -> (\d+) ", text, re.MULTILINE) == [
        ("3", "0"),
        ("4", "1"),
        ("0", "2"),
        ("1", "2"),
        ("2", "5"),
    ]


def test_functions_are_drawn_in_frames_of_their_own():
    """Behind the graph that calls them; their numbers go on where its own end."""
    inner = fused_graph().source_graph
    called = Graph("", ("x",), ("y",), (), (Node("call", "own::f", ("x",), ("y",)),), {}, functions={"own::f": inner})

    text = plot_dot(called)

    boxes = _statements(text)
    assert [label[0] for label, _, _ in boxes.values()][:4] == ["own::f", "x", "y", "Reshape"]
    assert (
        '  subgraph cluster_function_3 { label="Function own::f"; '
        'subgraph cluster_3 { label="head (Linear)"; 3; 4; 5; 7; } 6; 8; }'
    ) in text.splitlines()
    assert re.findall(r"^  (\d+) -> (\d+) ", text, re.MULTILINE)[:3] == [("1", "0"), ("0", "2"), ("6", "3")]
