"""Describe an exported program as a graph of PyTorch's own operations, which has the form of an ONNX model."""

from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from ..evaluation._eager import weight_names
from ..graph._arguments import settings_of
from ..graph._from_fx import operator_name
from ..graph._from_onnx import CLASSES, SCOPES, STACK

_DOMAIN = "torch"


def untranslated(program: ExportedProgram) -> ir.Model:
    """Return a model with a node in the domain `torch` for each operation, which no ONNX runtime can run."""
    weights = weight_names(program)
    values = {node: _value(node, weights.get(node.name, node.name)) for node in program.graph.nodes if _is_value(node)}
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    constants = {**program.constants, **program.state_dict}
    initializers = {}
    for name, target in weights.items():
        if isinstance(constants.get(target), torch.Tensor):
            value = values[placeholders[name]]
            value.const_value = tensor_adapters.TorchTensor(constants[target].detach(), name=target)
            initializers[target] = value
    signature, by_name = program.graph_signature, {node.name: value for node, value in values.items()}
    graph = ir.Graph(
        [by_name[spec.arg.name] for spec in signature.input_specs if _is_graph_argument(spec, "USER_INPUT")],
        list(
            dict.fromkeys(
                by_name[spec.arg.name] for spec in signature.output_specs if _is_graph_argument(spec, "USER_OUTPUT")
            )
        ),
        nodes=list(_nodes(program, values)),
        initializers=list(initializers.values()),
        opset_imports={"": 18, _DOMAIN: 1},
        name="main_graph",
    )
    return ir.Model(graph, ir_version=10)


def _is_graph_argument(spec: Any, kind: str) -> bool:
    """Return whether a specification is of this kind, and not of a constant."""
    return spec.kind.name == kind and not isinstance(spec.arg, ConstantArgument)


def _nodes(program: ExportedProgram, values: Mapping[fx.Node, ir.Value]) -> Iterator[ir.Node]:
    """Yield a node for each operation of the program."""
    for node in (node for node in program.graph.nodes if node.op == "call_function"):
        settings = settings_of(node.target, node.args, node.kwargs)
        yield ir.Node(
            _DOMAIN,
            operator_name(node.target),
            [values[item] for item in node.all_input_nodes if item in values],
            [_attribute(name, item) for name, item in settings.items()],
            outputs=[values[node]],
            name=f"node_{node.name}",
            metadata_props=_metadata(node),
        )


def _attribute(name: str, setting: Any) -> ir.Attr:
    """Return a setting as an attribute; as text if ONNX has no type for it, such as a list of numbers and symbols."""
    try:
        return ir.convenience.convert_attribute(name, setting)
    except (TypeError, ValueError):
        return ir.AttrString(name, str(setting))


def _metadata(node: fx.Node) -> dict[str, str]:
    """Return the modules, the classes and the lines of a node as torch's exporter writes them."""
    stack = [(str(path), str(kind)) for path, kind in (node.meta.get("nn_module_stack") or {}).values()]
    return {
        SCOPES: repr([*(path for path, _ in stack), node.name]),
        CLASSES: repr([*(kind for _, kind in stack), operator_name(node.target)]),
        STACK: str(node.meta.get("stack_trace") or ""),
    }


def _is_value(node: fx.Node) -> bool:
    """Return whether a node of the program is a value of the graph: an input, a weight or a result."""
    return node.op in ("placeholder", "call_function")


def _value(node: fx.Node, name: str) -> ir.Value:
    """Return a value with the dtype and shape that were traced."""
    traced = node.meta.get("val")
    if not isinstance(traced, torch.Tensor):
        return ir.Value(name=name)
    dtype = tensor_adapters.from_torch_dtype(traced.dtype)
    shape = ir.Shape([size if isinstance(size, int) else str(size) for size in traced.shape])
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
