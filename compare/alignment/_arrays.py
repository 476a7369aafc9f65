"""`NamedArrays`: numbers that an implementation has left behind under names, without the operations."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from filch.export import Graph, Value
from filch.export.operators._in_float64 import in_float64
from filch.export.tracing._replayable import ModuleOutput, RunResult
from filch.steal import Records, tensors
from filch.steal.private._torch import pytree
from filch.steal.text._visible import short_line

from ..common._complex import complex_as_real
from ..common._errors import CompareError
from ..common._plain_tensors import plain_tensors
from ..models._gguf import GgufWeights, Quantized
from ..pairing._folded import folded_weights
from ..pairing._weight_map import WeightMap, match_weights
from ..runs._execution import Execution, ModelSource, Output, Tensors
from ..runs._program_run import ProgramSource
from ._weight_verdict import other_weights

_PRECISIONS = (torch.bfloat16, torch.float16, torch.float32)
_VARIED = 64  # different numbers that show the precision in which they were computed


@dataclass(frozen=True, eq=False)
class NamedArrays:
    """Arrays of an implementation by name, in the order in which it computed them, as far as that is known.

    Attributes:
        name: what the implementation is called.
        arrays: all arrays, which may be weights or values; of any dtypes.
        weight_names: the names of those that are known to be weights.
        places: the module and the path of each tensor that a module returned; those of other arrays are their names.
        quantized: which weights of a GGUF file are quantized, and how.
    """

    name: str
    arrays: Tensors
    weight_names: frozenset[str] = frozenset()
    places: Mapping[str, tuple[str, str]] | None = None
    quantized: Mapping[str, Quantized] = field(default_factory=dict)

    @classmethod
    def of(cls, arrays: Mapping[str, Any] | Records, name: str | None = None) -> "NamedArrays":
        """Return the arrays of a mapping, or what the modules and operators of a capture returned.

        Args:
            arrays: tensors, or arrays of NumPy or a package that NumPy can convert; mappings may be nested. Or records.
            name: what they are called; None for a name by their type.

        Raises:
            CompareError: there are none, or something else is among them.
        """
        if isinstance(arrays, Records):
            return _of_records(arrays, name or arrays.source)
        found = plain_tensors(dict(_flat(arrays, "")))
        if not found:
            raise CompareError("the mapping has no arrays")
        return cls(name or "arrays", found)

    @classmethod
    def of_state(cls, state: Mapping[str, Any], name: str) -> "NamedArrays":
        """Return arrays all of which are weights: a state dictionary."""
        arrays = plain_tensors(state)
        return cls(name, arrays, frozenset(arrays))

    @classmethod
    def of_gguf(cls, weights: GgufWeights, name: str) -> "NamedArrays":
        """Return the weights of a GGUF file."""
        return cls(name, weights.weights, frozenset(weights.weights), quantized=weights.quantized)

    @property
    def weights(self) -> Tensors:
        """The arrays that are weights, by name: all, if none is known to be one."""
        return {name: item for name, item in self.arrays.items() if not self.weight_names or name in self.weight_names}

    def weights_among(self, run: Execution) -> WeightMap:
        """Return which arrays are weights: those with the numbers of a weight of the other implementation.

        If there are any, so are others of the shape of a weight that was not found.

        Args:
            run: the other implementation.
        """
        reference, folded = run.weights, folded_weights(run)
        if self.places is not None:
            known = {name: self.arrays[name] for name in self.arrays if name in self.weight_names}
            return match_weights(reference, known, folded)
        found = match_weights(reference, self.arrays, folded)
        names = {match.weight for match in found.matches if match.complete} | self.weight_names
        if any(self.arrays[name].dim() > 1 for name in names):
            names |= {item.name for item in other_weights(found, reference, self.arrays)}
        matches = tuple(match for match in found.matches if match.weight in names)
        return WeightMap(matches, found.unused if matches else ())

    def execution(self, weights: Collection[str]) -> Execution:
        """Return the arrays as an execution without operations.

        Args:
            weights: the names of those that are weights.
        """
        weight_names = [name for name in self.arrays if name in weights]
        values = {name: in_float64(complex_as_real(item)) for name, item in self.arrays.items() if name not in weights}
        places = self.places or {}
        returned = {name: path for name, (module, path) in places.items() if not module and name in values}
        returned = returned or {name: name for name in values}  # else all may be outputs
        described = {name: Value(name, str(item.dtype)[6:], tuple(item.shape)) for name, item in self.arrays.items()}
        return Execution(
            self.name,
            Graph(self.name, tuple(values), (), tuple(weight_names), (), described),
            values,
            {name: self.arrays[name] for name in weight_names},
            tuple(ModuleOutput(*places.get(name, (name, "")), name) for name in values),
            outputs=tuple(Output(RunResult("returned", path, name), values[name]) for name, path in returned.items()),
        )

    @property
    def has_results(self) -> bool:
        """Whether it is known which arrays the implementation returned."""
        return any(not module for module, _ in (self.places or {}).values())

    def units(self, names: Collection[str]) -> dict[str, float]:
        """Return half a unit in the last place of the precision of each of these arrays, relative.

        Where the arrays before one have a lower precision, it inherits their errors. The precision is that of the
        numbers: NumPy has no bfloat16, and arrays may have been converted to be saved.
        """
        found, coarsest = {}, 0.0
        for name in names:
            coarsest = max(coarsest, _unit(self.arrays[name]))
            found[name] = coarsest
        return found


# Each has a `name` and `weights`; what can be run also has `inputs`, `with_other_numbers()` and `run()` in float64.
Runnable = ModelSource | ProgramSource
Source = Runnable | NamedArrays


def _unit(tensor: torch.Tensor) -> float:
    """Return half a unit in the last place of the precision in which a tensor was computed; 0 if that is not known."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return 0.0
    numbers = complex_as_real(tensor).detach().reshape(-1)
    unit = torch.finfo(numbers.dtype).eps / 2
    sample = numbers[:: max(1, numbers.numel() // 2**12)]
    if len(torch.unique(sample)) < _VARIED:
        return unit if numbers.dtype.itemsize <= 2 else 0.0  # a wider dtype may hold rounded numbers
    for dtype in _PRECISIONS:
        if torch.finfo(dtype).eps / 2 > unit and torch.equal(sample.to(dtype).to(sample.dtype), sample):
            return torch.finfo(dtype).eps / 2
    return unit


def _flat(arrays: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the arrays of nested mappings and lists as tensors, by their keys and indices with `.` between them."""
    for key, item in arrays.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            yield from _flat(item, f"{name}.")
        elif isinstance(item, list | tuple):
            yield from _flat({str(index): entry for index, entry in enumerate(item)}, f"{name}.")
        elif item is not None:
            found = [*tensors(as_tensors(item)).values()]
            if len(found) != 1:
                raise CompareError(f"{name!r} is a {type(item).__name__}, not an array")
            yield name, found[0].detach().cpu()


def as_tensors(value: Any) -> Any:
    """Return arguments with tensors in place of the arrays of NumPy, JAX or MLX among them.

    Args:
        value: any nesting of containers.

    Raises:
        CompareError: an array has no numbers, as the keys of random numbers in JAX.
    """
    return pytree.tree_map(_as_tensor, value)


def _as_tensor(item: Any) -> Any:
    """Return an array of another package as a tensor, and anything else as it is."""
    if isinstance(item, torch.Tensor | np.generic) or not hasattr(item, "__array__"):
        return item
    try:
        array = np.asarray(item)  # JAX gives one that can't be written to, which torch warns of
        return next(iter(tensors(array if array.flags.writeable else array.copy()).values()))
    except (TypeError, StopIteration) as error:
        raise CompareError(f"the {type(item).__name__} {short_line(str(item))} has no numbers: {error}") from error


def _of_records(records: Records, name: str) -> NamedArrays:
    """Return the outputs and parameters of a capture, in the order of the run."""
    found: dict[str, torch.Tensor] = {}
    weights, places = set(), {}
    for key in records:
        if key.kind in ("O", "P", "V"):  # outputs, parameters, values of `steal_append`
            for path, tensor in tensors(records.borrow(key)).items():
                module = f"{key.name}@{key.iteration}" if key.iteration else key.name
                label = f"{module}{path}" or "(root)"
                if key.kind == "P":
                    weights.add(label)
                else:
                    places[label] = module, path
                found.setdefault(label, tensor)
    if not found:
        raise CompareError(f"{name!r} has no outputs of modules")
    return NamedArrays(name, plain_tensors(found), frozenset(weights), places)
