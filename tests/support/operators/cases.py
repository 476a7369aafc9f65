"""The test cases that the onnx package has for each operator, in float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import serde

from filch.export.common._arrays import array_to_torch, weight_to_torch
from filch.export.evaluation._onnx_node import evaluate
from filch.export.graph._from_onnx import subgraphs
from filch.export.operators._in_float64 import in_float64


@dataclass(frozen=True)
class Case:
    """A model of one node or a few, its inputs by name, and its expected outputs by name."""

    name: str
    proto: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @functools.cached_property
    def model(self) -> ir.Model:
        return serde.deserialize_model(self.proto)


@functools.cache
def cases() -> tuple[Case, ...]:
    """Return all cases with numbers alone; those of a function's expansion show nothing of the operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of overflows, which some cases are about
        from onnx.backend.test.case.node import collect_testcases

        found = [item for item in collect_testcases(None) if "_expanded" not in item.name]
    return tuple(case for item in found for case in _cases(item))


def _cases(item: Any) -> Iterator[Case]:
    graph = item.model.graph
    for inputs, outputs in item.data_sets:
        pairs = [
            dict(zip((value.name for value in values), given, strict=True))
            for values, given in ((graph.input, inputs), (graph.output, outputs))
        ]
        if not any(map(_has_text, (*pairs[0].values(), *pairs[1].values()))):
            yield Case(item.name, item.model, *pairs)


def _has_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_text, value))
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "USO"


def as_tensor(value: Any) -> Any:
    """Return an input or output as a tensor in its own dtype; a sequence as a list, and nothing as None."""
    if isinstance(value, list | tuple):
        return [*map(as_tensor, value)]
    if isinstance(value, onnx.TensorProto):
        return weight_to_torch(serde.deserialize_tensor(value))
    return None if value is None else array_to_torch(value)


def computed(model: ir.Model, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a model's nodes in float64, computed from inputs in float64."""
    values = dict(inputs)
    for name, value in model.graph.initializers.items():
        values[name] = in_float64(weight_to_torch(value.const_value))
    for node in model.graph:
        names = [item.name for item in node.inputs if item is not None and item.name]
        values |= evaluate(model, node, values if subgraphs(node) else {name: values.get(name) for name in names})
    return values
