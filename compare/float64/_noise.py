"""Noise of half a unit in the last place."""

import functools

import torch

_PATTERN_SIZE = 65521  # numbers of noise, which repeat: a prime, so that no dimension of a tensor repeats with them
# The sizes of noise in units: none is near 0, where an exponential of the number would seem exact. Numbers that are
# uniformly distributed between them have a root mean square of 1.
_LEAST, _MOST = 0.5, 1.427


def unit_of(dtype: torch.dtype) -> float:
    """Return half a unit in the last place of a floating-point dtype, relative; 0 for float8 and for other dtypes."""
    real = dtype.to_real() if dtype.is_complex else dtype
    return torch.finfo(real).eps / 2 if real.is_floating_point and real.itemsize > 1 else 0.0


def with_noise(
    tensor: torch.Tensor, unit: float, *, seed: int, start: int | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a copy with each number changed by about `unit`, relative, up or down.

    Args:
        tensor: the numbers, or a block of them.
        unit: the root mean square of the change.
        seed: selects the change of each number.
        start: the index of the first number of a block; None for a whole tensor.
        out: where to write the copy, a contiguous tensor that may be `tensor` itself; None is new memory.
    """
    count = _PATTERN_SIZE if start is not None else min(tensor.numel(), _PATTERN_SIZE)
    first = (start or 0) % _PATTERN_SIZE
    factors = _factors(seed, count, unit)[first : first + min(tensor.numel(), count)].to(tensor.device)
    flat = tensor.reshape(-1)  # a copy if the tensor is not contiguous
    product = torch.empty_like(flat) if out is None else out.view(-1)
    # The factors repeat: whole repetitions are multiplied at once, and then what is left.
    whole = flat.numel() - flat.numel() % max(1, len(factors))
    if whole:
        rows = -1, len(factors)
        torch.mul(flat[:whole].view(rows), factors, out=product[:whole].view(rows))
    torch.mul(flat[whole:], factors[: flat.numel() - whole], out=product[whole:])
    return product.view(tensor.shape)


@functools.lru_cache(maxsize=8)  # blocks of one weight are read one after the other, and values by several nodes
def _factors(seed: int, count: int, unit: float) -> torch.Tensor:
    """Return what numbers are multiplied by, which must not be changed: `count` factors; all of a block, twice."""
    numbers = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul_(2).sub_(1)
    changes = numbers.abs().mul_(_MOST - _LEAST).add_(_LEAST).copysign_(numbers)
    factors = changes.mul_(unit).add_(1.0)
    return torch.cat([factors, factors]) if count == _PATTERN_SIZE else factors
