"""Map the external weights of ONNX files into memory; each file is mapped once, however many models use it."""

import mmap
import os
import weakref
from pathlib import Path

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters

from filch.steal.files._untrusted import open_companion

# The maps in use, by device, inode, size and time of the last change of the file.
_maps: "weakref.WeakValueDictionary[tuple[int, ...], mmap.mmap]" = weakref.WeakValueDictionary()


def map_weights(model: ir.Model, path: Path) -> None:
    """Replace the external weights of a model by tensors in mapped memory.

    A page is read when it is used. Writing to a tensor does not change the file. Weights of dtypes that torch lacks,
    and those that are not aligned, stay as they are.

    Args:
        model: a model that has passed `check_graphs`; it is changed.
        path: the path of its file.

    Raises:
        OSError: the file of the weights can't be read.
    """
    files: dict[str, mmap.mmap | None] = {}
    for value in (value for graph in model.graphs() for value in graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and (dtype := _mapped_dtype(tensor)) is not None:
            location = str(tensor.location)
            if location not in files:
                files[location] = _map(path, location)
            buffer, offset = files[location], tensor.offset or 0
            if buffer is None or offset + tensor.nbytes > len(buffer):  # too short: it stays as it is
                continue
            flat = torch.frombuffer(buffer, dtype=dtype, count=tensor.size, offset=offset)
            mapped = flat.reshape(tensor.shape.numpy())
            value.const_value = tensor_adapters.TorchTensor(mapped, name=tensor.name, doc_string=tensor.doc_string)


def _mapped_dtype(tensor: ir.ExternalTensor) -> torch.dtype | None:
    """Return the dtype of a tensor to map; None if torch lacks or packs it, or the tensor is empty or not aligned."""
    try:
        dtype = tensor_adapters.to_torch_dtype(tensor.dtype)
    except (TypeError, ValueError):
        return None
    is_aligned = (tensor.offset or 0) % dtype.itemsize == 0
    return dtype if tensor.size and is_aligned and tensor.dtype.bitwidth == 8 * dtype.itemsize else None


def _map(path: Path, location: str) -> mmap.mmap | None:
    """Map a file that `path` refers to; None if it is empty."""
    with open_companion(path, location) as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            return None
        key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        mapped = _maps.get(key)
        if mapped is None:
            mapped = _maps[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return mapped
