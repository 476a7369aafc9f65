"""Find the values of module calls by comparing tensors, for calls that torch.export could not follow by name."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from filch.steal import Key, Records, tensors
from filch.steal.values._arguments import argument_tensors

from ..graph._module_calls import ModuleCall, Port, Sides
from ..program._original import Original

_NOTE = "matched by value"
_TOLERANCE = 1e-5  # of the harmonic error, see `_error`


def find_by_value(
    missing: Sequence[tuple[str, int]],
    records: Records,
    original: Original,
    inputs: Mapping[str, str],
    followed: Mapping[tuple[str, int], Sides],
) -> dict[tuple[str, int], ModuleCall]:
    """Resolve module calls whose values have no known names, for example because torch can't rebuild a cache.

    The exported program runs in eager mode on the same inputs. Each input and output tensor of the missing calls is
    matched with a value of the same shape, dtype and elements, up to rounding.

    Args:
        missing: the calls to find, by module path and iteration.
        records: the recorded inputs and outputs of these calls and of the model itself.
        original: the exported program.
        inputs: for each input of its graph, the path of the model's argument.
        followed: ports of calls that were partly followed by name; these are kept, and those that are None are found.
            A call that is not in it has none.
    """
    captured = {key: _tensors_of(records, key) for key in missing}  # tensors of inputs and outputs, by path
    matches = {id(item): _Match(item) for sides in captured.values() for side in sides for item in side.values()}
    by_type: dict[tuple[torch.dtype, torch.Size], list[_Match]] = {}
    for match in matches.values():
        by_type.setdefault((match.tensor.dtype, match.tensor.shape), []).append(match)
    args, kwargs = records[records.arguments_key("", 0)]  # the inputs of the model
    arguments = argument_tensors(records.modules[""].parameters, args, kwargs)
    for name, value in _graph_values(original, {name: arguments[path] for name, path in inputs.items()}):
        for match in by_type.get((value.dtype, value.shape), ()):
            match.compare(name, value)
    calls = {}
    for key, sides in captured.items():
        known = [{port.path: port for port in ports if port is not None} for ports in followed.get(key, ((), ()))]
        inputs_and_outputs = (
            tuple(known_ports.get(path) or matches[id(tensor)].port(path) for path, tensor in side.items())
            for known_ports, side in zip(known, sides, strict=True)
        )
        calls[key] = ModuleCall(*key, *inputs_and_outputs)
    return calls


def _graph_values(original: Original, inputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the inputs, the weights and the computed values that the graph has, by name."""
    yield from inputs.items()
    for name in original.graph.constants:
        weight = original.program.state_dict.get(name, original.program.constants.get(name))
        if isinstance(weight, torch.Tensor):
            yield name, weight
    yield from ((name, value) for name, value in original.walk(inputs) if name in original.graph.known)


class _Match:
    """A tensor of a module call, and the value that matches it best so far."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._sample = torch.linspace(0, max(0, tensor.numel() - 1), 16).long()
        self._best: tuple[float, str] | None = None

    def compare(self, name: str, value: torch.Tensor) -> None:
        """Keep a value if it equals the tensor up to rounding, and better than the best so far."""
        if self._best is not None and self._best[0] == 0.0:
            return
        # Comparing 16 elements first rules out nearly all values, at a thousandth of the cost.
        if self.tensor.numel() and _error(*(t.reshape(-1)[self._sample] for t in (value, self.tensor))) > _TOLERANCE:
            return
        error = _error(value, self.tensor)
        if error <= _TOLERANCE and (self._best is None or error < self._best[0]):
            self._best = (error, name)

    def port(self, path: str) -> Port:
        """Return the port of the tensor, which is at this path of its call."""
        if self._best is None:
            return Port(path, None, "dead", "no value of the exported program equals it")
        return Port(path, self._best[1], "exact", _NOTE)


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest harmonic error, |a - e| / (|e| + 1); equal numbers and NaN in both count as 0.

    Decomposed operators may round differently, so equality of floating-point numbers is not required.
    """
    if torch.equal(expected, actual):
        return 0.0
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return math.inf
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, e = actual.detach().to(wide), expected.detach().to(wide)
    same = (a == e) | (a.isnan() & e.isnan())
    return float(torch.where(same, 0.0, ((a - e).abs() / (e.abs() + 1)).nan_to_num(nan=math.inf)).max())


def _tensors_of(records: Records, key: tuple[str, int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the input tensors and the output tensors of a module call, by their paths."""
    path, iteration = key
    args, kwargs = records[records.arguments_key(path, iteration)]
    inputs = argument_tensors(records.modules[path].parameters, args, kwargs)
    return inputs, tensors(records[Key(path, iteration, "O")])
