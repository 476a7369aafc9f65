"""Read named arrays from a file: `.npz`, `.safetensors`, or a checkpoint of PyTorch."""

import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from filch.steal import read_untrusted
from filch.steal.text import short_line

from ..common._errors import CompareError
from ._input_files import from_npz

CHECKPOINTS = frozenset({".bin", ".ckpt", ".pt", ".pth"})
ARRAY_FILES = frozenset({".npz", ".safetensors"}) | CHECKPOINTS


def load_arrays(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Read the arrays of a file by name, in the order of the file.

    Args:
        path: a file of one of these types, by its suffix:

            - `.npz`: as `numpy.savez(path, **arrays)` writes it, in the order of the arguments.
            - `.safetensors`: needs the package `safetensors`, which writes tensors in an order of its own.
            - `.pt`, `.pth`, `.bin`, `.ckpt`: a dictionary of tensors that `torch.save` has written. In a nested one,
              names are joined with dots.

    Raises:
        CompareError: the file can't be read, or is damaged. Nothing in it is run.
    """
    where = Path(path)
    try:
        if where.suffix == ".npz":
            return from_npz(read_untrusted(where))[0]
        if where.suffix == ".safetensors":
            return _from_safetensors(where)
        if where.suffix in CHECKPOINTS:
            return _from_checkpoint(where)
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except (EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise CompareError(f"{str(where)!r} can't be read as arrays: {short_line(str(error))}") from error
    raise CompareError(f"{str(where)!r} is no file of arrays: give one of {', '.join(sorted(ARRAY_FILES))}")


def _from_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        import safetensors  # noqa: PLC0415  optional
        import safetensors.torch  # noqa: PLC0415
    except ImportError:
        raise ValueError("it needs the package safetensors: pip install safetensors") from None
    try:
        return dict(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is no file of safetensors: {error}") from error


def _from_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    contents = torch.load(path, map_location="cpu", weights_only=True)
    found = dict(_tensors(contents, ""))
    if not found:
        raise ValueError("it has no tensors in a dictionary")
    return found


def _tensors(value: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested dictionaries; other things, such as the step of an optimizer, are left out."""
    for name, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, torch.Tensor):
            yield f"{prefix}{name}", item
        else:
            yield from _tensors(item, f"{prefix}{name}.")
