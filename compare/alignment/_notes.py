"""Say what differs between an operation of B and the operation of A that it corresponds to.

Anchors are operations of B and A that read the same weight. The owners of a value of B are the values, inputs and
weights of A that have its numbers. The root of a value is the one from which it was only moved, by a reshape or a
transpose, say (see `Execution.roots`).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from filch.export import Node

from ..layouts._layout import Layout, Shape
from ..layouts._numbers import TensorNumbers
from ..pairing._correspondence import Anchor, Correspondence, size_of
from ..pairing._values import match_values
from ..pairing._weight_map import Arrangement, WeightMatch
from ..runs._execution import Execution, label_of, moved_value
from ._patched_run import Operands

Owners = Mapping[str, frozenset[str]]  # by the name of the value of B
_OTHER_SETTINGS = frozenset({"device", "dtype", "layout", "memory_format", "pin_memory"})  # which change no numbers
_NAMES_OF_ONNX = {"epsilon": "eps"}


def difference_of(pairs: Correspondence, operands: Operands, owners: Owners, node: Node, reference: Node | None) -> str:
    """Return what differs, as far as that is known; else `""`.

    Args:
        pairs: the executions.
        operands: the operands of their anchors.
        owners: the owners of each value of B in the last run.
        node: the operation of B.
        reference: the operation of A; None if it is not known.
    """
    notes = []
    anchor = _anchor(pairs, node)
    if anchor is not None and operands.is_misplaced(anchor):
        notes.append(f"gives the numbers of A to {label_of(pairs.actual.execution, node.outputs[0])} in another order")
    if anchor is not None and _has_other_arrangement(pairs, anchor):
        notes.append("its weight is arranged in another way than in the other layers")
    notes += _other_weights(pairs, node)
    notes += _lacking_weights(pairs, node)
    if reference is not None:
        notes += _weights_of_others(pairs, owners, node, reference)
        notes += other_settings(node, reference)
    elif (exchanged := weight_of_other_layer(pairs, node)) is not None:
        notes.append("reads {}, which is {} of A".format(*exchanged))
    if reference is not None and node.operator.kind == reference.operator.kind:
        notes += _reads(pairs, owners, node, reference)
    return "; ".join(notes)


def _other_weights(pairs: Correspondence, node: Node) -> Iterator[str]:
    """Yield which weights that an operation of B reads are not A's, except for those that may be right (`tables`)."""
    for name in pairs.actual.execution.roots_read_by(node):
        if name in pairs.weights.missing and name not in pairs.weights.tables:
            yield f"reads {name}, whose numbers are not all in weights of A"


def _lacking_weights(pairs: Correspondence, node: Node) -> Iterator[str]:
    """Yield which weights of A, that it reads for the same result, are in no weight of B."""
    references = [anchor.reference for anchor in pairs.anchors if anchor.node.name == node.name]
    roots = [root for reference in references for root in pairs.reference.execution.roots_read_by(reference)]
    yield from (f"lacks {name} of A" for name in dict.fromkeys(roots) if name in pairs.weights.unused)


def _weights_of_others(pairs: Correspondence, owners: Owners, node: Node, reference: Node) -> Iterator[str]:
    """Yield which weights that an operation of B reads are A's, but not those of the same operation of A."""
    reference_run, actual_run = pairs.reference.execution, pairs.actual.execution
    wanted = reference_run.weights.keys() & reference_run.roots_read_by(reference)
    for name in actual_run.roots_read_by(node):
        equal = owners.get(name, frozenset()) & reference_run.weights.keys()
        if name in actual_run.weights and equal and not equal & wanted:
            yield f"reads {name}, which is {min(equal)} of A"


