"""Whether a GPU rounds the inputs of float32 matrix products to TF32."""

import torch

TF32 = 2.0**-11  # half a unit in the last place, relative: TF32 has 10 mantissa bits


def tf32_input_eps() -> float:
    """Return the relative rounding error of matrix product inputs where TF32 is allowed: 0 on GPUs without TF32.

    A GPU that torch does not see (because torch was built for the CPU) is assumed to have TF32.
    """
    before_ampere = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8
    return 0.0 if before_ampere else TF32


def torch_matmul_input_eps(device: torch.device | None) -> float:
    """Return the relative rounding error of the inputs of torch's own matrix products, with its current settings."""
    if device is None or device.type != "cuda":
        return 0.0
    try:
        allowed = torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set by the new names (`fp32_precision`), which the old ones can't read
        allowed = True
    return tf32_input_eps() if allowed else 0.0
