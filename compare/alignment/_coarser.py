"""Find where one implementation rounds to a coarser dtype than the other one, which float64 does not show."""

from collections.abc import Mapping

from filch.export import Node

from ..float64._noise import unit_of
from ..pairing._correspondence import Correspondence
from ..pairing._places import code_of
from ..runs._execution import moved_value
from ._suspect import Suspect

_FACTOR = 4  # the units of two dtypes of which one is coarser differ by more


def coarser_operations(pairs: Correspondence, owners: Mapping[str, frozenset[str]]) -> list[Suspect]:
    """Return the operations of B that round to a coarser dtype than A has for the same values and for its outputs.

    Those whose weights or inputs have the coarser dtype are left out. Dtypes are compared by half a unit in the last
    place, relative. `units` has the largest one on the way to each value, `roots` the value that it was moved from.

    Args:
        pairs: the runs of both.
        owners: the values of A that have numbers of each value of B, by its name.
    """
    reference, actual = pairs.reference.execution, pairs.actual.execution
    usual = max((reference.units.get(name, 0.0) for name in reference.graph.outputs), default=0.0)
    units = {name: unit_of(tensor.dtype) for name, tensor in actual.weights.items() if tensor.is_floating_point()}
    units |= actual.units
    origins: dict[str, Node] = {}  # the operation that rounds each value to its dtype
    found: dict[tuple[str, str | None], Suspect] = {}  # one for each line of code
    for node in actual.graph.nodes:
        coarsest_read = max(node.reads, key=lambda read: units.get(read, 0.0), default="")
        for name in node.outputs:
            is_coarser = units.get(name, 0.0) > units.get(coarsest_read, 0.0)
            origin = node if is_coarser else origins.get(coarsest_read)
            if origin is None:
                continue
            origins[name] = origin
            equal = sorted(item for item in owners.get(actual.roots[name], ()) if item in reference.units)
            is_judged = moved_value(node) is None or name in actual.graph.outputs  # a movement rounds nothing
            if code_of(origin) in found or not equal or not is_judged:
                continue
            finest = max(equal, key=reference.units.__getitem__)
            if units[name] > _FACTOR * max(reference.units[finest], usual):
                coarse, fine = actual.graph.values[origin.outputs[0]].dtype, reference.graph.values[finest].dtype
                note = f"rounds to {coarse}, where A has {fine}"
                found[code_of(origin)] = Suspect(origin, origin, reference.graph.producer.get(finest), note)
    return [*found.values()]
