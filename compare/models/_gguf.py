"""Read the weights of a GGUF file, and find the numbers that quantized ones were rounded from."""

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from filch.steal.files._kinds import budget_of
from filch.steal.files._untrusted import open_untrusted, reopened
from filch.steal.text._visible import short_line

from ..common._errors import CompareError
from ..common._optional import import_optional

# Numbers with one scale, and with scales that are quantized together, by the types whose numbers are evenly spaced.
_BLOCKS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"), (32, 32)),
    **dict.fromkeys(("Q4_K", "Q5_K"), (32, 256)),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q6_K"), (16, 256)),
}
# Steps of a block: in its number that is farthest from 0, or between the least and the largest one.
_STEPS_OF_LARGEST = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 127}
_STEPS_OF_RANGE = {"Q4_1": 15, "Q5_1": 31}
_PLAIN = frozenset({"F16", "F32", "F64", "BF16", "I8", "I16", "I32", "I64"})
_STEPS = 1.5  # Q4_0 cuts the largest number by a step, and scales are rounded
_SMALLEST = 2.0**-17  # of a number in a block with the smallest scale, 2 ** -24
_OWN_READ = 32  # elements of a list that are skipped while the package reads a number
_STRING_LENGTH = struct.Struct("<Q")  # PyTorch has no numbers of the other byte order
_LIST_HEADER = 12  # bytes: the type of the elements, and how many there are
_WIDTH, _SAMPLES = 64, 128  # of sketches of rows; rows by which the tensors are found that may have all of them
_LARGE, _MOST_REPEATED = 2**31, 64  # bytes of all tensors, and times those of the file
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Quantized:
    """How a weight was quantized.

    Attributes:
        type: the type of GGUF: `Q4_K`.
        error: the root mean square of what rounding changed, relative to that of the weight; None if not known.
    """

    type: str
    error: float | None = None

    @property
    def is_judged(self) -> bool:
        """Whether the numbers of the type are evenly spaced, so that the spacing tells what rounding may change."""
        return self.type in _BLOCKS


@dataclass(frozen=True, eq=False)
class GgufWeights:
    """The weights of a GGUF file.

    Attributes:
        weights: by name, in the order of the file; quantized ones as float32.
        quantized: which of them were quantized, and how.
    """

    weights: Tensors
    quantized: Mapping[str, Quantized] = field(default_factory=dict)

    def snapped_to(self, reference: Tensors) -> "GgufWeights":
        """Return the weights with the numbers of a reference in place of those that were rounded from them.

        A row of a quantized weight is compared with the row or column of the reference that is nearest to it. A number
        counts as rounded if it is at most 1.5 steps away; a step is the distance of neighboring numbers of its block.

        Args:
            reference: other weights, by name.
        """
        rows_of_width = cache(partial(_WeightRows, reference))
        weights, quantized = dict(self.weights), dict(self.quantized)
        for name, how in self.quantized.items():
            weight = self.weights[name]
            if how.is_judged and weight.dim() > 1:
                width = weight.shape[-1]
                nearest = rows_of_width(width).nearest(weight.reshape(-1, width)).reshape(weight.shape)
                is_rounded = (weight - nearest).abs() <= _allowed(weight, how.type)
                weights[name] = torch.where(is_rounded, nearest, weight)
                error = torch.linalg.vector_norm(weight - weights[name]) / torch.linalg.vector_norm(weights[name])
                quantized[name] = replace(how, error=float(error.nan_to_num()))
        return GgufWeights(weights, quantized)


def load_gguf(path: str | os.PathLike[str]) -> GgufWeights:
    """Read a GGUF file with the package `gguf`.

    Raises:
        CompareError: the file can't be read, or the package is missing.
    """
    gguf = import_optional("gguf", "filch[gguf]", repr(str(path)))
    weights, quantized = {}, {}
    try:
        with open_untrusted(path) as file, reopened(file) as place:
            most = max(_LARGE, _MOST_REPEATED * os.fstat(file.fileno()).st_size)
            numbers = budget_of("GGUF file", size=most)
            for tensor in _reader(gguf)(Path(place), "c").tensors:  # mapped, and copied on write
                numbers.take_bytes(4 * int(tensor.n_elements))
                kind = tensor.tensor_type.name
                data = tensor.data if kind in _PLAIN - {"BF16"} else gguf.dequantize(tensor.data, tensor.tensor_type)
                array = torch.from_numpy(data)
                weights[tensor.name] = array.bfloat16() if kind == "BF16" else array  # of which NumPy has none
                if kind not in _PLAIN:
                    quantized[tensor.name] = Quantized(kind)
    except OSError as error:
        raise CompareError(f"can't read {str(path)!r}: {error.strerror or error}") from error
    except Exception as error:  # for a damaged file, the package raises exceptions of any type
        raise CompareError(f"{str(path)!r} can't be read as GGUF: {short_line(str(error))}") from error
    return GgufWeights(weights, quantized)


