"""Evaluate an exported program in float64, value by value."""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import torch

from filch.export import ExportError, Node, Original

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache

_FLOAT32 = 2.0**-24
_PATTERN = 65521  # numbers are drawn, a prime: no dimension of a tensor repeats with them
_WIDE = 3.0**0.5  # a uniform distribution that wide has a root mean square of 1
Units = Mapping[str, float]
Given = Callable[[str], torch.Tensor | None]


class Float64(Protocol):
    """What values are in float64.

    Attributes:
        problem: why a value could not be computed, or `""`.
    """

    problem: str

    def get(self, name: str) -> torch.Tensor | None:
        """Return a value by its name; None if it could not be computed."""

    def release(self, name: str) -> None:
        """Declare that a value will not be requested again."""


class Float64Run:
    """The values of one call of a program, each computed from earlier values in float64.

    Request them roughly in program order. Operations run in PyTorch; values inside of an operation's ONNX decomposition
    are computed from those by the ONNX reference evaluator, node by node.

    Args:
        original: the program.
        inputs: the inputs of the call, by name.
        wanted: the names of the values that will be asked for.
        units: half a unit in the last place of each value, by name, by which every value that is read is perturbed up
            or down; None for no perturbation.
        keep: whether to keep all values for a second pass.
    """

    def __init__(
        self,
        original: Original,
        inputs: Mapping[str, torch.Tensor],
        wanted: Collection[str],
        units: Units | None,
        *,
        keep: bool,
    ) -> None:
        self.problem = ""
        self._original, self._inputs, self._units = original, inputs, units
        self._eager_names = frozenset(original.names)
        nodes = self._inner({*wanted})
        uses = Counter(name for node in nodes for name in {*node.reads})
        self._cache = ValueCache[torch.Tensor](uses, wanted, buffer=math.inf if keep else 0)
        self._inside = {name: node for node in nodes for name in node.outputs if name}
        self._eager: Iterator[tuple[str, torch.Tensor]] = original.float64.walk(
            inputs, wanted=(uses.keys() | {*wanted}) & self._eager_names, read=reading(units)
        )

    def get(self, name: str) -> torch.Tensor | None:
        """See `Float64.get`."""
        if name not in self._cache.values and self._cache.needs(name):
            if name in self._eager_names:
                self._advance(name)
            elif name in self._inside:
                self._compute(self._inside[name])
        return self._cache.values.get(name)

    def release(self, name: str) -> None:
        """See `Float64.release`."""
        self._cache.release(name)

    def _inner(self, wanted: set[str]) -> list[Node]:
        """Return the nodes inside of decompositions that the wanted values need, in order."""
        graph = self._original.graph
        outside = {*self._eager_names, *graph.inputs, *graph.constants}
        found = []
        for node in reversed(graph.nodes):
            if any(name in wanted and name not in outside for name in node.outputs):
                found.append(node)
                wanted.update(node.reads)
        return found[::-1]

    def _advance(self, name: str) -> None:
        while name not in self._cache.values:
            try:
                found = next(self._eager, None)
            except ExportError as error:
                self.problem = str(error)
                found = None
            if found is None:
                self._eager = iter(())
                return
            if self._cache.needs(found[0]):
                self._cache.put(found[0], complex_as_real(found[1]))

    def _compute(self, node: Node) -> None:
        known = inputs_of(node, self._original, self._inputs, self.get, self._units)
        made = {} if known is None else self._original.evaluate(node.name, known)
        for name, value in made.items():
            if self._cache.needs(name):
                self._cache.put(name, raised(value))
        self._cache.consume({*node.reads})
        for name in node.outputs:  # compute each node once, even if it failed
            self._inside.pop(name, None)


class Float64NodeRun:
    """Values computed from reference inputs, each independently and in any order.

    Args:
        original: the program.
        inputs: the inputs of the call, by name.
        given: what values should be, by name, in their own types; None has them computed from what goes into them.
        units: see `Float64Run`.
    """

    def __init__(
        self, original: Original, inputs: Mapping[str, torch.Tensor], given: Given, units: Units | None
    ) -> None:
        self.problem = ""
        self._original, self._inputs, self._given, self._units = original, inputs, given, units
        self._eager_names = frozenset(original.names)

    def get(self, name: str) -> torch.Tensor | None:
        """See `Float64.get`."""
        try:
            return self._value(name)
        except ExportError as error:
            self.problem = str(error)
            return None

    def release(self, name: str) -> None:
        """See `Float64.release`: does nothing, because no value is cached."""

    def _value(self, name: str) -> torch.Tensor | None:
        if name in self._eager_names:
            made = self._original.float64.node(name, self._inputs, self._given, reading(self._units))
            return complex_as_real(made) if isinstance(made, torch.Tensor) else None
        node = self._original.graph.producer.get(name)
        if node is None:
            return None
        known = inputs_of(node, self._original, self._inputs, self._read, self._units)
        made = {} if known is None else self._original.evaluate(node.name, known)
        return raised(made[name]) if name in made else None

    def _read(self, name: str) -> torch.Tensor | None:
        given = self._given(name)
        return self._value(name) if given is None else given


def inputs_of(
    node: Node, original: Original, inputs: Mapping[str, torch.Tensor], get: Given, units: Units | None
) -> dict[str, torch.Tensor] | None:
    """Return a node's inputs in float64, by name; None if one is unknown."""
    read = reading(units, others=(*node.reads, *node.outputs))
    found = {}
    for name in dict.fromkeys(node.reads):
        value = complex_as_real(inputs[name]) if name in inputs else get(name)
        value = original.constant(name) if value is None else value
        if value is None:
            return None
        found[name] = read(name, raised(value))
    return found


def reading(units: Units | None, others: Collection[str] = ()) -> Callable[[str, Any], Any]:
    """What is read of a value in float64: it, or it with every number off by about half a unit in the last place.

    Args:
        units: see `Float64Run`.
        others: the names of values one of which says the type of those that are not in `units`.
    """
    if units is None:
        return lambda _, value: value
    usual = max((units[name] for name in others if name in units), default=_FLOAT32)

    def off(name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))  # every reader gets the same noise
        pattern = torch.rand(min(value.numel(), _PATTERN), generator=random, dtype=torch.float64)
        return _times(value, pattern.mul_(2).sub_(1).mul_(_WIDE * units.get(name, usual)).add_(1.0))

    return off


def _times(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """Multiply the elements by a repeated pattern."""
    made = tensor.clone(memory_format=torch.contiguous_format)
    flat = made.view(-1)
    whole = flat.numel() - flat.numel() % max(1, pattern.numel())
    if whole:
        flat[:whole].view(-1, pattern.numel()).mul_(pattern)
        flat[whole:].mul_(pattern[: flat.numel() - whole])
    return made


def raised(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a floating-point tensor to float64; return any other as it is."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor
