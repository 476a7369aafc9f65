"""Write a program to a file, for runtimes that read models from files."""

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir import serde

from filch.steal.files._scratch import Scratch

from .._errors import BackendError
from ..common._weights import weight_bytes
from ..onnx_files._values import check_values
from ._backend import Compiled

DATA = "program.data"
_SMALL = 1024  # bytes; smaller weights may be shapes
_LARGE = 2**24  # larger weights are in a separate file, so that an observed graph need not contain them again


def in_folder(compile_in: Callable[[Path], Compiled]) -> Compiled:
    """Call `compile_in` with a new temporary folder, which is removed when its handle is no longer referenced."""
    scratch = Scratch()
    try:
        compiled = compile_in(scratch.path)
    except BaseException:
        scratch.remove()
        raise
    weakref.finalize(compiled.handle, scratch.remove)
    return compiled


def write_model(model: ir.Model, path: Path) -> Path:
    """Write a model; large weights go to the file `DATA` in the same folder.

    Raises:
        BackendError: the graph is incomplete, or one of its values would be too large; see `check_values`.
    """
    size = weight_bytes(model)
    with _write_errors():
        if size > _LARGE:
            ir.save(model, path, external_data=DATA)
        else:
            path.write_bytes(serde.serialize_model(with_weights(model)).SerializeToString())
    refuse_large_values(onnx.load(path, load_external_data=False), size)
    return path


def write_without_weights(model: ir.Model, path: Path, dtypes: Collection[ir.DataType]) -> dict[str, ir.TensorProtocol]:
    """Write a model for a runtime that is given the weights, so that they are neither written nor copied.

    The weights refer to the file `DATA` in the same folder, which is as long as the largest of them, but takes no space
    on the disk. Small weights are in the model, because they may be shapes.

    Args:
        model: the model.
        path: the path of the file.
        dtypes: the types of weights that the runtime can be given.

    Returns:
        the weights that are not in the file, by name; empty if all of them together are small.

    Raises:
        BackendError: see `write_model`.
    """
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    weights = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    size = weight_bytes(model)
    given = {name: tensor for name, tensor in weights.items() if tensor.nbytes > _SMALL and tensor.dtype in dtypes}
    if size <= _LARGE or size - sum(tensor.nbytes for tensor in given.values()) > _LARGE:  # or what is left is large
        write_model(model, path)
        return {}
    light = model.clone()
    for name, tensor in given.items():
        shape = ir.Shape(tensor.shape.numpy())
        light.graph.initializers[name].const_value = ir.ExternalTensor(
            DATA, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name
        )
    for value in (value for graph in light.graphs() for value in graph.initializers.values()):
        if isinstance(value.const_value, ir.ExternalTensor) and value.name not in given:  # not in this folder
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    with _write_errors():
        proto = serde.serialize_model(light)
        path.write_bytes(proto.SerializeToString())
    with path.with_name(DATA).open("wb") as file:
        file.truncate(max(tensor.nbytes for tensor in given.values()))
    refuse_large_values(proto, size)
    return given


@contextlib.contextmanager
def _write_errors() -> Iterator[None]:
    """Convert what onnx-ir raises for an incomplete graph to a `BackendError`."""
    try:
        yield
    except ValueError as error:
        raise BackendError(f"the program can't be written: {first_line(error)}") from error


def refuse_large_values(model: onnx.ModelProto, weights: int) -> None:
    """Refuse a model with values, or constants to be folded, that would exhaust the memory.

    Args:
        model: the model; large weights may be in another file.
        weights: the bytes of all its weights.

    Raises:
        BackendError: the model has such a value; see `check_values`.
    """
    try:
        check_values(model, weights)
    except ValueError as error:
        raise BackendError(f"the program can't be run: {error}") from error


def with_weights(model: ir.Model) -> ir.Model:
    """Return the model with all weights in memory: the same model if they already are."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    if not any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
        return model
    return ir.external_data.load_to_model(model.clone())


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error message, or else the name of the error's type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
