"""The graph that a backend makes of a program, without running it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from filch.export import Graph, as_program
from filch.export.backends import Backend

from ._compare import ProgramLike, make_engine, time_limit
from .common._errors import CompareError
from .provenance._provenance import NodeProvenance


def compiled_graph(
    program: ProgramLike,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    limit: float | None = None,
) -> Graph:
    """Compile a program, and say which of its nodes each compiled node computes.

    Args:
        program: what `export` returned, the path of any ONNX file, an ONNX model, or a graph that was read from one.
        backend: see `compare`.
        options: see `compare`.
        limit: see `compare`.

    Returns:
        the compiled graph; its nodes' `origins` are nodes of the exported one, which is its `before`.

    Raises:
        FilchError: the file, the backend, or the two do not fit; in one sentence.
    """
    given, engine = as_program(program), make_engine(backend, options)
    if "compiled" not in engine.stages:
        raise CompareError(f"backend {engine.name!r} runs the program as it stands: it makes no graph of its own")
    exported = given.graph
    with time_limit(given, limit):
        compiled = engine.compile(given, optimize=True)
    made = NodeProvenance(exported, compiled).annotated()
    name = given.path.name if given.path else given.model_type.rpartition(":")[2] or "the program"
    return replace(made, name=f"{name} on {engine.name}", source_graph=exported)
