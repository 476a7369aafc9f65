"""Whether a GPU rounds the factors of float32 products to TF32."""

import torch

TF32 = 2.0**-11  # half a unit in the last place, relative: 10 bits behind the leading one
_AMPERE = 8


def rounding_of_products() -> float:
    """What NVIDIA's libraries round the factors of float32 products to if they may: TF32's, where the GPU has it.

    A GPU that torch does not see, as it was built for the CPU, is taken for one of today's.
    """
    old = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < _AMPERE
    return 0.0 if old else TF32


def rounding_of_torch(device: torch.device | None) -> float:
    """Likewise for torch's own products on a device, as it is set now."""
    if device is None or device.type != "cuda":
        return 0.0
    try:
        allowed = torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # it was set by the new names, of which the old ones say nothing
        allowed = True
    return rounding_of_products() if allowed else 0.0
