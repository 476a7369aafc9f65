"""Find the first named array at which one implementation leaves the other one, without the operations between arrays.

An array that is no value of the other implementation need not be wrong. If the other implementation has a graph, the
operations that lead to its outputs otherwise than through values that are among the arrays are the ones whose results
are missing; the first wrong array was computed after what the first of them read. Else the order of the arrays decides.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from filch.export import Node

from ..pairing._correspondence import Correspondence
from ..pairing._values import ValueSide
from ..provenance._ancestors import Ancestors
from ..runs._execution import Execution
from ._counterparts import first_wrong_operations

_UNORDERED = 0.1  # of the arrays that are computed from the next one: then the order is not that of the run


@dataclass(frozen=True)
class Leaving:
    """Where named arrays leave the values of the other implementation.

    Attributes:
        wrong: the arrays that are no values, although later ones are not either; in order.
        excused: those that are no values either, but on which nothing depends that is wrong.
        first: the first wrong one; None if there is none, or the order of the arrays is not that of the run.
        node: the operation of the other implementation that computes something else, as far as that is known.
        is_ordered: whether the order of the arrays may be that of the run.
    """

    wrong: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    first: str | None = None
    node: Node | None = None
    is_ordered: bool = True


def leaving(pairs: Correspondence, *, are_of_actual: bool) -> Leaving:
    """Return where named arrays leave the values of the other implementation.

    Args:
        pairs: the values that correspond; one of both sides are arrays, in order.
        are_of_actual: whether the arrays are those of B.
    """
    owners: Mapping[str, Collection[str]] = pairs.owners  # the values that each array has numbers of
    arrays, found = pairs.actual, pairs.found_in_reference
    values, found_values = pairs.reference, pairs.found_in_actual
    if not are_of_actual:
        arrays, found, values, found_values, owners = values, found_values, arrays, found, pairs.owned
    names = [name for name in arrays.execution.values if name in arrays.recognizable]
    missing = [name for name in names if name not in found]
    if not missing:
        return Leaving()
    if not values.execution.graph.nodes:  # arrays, too: a missing one is wrong if the last one is
        return Leaving((*missing,), (), missing[0]) if names[-1] in missing else Leaving((), (*missing,))
    whole = [[item for item in owners.get(name, ()) if _is_whole(item, values, arrays, name)] for name in names]
    places: dict[str, int] = {}  # of values among the arrays: the first whole one, else the last part
    for index, name in enumerate(names):
        for value in (item for item in owners.get(name, ()) if item in found_values):
            places[value] = min(places.get(value, index), index) if value in whole[index] else index
    wrong_outputs = [*_wrong_outputs(values, places, {arrays.recognizable[name].tensor.numel() for name in missing})]
    if not wrong_outputs:
        return Leaving((), (*missing,))
    if not _is_ordered(values.execution, whole):
        return Leaving((*missing,), is_ordered=False)
    start, node = _start(values, places, wrong_outputs)
    wrong = [name for name in missing if names.index(name) > start]
    excused = [name for name in missing if names.index(name) <= start]
    return Leaving((*wrong,), (*excused,), wrong[0] if wrong else None, node if wrong else None)


def _is_whole(value: str, values: ValueSide, arrays: ValueSide, name: str) -> bool:
    """Whether an array, of a name, has all numbers of a value of which it has some."""
    return value in values.recognizable and (
        arrays.recognizable[name].tensor.numel() >= values.recognizable[value].tensor.numel()
    )


def _wrong_outputs(values: ValueSide, places: Collection[str], sizes: Collection[int]) -> Iterator[str]:
    """Yield the outputs that are not among the arrays although they should be.

    If one of them is there, another one of a size that no array has may just not have been saved.

    Args:
        values: the implementation with the outputs; those that are not recognizable, with few numbers, are left out.
        places: its values that are among the arrays.
        sizes: the numbers of elements of the arrays that are none of its values.
    """
    execution = values.execution
    outputs = dict.fromkeys(execution.roots[name] for name in execution.graph.outputs)
    known = [name for name in outputs if name in values.recognizable]
    is_found = any(name in places for name in known)
    for name in known:
        if name not in places and (not is_found or values.recognizable[name].tensor.numel() in sizes):
            yield name


def _start(values: ValueSide, places: Mapping[str, int], wrong_outputs: Collection[str]) -> tuple[int, Node | None]:
    """Return the index of the last array that the first missing operation reads, -1 for none, and that operation.

    Args:
        values: the implementation with the operations.
        places: the index of the array of each of its values that is among the arrays.
        wrong_outputs: its outputs that are not among them.
    """
    execution = values.execution
    latest: dict[str, int] = {}  # the last array from which each value is computed
    for node in execution.graph.nodes:
        before = max((latest.get(read, -1) for read in node.reads), default=-1)
        latest |= {name: places.get(execution.roots[name], before) for name in node.outputs}
    after_arrays = {name for name in values.recognizable if latest.get(name, -1) >= 0}
    for judged in (after_arrays, values.recognizable.keys()):  # tables of angles, say, are computed from inputs alone
        wrong = [name for name in wrong_outputs if name in judged]
        nodes = first_wrong_operations(execution, wrong, judged=judged, found=places)
        starts = [max((latest.get(read, -1) for read in node.reads), default=-1) for node in nodes]
        if nodes:
            return min(starts), nodes[starts.index(min(starts))]
    return -1, None


def _is_ordered(execution: Execution, owners: Sequence[Collection[str]]) -> bool:
    """Whether hardly any array is computed from the next one; a module may return what it has computed others from.

    Args:
        execution: the implementation whose graph tells what is computed from what.
        owners: the values that each array has numbers of, in the order of the arrays.
    """
    graph = execution.graph
    order = {name: graph.node_indices[node.name] for name, node in graph.producer.items()}
    computed = [found for names in owners if (found := [name for name in names if name in order])]
    wrong = 0
    for before, after in itertools.pairwise(computed):
        first, last = min(before, key=order.__getitem__), max(after, key=order.__getitem__)
        if order[last] < order[first] and graph.producer[last] in Ancestors(graph, [first]):
            wrong += 1
    return wrong <= _UNORDERED * len(computed)
