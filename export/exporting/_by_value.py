"""Find the values of module calls by comparing tensors, for calls that torch.export could not follow by name."""

import math
from collections.abc import Mapping, Sequence

import torch

from filch.steal import Key, Records, argument_tensors, tensors

from ..graph._module_calls import ModuleCall, Port, Sides
from ..program._original import Original

_NOTE = "matched by value"
_TOLERANCE = 1e-5  # of the harmonic error


def find_by_value(
    missing: Sequence[tuple[str, int]],
    values: Records,
    original: Original,
    inputs: Mapping[str, str],
    followed: Mapping[tuple[str, int], Sides],
) -> dict[tuple[str, int], ModuleCall]:
    """Resolve module calls whose values have no known names, for example because torch can't rebuild a cache.

    The exported program runs in eager mode on the same inputs. Each input and output tensor of the missing calls is
    matched with a value of the same shape, dtype and elements, up to rounding.

    Args:
        missing: the calls to find, by module path and iteration.
        values: the recorded inputs and outputs of these calls and of the model itself.
        original: the exported program.
        inputs: for each input of its graph, the path of the model's argument.
        followed: ports of calls that were partly followed by name; these are kept, and those that are None are found.
    """
    wanted = {key: _tensors_of(values, key) for key in missing}
    candidates = _candidates([t for sides in wanted.values() for side in sides for t in side.values()])
    root_args, root_kwargs = values["", 0, "I"]
    arguments = argument_tensors(values.modules[""].parameters, root_args, root_kwargs)
    feeds = {name: arguments[path] for name, path in inputs.items()}
    known = original.graph.known

    def visit(name: str, value: torch.Tensor) -> None:
        if name in known:
            for slot in candidates.get((value.dtype, value.shape), ()):
                slot.offer(name, value)

    for name, value in feeds.items():
        visit(name, value)
    for name in original.graph.constants:
        weight = original.program.state_dict.get(name, original.program.constants.get(name))
        if isinstance(weight, torch.Tensor):
            visit(name, weight)
    for name, value in original.walk(feeds):
        visit(name, value)
    by_tensor = {id(slot.tensor): slot for slots in candidates.values() for slot in slots}
    calls = {}
    for key, sides in wanted.items():
        known_ports = _followed(followed.get(key, ()))
        ports = (
            tuple(known_ports.get((side, path)) or by_tensor[id(t)].port(path) for path, t in captured.items())
            for side, captured in enumerate(sides)
        )
        calls[key] = ModuleCall(*key, *ports)
    return calls


def _followed(sides: Sides | tuple[()]) -> dict[tuple[int, str], Port]:
    return {(side, port.path): port for side, ports in enumerate(sides) for port in ports if port is not None}


class _Slot:
    """A tensor to match, and the best matching value so far."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._places = torch.linspace(0, max(0, tensor.numel() - 1), 16).long()
        self._best: tuple[float, str] | None = None

    def offer(self, name: str, value: torch.Tensor) -> None:
        if self._best is not None and self._best[0] == 0.0:
            return
        # Comparing 16 elements first rules out nearly all values, at a thousandth of the cost.
        if self.tensor.numel() and _error(*(t.reshape(-1)[self._places] for t in (self.tensor, value))) > _TOLERANCE:
            return
        error = _error(self.tensor, value)
        if error <= _TOLERANCE and (self._best is None or error < self._best[0]):
            self._best = (error, name)

    def port(self, path: str) -> Port:
        if self._best is None:
            return Port(path, None, "dead", "no value of the exported program equals it")
        return Port(path, self._best[1], "exact", _NOTE)


def _error(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Return the largest harmonic error; decomposed operators may round differently, so equality is not required."""
    if torch.equal(expected, actual):
        return 0.0
    if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        return math.inf
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, e = actual.to(wide), expected.to(wide)
    same = (a == e) | (a.isnan() & e.isnan())
    return float(torch.where(same, 0.0, ((a - e).abs() / (e.abs() + 1)).nan_to_num(nan=math.inf)).max())


def _candidates(wanted: Sequence[torch.Tensor]) -> dict[tuple[torch.dtype, torch.Size], list[_Slot]]:
    slots: dict[tuple[torch.dtype, torch.Size], list[_Slot]] = {}
    for tensor in wanted:
        slots.setdefault((tensor.dtype, tensor.shape), []).append(_Slot(tensor))
    return slots


def _tensors_of(values: Records, key: tuple[str, int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    path, iteration = key
    args, kwargs = values[Key(path, iteration, "I")]
    return (
        argument_tensors(values.modules[path].parameters, args, kwargs),
        tensors(values[Key(path, iteration, "O")]),
    )
