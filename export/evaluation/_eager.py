"""Runs an exported program node by node in eager PyTorch."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.node import Target, map_arg

from .._errors import ExportError
from ._unpredictable import drawing, draws, draws_nested, reserves, zeroed

Visit = Callable[[str, torch.Tensor], None]
Replace = Callable[[str, torch.Tensor], torch.Tensor]
Read = Callable[[str, Any], Any]
_BITS = 64  # of an integer that a program computes; a stored one could go on multiplying for hours


def run_eager(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor], visit: Visit, *, replace: Replace | None = None
) -> None:
    """Run every node of `program` and show each tensor that one makes.

    Args:
        program: decomposed, so that its names are those of the ONNX graph.
        inputs: the tensors it takes, by the names of its placeholders.
        visit: called with the node's name and its value, which later nodes do not change: the program is functional.
        replace: see `walk_eager`.
    """
    for name, value in walk_eager(program, inputs, replace=replace):
        visit(name, value)


def walk_eager(
    program: ExportedProgram,
    inputs: Mapping[str, torch.Tensor],
    *,
    known: Mapping[str, torch.Tensor] | None = None,
    wanted: Collection[str] | None = None,
    replace: Replace | None = None,
    read: Read | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor that a node of `program` makes, and the node's name, as soon as it is made; integers as tensors too.

    A value is let go once no later node needs it, so that no more is held than the model itself holds.

    Args:
        program: decomposed, so that its names are those of the ONNX graph.
        inputs: the tensors it takes, by the names of its placeholders.
        known: values that are had already, by node names: they are taken as they are, and what only they need is left
            out.
        wanted: the names of the nodes to show; None is all.
        replace: what later nodes read in place of a tensor that was shown, by the node's name and the tensor.
        read: what a node is given in place of a value that it reads: a weight, an input, what another one made.
    """
    known = known or {}
    interpreter = Interpreter(program.graph_module, read)
    interpreter.args_iter = iter(bound(program, inputs))
    had = {node for node in interpreter.graph.nodes if node.name in known and _fits(node, known[node.name])}
    needed = _needed(interpreter.graph, had, wanted)
    for node in interpreter.graph.nodes:
        if node not in needed and node.op != "placeholder":
            continue
        with torch.no_grad():  # not around the loop: the caller's own gradients are none of our business
            value = known[node.name] if node in had else interpreter.run_node(node)
        interpreter.env[node] = value
        for dead in interpreter.user_to_last_uses.get(node, ()):
            interpreter.env.pop(dead, None)
        if node.op == "call_function" and (wanted is None or node.name in wanted):
            if type(value) is int:  # the size of a dimension, on which reshapes depend; ONNX has it as a scalar
                value = torch.tensor(value)
            if isinstance(value, torch.Tensor):
                yield node.name, value
            if replace is not None and node.users and isinstance(interpreter.env[node], torch.Tensor):
                interpreter.env[node] = replace(node.name, value)


def show_nodes(graph: fx.Graph, inputs: Sequence[Any], visit: Visit) -> None:
    """Run every node of a functional graph without weights of its own, and show each tensor that one makes."""

    class Shown(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if n.op == "call_function" and isinstance(value, torch.Tensor):
                visit(n.name, value)
            return value

    with torch.no_grad():
        Shown(fx.GraphModule({}, graph)).run(*inputs)


def bound(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """What the graph of `program` is called with: its weights and `inputs`, in the order of its placeholders."""
    return list(_arguments(program, inputs))


def _arguments(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> Iterator[Any]:
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            yield _held(program, spec.target)
        elif isinstance(spec.arg, ConstantArgument):
            yield spec.arg.value
        elif spec.arg.name in inputs:
            yield inputs[spec.arg.name]
        else:
            raise ExportError(f"the exported program takes {spec.arg.name!r}, which the graph does not take any more")


def _held(program: ExportedProgram, target: str | None) -> Any:
    for place in (program.state_dict, program.constants):
        if target is not None and target in place:
            return place[target]
    return None  # tokens and the like; no node of an exported model reads them


def _fits(node: fx.Node, tensor: torch.Tensor) -> bool:
    """Whether a tensor can stand for what a node makes: ONNX has complex numbers as pairs."""
    traced = node.meta.get("val")
    return (
        node.op == "call_function"
        and isinstance(traced, torch.Tensor)
        and (traced.dtype, traced.ndim) == (tensor.dtype, tensor.ndim)
    )


def _needed(graph: fx.Graph, had: Collection[fx.Node], wanted: Collection[str] | None) -> set[fx.Node]:
    """The nodes that have to be run, or taken, for what is wanted."""
    found = {node for node in graph.nodes if node.op == "call_function" and (wanted is None or node.name in wanted)}
    for node in reversed(graph.nodes):
        if node in found and node not in had:
            found.update(node.all_input_nodes)
    return found


class Interpreter(fx.Interpreter):
    """Runs nodes on any layout, dtype and device; `read` says what they are given of each value (see `walk_eager`)."""

    graph: fx.Graph

    def __init__(self, module: fx.GraphModule, read: Read | None) -> None:
        super().__init__(module)
        self.read = read

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See `fx.Interpreter`."""
        read = self.read
        if read is None:
            return super().fetch_args_kwargs_from_env(n)
        args, kwargs = map_arg((n.args, n.kwargs), lambda item: read(item.name, self.env[item]))
        return args, kwargs

    def run_node(self, n: fx.Node) -> Any:
        """See `fx.Interpreter`; what no two runs have to agree on is the same in each."""
        if draws(n) or draws_nested(n):
            with drawing(n):
                return super().run_node(n)
        value = super().run_node(n)
        return zeroed(value) if reserves(n) else value

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `fx.Interpreter`."""
        # Which layouts can be viewed was found out at export; another attention, dtype or device gives others.
        viewed = target is torch.ops.aten.view.default
        value = super().call_function(torch.ops.aten.reshape.default if viewed else target, args, kwargs)
        if type(value) is int and value.bit_length() > _BITS:
            raise ExportError("an integer of the exported program has more than 64 bits")
        return value


def held_names(program: ExportedProgram) -> Mapping[str, str]:
    """The names of the weights (as in the model's state) by the names of their placeholders."""
    return {
        getattr(spec.arg, "name", ""): spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT and spec.target is not None
    }
