"""Align implementations of which one, or both, are named arrays; or their weights alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from filch.export import Graph, Node, Value
from filch.export.common._memory import release_memory
from filch.steal import phase

from ..common._errors import CompareError
from ..layouts._layout import Layout
from ..models._gguf import GgufWeights, Quantized
from ..pairing._correspondence import Correspondence
from ..pairing._outputs import (
    JudgedOutputs,
    bare_name,
    have_equal_numbers,
    have_same_kinds,
    in_order,
    judge_outputs,
    output_name,
)
from ..pairing._rounding import FINEST, RoundingLevels, assumed, measured
from ..pairing._values import ValueSide
from ..pairing._weight_map import WeightMap, match_weights
from ..rendering._outcome import Gap
from ..rendering._words import listed
from ..results._alignment import AlignedArray, Alignment, Departure
from ..runs._execution import Execution, Output, Tensors, label_of
from ._arrays import NamedArrays, Source
from ._named_values import Leaving, leaving
from ._parts import Parts, part_of, with_parts
from ._result import aligned_weight, alignment, gaps_of, outputs_of, remarks_on
from ._value_map import ValueMap
from ._weight_verdict import (
    incomplete_weights,
    irregular_orders,
    lone_changes,
    not_compared,
    odd_weights,
    other_weights,
    permuted_blocks,
)

_MOST = 8  # names in a sentence
_NOTE = "only named arrays were compared; the cause may be an earlier step without a name"


def align_weights(reference: Source, actual: Source) -> Alignment:
    """Return which weights of two implementations correspond; see `align`."""
    reference_weights, actual_weights = reference.weights, actual.weights
    reference_weights, reference_rounded = _without_rounding(reference, reference_weights, actual_weights)
    actual_weights, actual_rounded = _without_rounding(actual, actual_weights, reference_weights)
    with phase("matching weights"):
        weights = match_weights(reference_weights, actual_weights)
        release_memory()
    wrong = [*_wrong_weights(weights, reference_weights, actual_weights, complete=True)]
    aligned = []
    for match in weights.matches:
        weight, how = aligned_weight(reference_weights, match), actual_rounded.get(match.weight)
        rounding = f", quantized as {how.type}" if how is not None and match.parts else ""
        aligned.append(replace(weight, arrangement=weight.arrangement + rounding))
    remarks = [*_remarks_on_rounding("A", reference_rounded), *_remarks_on_rounding("B", actual_rounded)]
    remarks += [*permuted_blocks(weights), *irregular_orders(weights), *not_compared(reference_weights, actual_weights)]
    return Alignment(
        reference.name,
        actual.name,
        (*aligned,),
        weights.unused,
        values=(),
        departures=(),
        missing=(),
        wrong_outputs=(*wrong,),
        remarks=(*remarks,),
        compared="weights",
        gaps=() if wrong else (*lone_changes(weights, reference_weights),),
        graphs={"A": _graph_of(reference.name, reference_weights), "B": _graph_of(actual.name, actual_weights)},
    )


def _graph_of(name: str, weights: Tensors) -> Graph:
    """Return a graph of a name that has weights and nothing else."""
    values = {
        weight: Value(weight, str(item.dtype).removeprefix("torch."), tuple(item.shape))
        for weight, item in weights.items()
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


def _wrong_weights(weights: WeightMap, reference: Tensors, actual: Tensors, *, complete: bool) -> Iterator[str]:
    """Yield a sentence for each weight that is wrong.

    Args:
        weights: which weights correspond.
        reference: the weights of A.
        actual: those of B.
        complete: whether B has to have all weights of A, arranged alike in all layers.
    """
    changed = other_weights(weights, reference, actual)
    yield from map(str, changed)
    reported = {item.name for item in changed}
    yield from (f"the weight {name!r} of B is no weight of A" for name in weights.missing if name not in reported)
    if complete:
        used = {item.counterpart for item in changed}
        yield from (f"the weight {name!r} of A is not in B" for name in weights.unused if name not in used)
        yield from (odd := [*odd_weights(weights, reference)])
        incomplete = incomplete_weights(weights, reference)
        yield from (text for name, text in incomplete if not any(name in item for item in odd))
        if not weights.matches:
            yield "B has no weights"


def align_arrays(reference: Source, actual: Source, given: ValueMap, parts: Parts) -> Alignment:
    """Return which named arrays are values and weights of the other implementation; see `align`.

    Args:
        reference: implementation A.
        actual: implementation B; at least one of the two is `NamedArrays`.
        given: where people say that values of A are in B.
        parts: what the arrays of B have of outputs of A; see `align`.
    """
    if parts and isinstance(reference, NamedArrays):
        raise CompareError("parts are those of what A returns: give a module or a program as A")
    reference_side, actual_side, weights = _sides(reference, actual, parts)
    are_of_b = isinstance(actual, NamedArrays)
    arrays = actual_side if are_of_b else reference_side
    if not arrays.execution.values:  # weights alone
        return align_weights(reference, actual)
    with phase("matching values"):
        pairs = Correspondence(reference_side, actual_side, weights)
        result = alignment(pairs, (), (), (), given)
    left = leaving(pairs, are_of_actual=are_of_b)
    judged = _judged_outputs(reference, actual, reference_side, actual_side)
    are_unsaved = are_of_b and _are_unsaved(judged, pairs)
    lost = [item for item in judged.judged if item.problem and are_unsaved]  # those that B did not save
    wrong = [*_wrong_weights(weights, reference_side.execution.weights, actual_side.execution.weights, complete=False)]
    wrong += _wrong_arrays(left, "B", "A") if are_of_b else _wrong_arrays(left, "A", "B")
    if not wrong and not lost:  # wrong outputs follow from what is wrong before them; those not saved are gaps
        wrong += judged.problems
    are_two = isinstance(reference, NamedArrays) and are_of_b
    if are_two and not wrong and pairs.found_in_reference.isdisjoint(arrays.recognizable):
        wrong.append("no array has enough different numbers to be compared")
    departures = () if left.first is None else (_departure(left.first, left.node),)  # of B, or what B does not compute
    unsaved = (Gap(output_name(item.reference), "no array of B has its numbers") for item in lost)
    return replace(
        result,
        departures=departures if are_of_b else (),
        missing=() if are_of_b else departures,
        wrong_outputs=(*wrong,),
        remarks=(*_remarks(left, arrays), *remarks_on(judged, with_further=False)),
        compared="arrays",
        outputs=(*outputs_of(judged, reference_side.execution, actual_side.execution),),
        gaps=(*gaps_of(judged, actual_side.execution), *unsaved),
        arrays=(*_arrays(pairs),) if are_of_b else (),
    )


def _are_unsaved(judged: JudgedOutputs, pairs: Correspondence) -> bool:
    """Whether no array of B may be one of the outputs of A that are not among them: each is another value of A."""
    roots = pairs.reference.execution.roots
    lost = {roots.get(item.reference.result.value, "") for item in judged.judged if item.problem}
    arrays = pairs.actual.execution.values
    return all(name in pairs.found_in_reference and not pairs.owners.get(name, frozenset()) & lost for name in arrays)


def _judged_outputs(
    reference: Source, actual: Source, reference_side: ValueSide, actual_side: ValueSide
) -> JudgedOutputs:
    """Return what is said of the outputs of A, as far as it is known which of its arrays are outputs.

    Else those arrays are outputs that are outputs of B, and the last one is if B is arrays, too, or no other one is.
    """

    def equal(output: Output, array: Output, layout: Layout) -> bool:
        """Whether an output of A is one of B: by rounding, where the levels of one side are known, else exactly."""
        side, value, other = reference_side, output.result, array.result
        if side.levels is None:
            side, value, other = actual_side, array.result, output.result
        # An output that is an input has the level of that, and others their own.
        key = value.value if value.value in side.execution.graph.inputs else value.key
        numbers = array.tensor.reshape(-1), in_order(layout, output.tensor)
        are_floats = numbers[0].is_floating_point() and numbers[1].is_floating_point() and numbers[0].numel()
        if not are_floats or side.levels is None or not side.levels.are_known(key, other.value):
            return have_equal_numbers(*numbers)
        is_whole = side is reference_side  # the array of B is in A's value; else the value of B in A's array
        return have_same_kinds(*numbers) and side.levels.explain(key, other.value, layout, whole_array=is_whole)

    judged = judge_outputs(reference_side.execution, actual_side.execution, equal=equal)
    if not isinstance(reference, NamedArrays) or reference.has_results:
        return judged
    right = [item for item in judged.judged if not item.problem]
    is_needed = isinstance(actual, NamedArrays) or not right
    last = [item for item in judged.judged[-1:] if item.problem and is_needed]
    return replace(judged, judged=(*right, *last))


def _sides(reference: Source, actual: Source, parts: Parts) -> tuple[ValueSide, ValueSide, WeightMap]:
    """Return the values of A and of B, and which weights correspond.

    Where an implementation runs beside arrays of a lower precision than float64, its side has rounding levels, which
    tell how far the arrays may be from it. Of two sides of arrays, A has assumed levels.
    """
    if isinstance(reference, NamedArrays) and isinstance(actual, NamedArrays):
        first, second = reference.execution(reference.weight_names), actual.execution(actual.weight_names)
        units = actual.units(second.values), reference.units(first.values)
        levels = RoundingLevels(assumed(first.values), second.values, *units)
        return ValueSide(first, levels=levels), ValueSide(second), match_weights(first.weights, second.weights)
    runnable, named = (actual, reference) if isinstance(reference, NamedArrays) else (reference, actual)
    if isinstance(runnable, NamedArrays) or not isinstance(named, NamedArrays):
        raise TypeError("two modules are compared by their operations")
    with phase("running in float64"):
        execution = runnable.run()
    weights = named.weights_among(execution)
    arrays = named.execution(weights.by_weight)
    side = _measured(execution, named, arrays, parts=parts)
    if named is actual:
        return side, ValueSide(arrays), weights
    weights = match_weights(arrays.weights, execution.weights) if arrays.weights else WeightMap(())
    return ValueSide(arrays), side, weights


def _measured(run: Execution, arrays: NamedArrays, execution: Execution, *, parts: Parts) -> ValueSide:
    """Return the side of what was run; for arrays of a lower precision than float64, with the levels of its values.

    Args:
        run: the implementation that was run.
        arrays: the arrays of the other one.
        execution: the same as an execution.
        parts: what the arrays have of outputs; see `align`.
    """
    units = arrays.units(execution.values)
    if max(units.values(), default=0.0) < FINEST or run.noisy is None:  # float64, or it can't run with noise
        return ValueSide(with_parts(run, parts))
    with phase("measuring rounding"):
        noisy = dict(run.noisy())
        release_memory()
    run = with_parts(run, parts)
    noisy |= {
        item.result.key: part_of(noisy[item.result.key], parts[bare_name(item)])
        for item in run.outputs
        if bare_name(item) in parts and item.result.key in noisy
    }
    output_units = {item.result.key: run.units.get(item.result.value, 0.0) for item in run.outputs}
    truths = measured({**run.values, **run.output_tensors}, noisy, {**run.units, **output_units})
    return ValueSide(run, levels=RoundingLevels(truths, execution.values, units))


def _wrong_arrays(left: Leaving, side: str, other: str) -> Iterator[str]:
    """Yield a sentence if arrays of a side, `"A"` or `"B"`, have numbers that no value of the other side has."""
    if left.first is not None:
        later = len(left.wrong) - 1
        rest = f"; so are {later} later ones, which may inherit it" if later else ""
        yield f"the array {left.first!r} of {side} is the first that is no value of {other}{rest}"
    elif left.wrong:
        yield (
            f"{_listed(left.wrong)} of {side} are no values of {other}; the arrays are not in the order of the run, so "
            "that the first of them is not known"
        )


def _departure(array: str, node: Node | None) -> Departure:
    """Return an array at which its implementation leaves the other one, and the operation of that, if it is known."""
    module = None if node is None else node.module or ""
    return Departure(array, "array", None, array, module, None, None, _NOTE)


def _remarks(left: Leaving, arrays: ValueSide) -> Iterator[str]:
    """Yield sentences on arrays that are not judged."""
    if left.excused:
        yield f"nothing wrong depends on {_listed(left.excused)}, which the other implementation does not compute"
    plain = [name for name in arrays.execution.values if name not in arrays.recognizable]
    if plain:
        yield f"not compared, as they are integers or have too few different numbers: {_listed(plain)}"


def _listed(names: Sequence[str]) -> str:
    """Return names of arrays for a sentence."""
    return listed([*map(repr, names)], _MOST, " and {} more arrays")


def _arrays(pairs: Correspondence) -> Iterator[AlignedArray]:
    """Yield the arrays of B, with where they are in A."""
    reference, actual = pairs.reference.execution, pairs.actual
    for name in actual.execution.values:
        is_known = name in pairs.found_in_reference or name not in actual.recognizable
        owners = sorted(pairs.owners.get(name, ())) if is_known else ()
        places = tuple(dict.fromkeys(label_of(reference, item) for item in owners))
        yield AlignedArray(name, str(actual.execution.graph.values[name]), places, name in actual.recognizable)
