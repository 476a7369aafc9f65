"""Run B without the rounding of what it has ready: tables that depend on no input, and weights that were folded.

A may have the angles of positions in float32 which B computes in float64, and a gain that was folded into a weight was
rounded with it. Attention multiplies such differences by the size of its scores, and later values would not be equal.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..layouts._closeness import RELATIVE
from ..layouts._numbers import Numbers
from ..layouts._solve import solve
from ._execution import Execution, Replay, Tensors, moved_value

_ROUNDING = 2.0**-22  # of an angle in float32, a position times a rounded speed, relative to the position


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


def tables_of(execution: Execution, unused: Collection[str] = ()) -> list[Numbers]:
    """Return the computed values that depend on no input, and what is read of weights that B does not have.

    Args:
        execution: a run of A.
        unused: the names of these weights, such as tables that are made with the model.
    """
    values = [execution.values[name] for name in _independent(execution)]
    return [Numbers(item) for item in (*values, *(part for *_, part in _parts(execution, unused)))]


def exact_tables(execution: Execution, missing: Collection[str], tables: Sequence[Numbers]) -> dict[str, torch.Tensor]:
    """Return weights of B that are tables with the numbers of A, where they are equal but for rounding.

    Args:
        execution: a run of B.
        missing: the names of the weights that A does not have.
        tables: those of A; see `tables_of`.
    """
    found: dict[str, torch.Tensor] = {}
    for name, offset, part in _parts(execution, missing):
        exact = _found_in(Numbers(part), tables)
        if exact is not None:
            whole = found.setdefault(name, execution.weights[name].double().clone().contiguous())
            whole.view(-1)[offset : offset + part.numel()] = exact.reshape(-1)
    return found


def _parts(execution: Execution, names: Collection[str]) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield what operations read of weights: the name, the index of the first element, and float64."""
    seen = set()
    for read in dict.fromkeys(read for node in execution.graph.nodes for read in node.reads):
        root, value = execution.roots.get(read, read), execution.graph.values.get(read)
        if root not in names or value is None or not execution.weights[root].is_floating_point():
            continue
        shape, offset = value.shape or (), execution.offsets.get(read, 0)
        sizes = tuple(size for size in shape if isinstance(size, int))
        flat = execution.weights[root].reshape(-1)
        part = flat[offset : offset + math.prod(sizes)]
        if (root, offset, len(part)) not in seen and len(sizes) == len(shape) and len(part) == math.prod(sizes) > 1:
            seen.add((root, offset, len(part)))
            yield root, offset, part.reshape(sizes).double()


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
    relative = max(RELATIVE, _ROUNDING * max(numbers.tensor.shape, default=1))
    for table in tables:
        layout = solve(numbers, table, relative) if table.tensor.numel() >= numbers.tensor.numel() else None
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