def weight_of_other_layer(pairs: Correspondence, node: Node) -> tuple[str, str] | None:
    """Return a weight that an operation of B reads, and the weight of A that it is, if that is one of another layer.

    It is one if A has as many weights in the same place of its layers as B, and B lacks the one of this layer.
    """
    reference_run, actual_run = pairs.reference.execution, pairs.actual.execution
    for name in actual_run.roots_read_by(node):
        for owner in sorted(pairs.owners.get(name, frozenset()) & reference_run.weights.keys()):
            in_layers, in_layers_of_a = _same_place(name, actual_run.weights), _same_place(owner, reference_run.weights)
            if name not in in_layers or len(in_layers) != len(in_layers_of_a):
                continue
            expected = in_layers_of_a[in_layers.index(name)]
            if expected != owner and expected in pairs.weights.unused:
                return name, owner
    return None


def _same_place(name: str, weights: Collection[str]) -> list[str]:
    """Return the weights in the same place of all layers, in the order of the layers."""
    found = [item for item in weights if _without_layer(item) == _without_layer(name)]
    numbers = {item: "".join(re.findall(r"\d+", item)[:1]).lstrip("0") for item in found}
    return sorted(found, key=lambda item: (len(numbers[item]), numbers[item]))  # `int` refuses very long numbers


def other_settings(node: Node, reference: Node) -> Iterator[str]:
    """Yield which settings of an operation of B are not those of an operation of A."""
    reference_settings = _settings(reference)
    for name, value in _settings(node).items():
        setting = reference_settings.get(name)
        # None: the operation of A has no such setting. Other types, such as tensors, are not compared.
        if isinstance(value, bool | int | float | str | list) and setting not in (None, value):
            yield f"{name} is {value}, {setting} in A"


def _settings(node: Node) -> Mapping[str, object]:
    """Return the attributes of a node that may change its numbers, by PyTorch's names."""
    settings = {_NAMES_OF_ONNX.get(name, name): value for name, value in node.attributes.items()}
    return {name: value for name, value in settings.items() if name not in _OTHER_SETTINGS}


def _reads(pairs: Correspondence, owners: Owners, node: Node, reference: Node) -> Iterator[str]:
    """Yield what an operation reads in place of what the other one reads, if it is a single value."""
    reference_run, actual_run = pairs.reference.execution, pairs.actual.execution
    wanted = [root for root in reference_run.roots_read_by(reference) if root in pairs.reference.recognizable]
    read = [root for root in actual_run.roots_read_by(node) if owners.get(root)]
    lacking = [root for root in wanted if not any(root in owners[name] for name in read)]
    wrong = [name for name in read if name in pairs.actual.recognizable and owners[name].isdisjoint(wanted)]
    if len(lacking) == len(wrong) == 1:
        yield f"reads {label_of(actual_run, wrong[0])}, where A reads {label_of(reference_run, lacking[0])}"


def misplacing_node(pairs: Correspondence, operands: Operands, node: Node) -> Node | None:
    """Return the last operation outside of a node's module that moves its operand; None if it is not misplaced."""
    anchor = _anchor(pairs, node)
    if anchor is None or not operands.is_misplaced(anchor):
        return None
    graph = pairs.actual.execution.graph
    name, last = anchor.operand, None
    while (producer := graph.producer.get(name)) is not None and (before := moved_value(producer)) is not None:
        last = producer
        if producer.module != node.module:
            return producer
        name = before
    return last


def odd_weight(pairs: Correspondence, node: Node) -> Anchor | None:
    """Return the operation whose result a node reads, if its weight is arranged unlike that of the other layers."""
    roots = pairs.actual.execution.roots_read_by(node)
    before = (anchor for anchor in pairs.anchors if anchor.node.outputs[0] in roots)
    return next((anchor for anchor in before if _has_other_arrangement(pairs, anchor)), None)


