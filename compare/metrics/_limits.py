"""The tolerance of each value of a graph."""

from collections.abc import Collection

import torch

from filch.export import Graph, Node

from ..common._dtypes import declared_dtype
from ._tolerance import Tolerance, default_tolerance, quantized_tolerance


class Limits:
    """The tolerance of each value: the user's, else that of the coarsest floating-point dtype it is computed from.

    A float32 value that is computed from float16 is as inaccurate as float16, in the program and in its reference.

    Args:
        graph: the exported graph.
        tolerance: see `compare`.
        lower_precision: see `compare`; then the dtypes of inputs and weights count, too, and values computed from
            quantized ones have the tolerance of the quantization.
        same_weights: the names of the nodes with a quantized weight that the reference has, too.
    """

    def __init__(
        self,
        graph: Graph,
        tolerance: float | Tolerance | None,
        *,
        lower_precision: bool = False,
        same_weights: Collection[str] = (),
    ) -> None:
        self._graph, self._same_weights = graph, same_weights
        self._user_tolerance = tolerance
        self.lower_precision = lower_precision
        self._tolerances: dict[str, Tolerance] = {}
        for name in (*graph.inputs, *graph.constants) if lower_precision and tolerance is None else ():
            dtype = declared_dtype(graph, name)
            if dtype is not None and dtype.is_floating_point:
                self._tolerances[name] = default_tolerance(dtype)
        for node in graph.nodes if tolerance is None else ():
            for name in node.outputs:
                self._set(node, name, declared_dtype(graph, name))

    def of(self, name: str, dtype: torch.dtype | None) -> float | Tolerance | None:
        """Return the tolerance of a value; None for that of its dtype at run time.

        Args:
            name: its name in the exported graph.
            dtype: its dtype at run time, used if the graph has none, and always with `lower_precision`.
        """
        if self._user_tolerance is not None:
            return self._user_tolerance
        node = self._graph.producer.get(name)
        if node is not None and (self._graph.values[name].dtype is None or self.lower_precision):
            self._set(node, name, dtype or declared_dtype(self._graph, name))
        return self._tolerances.get(name)

    def _set(self, node: Node, name: str, dtype: torch.dtype | None) -> None:
        """Set the tolerance of a value: the largest of its inputs' tolerances, its dtype's and its node's own."""
        tolerances = [self._tolerances[read] for read in node.reads if read in self._tolerances]
        is_same = node.name in self._same_weights
        quantized = quantized_tolerance(node, self._graph, has_same_weight=is_same) if self.lower_precision else None
        if quantized is not None:
            tolerances.append(quantized)
        if dtype is not None and dtype.is_floating_point:
            tolerances.append(default_tolerance(dtype))
        if tolerances and (quantized is not None or dtype is None or dtype.is_floating_point):  # no other integers
            self._tolerances[name] = max(tolerances, key=lambda item: (item.harmonic, item.scale))
