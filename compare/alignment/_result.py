"""Write the correspondence of two executions as a result for people, and say what shows that values are the same."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property

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
from ._weight_verdict import described_parts

_COARSER = "the outputs of B are those of A in float64, but B rounds to a coarser dtype on the way"
_SHOWN = 4  # names in a sentence
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
    evidence = _ValueEvidence(pairs)
    return Alignment(
        reference.name,
        actual.name,
        tuple(aligned_weight(reference.weights, match) for match in pairs.weights.matches),
        pairs.weights.unused,
        tuple(_values(pairs, evidence, given)),
        tuple(_departure(suspect) for suspect in (*suspects, *coarser)),
        tuple(_departure(Suspect(node, node)) for node in missing),
        pairs.outputs.problems or ((_COARSER,) if coarser else ()),
        (*remarks, *remarks_on(pairs.outputs)),
        outputs=tuple(outputs_of(pairs.outputs, reference, actual)),
        graphs={"A": reference.graph, "B": actual.graph},
        linked=_linked(pairs, evidence),
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
    reference_order, order = ([item.result.key for item in side.outputs] for side in (reference, actual))
    for item in judged.judged:
        dtype = (item.reference.tensor if item.reference.native is None else item.reference.native).dtype
        what = f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, item.reference.tensor.shape))}]"
        place, is_elsewhere = "", bool(item.order or item.inner)
        if item.inner:
            place = f"(inside) {label_of(actual, item.inner)}"
        elif item.actual is not None and not item.problem:
            reference_key, key = item.reference.result.key, item.actual.result.key
            is_elsewhere |= reference_key != key and reference_order.index(reference_key) != order.index(key)
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
    """Return an operation of B that leaves A, for people."""
    node, reference = suspect.place, suspect.reference
    place = node.module or "", node.operator.name, line_of(node), node.outputs[0]
    if reference is None:
        return Departure(*place, note=suspect.note)
    reference_place = reference.module or "", reference.operator.name, line_of(reference)
    return Departure(*place, *reference_place, suspect.note, reference.outputs[0])


def aligned_weight(reference: Tensors, match: WeightMatch) -> AlignedWeight:
    """Return a weight of B for people.

    Args:
        reference: the weights of A by name.
        match: what the weight was made of.
    """
    texts = []
    for part, text in described_parts(match, reference):
        is_inside = part.arrangement == "holds" and len(match.parts) > 1
        place = f"in {text}" if is_inside and text else text
        texts.append(", ".join(filter(None, (place, part.order_of_rows, part.factor))))
    arrangement = "; ".join(dict.fromkeys(texts)) if texts else "not found"
    if texts and not match.complete:
        arrangement = f"only in part: {arrangement}"
    sources = tuple(part.weight for part in match.parts)
    return AlignedWeight(match.weight, match.shape, sources, arrangement, match.complete, match.others)


class _ValueEvidence:
    """What shows which values of A and of B are the same.

    Args:
        pairs: the values that correspond.
    """

    def __init__(self, pairs: Correspondence) -> None:
        self._pairs, self._reference, self._actual = pairs, pairs.reference, pairs.actual

    def of(self, value: str) -> tuple[Evidence, tuple[str, ...]]:
        """Return what shows where a value of A is in B, and the values of B.

        Args:
            value: a computed value of A.
        """
        names = self._pairs.owned.get(value, ())
        proved = tuple(name for name in names if (name, value) in self._proved)
        anchored = tuple(name for name in names if (name, value) in self._anchored)
        if proved or anchored:
            return ("proved", proved) if proved else ("anchored", anchored)
        if not names:
            return "uncovered", ()
        count = self._reference.execution.values[value].numel()
        sizes = {name: abs(self._actual.execution.values[name].numel() - count) for name in names}
        nearest = tuple(name for name in names if sizes[name] == min(sizes.values()))
        return ("by value" if len(nearest) == 1 else "ambiguous"), nearest

    @cached_property
    def _proved(self) -> frozenset[tuple[str, str]]:
        """Pairs of values (B, A) computed by the same operators from pairs of values: they are equal for all inputs."""
        actual = self._actual.execution
        sources = (*actual.graph.inputs, *actual.graph.constants)
        equal = {(name, owner) for name in sources for owner in self._pairs.owners.get(name, ())}  # for all inputs
        proved = set()
        for node in actual.graph.nodes:
            for name in self._actual.recognizable.keys() & {*node.outputs}:
                owners = self._pairs.owners.get(name, ())
                pairs = {(name, owner) for owner in owners if self._is_proved(node, owner, equal)}
                proved |= pairs
                equal |= pairs
        return frozenset(proved)

    def _is_proved(self, node: Node, owner: str, equal: Collection[tuple[str, str]]) -> bool:
        """Whether a value of A is computed by the operator of a node from values that are equal to what the node reads.

        Args:
            node: an operation of B.
            owner: the value of A.
            equal: pairs of values (B, A) that are equal for all inputs.
        """
        reference = self._reference.execution
        producer = reference.graph.producer.get(owner)
        if producer is None or producer.operator.kind != node.operator.kind:
            return False
        needed = [root for root in reference.roots_read_by(producer) if self._matters(root)]
        given = self._actual.execution.roots_read_by(node)
        return bool(needed) and all(any((read, root) in equal for read in given) for root in needed)

    def _matters(self, name: str) -> bool:
        """Whether a value of A has to be in B: a recognizable one, an input or a weight."""
        run = self._reference.execution
        return name in self._reference.recognizable or name in run.graph.inputs or name in run.weights

    @cached_property
    def _anchored(self) -> frozenset[tuple[str, str]]:
        """Pairs of values (B, A) that operations compute from the same weight."""
        pairs = ((anchor.node.outputs[0], anchor.reference.outputs[0]) for anchor in self._pairs.anchors)
        return frozenset((name, item) for name, item in pairs if item in self._pairs.owners.get(name, ()))


def _values(pairs: Correspondence, evidence: _ValueEvidence, given: ValueMap) -> Iterator[AlignedValue]:
    """Yield the recognizable module outputs of A, with where they are in B.

    Args:
        pairs: the values that correspond.
        evidence: what shows it.
        given: where people say that they are; this is checked and displaces what the numbers say.
    """
    reference, actual = pairs.reference.execution, pairs.actual.execution
    outputs = _ModuleOutputs(reference, actual)
    mapped = _mapped_outputs(given, reference.modules, actual.modules)
    for output in reference.modules:
        root = reference.roots.get(output.value, output.value)
        if root not in pairs.reference.recognizable:
            continue
        kind, names = evidence.of(root)  # what shows where it is in B, and the values of B
        relative = max([pairs.reference.relative(root), *map(pairs.actual.relative, names[:1])])
        # The module outputs of B that are these values.
        places = [item for name in names[:_SHOWN] for item in actual.modules_by_value.get(name, ())]
        if _path_of(output) in mapped:
            place, given_layout = mapped[_path_of(output)]
            kind = "given" if outputs.are_equal(output, place, given_layout, relative) else "contradicted"
            names, places = (actual.roots[place.value],), [place]
        found = [(place, *layout) for place in places if (layout := outputs.layout(output, place)) is not None]
        found.sort(key=lambda item: bool(item[2]))  # those in the same order first
        text, written = ("" if not names or places else _order(pairs, root, names[0])), ""
        if found:
            text, written = found[0][2], str(found[0][1])
        elif places:
            text = "in another order"
        ordered = [*(place.name for place, *_ in found), *(place.name for place in places)]
        yield AlignedValue(
            output.module,
            output.path,
            str(reference.graph.values[output.value]),
            kind,
            tuple(dict.fromkeys(label_of(actual, name) for name in names)),
            text,
            written,
            tuple(dict.fromkeys(ordered)),
            root,
            output.name,
        )


def _path_of(output: ModuleOutput) -> str:
    """Return the path of the module that returned a tensor, with the path of that in what it returned."""
    return f"{output.module}{output.path}"


def _mapped_outputs(
    given: ValueMap, reference: Sequence[ModuleOutput], actual: Sequence[ModuleOutput]
) -> dict[str, tuple[ModuleOutput, Layout | None]]:
    """Return where a mapping says that module outputs of A are in B, and in which layout, by their paths in A.

    Both are named by their paths or as captures name them.

    Raises:
        CompareError: the mapping names a module that was not called.
    """
    paths = {name: _path_of(output) for output in reference for name in (_path_of(output), output.name)}
    places = {name: output for output in actual for name in (_path_of(output), output.name)}
    for name, row in given.values.items():
        for side, wanted, names in (("A", name, paths), ("B", row.place, places)):
            if wanted not in names:
                close = get_close_matches(wanted, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise CompareError(f"the mapping names {wanted!r}, which no module of {side} returned{hint}")
    return {paths[name]: (places[row.place], row.layout) for name, row in given.values.items()}


class _ModuleOutputs:
    """What modules of A and of B returned, in its own shapes and orders.

    Args:
        reference: a run of A.
        actual: a run of B.
    """

    def __init__(self, reference: Execution, actual: Execution) -> None:
        self._reference, self._actual = _returned(reference), _returned(actual)

    def layout(self, output: ModuleOutput, place: ModuleOutput) -> tuple[Layout, str] | None:
        """Return where the elements of what a module of A returned are in what one of B returned.

        Returns:
            the layout, and the same in words, `""` for the same order; None if not all elements are there.
        """
        reference, actual = self._reference.get(output.value), self._actual.get(place.value)
        layout = None if reference is None or actual is None else solve(reference, actual)
        if layout is None or reference is None or actual is None:
            return None
        return layout, _in_words(layout, reference.tensor, actual.tensor)

    def are_equal(self, output: ModuleOutput, place: ModuleOutput, layout: Layout | None, relative: float) -> bool:
        """Whether what a module of A returned is in what one of B returned.

        Args:
            output: the tensor of A.
            place: that of B.
            layout: where its elements are; None for the same order.
            relative: the largest difference; see `TensorNumbers.closeness`.
        """
        reference, actual = self._reference.get(output.value), self._actual.get(place.value)
        if reference is None or actual is None:
            return False
        return holds(layout or Layout.contiguous(reference.tensor.numel()), reference, actual, relative)


def _returned(execution: Execution) -> Mapping[str, TensorNumbers]:
    """Return what modules returned, in its own shape and order, by the names of the values."""
    names = {output.value for output in execution.modules}
    moved = names - execution.values.keys()
    found = {name: execution.values[name] for name in names - moved}
    if moved and execution.run_again is not None:
        found |= execution.run_again({}, moved)
    return {name: TensorNumbers(_in_own_shape(execution, name, found[name])) for name in names & found.keys()}


def _in_own_shape(execution: Execution, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a value in the shape that the graph has for it, which a later view may have split."""
    shape = [size for size in execution.graph.values[name].shape or () if isinstance(size, int)]
    return tensor.reshape(shape) if math.prod(shape) == tensor.numel() else tensor


