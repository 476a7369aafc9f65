"""Estimate the work of comparing each value of a graph, for the progress display."""

import math
from collections.abc import Iterable, Iterator, Mapping

from filch.export import Graph
from filch.export.graph._sizes import value_sizes
from filch.steal import Phase
from filch.steal._phases import is_watched

from ..common._dtypes import declared_dtype
from ..judging._run import ObservedValue, Run

_PER_VALUE = 2**21  # bytes: comparing a scalar takes some milliseconds, as long as comparing so many


def value_work(run: Run) -> dict[str, float]:
    """Return the work of each value that a node computes, by name: the bytes that its node reads and computes.

    Without a watcher, which needs no estimate, it is 1.
    """
    graph = run.graph
    if not is_watched():
        return dict.fromkeys(graph.producer, 1.0)
    sizes = {name: _weight_size(graph, name) for name in graph.constants} | value_sizes(graph, run.inputs)
    return {
        name: _PER_VALUE + sizes.get(name, 0) + sum(sizes.get(read, 0) for read in {*node.reads}) / len(node.outputs)
        for name, node in graph.producer.items()
    }


def counted(values: Iterable[ObservedValue], progress: Phase, work: Mapping[str, float]) -> Iterator[ObservedValue]:
    """Yield values, and count those that are in `work`."""
    for value in values:
        if value[0] in work:
            progress.next(work=work[value[0]])
        yield value


def _weight_size(graph: Graph, name: str) -> int:
    """Return the bytes of a weight by the shape and dtype that a graph declares; 0 if its dtype is not known."""
    dtype = declared_dtype(graph, name)
    if dtype is None:
        return 0
    return math.prod(dim for dim in graph.values[name].shape or () if isinstance(dim, int)) * dtype.itemsize
