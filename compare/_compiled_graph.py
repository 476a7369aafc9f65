"""Compile a program and return the compiled graph, without running it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from filch.export import Graph, as_program
from filch.export.backends import Backend

from ._compare import ProgramLike, resolve_backend, time_limit
from .common._errors import CompareError
from .provenance._provenance import NodeProvenance


def compiled_graph(
    program: ProgramLike,
    *,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    limit: float | None = None,
) -> Graph:
    """Compile a program and return its graph, with the exported nodes that each compiled node computes.

    Args:
        program: the result of `export`, the path of an ONNX file, an ONNX model, or a graph read from one.
        backend: see `compare`.
        options: see `compare`.
        limit: see `compare`.

    Returns:
        the compiled graph. The `origins` of its nodes name nodes of the exported graph, its `source_graph`.

    Raises:
        FilchError: the file is invalid, the backend fails, or the backend does not compile programs.
    """
    loaded, resolved_backend = as_program(program), resolve_backend(backend, options)
    if "compiled" not in resolved_backend.stages:
        raise CompareError(
            f"backend {resolved_backend.name!r} has no compiled graph: it runs the exported program unchanged"
        )
    source = loaded.graph
    with time_limit(loaded, limit):
        compiled = resolved_backend.compile(loaded, optimize=True)
    graph = NodeProvenance(source, compiled).annotated()
    name = loaded.path.name if loaded.path else loaded.model_type.rpartition(":")[2] or "the program"
    return replace(graph, name=f"{name} on {resolved_backend.name}", source_graph=source)
