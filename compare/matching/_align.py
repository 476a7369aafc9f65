"""Find the values of one ONNX program that are those of another one.

A value of the second program is the value of the first one that

1. has the same name and similar numbers;
2. is computed by the same operator from the same values and constants, if its numbers are similar;
3. has nearly the same numbers.

The values that are left have other numbers in the two programs. Each is either wrong, or not a value of the first
program, as in a graph of other operators. It is taken for wrong, and compared, only if an output depends on it other
than through values that were found to be similar, or if its operator, what it reads and its name or attributes are
the same. Then it is the value of the first program of the same name, if most names have kept their operators; else
the one that is computed by the same operator from the same values, or from the same weight, or that is read in the same
place by the same operator, or that has the same name and is computed from the same values.

A value may also be several values of the first program, joined along the last dimension: one product computes queries,
keys and values, for example. A product with a quantized weight counts as one with the weight that it stands for.

What is computed from a wrong value is similar to nothing. So the nodes of the second program run once more, each on the
values of the first one as far as they are known, and what they compute then is matched likewise.

At last, what a node reshapes has the numbers of its result, and the result those of what it reshapes: runtimes reshape
the operands of a matrix multiplication, for example.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from filch.export import Node

from ..metrics._metrics import compare_tensors
from ._different import DifferentValues
from ._matches import Matches, ProgramAlignment, takes_part
from ._numbers import ProgramNumbers
from ._observed import Observed
from ._operations import MOST_NUMBERS, ReferenceOperations
from ._quantized import GATHER, PRODUCT
from ._similar import SimilarValues

Rerun = Callable[[Callable[[str], torch.Tensor | None]], Mapping[str, torch.Tensor]]


def align(
    actual: Observed,
    expected: Observed,
    known: Mapping[str, str],
    *,
    reshaped: bool = False,
    rerun: Rerun | None = None,
) -> ProgramAlignment:
    """Return the values of `actual` that are those of `expected`, from a run of each on the same inputs.

    Args:
        actual: the program to judge.
        expected: the reference.
        known: the inputs and outputs, by their names in `actual`.
        reshaped: also align values in another shape, which is that of this run.
        rerun: runs the nodes of `actual`, each on what a function returns for the values that it reads; None leaves out
            the values that are computed from wrong ones.
    """
    values = {**actual.values}  # of the last run
    matches = Matches(replace(actual, values=values), expected, {**known})
    operations, numbers = ReferenceOperations(matches), ProgramNumbers(expected)
    similar = SimilarValues(matches, operations, numbers, reshaped=reshaped)
    different = DifferentValues(matches, operations, numbers, reshaped=reshaped)
    _align_constants(matches)
    guessed = _align_all(matches, similar, different)
    while rerun is not None and _is_cut_off(matches):
        count = matches.count
        values.update(rerun(matches.references.get))
        for name in guessed:  # their numbers differed; now they may have those of others
            if numbers.nearest(values[name]) not in {None, matches.names.get(name)}:
                matches.forget(name)
        guessed = _align_all(matches, similar, different)
        if matches.count == count:
            break
    if reshaped:
        _align_reshaped(matches)
    quantized = [node for node in actual.graph.nodes if node.op in {*PRODUCT, GATHER}]
    return matches.result(frozenset(node.name for node in quantized if _has_same_weight(matches, node)))


def _align_constants(matches: Matches) -> None:
    """Align values that do not depend on the inputs: with an equal one, else with that of the same name."""
    constants = matches.expected.constants
    by_content = {content: name for name, content in constants.items()}
    for name, content in matches.actual.constants.items():
        if name in matches.actual.graph.producer:
            same = constants.get(name) == content
            found = name if same else by_content.get(content, name if name in constants else None)
            if found is not None:
                matches.add(name, found, "name")


def _align_all(matches: Matches, similar: SimilarValues, different: DifferentValues) -> Collection[str]:
    """Align the values that depend on the inputs; return those that were aligned although their numbers differ."""
    similar.align()
    found = {*matches.bases}
    different.align()
    return matches.bases.keys() - found


def _is_cut_off(matches: Matches) -> bool:
    """Whether an aligned value is wrong, so that others may not have been aligned."""
    if next(matches.unaligned(), None) is None:
        return False
    references = matches.references.items()
    return any(not compare_tensors(matches.actual.tensor(name), tensor).close for name, tensor in references)


def _align_reshaped(matches: Matches) -> None:
    """Align values in another shape: what a node reshapes, and the result unless it may be a wrong one."""
    harmless = matches.harmless
    nodes = [node for node in matches.actual.graph.nodes if node.operator.movement == "reshape"]
    for node in reversed(nodes):
        if node.inputs[0] in matches.actual.graph.producer and matches.have_same_shape(node.outputs[0]):
            _add_reshaped(matches, node.inputs[0], node.outputs[0])
    for node in nodes:
        if node.outputs[0] in harmless:
            _add_reshaped(matches, node.outputs[0], node.inputs[0])


def _add_reshaped(matches: Matches, name: str, same_numbers: str) -> None:
    """Align a value with that of another one, which has the same numbers."""
    tensor = matches.actual.values.get(name)
    if tensor is not None and name not in matches.names and same_numbers in matches.names:
        matches.add(name, matches.names[same_numbers], matches.bases.get(same_numbers, "name"))
        matches.shapes[name] = tensor.shape


def _has_same_weight(matches: Matches, node: Node) -> bool:
    """Whether `expected` has most numbers of the weight of a node: as a weight, joined ones or some columns of one."""
    name = node.outputs[0]
    parts = matches.joined.get(name, (matches.names.get(name, ""),))
    weights = [weight for part in parts if (weight := _weight_behind(matches.expected, part)) is not None]
    own = matches.actual.weight_of(node)
    if own is None or len(weights) < len(parts) or any(weight.shape[:-1] != own.shape[:-1] for weight in weights):
        return False
    joined, count = torch.cat(weights, -1), own.shape[-1]
    is_first = (joined == own[..., :1]).float().mean(0) > MOST_NUMBERS
    starts = is_first.nonzero().flatten().tolist()
    return any(
        start + count <= joined.shape[-1]
        and float((joined[..., start : start + count] == own).float().mean()) > MOST_NUMBERS
        for start in starts
    )


def _weight_behind(program: Observed, name: str) -> torch.Tensor | None:
    """Return the weight from which a value is computed, also if it is a part of what is computed."""
    while (node := program.graph.producer.get(name)) is not None and takes_part(node):
        name = node.inputs[0]
    return None if node is None else program.weight_of(node)
