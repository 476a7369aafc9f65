"""Find the tables of B, which depend on no input, that are those of A but for rounding.

A may have the angles of positions in float32 which B computes in float64, and a gain that was folded into a weight was
rounded with it. Attention multiplies such differences by the size of its scores, and later values would not be equal.
A constant that one of them rounds to float32 is enough after many steps, as of a state-space model. So tables that
depend on no input and folded weights get the numbers of A, and if the outputs still differ, all values that are equal.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import torch

from ..layouts._closeness import RELATIVE
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import solve
from ..runs._execution import Execution, moved_value

_ROUNDING = 2.0**-22  # of the sine of an angle in float32, a position times a rounded speed, relative to the position


def tables_of(execution: Execution, unused: Collection[str] = ()) -> list[TensorNumbers]:
    """Return the computed values that depend on no input, and what is read of weights that B does not have.

    Args:
        execution: a run of A.
        unused: the names of these weights, such as tables that are made with the model.
    """
    values = [execution.values[name] for name in _independent(execution)]
    return [TensorNumbers(item) for item in (*values, *(part for *_, part in _parts(execution, unused)))]


def exact_tables(
    execution: Execution, missing: Collection[str], tables: Sequence[TensorNumbers]
) -> dict[str, torch.Tensor]:
    """Return weights of B that are tables with the numbers of A, where they are equal but for rounding.

    Args:
        execution: a run of B.
        missing: the names of the weights that A does not have.
        tables: those of A; see `tables_of`.
    """
    found: dict[str, torch.Tensor] = {}
    for name, offset, part in _parts(execution, missing):
        exact = _found_in(TensorNumbers(part), tables)
        if exact is not None:
            whole = found.setdefault(name, execution.weights[name].double().clone().contiguous())
            whole.view(-1)[offset : offset + part.numel()] = exact.reshape(-1)
    return found


def plausible_tables(execution: Execution, missing: Collection[str], tables: Sequence[TensorNumbers]) -> frozenset[str]:
    """Return the weights of B that A does not have, and of which nothing shows that they are wrong.

    They are tables that A computes, or has in a form of its own: what B reads of them is a table of A, or no table of A
    has as many numbers.

    Args:
        execution: a run of B.
        missing: the names of the weights that A does not have.
        tables: those of A; see `tables_of`.
    """
    sizes = {table.tensor.numel() for table in tables}
    read: dict[str, bool] = {}
    for name, _, part in _parts(execution, missing):
        is_plausible = part.numel() not in sizes or _found_in(TensorNumbers(part), tables) is not None
        read[name] = read.get(name, True) and is_plausible
    return frozenset(name for name, is_plausible in read.items() if is_plausible)


def _parts(execution: Execution, names: Collection[str]) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Yield each part of floating-point weights that an operation reads: a whole weight, or a view such as a slice.

    A part is taken for consecutive elements of its weight. Parts of one element are left out: any number is like it.

    Args:
        execution: a run of A or of B.
        names: the names of the weights.

    Yields:
        the weight's name, the index of the part's first element in the flattened weight, and the part in float64, in
        the shape in which it is read.
    """
    seen = set()
    for read in dict.fromkeys(read for node in execution.graph.nodes for read in node.reads):
        weight, value = execution.roots.get(read, read), execution.graph.values.get(read)
        if weight not in names or value is None or not execution.weights[weight].is_floating_point():
            continue
        shape, offset = value.shape or (), execution.offsets.get(read, 0)
        sizes = tuple(size for size in shape if isinstance(size, int))
        part = execution.weights[weight].reshape(-1)[offset : offset + math.prod(sizes)]
        is_known = len(sizes) == len(shape) and len(part) == math.prod(sizes)  # else its elements lie otherwise
        if is_known and len(part) > 1 and (weight, offset, len(part)) not in seen:
            seen.add((weight, offset, len(part)))
            yield weight, offset, part.reshape(sizes).double()


def computed_tables(execution: Execution, tables: Sequence[TensorNumbers]) -> dict[str, torch.Tensor]:
    """Return the values of B that depend on no input with the numbers of A, where they are equal but for rounding.

    Args:
        execution: a run of B.
        tables: those of A; see `tables_of`.
    """
    values = {name: execution.values[name] for name in _independent(execution)}
    exact = {name: _found_in(TensorNumbers(value), tables) for name, value in values.items()}
    return {name: item for name, item in exact.items() if item is not None and not torch.equal(item, values[name])}


def _found_in(numbers: TensorNumbers, tables: Sequence[TensorNumbers]) -> torch.Tensor | None:
    """Return the numbers of the first table that are equal but for rounding, in the order of a tensor; None if none."""
    is_angular = numbers.bounds[0] >= -1 and numbers.bounds[1] <= 1  # as sines are; angles are close, relatively
    relative = max(RELATIVE, _ROUNDING * max(numbers.tensor.shape, default=1)) if is_angular else RELATIVE
    for table in tables:
        layout = solve(numbers, table, relative) if table.tensor.numel() >= numbers.tensor.numel() else None
        if layout is not None:
            return layout.select(table.tensor).reshape(numbers.tensor.shape).clone()
    return None


def _independent(execution: Execution) -> list[str]:
    """Return the names of the computed floating-point values that depend on no input and have several elements."""
    dependent = execution.graph.computed_from(execution.graph.inputs)
    computed = [name for node in execution.graph.nodes if moved_value(node) is None for name in node.outputs]
    values = {name: execution.values[name] for name in computed if name in execution.values and name not in dependent}
    return [name for name, value in values.items() if value.is_floating_point() and value.numel() > 1]
