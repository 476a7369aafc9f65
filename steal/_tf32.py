"""Which products of float32 numbers a GPU may compute in TF32, by its generation and the settings of torch."""

from enum import StrEnum

import torch


class Product(StrEnum):
    """A kind of product whose float32 factors a GPU may round to TF32."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"


def tf32_products(device: torch.device | None) -> frozenset[Product]:
    """Return the products whose factors torch may round to TF32 on a device, with its current settings."""
    if device is None or device.type != "cuda" or not has_tf32():
        return frozenset()
    try:
        settings = {
            Product.MATMUL: torch.get_float32_matmul_precision() != "highest",
            Product.CONVOLUTION: torch.backends.cudnn.allow_tf32,
        }
    except RuntimeError:  # set by the new names (`fp32_precision`), which the old ones can't read
        return frozenset(Product)
    return frozenset(product for product, is_allowed in settings.items() if is_allowed)


def has_tf32() -> bool:
    """Return whether the GPU has TF32; one that torch does not see (torch may be built for the CPU) counts as such."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 8  # Ampere and later
