"""Between torch's tensors and numpy's arrays, for the types that numpy itself does not have, too."""

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
    """A tensor's numbers as an array; they share memory where they can."""
    plain = tensor.detach().contiguous().cpu()
    if plain.dtype in _NARROW:
        return plain.view(_BITS[plain.itemsize][0]).numpy().view(_NARROW[plain.dtype])
    return plain.numpy()


def array_to_torch(array: np.ndarray | np.generic) -> torch.Tensor:
    """A copy of an array as a tensor."""
    copied = np.array(array)
    for dtype, narrow in _NARROW.items():
        if copied.dtype == narrow:
            return torch.from_numpy(copied.view(_BITS[narrow.itemsize][1])).view(dtype)
    return torch.from_numpy(copied)
