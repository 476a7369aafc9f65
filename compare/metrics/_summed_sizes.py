"""The size of the numbers that a gradient of a dump was summed from, found from the values beside it."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import torch

from filch.steal import Key, Records, tensors

from ..common._complex import complex_as_real
from ._metrics import Difference, bytes_of, compare_tensors
from ._tolerance import Tolerance, default_tolerance

_Call = tuple[str, int]  # the name of a module, and the iteration of its call
SUMMED = "it is no further off than rounding of what was summed"
_FLOAT32_EPS = torch.finfo(torch.float32).eps  # sums are computed in float32, or finer
# In the last place of what was summed: in clean runs of float32, float16 and bfloat16, the root mean square of the
# differences was up to 4.2, and the largest one up to 42.
_TYPICAL_UNITS, _LARGEST_UNITS = 5, 64
_NOISE_UNITS = 2  # the root mean square of what consists of rounding errors alone
_LARGE, _FEWEST, _UNEXPLAINED = 0.1, 8, 0.1  # see `_is_multiple`


class _Gradient(NamedTuple):
    """The gradient with respect to an input or output of a call.

    Attributes:
        tensor: the input or output.
        numbers: those of the gradient, in float64 and one dimension.
        values: those of the input or output, likewise.
    """

    tensor: "_ModuleTensor"
    numbers: torch.Tensor
    values: torch.Tensor


class _Terms(NamedTuple):
    """The terms that the gradients of the inputs of a call are summed from.

    Attributes:
        total: the sum of `abs(gradient * output)` over the outputs, with what rounding may add to their gradients.
        inexactness: the size of what the most inexact gradient of an output was summed from, relative to the gradient.
    """

    total: float
    inexactness: float


class SummedSizes:
    """The sizes of what the gradients of a dump were summed from.

    A gradient is a sum, and its rounding errors are relative to the terms, which may cancel, not to the result.

    The terms of the gradient of an input are those of the output, times how much the output changes with the input. In
    units of the loss, `sum(abs(gradient * output))` of a call goes on to its inputs, whatever cancels: a normalization
    whose outputs are squared and summed passes on next to nothing of it. Of an output, the call that reads it next
    counts, or the module around it if no recorded call does. A gradient whose rounding errors exceed the tolerance
    counts with the size of what it was summed from, and what is computed from it is as inexact, relative to itself. The
    terms of a parameter's gradient are products of the gradient of the output, at most one for each of its elements.

    Args:
        records: a dump with the inputs, the outputs and their gradients.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._terms = lru_cache(maxsize=None)(self._terms_of)
        self._size = lru_cache(maxsize=None)(self._size_of)
        self._pending: set[_Call | _ModuleTensor] = set()  # what is being computed, in modules that return their input

    def of(self, key: Key, path: str, shape: Sequence[int]) -> float:
        """Return the size of what a gradient was summed from; 0 for other values, and where it is not known.

        Args:
            key: the key of the gradient's record.
            path: its path in the record.
            shape: its shape.
        """
        if key.kind not in ("GP", "GF", "GI", "GO"):
            return 0.0
        while self._waiting:
            self._terms(self._waiting.pop())
        if key.kind in ("GP", "GF"):
            return self._of_parameter(key.name.rpartition(".")[0], shape)
        tensor = self._values.of((key.name, key.iteration), key.kind[1:]).get(path)
        return 0.0 if tensor is None else self._size(tensor)

    @cached_property
    def _values(self) -> "_Values":
        return _Values(self._records)

    @cached_property
    def _waiting(self) -> list[_Call]:
        """The calls whose terms were not computed; the last one to return is first, so that recursion is not deep."""
        return self._values.returned

    def _size_of(self, tensor: "_ModuleTensor") -> float:
        """Return the size of the terms of the gradient with respect to an input or output: the largest of its readers.

        A reader is a call that reads the tensor; without one, the call of the module around that which returns it.
        """
        if tensor in self._pending:  # in a module that returns what it receives, which adds nothing
            return 0.0
        self._pending.add(tensor)
        readers = self._values.readers(tensor)
        around = [] if readers else self._values.around(tensor)
        sizes = [self._size_in_reader(tensor, call) for call in readers]
        for call, outer in around:
            sizes.append(self._size_of_multiple(tensor, call, outer) or self._size_in_reader(tensor, outer))
        self._pending.discard(tensor)
        return max(sizes, default=0.0)

    def _size_in_reader(self, tensor: "_ModuleTensor", call: _Call) -> float:
        """Return the size of the terms that a gradient gets from a call that reads the tensor."""
        if not tensor.spread or call in self._pending:  # the quotient below is not defined, or needs itself
            return 0.0
        terms = self._terms(call)
        own = max((_rms(item.numbers) for item in self._gradients(call, "I") if item.tensor == tensor), default=0.0)
        return max(terms.total / (tensor.spread * tensor.count), terms.inexactness * own)

    def _size_of_multiple(self, tensor: "_ModuleTensor", call: _Call, around: _Call) -> float:
        """Return the size of a gradient that is a multiple of one that follows in the module around the call; else 0.

        The gradient of a term of a sum is not summed, however small the term is beside the others.
        """
        own = next((item.numbers for item in self._gradients(call, "O") if item.tensor == tensor), None)
        if own is None:
            return 0.0
        following = (self._gradients(other, "I") for other in self._values.following(call, around))
        for item in chain(*following, self._gradients(around, "O")):
            if factor := _factor(own, item.numbers):
                return factor * max(_rms(item.numbers), self._noise(item))
        return 0.0

    def _terms_of(self, call: _Call) -> _Terms:
        """Return the terms of the gradients of the inputs of a call."""
        self._pending.add(call)
        total = inexactness = 0.0
        for item in self._gradients(call, "O"):
            noise = self._noise(item)
            products = float(_finite(item.numbers * item.values).abs().sum())
            total += max(products, noise * item.tensor.mean * item.tensor.count)
            inexactness = max(inexactness, noise / (_rms(item.numbers) or math.inf))
        self._pending.discard(call)
        return _Terms(total, inexactness)

    def _noise(self, item: _Gradient) -> float:
        """Return the size of what a gradient was summed from, if its rounding may exceed the tolerance; else 0."""
        size = self._size(item.tensor)
        exceeds = item.tensor.eps * size > default_tolerance(item.tensor.dtype).rms * _rms(item.numbers)
        return size if exceeds else 0.0

    def _of_parameter(self, module: str, shape: Sequence[int]) -> float:
        """Return the size of the sum that the gradient of a module's parameter is."""
        size, unit, inputs, count = 0.0, _FLOAT32_EPS, 0.0, 0
        for call in self._values.calls_of(module):
            inputs = max(inputs, *(tensor.mean for tensor in self._values.of(call, "I").values()), 0.0)
            for item in self._gradients(call, "O"):
                size = max(size, _rms(item.numbers), self._noise(item))
                unit = max(unit, item.tensor.eps)
                count += item.numbers.numel()
        terms = max(1.0, count / (shape[0] if shape else 1))
        # Rounding errors of the terms are random; those that they have in common, as of a mean, add up in float32.
        number = math.sqrt(terms) + terms * _FLOAT32_EPS / (_TYPICAL_UNITS * unit)
        if len(shape) < 2:  # of a bias, which is only added
            return size * number
        return size * number * (inputs or 1.0)

    def _gradients(self, call: _Call, kind: str) -> Iterator[_Gradient]:
        """Yield the gradient of each input (`"I"`) or output (`"O"`) of a call that has one."""
        places = Key(*call, f"G{kind}"), Key(*call, kind)
        if not all(key in self._records for key in places):
            return
        known = self._values.of(call, kind)
        gradients, values = (tensors(self._records.borrow(key)) for key in places)
        for path, gradient in gradients.items():
            if path in known and values[path].shape == gradient.shape:
                yield _Gradient(known[path], _double(gradient), _double(values[path]))


@dataclass(frozen=True)
class _ModuleTensor:
    """A floating-point tensor that modules return or receive; the same numbers are the same value.

    Attributes:
        bits: a hash of its numbers.
        dtype: its real dtype.
        count: how many numbers it has.
        mean: the mean magnitude of those that are finite, as those of a mask may not be.
        spread: their standard deviation.
    """

    bits: bytes
    dtype: torch.dtype
    count: int
    mean: float
    spread: float

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_ModuleTensor":
        """Return a tensor's value."""
        bits = hashlib.blake2b(bytes_of(tensor.cpu()).numpy().data, digest_size=16).digest()
        numbers, count = _finite(_double(tensor)), tensor.numel() * (1 + tensor.is_complex())
        mean, spread = (float(numbers.abs().mean()), float(numbers.std(correction=0))) if len(numbers) else (0.0, 0.0)
        return cls(bits, tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype, count, mean, spread)

    @property
    def eps(self) -> float:
        """The distance of 1 from the next number of the dtype."""
        return torch.finfo(self.dtype).eps


class _Values:
    """Which calls of modules read and return the values of a dump."""

    def __init__(self, records: Records) -> None:
        self._by_call: dict[tuple[_Call, str], dict[str, _ModuleTensor]] = {}
        self._places: dict[_ModuleTensor, list[tuple[_Call, str]]] = defaultdict(list)
        self._counts = Counter(key.name for key in records if key.kind == "O")
        for key in records:
            for path, tensor in tensors(records.borrow(key)).items() if key.kind in ("I", "O") else ():
                if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel():
                    place, value = ((key.name, key.iteration), key.kind), _ModuleTensor.of(tensor)
                    self._by_call.setdefault(place, {})[path] = value
                    self._places[value].append(place)

    def of(self, call: _Call, kind: str) -> Mapping[str, _ModuleTensor]:
        """Return the values that a call reads (`"I"`) or returns (`"O"`), by their paths."""
        return self._by_call.get((call, kind), {})

    @property
    def returned(self) -> list[_Call]:
        """The calls that return a value, in the order in which they do."""
        return [call for call, kind in self._by_call if kind == "O"]

    def readers(self, value: _ModuleTensor) -> list[_Call]:
        """Return the innermost calls that read a value and return another one."""
        own = {call for call, kind in self._places[value] if kind == "O"}
        calls = [call for call, kind in self._places[value] if kind == "I" and call not in own]
        names = {name for name, _ in calls}
        return [call for call in calls if not any(_is_inside(name, call[0]) for name in names)]

    def around(self, value: _ModuleTensor) -> list[tuple[_Call, _Call]]:
        """Return the calls that return a value, each with that of the module around it unless it returns it, too."""
        own = [call for call, kind in self._places[value] if kind == "O"]
        return [(call, around) for call in own if (around := self._around.get(call)) is not None and around not in own]

    def following(self, call: _Call, around: _Call) -> Iterator[_Call]:
        """Yield the calls that follow in the same call of the module around."""
        siblings = [item for item, parent in self._around.items() if parent == around]
        yield from siblings[siblings.index(call) + 1 :]

    def calls_of(self, name: str) -> list[_Call]:
        """Return the calls of a module, or of the innermost one around it that was called."""
        while name and not self._counts[name]:
            name = name.rpartition(".")[0]
        return [(name, iteration) for iteration in range(self._counts[name])]

    @cached_property
    def _around(self) -> dict[_Call, _Call]:
        """The call of the module around each call, in the order of the run."""
        found = {}
        for name, iteration in self.returned:
            calls = self.calls_of(name.rpartition(".")[0]) if name else []
            if calls:  # each of them calls the module equally often
                found[name, iteration] = calls[iteration * len(calls) // self._counts[name]]
        return found


def compare_summed(
    actual: torch.Tensor | None,
    expected: torch.Tensor,
    size: Callable[[], float],
    *,
    tolerance: float | Tolerance | None,
) -> tuple[Difference, bool]:
    """Measure a difference as `compare_tensors` does, and judge one that is not close by the size of what was summed.

    A multiple of the expected value, such as its negative or one with some elements 0, is never rounding, unless the
    value itself consists of rounding errors.

    Args:
        actual: the value.
        expected: the reference.
        size: returns the size of what was summed to get the reference; 0 if that is not known.
        tolerance: see `compare`; with 0, nothing is rounding.

    Returns:
        the difference, and whether it is close because of that size.
    """
    difference = compare_tensors(actual, expected, tolerance=tolerance)
    if actual is None or difference.close or difference.problem or difference.nonfinite:
        return difference, False
    if not 0 < (summed := size()) < math.inf:  # it may be too large for float64
        return difference, False
    unit = min(torch.finfo(expected.dtype).eps, difference.tolerance.harmonic) * summed
    is_rounding = _is_rounding(_double(actual), _double(expected), unit)
    return (replace(difference, close=True, mismatched=0), True) if is_rounding else (difference, False)


def _is_rounding(actual: torch.Tensor, expected: torch.Tensor, unit: float) -> bool:
    """Return whether two tensors differ by rounding, of which a typical error is `unit`."""
    change = actual - expected
    if _rms(change) > _TYPICAL_UNITS * unit or float(change.abs().max()) > _LARGEST_UNITS * unit:
        return False
    return max(_rms(actual), _rms(expected)) <= _NOISE_UNITS * unit or not _is_multiple(actual, expected)


def _is_multiple(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether the elements that differ most are the expected ones times a number."""
    change = actual - expected
    large = change.abs() > _LARGE * change.abs().max()
    change, expected = change[large], expected[large]
    return change.numel() >= _FEWEST and _factor(change, expected) > 0


def _factor(tensor: torch.Tensor, other: torch.Tensor) -> float:
    """Return how many times as large as another one a tensor is; 0 if it is not a multiple of it."""
    square = float(other @ other) if tensor.shape == other.shape else 0.0
    factor = float(tensor @ other) / square if square else 0.0
    if not factor or not math.isfinite(factor):
        return 0.0
    return abs(factor) if _rms(tensor - factor * other) <= _UNEXPLAINED * _rms(tensor) else 0.0


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor in float64 and one dimension; complex ones as pairs."""
    return complex_as_real(tensor.detach()).reshape(-1).double()


def _rms(numbers: torch.Tensor) -> float:
    """Return the root mean square of the finite numbers; 0 of none."""
    finite = _finite(numbers)
    return float(finite.square().mean().sqrt()) if len(finite) else 0.0


def _finite(numbers: torch.Tensor) -> torch.Tensor:
    """Return the numbers that are finite."""
    is_finite = numbers.isfinite()
    return numbers if bool(is_finite.all()) else numbers[is_finite]


def _is_inside(name: str, parent: str) -> bool:
    """Return whether a module is a submodule of another one, at any depth."""
    return name != parent and (not parent or name.startswith(f"{parent}."))
