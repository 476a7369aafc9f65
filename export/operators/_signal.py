"""Operators on signals: Fourier transforms, windows and filter banks."""

import math
from collections.abc import Sequence

import torch

from ._operator import Compute, NodeCall, Operator, Tensor, number


def _as_complex(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension has one real number, or a real and an imaginary one, without it."""
    return x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def _fourier(call: NodeCall, x: Tensor, length: Tensor | None, axis: int) -> Tensor:
    """Return a transform along an axis; its last dimension has the real and imaginary parts, or real ones alone."""
    axis, is_half, signal = axis % x.dim(), bool(call["onesided"]), _as_complex(x)
    count = None if length is None else int(number(length))
    if call["inverse"]:
        if is_half:
            return torch.fft.irfft(signal, count, axis)[..., None]
        return torch.view_as_real(torch.fft.ifft(signal, count, axis))
    result = torch.fft.fft(signal, count, axis)
    result = result.narrow(axis, 0, result.shape[axis] // 2 + 1) if is_half else result
    return torch.view_as_real(result.resolve_conj())


def _transform(call: NodeCall, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    """Return the Fourier transform; from version 20 on, the axis is an input."""
    return _fourier(call, x, length, call.get("axis", -2) if axis is None else int(number(axis)))


def _short_transform(
    call: NodeCall, x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None
) -> Tensor:
    default = x.shape[1] if window is None else len(window)
    size = default if length is None else int(number(length))
    frames = _as_complex(x if x.dim() == 3 else x[..., None]).unfold(1, size, int(number(step)))
    frames = frames if window is None else frames * window
    result = torch.fft.fft(frames, dim=-1)
    return torch.view_as_real(result[..., : size // 2 + 1] if call["onesided"] else result)


def _window(coefficients: Sequence[float]) -> Compute:
    """Return a window that is a sum of cosines."""

    def compute(call: NodeCall, size: Tensor) -> Tensor:
        count = int(number(size))
        period = count if call["periodic"] else max(1, count - 1)
        angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / period)
        return sum((c * torch.cos(k * angle) for k, c in enumerate(coefficients)), torch.zeros(()))

    return compute


def _mel_weights(_: NodeCall, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return triangles over the bins of a spectrum, between places of equal distance on the mel scale."""
    count, size = int(number(bins)), int(number(length))
    mels = [2595 * math.log10(1 + float(number(edge)) / 700) for edge in (low, high)]
    places = mels[0] + torch.arange(count + 2, dtype=torch.float64) * (mels[1] - mels[0]) / (count + 2)
    hertz = 700 * (10 ** (places / 2595) - 1)
    edges = torch.floor((size + 1) * hertz / number(rate))
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    at = torch.arange(size // 2 + 1, dtype=torch.float64)[:, None]
    rising = torch.where(middle > left, (at - left) / (middle - left), 1.0)
    falling = (right - at) / (right - middle)
    weights = torch.where((at >= left) & (at <= middle), rising, 0.0)
    return torch.where((at >= middle) & (at < right), falling, weights)


OPERATORS = (
    Operator("BlackmanWindow", _window((0.42, -0.5, 0.08))),
    Operator("DFT", _transform),
    Operator("HammingWindow", _window((25 / 46, -21 / 46))),
    Operator("HannWindow", _window((0.5, -0.5))),
    Operator("MelWeightMatrix", _mel_weights, settings=frozenset({3, 4})),
    Operator("STFT", _short_transform),
)
