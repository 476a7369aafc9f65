"""Read the weights of a saved program."""

import math
from collections.abc import Mapping

import torch

from filch.steal.files._untrusted import parse_json
from filch.steal.private._torch import schema

from ._archive import Archive, StoredError
from ._schema import DTYPES, read_payloads

# A stride of 0 repeats elements; the limits are those for the values of an ONNX file.
_LARGE, _MOST_REPEATED = 2**31, 64  # bytes; times
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
_CONFIG = {WEIGHTS: "model_weights_config.json", CONSTANTS: "model_constants_config.json"}


def read_weights(archive: Archive, folder: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a folder of the archive, by name. Tensors that shared memory share it again.

    Args:
        archive: the archive.
        folder: `WEIGHTS`, for parameters and buffers, or `CONSTANTS`.

    Raises:
        StoredError: a tensor is pickled, or its data do not fit its metadata.
    """
    if f"{folder}model.pt" in archive:
        raise StoredError("its weights are pickled, as torch up to 2.7 did")
    files: dict[tuple[str, torch.device], torch.Tensor] = {}
    weights = {}
    for name, payload in read_payloads(parse_json(archive.read(folder + _CONFIG[folder]))).items():
        meta = payload.tensor_meta
        if payload.use_pickle or meta is None:
            raise StoredError(f"{name!r:.200} in it is pickled, and a pickle may hold code")
        key = payload.path_name, _device(meta.device)
        if key not in files:
            files[key] = archive.tensor(folder + payload.path_name).to(key[1])
        weights[name] = _tensor(name, files[key], meta)
        if payload.is_param:
            weights[name] = torch.nn.Parameter(weights[name], requires_grad=meta.requires_grad)
    return weights


def meta_weights(program: schema.ExportedProgram) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return meta tensors in place of the weights and of the constants, for a graph that is only displayed."""
    weights: dict[str, torch.Tensor] = {}
    constants: dict[str, torch.Tensor] = {}
    values = program.graph_module.graph.tensor_values
    for spec in program.graph_module.signature.input_specs:
        if spec.type == "parameter":
            tensor = _meta_tensor(values, spec.parameter.arg.name)
            weights[spec.parameter.parameter_name] = torch.nn.Parameter(tensor, requires_grad=False)
        elif spec.type == "buffer":
            group = weights if spec.buffer.persistent else constants
            group[spec.buffer.buffer_name] = _meta_tensor(values, spec.buffer.arg.name)
        elif spec.type == "tensor_constant":
            constants[spec.tensor_constant.tensor_constant_name] = _meta_tensor(values, spec.tensor_constant.arg.name)
    return weights, constants


def _device(device: schema.Device) -> torch.device:
    """Return the device of a tensor."""
    return torch.device(device.type) if device.index is None else torch.device(device.type, device.index)


def _meta_tensor(values: Mapping[str, schema.TensorMeta], name: str) -> torch.Tensor:
    """Return a meta tensor with the dtype and shape of a value of the graph."""
    if name not in values:
        raise StoredError(f"it has no metadata of the tensor {name!r:.200}")
    sizes = [size.value for size in values[name].sizes if size.type == "as_int"]
    try:
        return torch.empty(sizes, dtype=DTYPES[values[name].dtype], device="meta")
    except RuntimeError as error:  # more elements than a 64-bit integer can count
        raise StoredError(f"{name!r:.200} has too many elements") from error


def _tensor(name: str, contents: torch.Tensor, meta: schema.TensorMeta) -> torch.Tensor:
    """Return the view of a file's bytes that the metadata describe."""
    numbers = [*meta.sizes, *meta.strides, meta.storage_offset]
    dtype = DTYPES[meta.dtype]
    if any(number.type != "as_int" for number in numbers) or len(meta.sizes) != len(meta.strides):
        raise StoredError(f"{name!r:.200} in it has no fixed size")
    sizes, strides = [size.as_int for size in meta.sizes], [stride.as_int for stride in meta.strides]
    extents = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    # How many elements of the file the view needs.
    last = 0 if 0 in sizes else meta.storage_offset.as_int + sum(extents) + 1
    if contents.numel() % dtype.itemsize or last * dtype.itemsize > contents.numel():
        raise StoredError(f"{name!r:.200} in it does not have the size in its metadata")
    if math.prod(sizes) * dtype.itemsize > max(_LARGE, _MOST_REPEATED * contents.numel()):
        raise StoredError(
            f"{name!r:.200} in it repeats its elements too often: a copy of it would take too much memory"
        )
    if 0 in sizes:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=contents.device)
    return contents.view(dtype).as_strided(sizes, strides, meta.storage_offset.as_int)
