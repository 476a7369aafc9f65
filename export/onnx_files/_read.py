"""Read untrusted ONNX files: no files outside of their folder, and no models that other code can't handle."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import ModelProto
from onnx_ir import serde

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import read_untrusted

from .._errors import ProgramError, reason
from ..common._garbage_collection import no_collection
from ..graph._graph import Graph
from ._from_protobuf import graph_from_proto
from ._graphs import check_graphs
from ._mapped import map_weights
from ._memory import check_room
from ._plain import plain_model, with_constant_weights
from ._tensors import Tensors

_DUMP_KEY = b"\x0a\x0afilch.dump"  # the serialized key of a dump's metadata


def read_onnx(path: Path) -> ir.Model:
    """Read the model of an ONNX file. External weights are mapped into memory.

    Args:
        path: the path of the file.

    Raises:
        ProgramError: the file does not exist, is not an ONNX model, or can't be read or run safely.
    """
    with _program_errors(path):
        model = with_constant_weights(serde.deserialize_model(_parse(path)))
        map_weights(model, path)
    ir.external_data.set_base_dir(model.graph, path.parent)  # of those that can't be mapped
    return model


@no_collection()
def read_graph(path: str | os.PathLike[str]) -> Graph:
    """Read the graph of an ONNX file, in a third of the time and memory of `load_program`.

    Args:
        path: the path of the file.

    Returns:
        a graph equal to `load_program(path).graph`, but without `Graph.onnx`, and with the name in the file.

    Raises:
        ProgramError: see `load_program`; Filch's metadata are not read.
    """
    file = Path(path)
    with _program_errors(file):
        return graph_from_proto(_parse(file), file.parent)


@contextlib.contextmanager
def _program_errors(path: Path) -> Iterator[None]:
    """Convert exceptions in the block to a `ProgramError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise ProgramError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise ProgramError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    except ProgramError:  # which names the file already
        raise
    except (DecodeError, IndexError) as error:
        raise ProgramError(f"{str(path)!r} is not an ONNX file, or is truncated") from error
    except ValueError as error:
        raise ProgramError(f"{str(path)!r} can't be used: {error}") from error
    except Exception as error:
        raise ProgramError(f"{str(path)!r} can't be used: {reason(error):.300}") from error


def _parse(path: Path) -> ModelProto:
    """Parse an ONNX file and check that it can be used safely; see `check_room` and `check_graphs`."""
    contents = read_untrusted(path, budget_of("program"))
    if _DUMP_KEY in contents:
        raise ProgramError(f"{str(path)!r} is a dump, not a program: it contains tensors and no nodes")
    check_room(contents)
    model: ModelProto = ModelProto.FromString(contents)
    if not len(model.graph.node) and not len(model.graph.output):
        raise DecodeError("it has no nodes and no outputs")  # protobuf parses many other files as an empty model
    tensors = Tensors(path)
    model = plain_model(model, tensors.check)
    check_graphs(model, tensors.check)
    return model
