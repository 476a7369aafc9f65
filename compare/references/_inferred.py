"""Which values of a foreign ONNX file are what the stolen modules gave.

Files of other exporters do not say. What torch's exporter leaves on nodes (their module's path) says it where a
module's results can be told by it alone; else, a value of the same shape, dtype and numbers is taken for it. The second
way can't find a value that is wrong: it says where the file still agrees, and the results, which have an order, say
whether it does.
"""

from collections.abc import Mapping
from functools import cache
from itertools import takewhile

import torch

from filch.export import Graph

from ..metrics._nearest import Nearest

Kind = tuple[torch.dtype, torch.Size]


class Inference:
    """The values of one run of a foreign graph, ready to be looked for.

    Args:
        graph: the graph.
        values: what its nodes made, by name.
    """

    def __init__(self, graph: Graph, values: Mapping[str, torch.Tensor]) -> None:
        self._graph = graph
        self._names: dict[tuple[str, Kind], list[str]] = {}  # of the values that leave a module, "" being the model
        outputs = frozenset(graph.outputs)
        for name in graph.producer:
            if name in values and name not in graph.constant_values:
                kind = values[name].dtype, values[name].shape
                for scope in ("", *self._left(name, is_output=name in outputs)):
                    self._names.setdefault((scope, kind), []).append(name)
        self._near = cache(lambda scope, kind: Nearest({name: values[name] for name in self._names[scope, kind]}))

    def find(self, path: str, iteration: int, tensor: torch.Tensor) -> tuple[str, str] | None:
        """The value that the module at `path` gave as `tensor`, and how it was found; None if it can't be told."""
        kind = tensor.dtype, tensor.shape
        scope = f"{path}@{iteration}" if path and iteration else path
        at_border = self._names.get((scope, kind), [])
        if path and len(at_border) == 1:
            return at_border[0], "by the exporter's metadata"
        if ("", kind) not in self._names:
            return None
        found = self._near(scope if at_border else "", kind).find(tensor)
        return None if found is None else (found, "by its numbers")

    def _left(self, name: str, *, is_output: bool) -> list[str]:
        """The scopes of modules that a value is made inside of and used outside of."""
        steps = (self._graph.producer[name].module or "").split(".")
        users = self._graph.consumers.get(name, ())
        least = 0 if is_output else min((_shared(steps, user.module) for user in users), default=len(steps))
        return [".".join(steps[:count]) for count in range(least + 1, len(steps) + 1) if steps[0]]


def _shared(steps: list[str], module: str | None) -> int:
    """How many of the first steps of a path another one has."""
    pairs = zip(steps, (module or "").split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
