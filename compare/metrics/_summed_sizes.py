"""The size of the numbers that a gradient of a dump was summed from, found from the values beside it."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch

from filch.steal import Key, Records, tensors

from ..common._complex import complex_as_real
from ._metrics import Difference, bytes_of, compare_tensors
from ._tolerance import Tolerance, default_tolerance

_Call = tuple[str, int]  # the name of a module and the iteration
_Flowing = tuple[str, torch.Tensor, torch.Tensor]  # the path, the gradient and the value of an input or output
SUMMED = "it is no further off than rounding of what was summed"
_FLOAT32_EPS = torch.finfo(torch.float32).eps  # sums are computed in float32, or finer
# In the last place of what was summed: in clean runs of float32, float16 and bfloat16, the root mean square of the
# differences was up to 4.2, and the largest one up to 42.
_TYPICAL_UNITS, _LARGEST_UNITS = 5, 64
_NOISE_UNITS = 2  # the root mean square of what consists of rounding errors alone
_LARGE, _FEWEST, _UNEXPLAINED = 0.1, 8, 0.1  # see `_is_multiple`


class SummedSizes:
    """The sizes of what the gradients of a dump were summed from.

    The terms of the gradient of an input are those of the output, times how much the output changes with the input. In
    units of the loss, `sum(abs(gradient * output))` of a call goes on to its inputs, whatever cancels: a normalization
    whose outputs are squared and summed passes on next to nothing of it. Of an output, the call that reads it next
    counts, or the module around it if no recorded call does. A gradient whose rounding errors exceed the tolerance
    counts with the size of what it was summed from, and what is computed from it is as inexact, relative to itself. The
    terms of a parameter's gradient are products of the gradient
    of the output, at most one for each of its elements.

    Args:
        records: a dump with the inputs, the outputs and their gradients.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._flow = lru_cache(maxsize=None)(self._flow_of)
        self._size = lru_cache(maxsize=None)(self._size_of)
        self._pending: set[_Call | _ModuleTensor] = set()

    def of(self, key: Key, path: str, shape: Sequence[int]) -> float:
        """Return the size of what a gradient was summed from; 0 for other values, and where it is not known.

        Args:
            key: the key of the gradient's record.
            path: its path in the record.
            shape: its shape.
        """
        call = key.name, key.iteration
        if key.kind not in ("GP", "GF", "GI", "GO"):
            return 0.0
        while self._waiting:
            self._flow(self._waiting.pop())
        if key.kind in ("GP", "GF"):
            return self._of_parameter(key.name.rpartition(".")[0], shape)
        value = self._values.of(call, key.kind[1:]).get(path)
        return 0.0 if value is None else self._size(value)

    @cached_property
    def _values(self) -> "_Values":
        return _Values(self._records)

    @cached_property
    def _waiting(self) -> list[_Call]:
        """All calls; the last one to return is taken first, so that none waits for a chain of those behind it."""
        return self._values.returned

    def _size_of(self, value: "_ModuleTensor") -> float:
        """Return the size of the terms of the gradient with respect to a value."""
        if value in self._pending:  # a module that returns what it receives
            return 0.0
        self._pending.add(value)
        readers = self._values.readers(value)
        around = [] if readers else self._values.around(value)
        sizes = [self._size_of_terms(value, call) for call in readers]
        sizes += [self._size_of_multiple(value, *calls) or self._size_of_terms(value, calls[1]) for calls in around]
        self._pending.discard(value)
        return max(sizes, default=0.0)

    def _size_of_terms(self, value: "_ModuleTensor", call: _Call) -> float:
        if not value.spread or call in self._pending:
            return 0.0
        total, inexactness = self._flow(call)
        own = max(
            (_rms(gradient) for path, gradient, _ in self._inputs(call) if self._is(value, call, path)), default=0.0
        )
        return max(total / (value.spread * value.count), inexactness * own)

    def _is(self, value: "_ModuleTensor", call: _Call, path: str) -> bool:
        return self._values.of(call, "I")[path] == value

    def _size_of_multiple(self, value: "_ModuleTensor", call: _Call, around: _Call) -> float:
        """Return the size of a gradient that is a multiple of one that follows in the module around the call; else 0.

        The gradient of a term of a sum is not summed, however small the term is beside the others.
        """
        own = next((gradient for path, gradient, _ in self._outputs(call) if self._value(call, path) == value), None)
        if own is None:
            return 0.0
        following = [(item, "I", self._inputs(item)) for item in self._values.following(call, around)]
        for item, kind, gradients in (*following, (around, "O", self._outputs(around))):
            for path, gradient, _ in gradients:
                factor = _factor(own, gradient)
                if factor:
                    return factor * max(_rms(gradient), self._noise(self._values.of(item, kind)[path], gradient))
        return 0.0

    def _flow_of(self, call: _Call) -> tuple[float, float]:
        """Return the sum of `abs(gradient * output)` of a call, with what rounding may add to the gradient.

        The second number is the size of what the most inexact gradient of an output was summed from, relative to it.
        """
        self._pending.add(call)
        total = inexactness = 0.0
        for path, gradient, output in self._outputs(call):
            value = self._value(call, path)
            noise = self._noise(value, gradient)
            total += max(float((gradient * output).abs().sum()), noise * value.mean * value.count)
            inexactness = max(inexactness, noise / (_rms(gradient) or math.inf))
        self._pending.discard(call)
        return total, inexactness

    def _noise(self, value: "_ModuleTensor", gradient: torch.Tensor) -> float:
        """Return the size of what a gradient was summed from, if its rounding may exceed the tolerance; else 0."""
        size = self._size(value)
        exceeds = value.eps * size > default_tolerance(value.dtype).rms * _rms(gradient)
        return size if exceeds else 0.0

    def _of_parameter(self, module: str, shape: Sequence[int]) -> float:
        """Return the size of the sum that the gradient of a module's parameter is."""
        sizes, units, inputs, count = [0.0], [_FLOAT32_EPS], [0.0], 0
        for call in self._values.calls_of(module):
            inputs += [value.mean for value in self._values.of(call, "I").values()]
            for path, gradient, _ in self._outputs(call):
                value = self._value(call, path)
                sizes.append(max(_rms(gradient), self._noise(value, gradient)))
                units.append(value.eps)
                count += gradient.numel()
        terms = max(1.0, count / (shape[0] if shape else 1))
        # Rounding errors of the terms are random; those that they have in common, as of a mean, add up in float32.
        number = math.sqrt(terms) + terms * _FLOAT32_EPS / (_TYPICAL_UNITS * max(units))
        return max(sizes) * number * (max(inputs) or 1.0 if len(shape) > 1 else 1.0)

    def _value(self, call: _Call, path: str) -> "_ModuleTensor":
        return self._values.of(call, "O")[path]

    def _outputs(self, call: _Call) -> Iterator[_Flowing]:
        return self._flowing(call, "O")

    def _inputs(self, call: _Call) -> Iterator[_Flowing]:
        return self._flowing(call, "I")

    def _flowing(self, call: _Call, kind: str) -> Iterator[_Flowing]:
        """Yield the path, the gradient and the value of each input or output of a call that has a gradient."""
        places = Key(*call, f"G{kind}"), Key(*call, kind)
        if not all(key in self._records for key in places):
            return
        gradients, values = (tensors(self._records.borrow(key)) for key in places)
        for path, gradient in gradients.items():
            if path in self._values.of(call, kind) and values[path].shape == gradient.shape:
                yield path, _double(gradient), _double(values[path])


