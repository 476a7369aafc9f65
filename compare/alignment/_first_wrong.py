"""Find the operations that compute something wrong from right values."""

from collections.abc import Collection, Iterator
from typing import Protocol

from filch.export import Node

from ._execution import Execution, moved_value


class Recognized(Protocol):
    """An execution of which some values can be judged."""

    @property
    def execution(self) -> Execution:
        """The execution."""
        ...

    @property
    def recognizable(self) -> Collection[str]:
        """The names of these values."""
        ...


def first_wrong(
    side: Recognized, found: Collection[str], forced: Collection[str], seeds: Collection[str]
) -> list[Node]:
    """Return the operations that compute something wrong from right values.

    Args:
        side: the execution, and which of its values can be judged.
        found: the values whose numbers are those of the other execution.
        forced: values that were replaced by right ones, for those who read them.
        seeds: values that are wrong, or whose elements are in a wrong order.
    """
    execution = side.execution
    wrong = {*seeds}
    for node in reversed(execution.graph.nodes):
        if any(name in seeds or (name in wrong and not is_right(execution, found, name)) for name in node.outputs):
            reads = [read for read in node.reads if read not in forced and not is_right(execution, found, read)]
            computed = [read for read in reads if read not in execution.graph.constant_values]
            wrong.update(computed or reads)  # a constant is to blame only if nothing else is wrong
    first = []
    for node in execution.graph.nodes:
        outputs = [name for name in node.outputs if name in seeds or (name in wrong and name not in forced)]
        if moved_value(node) is not None:
            is_suspect = any(name in seeds and is_right(execution, found, name) for name in outputs)
        else:
            is_suspect = any(name in side.recognizable for name in outputs)
        operands = _recognizable_reads(side, forced, node)
        if is_suspect and not any(read in wrong and read in execution.graph.producer for read in operands):
            first.append(node)
    return first


def is_right(execution: Execution, found: Collection[str], name: str) -> bool:
    root = execution.roots.get(name, name)
    return root in found or root in execution.weights or root in execution.graph.inputs


def _recognizable_reads(side: Recognized, forced: Collection[str], node: Node) -> Iterator[str]:
    """Yield what a node reads; what can't be recognized is replaced by what it is computed from."""
    execution = side.execution
    seen: set[str] = set()
    pending = list(node.reads)
    while pending:
        name = pending.pop()
        if name in seen or name in forced:
            continue
        seen.add(name)
        producer = execution.graph.producer.get(name)
        if name in side.recognizable or producer is None:
            yield name
        else:
            pending += producer.reads
