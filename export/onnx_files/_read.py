"""Reads an ONNX file of unknown origin: nothing outside its folder, and nothing that the rest of Filch can't bear."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import ModelProto
from onnx_ir import serde

from filch.steal import read_untrusted

from .._errors import ProgramError, reason
from ..common._garbage_collection import no_collection
from ..graph._graph import Graph
from ._from_protobuf import graph_from_proto
from ._graphs import check_graphs
from ._memory import check_room
from ._tensors import Tensors

_DUMP = b"\x0a\x0afilch.dump"  # the key of an entry of its metadata, as protobuf writes it


def read_onnx(path: Path) -> ir.Model:
    """The model in an ONNX file; large weights stay in the files beside it until they are read.

    Args:
        path: of the file.

    Raises:
        ProgramError: there is no such file, it is not an ONNX model, or one that can't be run or read safely.
    """
    with _usable(path):
        model = serde.deserialize_model(_checked(path))
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


@no_collection()
def read_graph(path: str | os.PathLike[str]) -> Graph:
    """The graph of an ONNX file, for who does not need the program: in a third of the time and memory of that.

    Args:
        path: of the file.

    Returns:
        what `load_program(path).graph` is, without `Graph.onnx`, and under the name that the file has for it.

    Raises:
        ProgramError: as `load_program` does, but for what Filch noted in the file, which is not read.
    """
    where = Path(path)
    with _usable(where):
        return graph_from_proto(_checked(where), where.parent)


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Say of what goes wrong in the block that the file can't be used, and why."""
    try:
        yield
    except FileNotFoundError:
        raise ProgramError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise ProgramError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    except ProgramError:
        raise
    except (DecodeError, IndexError) as error:
        raise ProgramError(f"{str(path)!r} is not an ONNX file, or it is cut short") from error
    except ValueError as error:
        raise ProgramError(f"{str(path)!r} can't be used: {error}") from error
    except Exception as error:
        raise ProgramError(f"{str(path)!r} can't be used: {reason(error):.300}") from error


def _checked(path: Path) -> ModelProto:
    """What is in the file, where it may be used."""
    contents = read_untrusted(path)
    if _DUMP in contents:
        raise ProgramError(f"{str(path)!r} is a dump, not a program: it holds tensors, and no node that computes")
    check_room(contents)
    model: ModelProto = ModelProto.FromString(contents)
    if not len(model.graph.node) and not len(model.graph.output):
        raise IndexError
    check_graphs(model, Tensors(path).check)
    return model
