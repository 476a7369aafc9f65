"""The operations of a model as written in PyTorch, for example `Linear(...)` and `torch.flatten`."""

from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from ..graph._from_fx import module_path, operator_name
from ..graph._nodes import split_call
from ._names import Names


@dataclass(frozen=True)
class ModelOperator:
    """One operation of a model.

    Attributes:
        kind: `placeholder`, `call_module` (all operations of a module without submodules), `call_function` or `output`.
        text: the module's repr, or the function's name.
        value: the name of the graph's value that equals its result; None if the graph has no such value.
    """

    kind: str
    text: str
    value: str | None


def model_operators(model: nn.Module, exported: ExportedProgram, names: Names) -> tuple[ModelOperator, ...]:
    """Return the model's inputs, its operations in execution order, and its first output.

    Args:
        model: the model.
        exported: the program before decomposition, whose operations are those of the model's code.
        names: maps its nodes to values of the graph.
    """
    signature = exported.graph_signature
    inputs = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    tensors = [argument.name for argument in inputs if not isinstance(argument, ConstantArgument)]
    operators = [ModelOperator("placeholder", "", name) for name in tensors]
    leaves = {path: module for path, module in model.named_modules() if not list(module.children())}
    nodes = [
        node
        for node in exported.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    for index, node in enumerate(nodes):
        path = module_path(node)
        leaf = leaves.get(split_call(path)[0]) if path else None
        port = names.port("", node.name)
        value = port.value if port else None
        if leaf is None:
            operators.append(ModelOperator("call_function", _function_name(node), value))
        elif index + 1 == len(nodes) or module_path(nodes[index + 1]) != path:  # the last of the call
            operators.append(ModelOperator("call_module", repr(leaf), value))
    results = (spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT")
    port = next((names.port("", name) for name in results), None)
    return (*operators, ModelOperator("output", "", port.value if port else None))


def _function_name(node: fx.Node) -> str:
    """Return the function that a user calls to get this node.

    `torch.flatten` for `aten.flatten.using_ints`, `operator.iadd` for `aten.add_`.
    """
    name = operator_name(node.target)
    if name == "getitem" or (name.endswith("_") and name[:-1] in _ARITHMETIC):
        return f"operator.{name if name == 'getitem' else 'i' + name[:-1]}"
    namespaces = {"torch": torch, "torch.nn.functional": nn.functional, "torch.Tensor": torch.Tensor}
    return next((f"{path}.{name}" for path, namespace in namespaces.items() if hasattr(namespace, name)), name)


_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