def _in_words(layout: Layout, tensor: torch.Tensor, source: torch.Tensor) -> str:
    """Say where the elements of a tensor are in another one; `""` for the same order."""
    text = described(layout, tuple(tensor.shape), tuple(source.shape))
    return "" if text == "same" else text


def _linked(pairs: Correspondence, evidence: _ValueEvidence) -> dict[SideName, tuple[LinkedValue, ...]]:
    """Return the recognizable values of A and of B, with those of the other one that have their numbers."""
    reference, actual = pairs.reference.recognizable, pairs.actual.recognizable
    same_weight: dict[str, dict[str, None]] = {}  # the results of the other one's operations with the same weights
    same_weight_of_b: dict[str, dict[str, None]] = {}
    for anchor in pairs.anchors:
        value, name = anchor.reference.outputs[0], anchor.node.outputs[0]
        same_weight.setdefault(value, {})[name] = None
        same_weight_of_b.setdefault(name, {})[value] = None
    found: dict[str, dict[str, Evidence]] = {}  # the values of A with each one of B, and what shows that
    of_reference, of_actual = [], []
    for value in reference:
        kind, names = evidence.of(value)  # what shows where it is in B, and the values of B
        for name in names:
            found.setdefault(name, {})[value] = kind
        orders = tuple(_order(pairs, value, name) for name in names)
        linked = LinkedValue(value, kind, names, orders) if names else _unlinked(value, same_weight.get(value, ()))
        of_reference.append(linked)
    for name in actual:
        owners = sorted(pairs.owners.get(name, ()))
        values = found.get(name) or {item: "by value" for item in owners if item in reference}
        if not values:
            of_actual.append(_unlinked(name, same_weight_of_b.get(name, ())))
            continue
        strongest = min(values.values(), key=_STRENGTH.index)
        places = tuple(value for value, kind in values.items() if kind == strongest)
        orders = tuple(_order(pairs, value, name) for value in places)
        is_whole = name in pairs.found_in_reference
        of_actual.append(LinkedValue(name, strongest if is_whole else "in part", places, orders))
    return {"A": tuple(of_reference), "B": tuple(of_actual)}


def _unlinked(name: str, same_weight: Iterable[str]) -> LinkedValue:
    """Return a value whose numbers are not in the other implementation, with those that the same weights compute."""
    places = tuple(same_weight)
    return LinkedValue(name, "uncovered", places, ("same weight, other numbers",) * len(places))


def _order(pairs: Correspondence, value: str, name: str) -> str:
    """Say how a value of A is arranged in one of B, or that of B in that of A, as far as a match says so."""
    reference, actual = pairs.reference.execution.values.get(value), pairs.actual.execution.values.get(name)
    if reference is None or actual is None:
        return ""
    for match in pairs.from_actual.get(value, ()):
        if match.source == name and match.layout is not None:
            text = _in_words(match.layout, reference, actual)
            return text if match.whole or not text else f"{text} of B"
    for match in pairs.from_reference.get(name, ()):
        if match.source == value and match.layout is not None:
            text = _in_words(match.layout, actual, reference)
            return text if match.whole or not text else f"{text} of A"
    return ""
