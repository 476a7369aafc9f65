"""Write the correspondence of two executions as a result for people."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from filch.export import Node

from ..common._errors import CompareError
from ..common._operators import operator_name
from ..results._alignment import AlignedValue, AlignedWeight, Alignment, Departure, Evidence
from ._correspondence import Correspondence
from ._divergence import Suspect
from ._execution import Tensors, label_of, line_of
from ._layout import Layout, Numbers, solve
from ._value_map import ValueMap
from ._weights import WeightMatch

Shape = tuple[int, ...]


def alignment(
    pairs: Correspondence, suspects: Sequence[Suspect], missing: Sequence[Node], remarks: Sequence[str], given: ValueMap
) -> Alignment:
    """Return the result.

    Args:
        pairs: the values that correspond.
        suspects: the operations of B that leave A.
        missing: the operations of A whose results B lacks.
        remarks: sentences about the whole comparison.
        given: where people say that values of A are in B.
    """
    own, other = pairs.reference.execution, pairs.other.execution
    return Alignment(
        own.name,
        other.name,
        tuple(aligned_weight(own.weights, match) for match in pairs.weights.matches),
        pairs.weights.unused,
        tuple(_values(pairs, given)),
        tuple(_departure(suspect) for suspect in suspects),
        tuple(_departure(Suspect(node, node)) for node in missing),
        tuple(wrong_outputs(pairs)),
        tuple(remarks),
    )


def wrong_outputs(pairs: Correspondence) -> Iterator[str]:
    """Yield a sentence for each output of B that is not an output of A."""
    own, other = pairs.reference.execution, pairs.other.execution
    outputs = {own.roots[name] for name in own.graph.outputs}
    paths = {item.value: item.path for item in other.modules if not item.module}
    names = [name for name in dict.fromkeys(other.graph.outputs) if other.roots[name] in pairs.other.recognizable]
    wrong = [name for name in names if other.roots[name] not in pairs.found]
    for name in wrong:
        which = f" {paths.get(name) or name}" if len(names) > 1 else ""
        yield f"the output{which} of B is no value of A"
    if not wrong and not any(pairs.owners.get(other.roots[name], frozenset()) & outputs for name in names):
        yield "no output of B is an output of A"


def _departure(suspect: Suspect) -> Departure:
    node, reference = suspect.place, suspect.reference
    return Departure(
        node.module or "",
        operator_name(node.op),
        line_of(node),
        node.outputs[0],
        None if reference is None else reference.module or "",
        None if reference is None else operator_name(reference.op),
        None if reference is None else line_of(reference),
        suspect.note,
    )


def aligned_weight(own: Tensors, match: WeightMatch) -> AlignedWeight:
    """Return a weight of B for people.

    Args:
        own: the weights of A by name.
        match: what the weight was made of.
    """
    texts = []
    for part in match.parts:
        inner, outer = match.shape, tuple(own[part.weight].shape) if part.weight in own else match.shape
        if part.arrangement == "holds":
            inner, outer = outer, inner
        text = described(part.layout, inner, outer)
        text = f"in {text}" if part.arrangement == "holds" and len(match.parts) > 1 else text
        texts.append(", ".join(filter(None, (text, part.factor))))
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
    own, other = pairs.reference.execution, pairs.other.execution
    places_of_modules = {f"{output.module}{output.path}": other.roots[output.value] for output in other.modules}
    known = {f"{output.module}{output.path}" for output in own.modules}
    _check_names(given, known, places_of_modules.keys())
    for output in own.modules:
        root = own.roots.get(output.value, output.value)
        if root not in pairs.reference.recognizable:
            continue
        evidence: Evidence
        evidence, names = pairs.evidence(root)
        row = given.values.get(f"{output.module}{output.path}")
        if row is not None:
            name = places_of_modules[row.place]
            evidence = "given" if _is_confirmed(pairs, root, name, row.layout) else "contradicted"
            names = (name,)
        what = str(own.graph.values[output.value])
        places = tuple(dict.fromkeys(label_of(other, name) for name in names))
        modules = tuple(item.module + item.path for item in other.modules_by_value.get(names[0], ())) if names else ()
        layout = _layout(pairs, root, names[0]) if names else None
        order = "" if layout is not None or not names else "in another order"
        if layout is not None:
            text = described(layout, *(tuple(item.tensor.shape) for item in _pair(pairs, root, names[0])))
            order = "" if text == "same" else text
        written = "" if layout is None else str(layout)
        yield AlignedValue(output.module, output.path, what, evidence, places, order, written, modules)


def _check_names(given: ValueMap, known: Collection[str], places: Collection[str]) -> None:
    """Raise a CompareError if a mapping names modules that were not called."""
    for name, row in given.values.items():
        for side, wanted, names in (("A", name, known), ("B", row.place, places)):
            if wanted not in names:
                close = get_close_matches(wanted, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise CompareError(f"the mapping names {wanted!r}, which no module of {side} returned{hint}")


def _pair(pairs: Correspondence, value: str, name: str) -> tuple[Numbers, Numbers]:
    return pairs.reference.recognizable[value], pairs.other.numbers(name)


def _is_confirmed(pairs: Correspondence, value: str, name: str, layout: Layout | None) -> bool:
    """Whether a value of A is in a value of B, in a layout or in the same order."""
    numbers, source = _pair(pairs, value, name)
    relative = max(pairs.reference.relative(value), pairs.other.relative(name))
    return (layout or Layout.of(0, [(numbers.tensor.numel(), 1)])).holds(numbers, source, relative)


def _layout(pairs: Correspondence, value: str, name: str) -> Layout | None:
    """Return where the elements of a value of A are in a value of B; None if not all are there in a regular order."""
    layout = next((match.layout for match in pairs.from_other.get(value, ()) if match.source == name), None)
    return layout or solve(*_pair(pairs, value, name))


def described(layout: Layout, shape: Shape, source: Shape) -> str:
    """Say how a tensor is arranged in another one.

    Args:
        layout: the layout.
        shape: the shape of the tensor.
        source: the shape of the other one.
    """
    count, total = _size(shape), _size(source)
    if layout.is_contiguous and count == total:
        return "same"
    row = _size(source[1:])
    if layout.is_contiguous and len(source) > 1 and layout.offset % row == 0 and count % row == 0:
        return f"rows {layout.offset // row} to {(layout.offset + count) // row - 1}"
    if layout.is_contiguous:
        return f"elements {layout.offset} to {layout.offset + count - 1}"
    if count == total and len(shape) == len(source) == 2 and layout == _transposed(source):
        return "transposed"
    if count == total and shape == source and (blocks := row_blocks(layout, source)) is not None:
        first = ", ".join(str(blocks.row(index)) for index in range(4))
        return f"heads permuted: rows {first}, … of {blocks.count} blocks of {blocks.size}"
    if len(source) == 2 and layout.sizes[1:] == source[1:] and layout.strides[1:] == (1,) and len(layout.sizes) == 2:
        step = layout.strides[0] // row
        return f"every {step}th row from {layout.offset // row}" if step else "repeated"
    if len(source) > 1 and layout.strides == (source[-1], 1):
        start = layout.offset % source[-1]
        return f"columns {start} to {start + layout.sizes[1] - 1}"
    return f"elements {layout}"


@dataclass(frozen=True)
class RowBlocks:
    """Rows of a matrix, or elements of a vector, that are permuted in the same way in each block, as in heads.

    Attributes:
        count: the number of blocks.
        size: the number of rows of a block.
        columns: the number of rows between neighbors in the new order.
    """

    count: int
    size: int
    columns: int

    def row(self, index: int) -> int:
        """Return the row of a block that is at an index in the new order."""
        other = self.size // self.columns
        return index % other * self.columns + index // other


def row_blocks(layout: Layout, shape: Shape) -> RowBlocks | None:
    """Return how the rows of a tensor are permuted in blocks; None if they are arranged otherwise.

    Args:
        layout: the layout of a tensor in one of the same shape.
        shape: this shape.
    """
    width = _size(shape[1:])
    digits = [*zip(layout.sizes, layout.strides, strict=True)]
    if width > 1 and digits[-1:] != [(width, 1)]:
        return None
    rows = [(size, stride / width) for size, stride in (digits[:-1] if width > 1 else digits)]
    rows = rows if len(rows) == 3 else [(1, shape[0]), *rows]
    if len(rows) != 3:
        return None
    (count, block), (inner, near), (outer, far) = rows
    is_transposed = near == 1 and far == inner and block == inner * outer and count * block == shape[0]
    return RowBlocks(count, int(block), int(far)) if is_transposed else None


def _transposed(source: Shape) -> Layout:
    return Layout.of(0, [(source[1], 1), (source[0], source[1])])


def _size(shape: Shape) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size
