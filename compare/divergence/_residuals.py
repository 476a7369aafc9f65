"""Find the sums along which the values of a model go from layer to layer."""

from ..alignment._correspondence import size_of
from ..runs._execution import Execution


def residual_sum(execution: Execution, name: str) -> str | None:
    """Return the sum of two values from which a value of the same size is computed; None if there is none.

    Between both, there is a norm, or anything else that reads one value of that size. Matrix products are not crossed.

    Args:
        execution: a run of an implementation.
        name: an operand of an operation that reads a weight.
    """
    size = size_of(execution, name)
    while (node := execution.graph.producer.get(name)) is not None and not node.operator.is_linear:
        reads = dict.fromkeys(node.reads)
        computed = [
            read for read in reads if size_of(execution, read) > 1 and execution.roots[read] in execution.values
        ]
        if node.operator.kind == "add" and len(computed) > 1:
            return name
        same = [read for read in computed if size_of(execution, read) == size]
        if len(same) != 1:
            return None
        name = same[0]
    return None
