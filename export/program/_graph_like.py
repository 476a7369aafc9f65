"""Convert models of several types to `Graph` or `Program`."""

import os
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde
from torch import fx
from torch.export import ExportedProgram

from .._errors import ProgramError
from ..graph._from_fx import graph_from_fx
from ..graph._graph import Graph
from ..onnx_files._plain import plain_model, with_constant_weights
from ._program import Program, load_program

GRAPHS = "a Graph, a Program, an ONNX model, the path of an ONNX file, or a torch.export or torch.fx program"
PROGRAMS = "a Program, the path of an ONNX file, an ONNX model, or a Graph that was read from one"


def as_graph(model: Any) -> Graph:
    """Return the graph of a model.

    Args:
        model: a `Graph`, a `Program`, an ONNX model (`onnx.ModelProto` or `onnx_ir.Model`, which is not changed), the
            path of an ONNX file, a `torch.export.ExportedProgram`, a `torch.fx.GraphModule` or a `torch.fx.Graph`.

    Raises:
        ProgramError: `model` is none of these, or the file can't be read.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, ExportedProgram):
        return _of_exported(model)
    if isinstance(model, fx.GraphModule):
        return graph_from_fx(model.graph)
    if isinstance(model, fx.Graph):
        return graph_from_fx(model)
    if isinstance(model, onnx.ModelProto | ir.Model | Program | str | os.PathLike):
        return as_program(model).graph
    raise ProgramError(f"{type(model).__name__!r} has no graph: give {GRAPHS}")


def _of_exported(program: ExportedProgram) -> Graph:
    """Return the graph of an exported program, with the weights, which are inputs of torch's graph, as constants."""
    graph = graph_from_fx(program.graph)
    user_inputs = {*program.graph_signature.user_inputs}
    weights = tuple(name for name in graph.inputs if name not in user_inputs)
    inputs = tuple(name for name in graph.inputs if name in user_inputs)
    return replace(graph, inputs=inputs, constants=(*weights, *graph.constants))


def as_program(model: Any) -> Program:
    """Return the program of a model.

    Args:
        model: a `Program`, the path of an ONNX file, an ONNX model (`onnx.ModelProto` or `onnx_ir.Model`), or a `Graph`
            that was read from an ONNX model.

    Raises:
        ProgramError: `model` is none of these, or the file can't be read.
    """
    if isinstance(model, Program):
        return model
    if isinstance(model, ir.Model):
        return Program(model)
    if isinstance(model, onnx.ModelProto):
        try:
            return Program(with_constant_weights(ir.from_proto(plain_model(model))))
        except (ValueError, serde.SerdeError) as error:
            raise ProgramError(f"the model can't be used: {error}") from error
    if isinstance(model, str | os.PathLike):
        return load_program(model)
    if isinstance(model, Graph):
        if model.onnx is None:
            raise ProgramError(f"the graph {model.name!r} was not read from an ONNX model: give {PROGRAMS}")
        return Program(model.onnx)
    raise ProgramError(f"{type(model).__name__!r} is not a program: give {PROGRAMS}")
