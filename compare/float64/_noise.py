"""Noise of half a unit in the last place."""

import torch

_PATTERN_SIZE = 65521  # numbers of noise, which repeat: a prime, so that no dimension of a tensor repeats with them
_NOISE_WIDTH = 3.0**0.5  # a uniform distribution that wide has a root mean square of 1


def unit_of(dtype: torch.dtype) -> float:
    """Return half a unit in the last place of a floating-point dtype, relative; 0 for other dtypes."""
    real = dtype.to_real() if dtype.is_complex else dtype
    return torch.finfo(real).eps / 2 if real.is_floating_point and real.itemsize > 1 else 0.0


def with_noise(tensor: torch.Tensor, unit: float, *, seed: int) -> torch.Tensor:
    """Return a copy with each number changed by about `unit`, relative, up or down."""
    random = torch.Generator().manual_seed(seed)
    pattern = torch.rand(min(tensor.numel(), _PATTERN_SIZE), generator=random, dtype=torch.float64)
    return _multiply(tensor, pattern.mul_(2).sub_(1).mul_(_NOISE_WIDTH * unit).add_(1.0).to(tensor.device))


def _multiply(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Multiply the elements by a pattern that repeats."""
    product = tensor.clone(memory_format=torch.contiguous_format)
    flat = product.view(-1)
    whole = flat.numel() - flat.numel() % max(1, pattern.numel())
    if whole:
        flat[:whole].view(-1, pattern.numel()).mul_(pattern)
        flat[whole:].mul_(pattern[: flat.numel() - whole])
    return product
