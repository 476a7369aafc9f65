"""The calls of the documents that Filch follows, with the arguments that they give."""

import logging
import os
import sys

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compiled_graph
from filch.export import (
    Graph,
    ProgramError,
    as_graph,
    as_program,
    export,
    graph_from_fx,
    graph_from_json,
    graph_to_json,
    optimize,
)
from filch.export.views import plot_dot, plot_graph, plot_legend


class Attention(nn.Module):
    """Reshapes to sizes that torch's exporter writes as untyped values."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x):
        """Two heads."""
        batch, length, width = x.shape
        query = self.query(x).reshape(batch, length, 2, width // 2).transpose(1, 2)
        return (query / 8.0).softmax(-1)


@pytest.fixture(scope="module")
def program():
    """The exported program, unoptimized."""
    return export(Attention(), (torch.ones(1, 3, 4),))


def test_every_value_of_an_unoptimized_graph_has_a_type_and_a_shape(program):
    """The exporter leaves some without; ONNX's shape inference knows them."""
    assert program.graph.nodes
    assert "?" not in str(program)


def test_dynamic_dimensions_keep_their_names():
    """Inference adds what is missing, and replaces nothing."""
    dims = {"x": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=64)}}
    text = str(export(Attention(), (torch.ones(2, 3, 4),), dynamic_shapes=dims))

    assert "?" not in text
    assert "float32[batch, length, 4]" in text


def test_a_graph_is_optimized_to_a_graph(program):
    """As hidet's `optimize(graph)`, whose result prints as a graph."""
    graph = optimize(program.graph)

    assert isinstance(graph, Graph)
    assert graph == optimize(program).graph
    assert str(optimize(program)) == str(graph)
    assert str(graph).startswith("Graph(x: float32[1, 3, 4]){")


def test_a_graph_that_was_not_read_from_an_onnx_model_cannot_be_optimized(program):
    """One sentence says what can be."""
    graph = graph_from_fx(program.exported_program.graph, "fx")

    with pytest.raises(ProgramError, match=r"the graph 'fx' was not read from an ONNX model: give a Program, the path"):
        optimize(graph)


def test_a_compiled_graph_is_made_of_whatever_holds_a_program(program):
    """Of a graph, too."""
    assert compiled_graph(program.graph).nodes == compiled_graph(program).nodes
    with pytest.raises(ProgramError, match="'dict' is not a program: give a Program, the path of an ONNX file"):
        compiled_graph({})


@pytest.fixture(scope="module")
def holders(program, tmp_path_factory):
    """The same model in everything that holds one."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    program.save(path)
    proto = ir.to_proto(program.model)
    return [program, program.graph, program.model, proto, path, str(path)]


def test_a_graph_is_read_from_whatever_holds_a_model(program, holders):
    """Each gives the same nodes."""
    assert all(as_graph(held).nodes == program.graph.nodes for held in holders)
    assert all(as_program(held).graph.nodes == program.graph.nodes for held in holders)
    exported = program.exported_program
    assert as_graph(exported).nodes == as_graph(exported.graph_module).nodes == as_graph(exported.graph).nodes
    assert as_graph(exported).inputs == ("x",)
    assert as_graph(exported).constants == ("p_query_weight", "p_query_bias")
    with pytest.raises(ProgramError, match="'int' has no graph: give a Graph, a Program, an ONNX model"):
        as_graph(1)


def test_plot_graph_has_aitemplates_parameters(holders, tmp_path):
    """The path of the file is called `file_path` there."""
    for number, held in enumerate(holders):
        path = plot_graph(held, file_path=tmp_path / f"{number}.html")
        assert "softmax" in path.read_text("utf-8").lower()


def test_plot_dot_shows_the_numbers_of_small_constants(holders):
    """A scale is one number, and the drawing says which."""
    program = optimize(holders[0])

    drawn = [plot_dot(held).partition("\n")[2] for held in holders]  # the first line has the name
    assert drawn == [drawn[0]] * len(holders)
    assert r"float32[] = 8" in plot_dot(program)
    assert "= [" in plot_dot(program)  # the sizes of the reshape
    assert "weight = " not in plot_dot(program)


def test_numbers_of_small_constants_survive_json(program):
    """As reports hold graphs."""
    graph = optimize(program).graph
    read = graph_from_json(graph_to_json(graph))
    assert [value.content for value in read.values.values()] == [value.content for value in graph.values.values()]


def test_a_drawing_shows_itself_in_a_notebook(program, monkeypatch):
    """As a picture where Graphviz is, and as text elsewhere."""
    text = plot_dot(program)
    monkeypatch.setenv("PATH", "")

    assert text.startswith("digraph")
    assert text._repr_svg_() is None


def test_plot_legend_draws_words_in_a_box(tmp_path):
    """Its words are no markup."""
    drawn = plot_legend("steal and dump\n<b>results</b>", "steal_forward", "blue", path=tmp_path / "legend.svg")

    assert drawn == (tmp_path / "legend.svg").read_text("utf-8") == drawn._repr_svg_()
    assert all(word in drawn for word in ("steal and dump", "&lt;b&gt;results&lt;/b&gt;", "steal_forward", "blue"))


def test_exporting_leaves_the_process_as_it_was():
    """Torch's exporter takes a log handler away and sets a variable."""
    log = logging.getLogger("torch.__trace")
    handler = logging.NullHandler()
    log.addHandler(handler)
    before = sys.getrecursionlimit(), os.environ.get("TORCHINDUCTOR_CACHE_DIR"), [*log.handlers]
    try:
        export(nn.ReLU(), (torch.ones(1),))
        after = sys.getrecursionlimit(), os.environ.get("TORCHINDUCTOR_CACHE_DIR"), [*log.handlers]
    finally:
        log.removeHandler(handler)

    assert before == after


def test_what_is_exported_is_valid_onnx(program):
    """With the types that inference added."""
    onnx.checker.check_model(ir.to_proto(program.model), full_check=True)


@pytest.mark.parametrize("error", [onnx.shape_inference.InferenceError("contradiction"), ValueError("over 2 GB")])
def test_a_model_whose_types_cannot_be_inferred_is_exported(monkeypatch, error):
    """As the exporter wrote it."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    graph = export(Attention(), (torch.ones(1, 3, 4),)).graph

    assert "?[?]" in str(graph)
    assert graph.values[graph.outputs[0]].shape == (1, 2, 3, 2)
