"""Compute one node of an ONNX graph in float64, with the graphs and functions that it runs."""

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator
from onnx_ir import serde

from .._errors import ExportError
from ..common._arrays import array_to_torch, torch_to_array, weight_to_torch
from ..common._time_limit import limited
from ..graph._from_onnx import subgraphs
from ..graph._nodes import Node
from ..operators._in_float64 import in_float64
from ..operators._operator import NodeCall, Operator
from ..operators._registry import find_operator

Noise = Callable[[str, Any], Any]  # from a value's name and the value to a copy, changed as much as by rounding
_STEP = "PyTorch", "to compute a node of the ONNX program in float64"
# What PyTorch and NumPy raise for operands that do not fit, or for dtypes that they do not support.
_UNSUPPORTED = (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, AttributeError)
_NUMBERS = frozenset({ir.AttributeType.FLOAT, ir.AttributeType.FLOATS})


def evaluate(
    model: ir.Model,
    node: ir.Node,
    inputs: Mapping[str, Any],
    noise: Noise | None = None,
    ties: Mapping[int, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Compute a node's outputs in float64; integers stay integers.

    PyTorch computes it (see `filch.export.operators`). Integers of a dtype that it does not support are computed by the
    ONNX reference evaluator, which computes some floating-point numbers in float32.

    Args:
        model: the node's model, for its opsets and functions.
        node: the node; casts to other floating-point types become casts to float64.
        inputs: the values that it reads, also those that its graphs capture, by name: float64 and integer tensors, and
            lists of these, which are sequences.
        noise: called with the name and value of what a node in one of its graphs reads, which reads the result.
            `inputs` have their noise already.
        ties: see `NodeCall.ties`.

    Returns:
        the outputs by name, which must not be changed: they may share the memory of inputs. Empty if the operator is
        not supported, or not with these inputs.

    Raises:
        ExportError: it takes longer than the time limit.
    """
    with limited(*_STEP, error=ExportError), torch.no_grad():
        try:
            return _Scope(model, model.opset_imports, noise=noise, given=inputs.keys(), ties=ties).outputs(node, inputs)
        except _UNSUPPORTED:
            return _by_reference(model, node, inputs)


class _Scope:
    """Evaluates the nodes of a graph, or of a function that is called.

    Args:
        model: the model.
        opsets: the versions of the sets of operators.
        attributes: those of the call of the function, by name.
        noise: see `evaluate`.
        given: the names of the values that have their noise already.
        ties: see `NodeCall.ties`.
    """

    def __init__(
        self,
        model: ir.Model,
        opsets: Mapping[str, int],
        attributes: Mapping[str, Any] = MappingProxyType({}),
        *,
        noise: Noise | None,
        given: Collection[str] = frozenset(),
        ties: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._model, self._opsets, self._attributes = model, opsets, attributes
        self._noise, self._given, self._ties = noise, given, ties

    def outputs(self, node: ir.Node, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a node by name.

        Args:
            node: the node.
            values: what it reads, by name.
        """
        function = self._model.functions.get(node.op_identifier())
        operator = find_operator(node.domain, node.op_type)
        settings = () if operator is None else (*operator.settings, operator.exponent)
        read = [self._read(node, at, values, settings) for at in range(len(node.inputs))]
        while read and read[-1] is None:  # a node may name inputs at the end that are left out, or not
            read.pop()
        if function is not None:
            results = self._call(function, node, read)
        elif operator is None:
            raise ValueError(f"{node.domain}::{node.op_type} is not known")
        else:
            results = self._with_rounding(node, operator, read, operator.evaluate(self._described(node, values), read))
        named = zip(node.outputs, results, strict=False)
        return {item.name: in_float64(result) for item, result in named if item.name and result is not None}

    def _read(self, node: ir.Node, at: int, values: Mapping[str, Any], settings: Collection[int | None]) -> Any:
        """Return an input of a node, with its noise; None if it is left out.

        Args:
            node: the node.
            at: the index of the input.
            values: see `outputs`.
            settings: the indices of inputs without noise, which could make another shape or NaN of them.
        """
        item = node.inputs[at]
        if item is None or not item.name:
            return None
        is_exact = item.name in self._given or at in settings
        return values[item.name] if is_exact or self._noise is None else self._noise(item.name, values[item.name])

    def _with_rounding(
        self, node: ir.Node, operator: Operator, read: Sequence[Any], results: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return results with the noise of what kernels add to get the first one (see `Operator.added`)."""
        if self._noise is None or operator.added is None:
            return results
        size = operator.added(read[0])
        return results[0] + (self._noise(node.outputs[0].name or "", size) - size), *results[1:]

    def _call(self, function: ir.Function, node: ir.Node, read: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a call of a model-local function."""
        defaults = {name: item.value for name, item in function.attributes.items() if item.value is not None}
        given = {**defaults, **self._values_of(node)}
        return _Scope(self._model, function.opset_imports, given, noise=self._noise).run(function, read, {})

    def _described(self, node: ir.Node, values: Mapping[str, Any]) -> NodeCall:
        """Return how a node calls its operator.

        Args:
            node: the node.
            values: the values around its graphs, by name.
        """
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self._opsets.get(domain, self._opsets.get(node.domain, 1))
        return NodeCall(
            version,
            {**_defaults(domain, node.op_type, version), **self._values_of(node)},
            len(node.outputs),
            tuple(map(_declared, node.inputs)),
            self._ties,
            lambda graph, inputs: self.run(graph, inputs, values),
        )

    def _values_of(self, node: ir.Node) -> dict[str, Any]:
        """Return the attributes of a node by name; one that refers to an attribute of the function has its value."""
        found = {}
        for name, item in node.attributes.items():
            if not item.is_ref():
                found[name] = _attribute(item)
            elif (source := item.ref_attr_name or "") in self._attributes:  # else the call leaves it out
                found[name] = self._attributes[source]
        return found

    def run(self, graph: ir.Graph | ir.Function, inputs: Sequence[Any], outer: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of a graph.

        Args:
            graph: the graph.
            inputs: its inputs by position.
            outer: the values around it by name.
        """
        local_values: dict[str, Any] = {}
        values = ChainMap(local_values, dict(outer))
        for name, value in graph.initializers.items() if isinstance(graph, ir.Graph) else ():
            if value.const_value is not None:
                local_values[name] = in_float64(weight_to_torch(value.const_value))
        local_values |= {item.name or "": value for item, value in zip(graph.inputs, inputs, strict=False)}
        for node in graph:
            local_values |= self.outputs(node, values)
        return [values[item.name or ""] for item in graph.outputs]


def evaluate_alone(node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """Return the outputs of one node of a graph in float64, as far as they are defined.

    Args:
        node: the node. Its operator is taken in the newest version: that of a graph's nodes is not known.
        inputs: its inputs by position; None for those that are left out.

    Returns:
        the outputs by position; None if the operator has no values in float64, or these can't be its inputs.
    """
    domain, _, name = node.op.rpartition("::")
    version = defs.onnx_opset_version() if not domain else 1
    call = NodeCall(version, {**_defaults(domain, name, version), **node.attributes}, len(node.outputs))
    try:
        return node.operator.evaluate(call, [*map(in_float64, inputs)])
    except _UNSUPPORTED:
        return None


@lru_cache(maxsize=2**10)
def _defaults(domain: str, name: str, version: int) -> Mapping[str, Any]:
    """Return the defaults of an operator's attributes by name."""
    try:
        schema = defs.get_schema(name, version, domain)
    except defs.SchemaError:  # it is one that a runtime adds
        return {}
    stored = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.name}
    return {name: _attribute(serde.deserialize_attribute(item)) for name, item in stored.items()}


def _attribute(item: ir.Attr) -> Any:
    """Return the value of an attribute; decimal numbers are those of float32. None for a tensor of strings."""
    if item.type == ir.AttributeType.TENSOR:
        tensor = item.as_tensor()
        return None if tensor.dtype == ir.DataType.STRING else in_float64(weight_to_torch(tensor))
    if item.type in _NUMBERS:
        return np.asarray(item.value, np.float32).astype(np.float64).tolist()
    return item.value


def _declared(value: ir.Value | None) -> ir.DataType | None:
    """Return the declared dtype of an input; None if it is not known or the input is left out."""
    if value is None:
        return None
    return value.dtype if value.const_value is None else value.const_value.dtype


def _by_reference(model: ir.Model, node: ir.Node, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Compute a node that reads and returns integers alone with the ONNX reference evaluator; empty for any other."""
    operator = find_operator(node.domain, node.op_type)
    if operator is None or operator.compute is None or subgraphs(node) or not all(map(_is_exact, inputs.values())):
        return {}
    names = [name for item in node.outputs if (name := item.name)]
    read, computed = ([helper.make_empty_tensor_value_info(name) for name in items] for items in (inputs, names))
    opsets = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    graph = helper.make_graph([serde.serialize_node(node)], "one", read, computed)
    try:
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets, ir_version=10))
        results = evaluator.run(None, {name: torch_to_array(tensor) for name, tensor in inputs.items()})
    except _UNSUPPORTED:
        return {}
    return dict(_integers(zip(names, results, strict=True)))


def _integers(results: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of the results that are arrays of integers or booleans."""
    for name, array in results:
        if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "biu":
            yield name, array_to_torch(array, copy=False)


def _is_exact(value: Any) -> bool:
    """Return whether a value is a tensor of integers or booleans."""
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
