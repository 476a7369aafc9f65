"""Runs an exported program node by node in eager PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from ._errors import ExportError

Visit = Callable[[str, torch.Tensor], None]


def run_eager(program: ExportedProgram, inputs: Mapping[str, torch.Tensor], visit: Visit) -> None:
    """Run every node of `program` and show each tensor that one makes.

    Args:
        program: decomposed, so that its names are those of the ONNX graph.
        inputs: the tensors it takes, by the names of its placeholders.
        visit: called with the node's name and its value, which later nodes do not change: the program is functional.
    """
    arguments = bound(program, inputs)
    with torch.no_grad():
        _Shown(program.graph_module, visit).run(*arguments)


def show_nodes(graph: fx.Graph, inputs: Sequence[Any], visit: Visit) -> None:
    """Run every node of a functional graph without weights of its own, and show each tensor that one makes."""
    with torch.no_grad():
        _Shown(fx.GraphModule({}, graph), visit).run(*inputs)


def bound(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """What the graph of `program` is called with: its weights and `inputs`, in the order of its placeholders."""
    arguments = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            arguments.append(_held(program, spec.target))
        elif isinstance(spec.arg, ConstantArgument):
            arguments.append(spec.arg.value)
        elif spec.arg.name in inputs:
            arguments.append(inputs[spec.arg.name])
        else:
            raise ExportError(f"the exported program takes {spec.arg.name!r}, which the graph does not take any more")
    return arguments


def _held(program: ExportedProgram, target: str | None) -> Any:
    for place in (program.state_dict, program.constants):
        if target in place:
            return place[target]
    return None  # tokens and the like; no node of an exported model reads them


class _Shown(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, visit: Visit) -> None:
        super().__init__(module)
        self._visit = visit

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor):
            self._visit(n.name, value)
        return value


def held_names(program: ExportedProgram) -> Mapping[str, str]:
    """The names of the weights (as in the model's state) by the names of their placeholders."""
    return {
        getattr(spec.arg, "name", ""): spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT and spec.target is not None
    }
