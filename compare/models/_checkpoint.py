"""Read the tensors of a file that `torch.save` has written, without running code."""

import os
import warnings
import zipfile
from typing import Any, BinaryIO

import torch

from filch.export.pt2_files._archive import stored_members
from filch.steal.files._budget import Budget
from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import reopened
from filch.steal.text._visible import short_line

from ..common._plain_tensors import PlainTensors

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
    file.seek(0)
    return file.read(_MAGIC_OF_TAR.stop)[_MAGIC_OF_TAR] == b"ustar"
