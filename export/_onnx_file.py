"""Reads an ONNX file of unknown origin: nothing outside its folder, and nothing that the rest of Filch can't bear."""

from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import ModelProto
from onnx_ir import serde

from filch.steal import read_untrusted

from ._errors import ProgramError, reason
from ._onnx_graphs import check_graphs
from ._onnx_room import check_room
from ._onnx_tensors import Tensors

_DUMP = b"\x0a\x0afilch.dump"  # the key of an entry of its metadata, as protobuf writes it


def read_onnx(path: Path) -> ir.Model:
    """The model in an ONNX file; large weights stay in the files beside it until they are read.

    Args:
        path: of the file.

    Raises:
        ProgramError: there is no such file, it is not an ONNX model, or one that can't be run or read safely.
    """
    try:
        contents = read_untrusted(path)
    except FileNotFoundError:
        raise ProgramError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise ProgramError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    if _DUMP in contents:
        raise ProgramError(f"{str(path)!r} is a dump, not a program: it holds tensors, and no node that computes")
    try:
        check_room(contents)
        proto = ModelProto.FromString(contents)
        check_graphs(proto, Tensors(path).check)
        model = serde.deserialize_model(proto)
        _sort(model.graph)
    except (DecodeError, IndexError) as error:
        raise ProgramError(f"{str(path)!r} is not an ONNX file, or it is cut short") from error
    except ValueError as error:
        raise ProgramError(f"{str(path)!r} can't be used: {error}") from error
    except Exception as error:
        raise ProgramError(f"{str(path)!r} can't be used: {reason(error):.300}") from error
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _sort(graph: ir.Graph) -> None:
    """Put nodes behind what they read, if they are not; ONNX Runtime's float16 converter leaves them in any order."""
    made: set[ir.Node] = set()
    for node in graph:
        before = [value.producer() for value in node.inputs if value is not None]
        if any(other is not None and other.graph is graph and other not in made for other in before):
            graph.sort()
            return
        made.add(node)
