"""Run B without the rounding of what it has ready: tables that depend on no input, and weights that were folded.

A may have the angles of positions in float32 which B computes in float64, and a gain that was folded into a weight was
rounded with it. Attention multiplies such differences by the size of its scores, and later values would not be equal.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from ..layouts._numbers import Numbers
from ..layouts._solve import solve
from ._execution import Execution, Replay, Tensors, moved_value


@dataclass(frozen=True)
class _WithTables:
    """Runs operations again with tables that are not computed; see `Replay`."""

    run_again: Replay
    tables: Tensors

    def __call__(self, forced: Tensors, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """See `Replay`."""
        return self.run_again({**self.tables, **forced}, wanted)

    def with_weights(self, weights: Tensors) -> Replay:
        """See `Replay`."""
        return replace(self, run_again=self.run_again.with_weights(weights))


def tables_of(execution: Execution) -> list[Numbers]:
    """Return the computed values that depend on no input."""
    return [Numbers(execution.values[name]) for name in _independent(execution)]


def exact_run(execution: Execution, tables: Sequence[Numbers], weights: Tensors) -> Execution:
    """Return a run with the numbers of A in place of those that are equal but for rounding.

    Args:
        execution: a run of B.
        tables: those of A; see `tables_of`.
        weights: the folded weights of B in float64, by name.
    """
    if execution.run_again is None:
        return execution
    found = {}
    for name in _independent(execution):
        value = execution.values[name]
        exact = _found_in(Numbers(value), tables)
        if exact is not None and not torch.equal(exact, value):
            found[name] = exact
    if not found and not weights:
        return execution
    again = _WithTables(execution.run_again.with_weights(weights), found)
    values = {**execution.values, **again({}, execution.values.keys()), **found}
    return replace(execution, values=values, run_again=again)


def _found_in(numbers: Numbers, tables: Sequence[Numbers]) -> torch.Tensor | None:
    """Return the numbers of the first table that are equal but for rounding, in the order of a tensor."""
    for table in tables:
        layout = solve(numbers, table) if table.tensor.numel() == numbers.tensor.numel() else None
        if layout is not None:
            return layout.select(table.tensor).reshape(numbers.tensor.shape).clone()
    return None


def _independent(execution: Execution) -> list[str]:
    """Return the names of the computed values that depend on no input and have different numbers."""
    dependent = {*execution.graph.inputs}
    found = []
    for node in execution.graph.nodes:
        if not dependent.isdisjoint(node.reads):
            dependent.update(node.outputs)
        elif moved_value(node) is None:
            found += [name for name in node.outputs if name in execution.values]
    values = execution.values
    return [name for name in found if values[name].is_floating_point() and values[name].numel() > 1]
