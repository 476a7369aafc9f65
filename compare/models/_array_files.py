"""Read named arrays from a file: `.npz`, `.safetensors`, a checkpoint of PyTorch, or the parts of a large one."""

import mmap
import os
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from filch.export.pt2_files._archive import StoredError, stored_members
from filch.steal.files._budget import Budget
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import open_untrusted, parse_json, read_untrusted, reopened
from filch.steal.text._visible import short_line

from ..common._errors import CompareError
from ..common._plain_tensors import PlainTensors
from ._input_files import from_npz
from ._safetensors import read_safetensors

CHECKPOINTS = frozenset({".bin", ".ckpt", ".pt", ".pth"})
ARRAY_FILES = frozenset({".npz", ".safetensors"}) | CHECKPOINTS
_INDEX = ".index.json"
# Where the weights are in the folder of a model, by preference; it may have other .bin files, as of an optimizer.
_PATTERNS = ("*.safetensors.index.json", "*.safetensors", "pytorch_model*.bin.index.json", "pytorch_model*.bin")
_PART = re.compile(r"-\d{5}-of-\d{5}$")  # in the name of a part of a checkpoint


def is_array_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a file or folder that `load_arrays` may read."""
    where = Path(path)
    return where.suffix in ARRAY_FILES or where.suffix == ".gguf" or where.name.endswith(_INDEX) or where.is_dir()


def has_only_weights(path: str | os.PathLike[str]) -> bool:
    """Whether all arrays of a file or folder are weights, as in a checkpoint of PyTorch or Hugging Face."""
    where = Path(path)
    return where.suffix in CHECKPOINTS or where.name.endswith(_INDEX) or where.is_dir()


def load_arrays(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Read the arrays of a file by name, in the order of the file.

    Those of `.safetensors`, and of what `torch.save` writes since PyTorch 1.6, are mapped: what is not used takes no
    memory.

    Args:
        path: a file of one of these types, by its suffix:

            - `.npz`: as `numpy.savez(path, **arrays)` writes it, in the order of the arguments.
            - `.safetensors`: in the order of the numbers in the file, which is that of its writer.
            - `.pt`, `.pth`, `.bin`, `.ckpt`: a dictionary of tensors that `torch.save` has written. In a nested one,
              names are joined with dots.
            - `.index.json`: says in which files beside it the parts of a checkpoint are, as Hugging Face writes it.

            Or the folder of a Hugging Face checkpoint, which has one of these, or parts without an index.

    Raises:
        CompareError: the file can't be read, or is damaged. Nothing in it is run.
    """
    where = Path(path)
    try:
        if where.is_dir():
            return _from_folder(where)
        if where.name.endswith(_INDEX):
            return _from_index(where)
        if where.suffix == ".npz":
            return dict(from_npz(read_untrusted(where, budget_of("inputs of programs"))))
        if where.suffix == ".safetensors":
            return _from_safetensors(where)
        if where.suffix in CHECKPOINTS:
            with open_untrusted(where) as file:
                return read_checkpoint(file)
    except OSError as error:
        raise CompareError(f"can't read {str(where)!r}: {error.strerror or error}") from error
    except (StoredError, ValueError) as error:
        raise CompareError(f"{str(where)!r} can't be read as arrays: {short_line(str(error))}") from error
    types = ", ".join(sorted({*ARRAY_FILES, _INDEX}))
    raise CompareError(f"{str(where)!r} is no file of arrays: give one of {types}, or the folder of a checkpoint")


def _from_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in the folder of a model: of its index, of its only file, or of all parts of a checkpoint."""
    for pattern in _PATTERNS:
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return load_arrays(found[0])
        if found and all(_PART.search(file.stem) for file in found):
            return _joined(dict.fromkeys(found))
        if found:
            names = ", ".join(file.name for file in found)
            raise ValueError(f"it has several checkpoints: give one of {names}")
    raise ValueError(f"it has none of {', '.join(_PATTERNS)}")


def _from_index(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights that an index names, from the files beside it."""
    contents = parse_json(read_untrusted(path, budget_of("index of a checkpoint")))
    places = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(item, str) for item in places.values()):
        raise ValueError("an index has a table weight_map: the file of each weight")
    wanted = defaultdict[Path, list[str]](list)
    for name, file in places.items():
        if Path(file).name != file or Path(file).suffix not in ARRAY_FILES:
            raise ValueError(f"{file!r} is no file of weights in the same folder")
        wanted[path.with_name(file)].append(name)
    found = _joined(wanted)
    return {name: found[name] for name in places}


def _joined(files: Mapping[Path, Collection[str] | None]) -> dict[str, torch.Tensor]:
    """Return the arrays of several files.

    Args:
        files: the names of those to return, by file; None for all.
    """
    found: dict[str, torch.Tensor] = {}
    for file, names in files.items():
        arrays = load_arrays(file)
        if missing := [name for name in names or () if name not in arrays]:
            raise ValueError(f"the index says that {missing[0]!r} is in {file.name!r}, which does not have it")
        if twice := [name for name in names or arrays if name in found]:
            raise ValueError(f"{twice[0]!r} is in several files")
        found |= {name: arrays[name] for name in names or arrays}
    return found


def _from_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, which is mapped: what is not used takes no memory."""
    with open_untrusted(path) as file:
        size = os.fstat(file.fileno()).st_size
        contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b""
    return dict(PlainTensors(stored=size).of(read_safetensors(contents)))


_PICKLE = 2**26  # bytes of what is unpickled; a tensor takes about 250
_MAGIC_OF_TAR = slice(257, 262)


def read_checkpoint(file: BinaryIO) -> dict[str, torch.Tensor]:
    """Return the tensors of an open file by name; those of nested containers have names joined with dots.

    Sparse and nested tensors are returned as dense ones, and quantized ones as the numbers for which they stand.

    Raises:
        ValueError: it is damaged, has no tensors, exceeds a limit, or needs code.
    """
    budget = budget_of("weights")
    contents = _load(file, budget)
    found = dict(PlainTensors(budget, os.fstat(file.fileno()).st_size).of(contents))
    if isinstance(contents, torch.Tensor) or not found:
        raise ValueError("it has no tensors in a dictionary")
    return found


def _load(file: BinaryIO, budget: Budget) -> Any:
    """Return what `torch.save` has written, without running code."""
    is_mapped = zipfile.is_zipfile(file)  # older files are not
    if is_mapped:
        sizes = {name.rpartition("/")[2]: item.file_size for name, item in stored_members(file).items()}
        if sizes.get("data.pkl", 0) > _PICKLE:
            raise ValueError(f"its data.pkl has {sizes['data.pkl']:,} bytes, and at most {_PICKLE:,} are read")
    elif _is_tar(file):
        raise ValueError("it is in the format of PyTorch before 0.2, a tar file: save it again")
    with warnings.catch_warnings(), budget.watched("unpickling it"), reopened(file) as path:
        warnings.simplefilter("ignore")  # of layouts that may change, and of old formats
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
        except Exception as error:  # for a damaged file, torch raises exceptions of any type
            raise ValueError(short_line(str(error)) or type(error).__name__) from error


def _is_tar(file: BinaryIO) -> bool:
    """Return whether an open file begins as a tar file."""
    file.seek(0)
    return file.read(_MAGIC_OF_TAR.stop)[_MAGIC_OF_TAR] == b"ustar"
