"""Writes a program where a runtime that reads files can find it."""

import weakref
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir import serde

from filch.steal import Scratch

from .._errors import BackendError
from ..onnx_files._values import check_values
from ._backend import Compiled

DATA = "program.data"
_LARGE = 2**24  # beyond, weights stand in a file of their own, so that observing a graph does not write them again


def in_folder(compile_in: Callable[[Path], Compiled]) -> Compiled:
    """What `compile_in` makes in a new folder, which lasts as long as that does."""
    scratch = Scratch()
    try:
        compiled = compile_in(scratch.path)
    except BaseException:
        scratch.remove()
        raise
    weakref.finalize(compiled, scratch.remove)
    return compiled


def write_model(model: ir.Model, path: Path) -> Path:
    """Write a model, its weights to a file `DATA` beside it if they are large.

    Raises:
        BackendError: the graph is not whole, or a value in it would be far too large.
    """
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    try:
        if size > _LARGE:
            ir.save(model, path, external_data=DATA)
        else:
            path.write_bytes(serde.serialize_model(with_weights(model)).SerializeToString())
    except ValueError as error:  # onnx-ir's
        raise BackendError(f"the program can't be written: {first_line(error)}") from error
    refuse_large_values(onnx.load(path, load_external_data=False), size)
    return path


def refuse_large_values(model: onnx.ModelProto, weights: int) -> None:
    """Refuse to run a model whose values would take all memory, or be folded into constants that do.

    Raises:
        BackendError: it has such a value; see `check_values`.
    """
    try:
        check_values(model, weights)
    except ValueError as error:
        raise BackendError(f"the program can't be run: {error}") from error


def with_weights(model: ir.Model) -> ir.Model:
    """The model with all its weights in memory; itself if they are already."""
    held = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    if not any(isinstance(tensor, ir.ExternalTensor) for tensor in held):
        return model
    return ir.external_data.load_to_model(model.clone())


def first_line(error: BaseException) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