def _reader(gguf: Any) -> Any:
    """Return the reader of the package, which counts what it reads of a header, and skips lists.

    The package goes on after the end of a file, and takes 35 microseconds for each word of a vocabulary.
    """

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def _get(self, *args: Any, **options: Any) -> Any:
            budget.take_items(_OWN_READ, "fields")
            return super()._get(*args, **options)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY:
                parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
                return parts
            kind, count = (int(self._get(orig_offs + at, dtype)[0]) for at, dtype in ((0, np.uint32), (4, np.uint64)))
            budget.take_items(count, "fields")
            end = orig_offs + _LIST_HEADER
            if kind == gguf.GGUFValueType.STRING:
                end = _after_strings(memoryview(self.data), end, count)
            else:
                end += count * np.dtype(self.gguf_scalar_to_np[gguf.GGUFValueType(kind)]).itemsize
            return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]  # its size, and no elements

    budget = budget_of("GGUF file")
    return Reader


def _after_strings(data: memoryview, offset: int, count: int) -> int:
    """Return the offset after strings, each of which begins with its length."""
    for _ in range(count):
        offset += _STRING_LENGTH.size + _STRING_LENGTH.unpack_from(data, offset)[0]
    return offset


def _allowed(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Return how much rounding to a type may have changed each number."""
    count, together = _BLOCKS[kind]
    largest = _steps(weight.reshape(-1, count), kind).reshape(-1, together // count).amax(-1, keepdim=True)
    return (_STEPS * largest).expand(-1, together).reshape(weight.shape) + _SMALLEST


def _steps(blocks: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the distance of neighboring numbers of a type in each block."""
    if kind in _STEPS_OF_LARGEST:
        return blocks.abs().amax(-1) / _STEPS_OF_LARGEST[kind]
    if kind in _STEPS_OF_RANGE:
        return (blocks.amax(-1) - blocks.amin(-1)) / _STEPS_OF_RANGE[kind]
    gaps = blocks.sort(-1).values.diff(dim=-1)  # that of equal numbers is 0, as they are computed in the same way
    least = gaps.masked_fill(gaps == 0, math.inf).amin(-1)
    return least.masked_fill(least.isinf(), 0.0)


class _WeightRows:
    """The rows and columns of one length of all weights, found by sketches: products with random vectors.

    Args:
        weights: the weights by name, of any dtype; of matrices, the columns count as rows, too.
        width: the length.
    """

    def __init__(self, weights: Tensors, width: int) -> None:
        self._matrices = [*_matrices(weights, width)]
        self._vectors = torch.randn(width, _WIDTH, generator=torch.Generator().manual_seed(0))
        self._sketches = [self._sketch(matrix) for matrix in self._matrices]

    def _sketch(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a unit vector for each row; the product of two is near 1 if their rows have similar directions."""
        return torch.nn.functional.normalize(rows.float() @ self._vectors)

    def nearest(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the nearest of all rows for each row, as float32; zeros if there are none."""
        found = torch.zeros_like(rows)
        sketches = self._sketch(rows)
        samples = sketches[torch.linspace(0, len(rows) - 1, min(len(rows), _SAMPLES)).long()]
        if not self._sketches:
            return found
        # Only the matrices that have the nearest row of some of the samples are searched.
        likely = torch.stack([(samples @ own.T).amax(-1) for own in self._sketches]).argmax(0)
        best = torch.full((len(rows),), -math.inf)
        for index in sorted({*likely.tolist()}):
            size, place = (sketches @ self._sketches[index].T).max(-1)
            better = size > best
            best = torch.where(better, size, best)
            found[better] = self._matrices[index][place[better]].float()
        return found


def _matrices(weights: Tensors, width: int) -> Iterator[torch.Tensor]:
    """Yield the weights as matrices whose rows have a length, also transposed ones."""
    for weight in weights.values():
        if weight.is_floating_point() and weight.dim() > 1:
            if weight.shape[-1] == width:
                yield weight.detach().reshape(-1, width)
            if weight.dim() == 2 and weight.shape[0] == width:
                yield weight.detach().T
