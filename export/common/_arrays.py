"""Convert between torch tensors and NumPy arrays, including dtypes that NumPy has by `ml_dtypes`."""

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters


def torch_to_array(tensor: torch.Tensor) -> np.ndarray:
    """Convert a tensor to an array, without a copy if possible."""
    return tensor_adapters.TorchTensor(tensor.detach().contiguous()).numpy()


def array_to_torch(array: np.ndarray | np.generic) -> torch.Tensor:
    """Copy an array to a tensor."""
    copied = np.array(array)
    if copied.dtype.isbuiltin != _BY_ML_DTYPES:
        return torch.from_numpy(copied)
    dtype = tensor_adapters.to_torch_dtype(ir.DataType.from_numpy(copied.dtype))
    return torch.from_numpy(copied.view(f"u{copied.itemsize}")).view(dtype)


_BY_ML_DTYPES = 2  # `isbuiltin` of a dtype that NumPy does not have itself
