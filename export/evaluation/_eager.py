"""Run an exported program node by node in eager PyTorch."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx.node import Target, map_arg

from .._errors import ExportError
from ._blockwise import blockwise
from ._unpredictable import fixed_seed, has_random_subgraph, is_random, is_uninitialized, zero_filled

Replace = Callable[[str, torch.Tensor], torch.Tensor]  # takes the name of a value and its tensor
Read = Callable[[str, Any, int | None], Any]  # see `Interpreter`
_MAX_BITS = 64  # limit for integers that a program computes; an untrusted one could multiply integers for hours


def walk_eager(
    program: ExportedProgram,
    inputs: Mapping[str, torch.Tensor],
    *,
    known: Mapping[str, torch.Tensor] | None = None,
    wanted: Collection[str] | None = None,
    replace: Replace | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Run `program` and yield each node's name and tensor as soon as it is computed; integers as tensors, too.

    A value is released once no later node needs it, so that the run needs no more memory than the model.

    Args:
        program: the decomposed program, whose nodes have the names of the ONNX graph's values.
        inputs: the program's inputs, by the names of its placeholders.
        known: values to use instead of running their nodes, by node name. Nodes that only they need are not run.
        wanted: the names of the nodes to yield; None for all.
        replace: called with the name and tensor of each wanted node that others read, after it was yielded; later nodes
            read the result in its place. Integers are not replaced.
    """
    known = known or {}
    interpreter = Interpreter(program.graph_module)
    interpreter.args_iter = iter(placeholder_values(program, inputs))
    replaced = {node for node in interpreter.graph.nodes if node.name in known and _fits(node, known[node.name])}
    needed = _needed(interpreter.graph, replaced, wanted)
    for node in interpreter.graph.nodes:
        is_run = node in needed or node.op == "placeholder"
        if is_run:
            with torch.no_grad():  # not around the loop, where it would affect the caller between two items
                interpreter.env[node] = known[node.name] if node in replaced else interpreter.run_node(node)
        value: Any = interpreter.env.get(node)
        for unused in interpreter.user_to_last_uses.get(node, ()):
            interpreter.env.pop(unused, None)
        if not is_run:
            continue
        if node.op == "call_function" and (wanted is None or node.name in wanted):
            if type(value) is int:  # a dimension's size, which reshapes read; in ONNX it is a scalar tensor
                value = torch.tensor(value)
            if isinstance(value, torch.Tensor):
                yield node.name, value
            if replace is not None and node.users and isinstance(interpreter.env[node], torch.Tensor):
                interpreter.env[node] = replace(node.name, value)


def node_values(
    module: fx.GraphModule, inputs: Sequence[Any], wanted: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """Run a functional graph; return the tensors that its nodes compute, on the CPU, by the names of the nodes.

    Uninitialized memory is left out: a later operation may write to it, as random numbers of a given shape are drawn.

    Args:
        module: the graph.
        inputs: its inputs; the graph may write to them.
        wanted: the names of the nodes to return; None for all.
    """
    values: dict[str, torch.Tensor] = {}

    class Recording(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            is_wanted = (wanted is None or n.name in wanted) and not is_uninitialized(n)
            if n.op == "call_function" and isinstance(value, torch.Tensor) and is_wanted:
                values[n.name] = value.detach().cpu()
            return value

        def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return super().call_function(_with_any_layout(target), args, kwargs)

    with torch.no_grad():
        Recording(module).run(*inputs)
    return values


def placeholder_values(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """Return the arguments of the program's graph: its weights and `inputs`, in the order of its placeholders."""
    weights = {**program.constants, **program.state_dict}
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            values.append(weights.get(spec.target or ""))  # None for a token, say, which no node reads
        elif isinstance(spec.arg, ConstantArgument):
            values.append(spec.arg.value)
        elif spec.arg.name in inputs:
            values.append(inputs[spec.arg.name])
        else:
            raise ExportError(f"the exported program has the input {spec.arg.name!r}, which the graph no longer has")
    return values


def can_replace(node: fx.Node, tensor: torch.Tensor) -> bool:
    """Whether a tensor, of any width, can replace a node's result; complex numbers are pairs of real ones in ONNX."""
    traced = node.meta.get("val")
    if not isinstance(traced, torch.Tensor):
        return False
    return (traced.ndim, traced.is_complex()) == (tensor.ndim, tensor.is_complex())


def _fits(node: fx.Node, tensor: torch.Tensor) -> bool:
    """Return whether a tensor has the dtype of a node's result, and can replace it."""
    return node.op == "call_function" and can_replace(node, tensor) and node.meta["val"].dtype == tensor.dtype


def _needed(graph: fx.Graph, known: Collection[fx.Node], wanted: Collection[str] | None) -> set[fx.Node]:
    """Return the wanted nodes and all that they depend on, up to the nodes with known values."""
    needed = {node for node in graph.nodes if node.op == "call_function" and (wanted is None or node.name in wanted)}
    for node in reversed(graph.nodes):
        if node in needed and node not in known:
            needed.update(node.all_input_nodes)
    return needed


class Interpreter(fx.Interpreter):
    """Runs nodes with any memory layout, dtype and device.

    Attributes:
        read: called with the name and value of everything that a node reads, and None; the node gets the result in its
            place. Of a large weight, it may be called with one block after the other, and the index of the block's
            first element in the flat weight. None leaves all values as they are.
    """

    graph: fx.Graph
    read: Read | None = None

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See `fx.Interpreter`."""
        read = self.read
        if read is None:
            return super().fetch_args_kwargs_from_env(n)
        args, kwargs = map_arg((n.args, n.kwargs), lambda item: read(item.name, self.env[item], None))
        return args, kwargs

    def run_node(self, n: fx.Node) -> Any:
        """See `fx.Interpreter`; random numbers and uninitialized memory are the same in each run."""
        if is_random(n) or has_random_subgraph(n):
            with fixed_seed(n):
                return super().run_node(n)
        if self.read is not None and (compute := blockwise(n, self.env)) is not None:
            return compute(n, self.env, self.read)
        value = super().run_node(n)
        return zero_filled(value) if is_uninitialized(n) else value

    def call_function(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `fx.Interpreter`."""
        value = super().call_function(_with_any_layout(target), args, kwargs)
        if type(value) is int and value.bit_length() > _MAX_BITS:
            raise ExportError("an integer of the exported program has more than 64 bits")
        return value


def _with_any_layout(target: Target) -> Target:
    """Return `reshape` in place of `view`: a graph has views where the layouts of its tracing or compiler allow them.

    Another attention, dtype or device has other layouts, and so have the kernels of a compiler.
    """
    return torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target


def weight_names(program: ExportedProgram) -> Mapping[str, str]:
    """Return the names of the weights, as in the model's state, by the names of their placeholders."""
    return {
        getattr(spec.arg, "name", ""): spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind != InputKind.USER_INPUT and spec.target is not None
    }
