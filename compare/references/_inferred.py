"""Infer which values of a foreign ONNX file are outputs of the captured modules.

Files of other exporters have no such mapping. If the module paths that torch's exporter stores on nodes identify a
module's output, that value is chosen; otherwise a value of equal shape, dtype and nearly equal numbers. A match by
numbers cannot find a wrong value, only where the file still agrees with the model. The outputs of the graph are matched
by their order, and so show whether it is wrong.
"""

from collections.abc import Mapping
from functools import cache
from itertools import takewhile

import torch

from filch.export import Graph

from ..metrics._nearest import Nearest

Kind = tuple[torch.dtype, torch.Size]


class Inference:
    """Find module outputs among the values of one run of a foreign graph.

    Args:
        graph: the graph.
        values: the values of the run, by name.
    """

    def __init__(self, graph: Graph, values: Mapping[str, torch.Tensor]) -> None:
        self._graph = graph
        self._names: dict[tuple[str, Kind], list[str]] = {}  # of the values that leave a module, "" being the model
        outputs = frozenset(graph.outputs)
        for name in graph.producer:
            if name in values and name not in graph.constant_values:
                kind = values[name].dtype, values[name].shape
                for scope in ("", *self._exited_scopes(name, is_output=name in outputs)):
                    self._names.setdefault((scope, kind), []).append(name)
        self._nearest = cache(lambda scope, kind: Nearest({name: values[name] for name in self._names[scope, kind]}))

    def find(self, path: str, iteration: int, tensor: torch.Tensor) -> tuple[str, str] | None:
        """Return the value that is the module output `tensor`, and the method that found it; None if none is found."""
        kind = tensor.dtype, tensor.shape
        scope = f"{path}@{iteration}" if path and iteration else path
        candidates = self._names.get((scope, kind), [])
        if path and len(candidates) == 1:  # a single one for the model itself proves nothing: "" has all values
            return candidates[0], "by the exporter's metadata"
        if ("", kind) not in self._names:
            return None
        name = self._nearest(scope if candidates else "", kind).find(tensor)
        return None if name is None else (name, "by its numbers")

    def _exited_scopes(self, name: str, *, is_output: bool) -> list[str]:
        """Return the scopes of the modules that a value leaves: computed inside, used outside.

        An output of the graph leaves all modules that it is computed in; a value without users leaves none.
        """
        parts = (self._graph.producer[name].module or "").split(".")
        users = self._graph.consumers.get(name, ())
        shared = 0 if is_output else min((_shared_parts(parts, user.module) for user in users), default=len(parts))
        return [".".join(parts[:count]) for count in range(shared + 1, len(parts) + 1) if parts[0]]


def _shared_parts(parts: list[str], module: str | None) -> int:
    """Return the length of the common prefix of two module paths."""
    pairs = zip(parts, (module or "").split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
