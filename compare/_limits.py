"""How far each value of a graph may be from its reference."""

import torch

from filch.export import Graph, Node

from ._tolerance import Tolerance, default_tolerance


class Limits:
    """The tolerance of each value: what the user says, else that of the coarsest floating-point type on the way to it.

    A float32 that was computed from float16 is no better than float16 is, on either side.

    Args:
        graph: the exported graph.
        tolerance: see `compare`.
    """

    def __init__(self, graph: Graph, tolerance: float | Tolerance | None) -> None:
        self._graph = graph
        self._given = tolerance
        self._found: dict[str, Tolerance] = {}
        for node in graph.nodes if tolerance is None else ():
            for name in node.outputs:
                value = graph.values.get(name)
                dtype = getattr(torch, value.dtype, None) if value is not None and value.dtype else None
                self._set(node, name, dtype)

    def of(self, name: str, dtype: torch.dtype | None) -> float | Tolerance | None:
        """The tolerance of a value.

        Args:
            name: its name in the exported graph.
            dtype: what it turned out to be, where the graph does not say.
        """
        if self._given is not None:
            return self._given
        node = self._graph.producer.get(name)
        if node is not None and self._graph.values[name].dtype is None:
            self._set(node, name, dtype)
        return self._found.get(name)

    def _set(self, node: Node, name: str, dtype: torch.dtype | None) -> None:
        limits = [self._found[read] for read in node.reads if read in self._found]
        if dtype is not None and dtype.is_floating_point:
            limits.append(default_tolerance(dtype))
        if limits and (dtype is None or dtype.is_floating_point):
            self._found[name] = max(limits, key=lambda limit: limit.harmonic)