@dataclass(frozen=True)
class _ModuleTensor:
    """A floating-point tensor that modules return or receive; the same numbers are the same value.

    Attributes:
        bits: a hash of its numbers.
        dtype: its real dtype.
        count: how many elements it has.
        mean: their mean magnitude.
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
        numbers = _double(tensor)
        dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
        return cls(bits, dtype, numbers.numel(), float(numbers.abs().mean()), float(numbers.std(correction=0)))

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
        return [call for call in calls if not any(_is_below(other[0], call[0]) for other in calls)]

    def around(self, value: _ModuleTensor) -> list[tuple[_Call, _Call]]:
        """Return the calls that return a value, each with the call of the module around it."""
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
        for call, kind in self._by_call:
            calls = self.calls_of(call[0].rpartition(".")[0]) if call[0] and kind == "O" else []
            found.update({call: calls[call[1] * len(calls) // self._counts[call[0]]]} if calls else {})
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
    if actual is None or difference.close or difference.problem or difference.nonfinite or not (summed := size()):
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
    if not square:
        return 0.0
    factor = float(tensor @ other) / square
    return abs(factor) if _rms(tensor - factor * other) <= _UNEXPLAINED * _rms(tensor) else 0.0


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return complex_as_real(tensor.detach()).reshape(-1).double()


def _rms(numbers: torch.Tensor) -> float:
    return float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0


def _is_below(name: str, parent: str) -> bool:
    return name != parent and (not parent or name.startswith(f"{parent}."))
