"""Convert between torch tensors and NumPy arrays, including dtypes that NumPy does not have."""

import ml_dtypes
import numpy as np
import torch

_NARROW = {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}


def torch_to_array(tensor: torch.Tensor) -> np.ndarray:
    """Convert a tensor to an array, without a copy if possible."""
    plain = tensor.detach().contiguous().cpu()
    if plain.dtype in _NARROW:
        return plain.view(_BITS[plain.itemsize][0]).numpy().view(_NARROW[plain.dtype])
    return plain.numpy()


def array_to_torch(array: np.ndarray | np.generic) -> torch.Tensor:
    """Copy an array to a tensor."""
    copied = np.array(array)
    for dtype, narrow in _NARROW.items():
        if copied.dtype == narrow:
            return torch.from_numpy(copied.view(_BITS[narrow.itemsize][1])).view(dtype)
    return torch.from_numpy(copied)
