"""Write the correspondence of two executions as a result for people."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

import torch

from filch.export import Node
from filch.export.tracing._replayable import ModuleOutput

from ..common._errors import CompareError
from ..layouts._described import described
from ..layouts._layout import Layout
from ..layouts._numbers import TensorNumbers
from ..layouts._solve import holds, solve
from ..pairing._correspondence import Correspondence
from ..pairing._outputs import JudgedOutputs, output_name
from ..pairing._weight_map import WeightMatch
from ..rendering._outcome import Gap
from ..results._alignment import (
    AlignedOutput,
    AlignedValue,
    AlignedWeight,
    Alignment,
    Departure,
    Evidence,
    LinkedValue,
    SideName,
)
from ..runs._execution import Execution, Tensors, label_of, line_of
from ._suspect import Suspect
from ._value_map import ValueMap

_COARSER = "the outputs of B are those of A in float64, but B rounds to a coarser dtype on the way"
_SHOWN = 4  # names in a sentence
Shape = tuple[int, ...]
_STRENGTH: Sequence[Evidence] = ("proved", "anchored", "by value", "ambiguous", "uncovered")


def alignment(
    pairs: Correspondence,
    suspects: Sequence[Suspect],
    missing: Sequence[Node],
    remarks: Sequence[str],
    given: ValueMap,
    *,
    coarser: Sequence[Suspect] = (),
) -> Alignment:
    """Return the result.

    Args:
        pairs: the values that correspond.
        suspects: the operations of B that leave A.
        missing: the operations of A whose results B lacks.
        remarks: sentences about the whole comparison.
        given: where people say that values of A are in B.
        coarser: the operations of B that round to a coarser dtype than A does.
    """
    reference, actual = pairs.reference.execution, pairs.actual.execution
    return Alignment(
        reference.name,
        actual.name,
        tuple(aligned_weight(reference.weights, match) for match in pairs.weights.matches),
        pairs.weights.unused,
        tuple(_values(pairs, given)),
        tuple(_departure(suspect) for suspect in (*suspects, *coarser)),
        tuple(_departure(Suspect(node, node)) for node in missing),
        pairs.outputs.problems or ((_COARSER,) if coarser else ()),
        (*remarks, *remarks_on(pairs.outputs)),
        outputs=tuple(outputs_of(pairs.outputs, reference, actual)),
        graphs={"A": reference.graph, "B": actual.graph},
        linked=_linked(pairs),
        gaps=tuple(gaps_of(pairs.outputs, actual)),
    )


def gaps_of(judged: JudgedOutputs, actual: Execution) -> Iterator[Gap]:
    """Yield the outputs of A that B does not leave to its caller although nothing shows that it is wrong."""
    for item in judged.judged:
        if item.inner:
            place = label_of(actual, item.inner)
            yield Gap(output_name(item.reference), f"B computes it, as {place}, but returns another value alone")
    yield from (Gap(name, "A also returns a cache, of which B has nothing") for name in judged.cache_names)


def outputs_of(judged: JudgedOutputs, reference: Execution, actual: Execution) -> Iterator[AlignedOutput]:
    """Yield the outputs of A for people.

    Args:
        judged: what is said of them.
        reference: the run of A.
        actual: the run of B.
    """
    orders = [[item.result.key for item in side.outputs] for side in (reference, actual)]
    for item in judged.judged:
        dtype = (item.reference.tensor if item.reference.native is None else item.reference.native).dtype
        what = f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, item.reference.tensor.shape))}]"
        place, is_elsewhere = "", bool(item.order or item.inner)
        if item.inner:
            place = f"(inside) {label_of(actual, item.inner)}"
        elif item.actual is not None and not item.problem:
            keys = item.reference.result.key, item.actual.result.key
            indices = [order.index(key) for order, key in zip(orders, keys, strict=True)]
            is_elsewhere |= keys[0] != keys[1] and indices[0] != indices[1]
            place = output_name(item.actual)
        yield AlignedOutput(output_name(item.reference), what, place, item.order, item.problem, is_elsewhere)


def remarks_on(judged: JudgedOutputs, *, with_further: bool = True) -> Iterator[str]:
    """Yield sentences about outputs that are not wrong.

    Args:
        judged: what is said of the outputs.
        with_further: also about those that only B returns.
    """
    for item in judged.judged:
        if item.is_native:
            yield f"{output_name(item.reference)} was judged by tolerance: float64 has no numbers of it"
    if judged.further and with_further:
        yield f"B also returns {', '.join(map(output_name, judged.further))}, which A does not: not judged"


def _departure(suspect: Suspect) -> Departure:
    node, reference = suspect.place, suspect.reference
    return Departure(
        node.module or "",
        node.operator.name,
        line_of(node),
        node.outputs[0],
        None if reference is None else reference.module or "",
        None if reference is None else reference.operator.name,
        None if reference is None else line_of(reference),
        suspect.note,
        None if reference is None else reference.outputs[0],
    )


def aligned_weight(reference: Tensors, match: WeightMatch) -> AlignedWeight:
    """Return a weight of B for people.

    Args:
        reference: the weights of A by name.
        match: what the weight was made of.
    """
    texts = []
    for part in match.parts:
        inner, outer = match.shape, tuple(reference[part.weight].shape) if part.weight in reference else match.shape
        if part.arrangement == "holds":
            inner, outer = outer, inner
        text = described(part.layout, inner, outer)
        text = f"in {text}" if part.arrangement == "holds" and len(match.parts) > 1 else text
        text = "" if text == "same" and part.order else text
        texts.append(", ".join(filter(None, (text, part.order_of_rows, part.factor))))
    arrangement = "; ".join(dict.fromkeys(texts)) if match.parts else "not found"
    if match.parts and not match.complete:
        arrangement = f"only in part: {arrangement}"
    return AlignedWeight(
        match.weight,
        match.shape,
        tuple(part.weight for part in match.parts),
        arrangement,
        match.complete,
        match.others,
    )


def _values(pairs: Correspondence, given: ValueMap) -> Iterator[AlignedValue]:
    reference, actual = pairs.reference.execution, pairs.actual.execution
    returned = _returned(reference), _returned(actual)
    places = {name: item for item in actual.modules for name in (f"{item.module}{item.path}", item.name)}
    known: dict[str, str] = {}
    for item in reference.modules:
        known |= dict.fromkeys((f"{item.module}{item.path}", item.name), f"{item.module}{item.path}")
    _check_names(given, known, places)
    rows = {known[name]: row for name, row in given.values.items()}
    for output in reference.modules:
        root = reference.roots.get(output.value, output.value)
        if root not in pairs.reference.recognizable:
            continue
        evidence: Evidence
        evidence, names = pairs.evidence(root)
        relative = max([pairs.reference.relative(root), *map(pairs.actual.relative, names[:1])])
        modules = [item for name in names[:_SHOWN] for item in actual.modules_by_value.get(name, ())]
        row = rows.get(f"{output.module}{output.path}")
        if row is not None:
            place = places[row.place]
            is_confirmed = _is_there(returned, output, place, row.layout, relative)
            evidence = "given" if is_confirmed else "contradicted"
            names, modules = (actual.roots[place.value],), [place]
        layouts = ((item, _layout_in(returned, output, item)) for item in modules)
        found = [(item, *layout) for item, layout in layouts if layout is not None]
        found.sort(key=lambda item: bool(item[2]))  # those in the same order first
        text, written = ("" if not names or modules else _order(pairs, root, names[0])), ""
        if found:
            text, written = found[0][2], str(found[0][1])
        elif modules:
            text = "in another order"
        ordered = [*(item[0].name for item in found), *(item.name for item in modules)]
        yield AlignedValue(
            output.module,
            output.path,
            str(reference.graph.values[output.value]),
            evidence,
            tuple(dict.fromkeys(label_of(actual, name) for name in names)),
            text,
            written,
            tuple(dict.fromkeys(ordered)),
            root,
            output.name,
        )


def _returned(execution: Execution) -> Mapping[str, TensorNumbers]:
    """Return what modules returned, in its own shape and order, by the names of the values."""
    names = {output.value for output in execution.modules}
    moved = {name for name in names if name not in execution.values}
    found = {name: execution.values[name] for name in names - moved}
    if moved and execution.run_again is not None:
        found |= {name: item for name, item in execution.run_again({}, moved).items() if name in moved}
    return {name: TensorNumbers(_in_own_shape(execution, name, tensor)) for name, tensor in found.items()}


def _in_own_shape(execution: Execution, name: str, tensor: torch.Tensor) -> torch.Tensor:
    shape = [size for size in execution.graph.values[name].shape or () if isinstance(size, int)]
    return tensor.reshape(shape) if math.prod(shape) == tensor.numel() else tensor


def _layout_in(
    returned: tuple[Mapping[str, TensorNumbers], Mapping[str, TensorNumbers]], output: ModuleOutput, place: ModuleOutput
) -> tuple[Layout, str] | None:
    """Return where the elements of what a module of A returned are in what one of B returned, and that in words."""
    reference, actual = returned[0].get(output.value), returned[1].get(place.value)
    layout = None if reference is None or actual is None else solve(reference, actual)
    if layout is None or reference is None or actual is None:
        return None
    text = described(layout, tuple(reference.tensor.shape), tuple(actual.tensor.shape))
    return layout, "" if text == "same" else text


def _is_there(
    returned: tuple[Mapping[str, TensorNumbers], Mapping[str, TensorNumbers]],
    output: ModuleOutput,
    place: ModuleOutput,
    layout: Layout | None,
    relative: float,
) -> bool:
    """Whether what a module of A returned is in what one of B returned, in a layout or in the same order."""
    reference, actual = returned[0].get(output.value), returned[1].get(place.value)
    if reference is None or actual is None:
        return False
    return holds(layout or Layout.of(0, [(reference.tensor.numel(), 1)]), reference, actual, relative)


def _linked(pairs: Correspondence) -> dict[SideName, tuple[LinkedValue, ...]]:
    """Return the recognizable values of A and of B, with those of the other one that have their numbers."""
    reference, actual = pairs.reference.recognizable, pairs.actual.recognizable
    evidence = {value: pairs.evidence(value) for value in reference}
    found: dict[str, dict[str, Evidence]] = {}
    for value, (kind, names) in evidence.items():
        for name in names:
            found.setdefault(name, {})[value] = kind
    anchored: dict[SideName, dict[str, list[str]]] = {"A": {}, "B": {}}
    for anchor in pairs.anchors:
        value, name = anchor.reference.outputs[0], anchor.node.outputs[0]
        anchored["A"].setdefault(value, []).append(name)
        anchored["B"].setdefault(name, []).append(value)
    of_reference, of_actual = [], []
    for value, (kind, names) in evidence.items():
        if names:
            of_reference.append(LinkedValue(value, kind, names, tuple(_order(pairs, value, name) for name in names)))
        else:
            of_reference.append(_unlinked(value, anchored["A"].get(value, ())))
    for name in actual:
        owners = sorted(pairs.owners.get(name, ()))
        values = found.get(name) or {item: "by value" for item in owners if item in reference}
        if values:
            strongest = min(values.values(), key=_STRENGTH.index)
            places = tuple(value for value, kind in values.items() if kind == strongest)
            orders = tuple(_order(pairs, value, name) for value in places)
            is_whole = name in pairs.found_in_reference
            of_actual.append(LinkedValue(name, strongest if is_whole else "in part", places, orders))
        else:
            of_actual.append(_unlinked(name, anchored["B"].get(name, ())))
    return {"A": tuple(of_reference), "B": tuple(of_actual)}


def _unlinked(name: str, anchored: Sequence[str]) -> LinkedValue:
    """Return a value whose numbers are not in the other implementation, with those that the same weights compute."""
    places = tuple(dict.fromkeys(anchored))
    return LinkedValue(name, "uncovered", places, ("same weight, other numbers",) * len(places))


def _order(pairs: Correspondence, value: str, name: str) -> str:
    """Say how a value of A is arranged in one of B, or that of B in that of A, as far as a match says so."""
    reference, actual = pairs.reference.execution.values.get(value), pairs.actual.execution.values.get(name)
    for side, matches, first, second in (
        ("B", pairs.from_actual.get(value, ()), reference, actual),
        ("A", pairs.from_reference.get(name, ()), actual, reference),
    ):
        wanted = name if side == "B" else value
        for match in matches:
            if match.source == wanted and match.layout is not None and first is not None and second is not None:
                text = described(match.layout, tuple(first.shape), tuple(second.shape))
                return "" if text == "same" else text if match.whole else f"{text} of {side}"
    return ""


def _check_names(given: ValueMap, known: Collection[str], places: Collection[str]) -> None:
    """Raise a CompareError if a mapping names modules that were not called."""
    for name, row in given.values.items():
        for side, wanted, names in (("A", name, known), ("B", row.place, places)):
            if wanted not in names:
                close = get_close_matches(wanted, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise CompareError(f"the mapping names {wanted!r}, which no module of {side} returned{hint}")
