"""What a call does to its inputs: arguments, parameters and buffers, which are all inputs of a graph from Dynamo.

It may write to them, and return a tensor in their memory: who writes to such a result writes to the input.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from filch.export import Graph, Node, Value
from filch.export.backends import Compiled, Stage
from filch.export.common._copies import has_plain_memory
from filch.steal.ranks._join import is_same_bits as has_same_bits

from ..common._complex import complex_as_real
from ..float64._values import Float64Values
from ..judging._run import Run
from ..metrics._limits import Limits
from ..metrics._metrics import Difference
from ..metrics._tolerance import ToleranceOption, given_limits
from ..references._resolver import Reference
from ..results._rows import Row
from ._compare_values import compare_values

_DYNAMO_NAME = re.compile(r"l_(.+)_", re.IGNORECASE)  # `L_x_` is the input `x`


def after(name: str) -> str:
    """Return what the value of an input after the call is called, as in `input cache, after the call`."""
    return f"input {python_name(name)}, after the call"


def python_name(name: str) -> str:
    """Return the name of an input without what Dynamo adds."""
    matched = _DYNAMO_NAME.fullmatch(name)
    return matched[1] if matched else name


def values_after(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the dense tensors among inputs, by what they are called after the call."""
    return {
        after(name): item
        for name, item in inputs.items()
        if isinstance(item, torch.Tensor) and item.layout is torch.strided and not item.is_quantized
    }


def changed_rows(
    before: Mapping[str, Any],
    expected: Mapping[str, Any],
    actual: Mapping[str, Any],
    *,
    stage: Stage,
    tolerance: ToleranceOption,
    float64: Float64Values | None = None,
    writers: Mapping[str, Node] = MappingProxyType({}),
) -> list[Row]:
    """Return a row for each input that a call changes, or that should be changed, as for an output.

    Args:
        before: the inputs before the call, by name.
        expected: the same after a call in eager PyTorch.
        actual: the same after the call that is judged.
        stage: of the rows.
        tolerance: see `compare`.
        float64: the float64 values of the inputs after the call (see `after`); None judges by tolerance.
        writers: the last node that writes to an input, by the input's name, if it is known.
    """
    given, wanted, found = (
        {name: complex_as_real(item.detach().cpu()) for name, item in values_after(inputs).items()}
        for inputs in (before, expected, actual)
    )
    changed = [
        name for name, item in given.items() if not all(has_same_bits(item, other[name]) for other in (wanted, found))
    ]
    last = {after(name): node for name, node in writers.items()}
    nodes = tuple(replace(last.get(name, Node(name, "input", (), ())), inputs=(), outputs=(name,)) for name in changed)
    values = {name: Value(name, shape=tuple(given[name].shape)) for name in changed}
    graph = Graph("inputs after the call", (), tuple(changed), (), nodes, values)
    results = {name: found[name] for name in changed}
    run = Run(0, stage, Compiled(graph, None), {}, results)
    references = {name: Reference(wanted[name], "eager") for name in changed}
    rows, _ = compare_values(run, {}, references, None, Limits(graph, given_limits(tolerance)), float64=float64)
    return [row for row in rows if row.kind == "output"]


def shared_memory(results: Iterable[Any], inputs: Mapping[str, Any]) -> list[frozenset[str]]:
    """Return the names of the inputs that each result of a call shares memory with."""
    addresses = {name: _address(item) for name, item in inputs.items()}
    return [
        frozenset(name for name, address in addresses.items() if address is not None and address == _address(item))
        for item in results
    ]


def _address(item: Any) -> int | None:
    """Return the address of a tensor's memory; None if it has none."""
    has_memory = isinstance(item, torch.Tensor) and has_plain_memory(item) and item.numel()
    return item.untyped_storage().data_ptr() if has_memory else None


def shared_rows(
    graph: Graph, expected: Sequence[frozenset[str]], actual: Sequence[frozenset[str]], *, stage: Stage
) -> list[Row]:
    """Return a row for each result that shares memory with an input, and does not in eager PyTorch.

    Args:
        graph: the graph, with a name for each result.
        expected: the inputs that each result shares memory with in eager PyTorch (see `shared_memory`).
        actual: the same of the call that is judged.
        stage: of the rows.
    """
    rows = []
    for name, wanted, found in zip(graph.outputs, expected, actual, strict=True):
        if found - wanted:
            node = graph.producer.get(name) or Node(name, "input", (), (name,))
            reason = f"shares memory with {_inputs(found - wanted)}, but should not"
            row = Row(0, stage, len(graph.nodes), "output", node.name, node.op, name, node.module, node.source)
            difference = Difference(close=False, problem=reason)
            rows.append(replace(row, status="different", reason=reason, difference=difference))
    return rows


def copy_notes(graph: Graph, expected: Sequence[frozenset[str]], actual: Sequence[frozenset[str]]) -> list[str]:
    """Return a note for each result that is a copy and shares memory with an input in eager PyTorch.

    Compilers copy what eager PyTorch returns as it is, such as the result of a dropout that is not in train mode.
    """
    return [
        f"{name} is a copy of {_inputs(wanted - found)}, whose memory it shares in eager PyTorch: who writes to it "
        "does not change the input"
        for name, wanted, found in zip(graph.outputs, expected, actual, strict=True)
        if wanted - found
    ]


def _inputs(names: Iterable[str]) -> str:
    """Return inputs as in `input x and cache`."""
    return f"input {' and '.join(sorted(map(python_name, names)))}"
