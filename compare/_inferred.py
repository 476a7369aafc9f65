"""Which values of a foreign ONNX file are what the stolen modules gave.

Files of other exporters do not say. What torch's exporter leaves on nodes (their module's path) says it where a
module's results can be told by it alone; else, a value of the same shape, dtype and numbers is taken for it. The second
way can't find a value that is wrong: it says where the file still agrees, and the results, which have an order, say
whether it does.
"""

from collections.abc import Mapping

import torch

from filch.export import Graph

from ._metrics import Difference, compare_tensors

Candidates = Mapping[tuple[torch.dtype, torch.Size], list[str]]


class Inference:
    """The values of one run of a foreign graph, ready to be looked for.

    Args:
        graph: the graph.
        values: what its nodes made, by name.
    """

    def __init__(self, graph: Graph, values: Mapping[str, torch.Tensor]) -> None:
        self._graph = graph
        self._values = values
        self._by_type: dict[tuple[torch.dtype, torch.Size], list[str]] = {}
        for name in graph.producer:
            if name in values and name not in graph.fixed:
                self._by_type.setdefault((values[name].dtype, values[name].shape), []).append(name)

    def find(self, path: str, iteration: int, tensor: torch.Tensor) -> tuple[str, str] | None:
        """The value that the module at `path` gave as `tensor`, and how it was found; None if it can't be told."""
        fitting = self._by_type.get((tensor.dtype, tensor.shape), [])
        scope = f"{path}@{iteration}" if iteration else path
        at_border = [name for name in fitting if path and self._leaves(name, scope)]
        if len(at_border) == 1:
            return at_border[0], "by the exporter's metadata"
        best = min(((self._error(name, tensor), name) for name in at_border or fitting), default=None)
        return (best[1], "by its numbers") if best is not None and best[0] is not None and best[0] <= _NEAR else None

    def _leaves(self, name: str, scope: str) -> bool:
        """Whether a value is made inside a module's scope and used outside of it."""
        if not _within(self._graph.producer[name].module, scope):
            return False
        users = self._graph.consumers.get(name, ())
        return name in self._graph.outputs or any(not _within(user.module, scope) for user in users)

    def _error(self, name: str, tensor: torch.Tensor) -> float:
        difference: Difference = compare_tensors(tensor, self._values[name])
        return difference.error_max if difference.close else float("inf")


_NEAR = 1.0  # an error that `close` has accepted already; inf is what it has not


def _within(module: str | None, scope: str) -> bool:
    return module is not None and (module == scope or module.startswith(scope + "."))