def idle_node(pairs: Correspondence, node: Node) -> Node | None:
    """Return the operation that leaves A's numbers as they are for a node to read, as its own weight is not A's.

    A weight that was not loaded may have the numbers with which it was made: a gain of ones, or a bias of zeros.
    """
    actual_run, none = pairs.actual.execution, frozenset[str]()
    unknown = actual_run.weights.keys() & pairs.weights.missing
    for root in actual_run.roots_read_by(node):
        producer = actual_run.graph.producer.get(root)
        reads = [] if producer is None else actual_run.roots_read_by(producer)
        is_idle = any(pairs.owners.get(root, none) & pairs.owners.get(read, none) for read in reads)
        if is_idle and not unknown.isdisjoint(reads):
            return producer
    return None


def copy_in_place_of_step(pairs: Correspondence, node: Node) -> tuple[Node, Node] | None:
    """Return the operation that copies what a node reads, where A computes something from it, and that of A.

    It is one if the node computes a value of A from A's result in place of the copy. Steps of A are tried that read the
    copied value, and the one that computes a value of the same name, as two ONNX programs may have it.
    """
    reference_run, actual_run = pairs.reference.execution, pairs.actual.execution
    for name, copy in _copies(actual_run, node):
        owners = sorted(pairs.owners.get(actual_run.roots[name], ()))
        steps = [user for owner in owners for user in reference_run.readers.get(owner, ())]
        steps += [reference_run.graph.producer[name]] if name in reference_run.graph.producer else []
        for step in steps:
            number, output = reference_run.values.get(step.outputs[0]), node.outputs[0]
            if number is None or actual_run.run_again is None or number.numel() != size_of(actual_run, name):
                continue
            result = actual_run.run_again({name: number}, {output}).get(output)
            if result is not None and match_values(pairs.actual, pairs.reference, {output: TensorNumbers(result)}):
                return copy, step
    return None


def _copies(execution: Execution, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the values that a node reads, also through movements, and that are copies, with what copies them."""
    for read in node.reads:
        name = read
        while (producer := execution.graph.producer.get(name)) is not None and (before := moved_value(producer)):
            if producer.op == "Identity":
                yield name, producer
            name = before


def _anchor(pairs: Correspondence, node: Node) -> Anchor | None:
    """Return the first anchor of an operation of B; None if it reads no weight of A."""
    return next((anchor for anchor in pairs.anchors if anchor.node.name == node.name), None)


def _has_other_arrangement(pairs: Correspondence, anchor: Anchor) -> bool:
    """Whether weights in the same place of other layers are arranged in another way, and most of them alike."""
    made = {name: _made_of(item) for name, item in pairs.weights.by_weight.items() if item.parts}
    peers = [name for name in made if _without_layer(name) == _without_layer(anchor.weight) and name != anchor.weight]
    if anchor.weight not in made or not peers:
        return False
    own = made[anchor.weight]
    usual, count = Counter(made[name] for name in peers).most_common(1)[0]
    if 2 * count <= len(peers) or own.shape != usual.shape or own == usual:
        return False
    # The last norm has no counterpart in the layers.
    return own.source == usual.source or sum(item.source == own.source for item in made.values()) > 1


class _Making(NamedTuple):
    """How a weight of B is made of the first weight of A in it; see `WeightPart`.

    Attributes:
        shape: of the weight of B.
        arrangement: how the numbers are arranged.
        layout: where they are.
        order: the order of irregular rows.
        source: the weight of A without the number of its layer; `""` if several are equal, of which it may be any.
    """

    shape: Shape
    arrangement: Arrangement
    layout: Layout
    order: tuple[int, ...]
    source: str


def _made_of(match: WeightMatch) -> _Making:
    """Return how a weight that has parts is made of the first one."""
    part = match.parts[0]
    source = "" if match.others else _without_layer(part.weight)
    return _Making(match.shape, part.arrangement, part.layout, part.order, source)


def _without_layer(name: str) -> str:
    """Return a name without its first number, which is that of a layer; later ones tell modules of a layer apart."""
    return re.sub(r"\d+", "#", name, count=1)
