"""Convert a float32 graph to float16 or bfloat16 node by node, with casts between the dtypes."""

from collections.abc import Collection, Iterable

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ..common._quiet import quiet
from ..graph._from_onnx import subgraphs
from ..operators._registry import find_operator

Use = tuple[ir.Node, int]  # a node and the index of its input
_FLOAT = ir.DataType.FLOAT
_FLOAT_INPUTS = {"Resize": (2,)}  # inputs that must be float32 in ONNX
_NUMPY_DTYPES = {ir.DataType.FLOAT16: np.dtype(np.float16), ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


def convert_floats(model: ir.Model, dtype: ir.DataType, keep: Collection[str], *, simulate: bool) -> None:
    """Convert the nodes of `model` that are not in `keep`, their inputs and their outputs to `dtype`.

    Inputs and outputs of the graph stay float32. Values between two nodes in `keep` are not rounded. Weights beyond the
    range of `dtype` are clipped to it, as other converters do; computed values overflow to inf.

    Args:
        model: the model, changed in place; its nodes must have names.
        dtype: FLOAT16 or BFLOAT16.
        keep: names of nodes that stay float32. Nodes with subgraphs or sequences and function calls always do.
        simulate: compute in float32, and round the inputs and outputs of each node.
    """
    if any(value.dtype is None for node in model.graph for value in node.outputs):
        with quiet():
            ShapeInferencePass()(model)  # the exporter omits the dtypes of branches' results
    graph = model.graph
    lowered = {node for node in graph if node.name not in keep and _can_be_lowered(node, model)}
    weights = [value for value in graph.initializers.values() if value.dtype == _FLOAT]
    inputs = [value for value in graph.inputs if value.dtype == _FLOAT]
    computed = [(node, value) for node in graph for value in node.outputs if value.name and value.dtype == _FLOAT]
    converter = _Converter(graph, dtype, lowered, simulate=simulate)
    for value in weights:
        converter.weight(value)
    for value in inputs:
        converter.float_value(value, None)
    for node, value in computed:
        if node in lowered:
            converter.low_value(value, node)
        else:
            converter.float_value(value, node)
    for node in lowered:
        converter.attributes(node)


def _can_be_lowered(node: ir.Node, model: ir.Model) -> bool:
    """Return whether a node computes with float32 values and has neither a subgraph nor a function.

    Sequences have no casts, and their nodes only move numbers.
    """
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    has_sequence = any(isinstance(value.type, ir.SequenceType) for value in values)
    if has_sequence or node.op_identifier() in model.functions or subgraphs(node):
        return False
    if any(value is not None and value.dtype == _FLOAT for value in node.inputs):
        return True
    # Runtimes have few kernels for what else is computed from no float32 value, such as random numbers and windows.
    operator = find_operator(node.domain, node.op_type)
    is_source = node.op_type in ("Constant", "ConstantOfShape") or (
        operator is not None and operator.movement == "cast"
    )
    return is_source and any(value.dtype == _FLOAT for value in node.outputs)


class _Converter:
    """Converts a graph in place; see `convert_floats` for the arguments. `lowered` are the nodes to convert."""

    def __init__(self, graph: ir.Graph, dtype: ir.DataType, lowered: set[ir.Node], *, simulate: bool) -> None:
        self._graph = graph
        self._dtype = dtype
        self._suffix = f"_{dtype.name.lower()}"
        self._lowered = lowered
        self._simulate = simulate

    def weight(self, value: ir.Value) -> None:
        """Round a weight for the lowered nodes; other nodes, and the caller, get the original."""
        low, others = self._uses(value)
        if not low or value.const_value is None:  # nothing reads it in the lower dtype, or it has no content
            return
        rounded = self._rounded(value.const_value.numpy())
        if not others and not value.is_graph_output():
            value.const_value = ir.tensor(rounded, name=value.name)
            self._retype(value)
            return
        copy = ir.Value(name=f"{value.name}{self._suffix}", shape=value.shape, type=value.type)
        copy.const_value = ir.tensor(rounded, name=copy.name)
        self._retype(copy)
        self._graph.register_initializer(copy)
        _redirect(low, copy)

    def float_value(self, value: ir.Value, after: ir.Node | None) -> None:
        """Round a float32 value for the lowered nodes that read it, by casts after the node `after` (see `_insert`)."""
        low, _ = self._uses(value)
        if low:
            casts = [_cast(value, f"{value.name}{self._suffix}", self._dtype)]
            if self._simulate:
                casts.append(_cast(casts[0].outputs[0], f"{value.name}_rounded", _FLOAT))
            self._insert(casts, after)
            _redirect(low, casts[-1].outputs[0])

    def low_value(self, value: ir.Value, node: ir.Node) -> None:
        """Convert the output of a lowered node."""
        if node.op_type == "Constant":
            self._constant(node)
        if not self._simulate:
            self._lower(value, node)
        elif node.op_type != "Constant":  # which is rounded already
            self._round(value, node)

    def _lower(self, value: ir.Value, node: ir.Node) -> None:
        """Convert a value, and cast it back to float32 for nodes that stay float32 and for graph outputs."""
        _, others = self._uses(value)
        name, is_output = value.name, value.is_graph_output()
        if is_output:
            value.name = f"{name}{self._suffix}"  # the cast back to float32 gets the name of the output
        if others or is_output:
            back = _cast(value, str(name) if is_output else f"{name}_float32", _FLOAT)
            self._insert([back], node)
            self._replace(value, back.outputs[0], others)
        self._retype(value)

    def _round(self, value: ir.Value, node: ir.Node) -> None:
        """Round a value to the lower dtype and back; the rounded one gets its name, the other is `x_unrounded`."""
        name, users = value.name, list(value.uses())
        value.name = f"{name}_unrounded"
        low = _cast(value, f"{name}{self._suffix}", self._dtype)
        back = _cast(low.outputs[0], str(name), _FLOAT)
        self._insert([low, back], node)
        self._replace(value, back.outputs[0], users)

    def _replace(self, value: ir.Value, by: ir.Value, uses: Iterable[Use]) -> None:
        """Replace a value in these uses and in the graph's outputs."""
        _redirect(uses, by)
        for index, output in enumerate(self._graph.outputs):
            if output is value:
                self._graph.outputs[index] = by

    def attributes(self, node: ir.Node) -> None:
        """Convert the dtype attribute of a lowered node."""
        if self._simulate:
            return
        operator = find_operator(node.domain, node.op_type)
        name = "" if operator is None else operator.dtype_attribute  # "" if it has no such attribute
        if name in node.attributes and node.attributes[name].as_int() == _FLOAT:
            node.attributes[name] = ir.AttrInt64(name, int(self._dtype))
        elif node.op_type == "ConstantOfShape":  # whose attribute is a tensor, by default of a float32 zero
            fill = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else np.zeros(1, "f4")
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(self._rounded(fill)))

    def _constant(self, node: ir.Node) -> None:
        """Round the number or tensor of a `Constant` node."""
        attr = next(iter(node.attributes.values()))
        number = attr.as_tensor().numpy() if attr.type == ir.AttributeType.TENSOR else np.array(attr.value, np.float32)
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(self._rounded(number)))

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        """Round an array, and clip finite numbers to the range of the dtype."""
        dtype = _NUMPY_DTYPES[self._dtype]
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        rounded = np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(dtype)
        return rounded.astype(np.float32) if self._simulate else rounded

    def _retype(self, value: ir.Value) -> None:
        """Declare that a value has the lower dtype, unless it is only simulated."""
        if not self._simulate:
            value.type = ir.TensorType(self._dtype)

    def _uses(self, value: ir.Value) -> tuple[list[Use], list[Use]]:
        """Return the uses of a value by lowered nodes, and those by other nodes."""
        low: list[Use] = []
        others: list[Use] = []
        for node, index in value.uses():
            is_low = node in self._lowered and index not in _FLOAT_INPUTS.get(node.op_type, ())
            (low if is_low else others).append((node, index))
        return low, others

    def _insert(self, nodes: list[ir.Node], after: ir.Node | None) -> None:
        """Insert nodes after a node, with its metadata; None for the beginning of the graph."""
        if after is not None:
            for node in nodes:
                node.metadata_props.update(after.metadata_props)
            self._graph.insert_after(after, nodes)
        elif len(self._graph):
            self._graph.insert_before(self._graph[0], nodes)


def _cast(value: ir.Value, name: str, dtype: ir.DataType) -> ir.Node:
    """Return a Cast node that computes a new value of this name."""
    output = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
    return ir.node("Cast", [value], {"to": int(dtype)}, outputs=[output], name=f"{name}_cast")


def _redirect(uses: Iterable[Use], to: ir.Value) -> None:
    """Let these uses read another value, except those of the node that computes it."""
    for node, index in uses:
        if node is not to.producer():
            node.replace_input_with(index, to)
