"""Align implementations of which one, or both, are named arrays; or their weights alone."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from filch.export import Graph, Value, release_memory
from filch.steal import phase

from ..common._plain_tensors import plain_tensors
from ..float64._mode import RecordedDecisions
from ..models._gguf import GgufWeights, Quantized
from ..models._subject import Subject
from ..results._alignment import AlignedArray, Alignment, Departure
from ._arrays import NamedArrays
from ._correspondence import Correspondence
from ._execution import Execution, label_of, run_model
from ._named_values import Leaving, leaving
from ._program_run import ProgramSource, noisy_values, run_program
from ._result import aligned_weight, alignment
from ._rounding import FINEST, RoundingLevels, assumed, measured
from ._value_map import ValueMap
from ._values import Side
from ._weight_verdict import irregular_orders, odd_weights, other_weights, permuted_blocks
from ._weights import Tensors, WeightMap, match_weights, not_compared

_MOST = 8  # names in a sentence
_NOTE = "only named arrays were compared; the cause may be an earlier step without a name"
Runnable = Subject | ProgramSource
Source = Runnable | NamedArrays


def align_weights(own: Source, other: Source) -> Alignment:
    """Return which weights of two implementations correspond; see `align`."""
    first, second = weights_of(own), weights_of(other)
    first, rounded = _without_rounding(own, first, second)
    second, other_rounded = _without_rounding(other, second, first)
    with phase("matching weights"):
        weights = match_weights(first, second)
        release_memory()
    wrong = [*_wrong_weights(weights, first, second, complete=True)]
    aligned = []
    for match in weights.matches:
        weight, how = aligned_weight(first, match), other_rounded.get(match.weight)
        rounding = f", quantized as {how.type}" if how is not None and match.parts else ""
        aligned.append(replace(weight, arrangement=weight.arrangement + rounding))
    remarks = [*_remarks_on_rounding("A", rounded), *_remarks_on_rounding("B", other_rounded)]
    remarks += [*permuted_blocks(weights), *irregular_orders(weights), *not_compared(first, second)]
    return Alignment(
        name_of(own),
        name_of(other),
        (*aligned,),
        weights.unused,
        *((), (), ()),
        wrong_outputs=(*wrong,),
        remarks=(*remarks,),
        compared="weights",
        graphs={"A": _graph_of(name_of(own), first), "B": _graph_of(name_of(other), second)},
    )


def _graph_of(name: str, weights: Tensors) -> Graph:
    values = {
        name: Value(name, str(item.dtype).removeprefix("torch."), tuple(item.shape)) for name, item in weights.items()
    }
    return Graph(name, (), (), tuple(weights), (), values)


def _without_rounding(source: Source, weights: Tensors, reference: Tensors) -> tuple[Tensors, Mapping[str, Quantized]]:
    """Return weights with the numbers that quantized ones were rounded from, and how each was quantized."""
    if not isinstance(source, NamedArrays) or not source.quantized:
        return weights, {}
    with phase("finding what was quantized"):
        snapped = GgufWeights(weights, source.quantized).snapped_to(reference)
    return snapped.weights, snapped.quantized


def _remarks_on_rounding(side: str, rounded: Mapping[str, Quantized]) -> Iterator[str]:
    """Yield a sentence for each type of quantized weights."""
    groups: dict[str, list[Quantized]] = {}
    for how in rounded.values():
        groups.setdefault(how.type, []).append(how)
    for kind, items in groups.items():
        text = f"{len(items)} weights of {side} are quantized as {kind}"
        errors = [how.error for how in items if how.error is not None]
        if not items[0].is_judged:
            yield f"{text}, whose numbers are not evenly spaced: they can't be judged"
        elif errors:
            yield f"{text}: rounding by up to 1.5 steps of a block counts as equal, here {max(errors):.1%} of a weight"


def weights_of(source: Source) -> Tensors:
    """Return the weights by name; arrays of which no weights are known are all weights."""
    if isinstance(source, Subject):
        return plain_tensors(source.model.state_dict())
    if isinstance(source, ProgramSource):
        return source.weights
    return {name: item for name, item in source.arrays.items() if not source.weights or name in source.weights}


def name_of(source: Source) -> str:
    """Return what an implementation is called."""
    return type(source.model).__name__ if isinstance(source, Subject) else source.name


def _wrong_weights(weights: WeightMap, own: Tensors, other: Tensors, *, complete: bool) -> Iterator[str]:
    """Yield a sentence for each weight that is wrong.

    Args:
        weights: which weights correspond.
        own: the weights of A.
        other: those of B.
        complete: whether B has to have all weights of A, arranged alike in all layers.
    """
    others = other_weights(weights, own, other)
    yield from map(str, others)
    known = {item.name for item in others}
    yield from (f"the weight {name!r} of B is no weight of A" for name in weights.missing if name not in known)
    if complete:
        used = {item.counterpart for item in others}
        yield from (f"the weight {name!r} of A is not in B" for name in weights.unused if name not in used)
        yield from odd_weights(weights, own)
        if not weights.matches:
            yield "B has no weights"


def align_arrays(own: Source, other: Source, given: ValueMap) -> Alignment:
    """Return which named arrays are values and weights of the other implementation; see `align`.

    Args:
        own: implementation A.
        other: implementation B; at least one of the two is `NamedArrays`.
        given: where people say that values of A are in B.
    """
    first, second, weights = _sides(own, other)
    are_of_b = isinstance(other, NamedArrays)
    arrays = second if are_of_b else first
    if not arrays.execution.values:  # weights alone
        return align_weights(own, other)
    with phase("matching values"):
        pairs = Correspondence(first, second, weights)
        result = alignment(pairs, (), (), (), given)
    if are_of_b:
        left = leaving(second, pairs.found, first, pairs.found_in_other, pairs.owners)
    else:
        left = leaving(first, pairs.found_in_other, second, pairs.found, _inverse(pairs.owners))
    wrong = [*_wrong_weights(weights, first.execution.weights, second.execution.weights, complete=False)]
    wrong += _wrong_arrays(left, *("BA" if are_of_b else "AB"))
    found = (name for name in arrays.recognizable if name in (pairs.found if are_of_b else pairs.found_in_other))
    if not wrong and next(found, None) is None:
        wrong.append("no array has enough different numbers to be compared")
    departures = () if left.first is None else (_departure(left),)
    return replace(
        result,
        departures=departures if are_of_b else (),
        missing=() if are_of_b else departures,
        wrong_outputs=(*wrong,),
        remarks=(*_remarks(left, arrays),),
        compared="arrays",
        arrays=(*_arrays(pairs),) if are_of_b else (),
    )


def _sides(own: Source, other: Source) -> tuple[Side, Side, WeightMap]:
    """Return the two sides, and which weights correspond."""
    if not isinstance(own, NamedArrays):
        if not isinstance(other, NamedArrays):
            raise TypeError("two modules are compared by their operations")
        run, decisions = _run(own)
        weights = other.weights_among(run)
        arrays = other.execution(weights.by_weight)
        return _measured(own, run, decisions, other, arrays), Side(arrays), weights
    if not isinstance(other, NamedArrays):
        run, decisions = _run(other)
        arrays = own.execution(own.weights_among(run).by_weight)
        side = _measured(other, run, decisions, own, arrays)
        weights = match_weights(arrays.weights, run.weights) if arrays.weights else WeightMap(())
        return Side(arrays), side, weights
    first, second = own.execution(own.weights), other.execution(other.weights)
    levels = RoundingLevels(assumed(first.values), second.values, other.units(second.values), own.units(first.values))
    return Side(first, levels=levels), Side(second), match_weights(first.weights, second.weights)


def run(source: Runnable, decisions: RecordedDecisions | None = None) -> Execution:
    """Run an implementation in float64.

    Args:
        source: the implementation.
        decisions: those of a module are added to it, so that a run with noise can make them again.

    Raises:
        CompareError: a node of an ONNX program can't be computed in float64.
        TraceError: the module fails.
    """
    if isinstance(source, ProgramSource):
        return run_program(source)
    execution = run_model(source.model, source.args, source.kwargs, decisions=decisions)
    release_memory()
    return execution


def _run(source: Runnable) -> tuple[Execution, RecordedDecisions]:
    decisions: RecordedDecisions = {}
    with phase("running in float64"):
        return run(source, decisions), decisions


def _measured(
    source: Runnable, run: Execution, decisions: RecordedDecisions, arrays: NamedArrays, execution: Execution
) -> Side:
    """Return the side of what was run; for arrays of a lower precision than float64, with the levels of its values."""
    units = arrays.units(execution.values)
    if max(units.values(), default=0.0) < FINEST:
        return Side(run)
    with phase("measuring rounding"):
        if isinstance(source, ProgramSource):
            noisy: Tensors = noisy_values(source, run)
        else:
            noisy = run_model(source.model, source.args, source.kwargs, noisy=True, decisions=decisions).values
            release_memory()
    truths = measured(run.values, noisy, run.units)
    return Side(run, levels=RoundingLevels(truths, execution.values, units))


def _inverse(owners: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, items in owners.items():
        for item in items:
            found.setdefault(item, set()).add(name)
    return found


def _wrong_arrays(left: Leaving, side: str, other: str) -> Iterator[str]:
    """Yield a sentence if arrays are no values of the other implementation."""
    if left.first is not None:
        later = len(left.wrong) - 1
        rest = f"; so are {later} later ones, which may inherit it" if later else ""
        yield f"the array {left.first!r} of {side} is the first that is no value of {other}{rest}"
    elif left.wrong:
        yield (
            f"{_listed(left.wrong)} of {side} are no values of {other}; the arrays are not in the order of the run, so "
            "that the first of them is not known"
        )


def _departure(left: Leaving) -> Departure:
    module = None if left.node is None else left.node.module or ""
    return Departure(left.first or "", "array", None, left.first or "", module, None, None, _NOTE)


def _remarks(left: Leaving, arrays: Side) -> Iterator[str]:
    if left.excused:
        yield f"nothing wrong depends on {_listed(left.excused)}, which the other implementation does not compute"
    plain = [name for name in arrays.execution.values if name not in arrays.recognizable]
    if plain:
        yield f"not compared, as they are integers or have too few different numbers: {_listed(plain)}"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST} more arrays" if len(names) > _MOST else ""
    return ", ".join(map(repr, names[:_MOST])) + rest


def _arrays(pairs: Correspondence) -> Iterator[AlignedArray]:
    """Yield the arrays of B, with where they are in A."""
    own, other = pairs.reference.execution, pairs.other
    for name in other.execution.values:
        owners = sorted(pairs.owners.get(name, ())) if name in pairs.found or name not in other.recognizable else ()
        places = tuple(dict.fromkeys(label_of(own, item) for item in owners))
        yield AlignedArray(name, str(other.execution.graph.values[name]), places, name in other.recognizable)
