"""Run a graph from Dynamo in eager PyTorch, and record every tensor."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from filch.export.common._copies import has_plain_memory
from filch.steal.private._torch import is_functorch_wrapped_tensor, temporarily_clear_interpreter_stack

from ._changed_inputs import python_name
from ._fx_operators import as_returned

Writes = Mapping[str, str]  # see `EagerRun`
_NO_WRITES: Writes = MappingProxyType({})


@dataclass(frozen=True)
class EagerRun:
    """A run of a graph in eager PyTorch.

    Attributes:
        values: every tensor that the graph computes, copied to the CPU. It is copied before a later operation changes
            it in place; what is returned is copied again, at the end (see `as_returned`). If that is asked for, what a
            node writes to without returning it is copied after that (see `written`).
        returned: what the graph returns.
        writes: the name of the input or node whose tensor each node writes to, if that is not its own value.
        writers: the name of the last node that writes to each input, by the input's name.
        in_place: the names of the nodes that write to an input or to what another node returns.
    """

    values: dict[str, torch.Tensor]
    returned: Sequence[Any]
    writes: Writes
    writers: Mapping[str, str]
    in_place: Collection[str]


def eager_run(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    decisions: Mapping[str, torch.Tensor] | None = None,
    *,
    with_written: bool = False,
) -> EagerRun:
    """Run a graph in eager PyTorch; it may change the inputs.

    Args:
        module: the graph.
        inputs: its inputs.
        decisions: what the compiled graph has chosen, such as indices, comparisons or rounded numbers, by the names of
            nodes. Later nodes read it in place of what the node returns here, if it has the same shape and dtype. Of
            two floating-point dtypes, it is converted: a decision known in float64 is the same number in both.
        with_written: copy all of a tensor after each operation that writes to a part of it.
    """
    recorder = _Recorder(module, decisions or {}, with_written=with_written)
    returned = recorder.run(*inputs)
    values = recorder.values
    for node, value in zip(results_of(module), returned, strict=True):
        if isinstance(node, fx.Node) and is_plain(value):
            values[as_returned(node.name)] = _copied(value)
    return EagerRun(values, returned, recorder.writes, recorder.writers, recorder.in_place)


class _Recorder(fx.Interpreter):
    """Runs a graph and records its values (see `EagerRun`)."""

    def __init__(self, module: fx.GraphModule, decisions: Mapping[str, torch.Tensor], *, with_written: bool) -> None:
        super().__init__(module)
        self.values: dict[str, torch.Tensor] = {}
        self.writes: dict[str, str] = {}
        self.writers: dict[str, str] = {}
        self.in_place: set[str] = set()
        self._decisions, self._with_written = decisions, with_written
        self._owners: dict[int, fx.Node] = {}  # the first node with each memory

    def run_node(self, n: fx.Node) -> Any:
        versions = {node: _version(self.env[node]) for node in n.all_input_nodes}
        value = super().run_node(n)
        for node, version in versions.items():
            if version != _version(self.env[node]):
                self._record_write(n, node, value)
        if not is_plain(value):
            return value
        if self._owners.setdefault(_memory(value), n) not in self.env:
            self._owners[_memory(value)] = n  # the memory of a value that is gone is used again
        return self._recorded(n, value) if n.op.startswith("call_") else value

    def _record_write(self, n: fx.Node, node: fx.Node, value: Any) -> None:
        """Record the tensor in whose memory a node has written to another one."""
        self.in_place.add(n.name)
        owner = self._owners.get(_memory(self.env[node]), node)
        if owner.op == "placeholder":
            self.writers[owner.name] = n.name
        if owner in self.env and self.env[owner] is not value:
            self.writes[n.name] = owner.name
            if self._with_written:
                self.values[written(n.name, owner.name)] = _copied(self.env[owner])

    def _recorded(self, n: fx.Node, value: torch.Tensor) -> torch.Tensor:
        """Record the value of a node; return it, or the decision in its place."""
        self.values[n.name] = _copied(value)
        other = self._decisions.get(n.name)
        if other is None or other.shape != value.shape:
            return value
        if other.dtype != value.dtype and not (other.is_floating_point() and value.is_floating_point()):
            return value
        if n.name in self.in_place:  # later nodes also read it by other names
            with torch.no_grad():
                return value.copy_(other)
        return other.to(value.device, value.dtype, copy=True)


def written(node: str, owner: str) -> str:
    """Return what the value of an input or node is called after another node has written to it."""
    return f"{python_name(owner)}, after {node}"


def _version(value: Any) -> int:
    """Return how often a tensor was written to; 0 if it is not counted."""
    return 0 if not is_plain(value) or value.is_inference() else value._version  # noqa: SLF001  there is no public name


def _memory(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor; its own identity if it has none."""
    return tensor.untyped_storage().data_ptr() if has_plain_memory(tensor) and tensor.numel() else id(tensor)


def return_all_values(module: fx.GraphModule, writes: Writes = _NO_WRITES) -> tuple[list[str], fx.GraphModule]:
    """Return the names of the tensors that a graph computes, and a copy of the graph that returns them all.

    Args:
        module: the graph.
        writes: what nodes write to (see `EagerRun`), which is also returned.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    clones: dict[str, fx.Node] = {}
    clone = _cloned if transformed(module.graph) else torch.clone
    nodes = {node.name: node for node in module.graph.nodes if node.op != "output"}
    for node in nodes.values():
        env[node] = graph.node_copy(node, env.__getitem__)
        is_value = node.op.startswith("call_") and is_plain(node.meta.get("example_value"))
        kept = {node.name: node} if is_value else {}
        if node.name in writes:
            kept[written(node.name, writes[node.name])] = nodes[writes[node.name]]
        for name, item in kept.items():
            clones[name] = graph.call_function(clone, (env[item],))  # a later operation may be in-place
            clones[name].meta.update(example_value=item.meta["example_value"])
    graph.output(tuple(clones.values()))
    return list(clones), fx.GraphModule(module, graph)


def results_of(module: fx.GraphModule) -> Sequence[Any]:
    """Return what a graph from Dynamo returns: nodes and constants, without nesting."""
    results: Any = module.graph.output_node().args[0]
    return results  # type: ignore[no-any-return]


def transformed(graph: fx.Graph) -> set[str]:
    """Return the names of the nodes whose values exist only within a transform of torch.func."""
    return {node.name for node in graph.nodes if _is_transformed(node.meta.get("example_value"))}


def _is_transformed(value: Any) -> bool:
    """Return whether a value is a tensor within a transform of torch.func, such as `vmap` or `grad`."""
    return isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value)


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor outside of the transforms of torch.func."""
    return isinstance(value, torch.Tensor) and not _is_transformed(value)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU, outside of torch.func's transforms."""
    with temporarily_clear_interpreter_stack():
        return tensor.detach().to("cpu", copy=True)


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    """Clone a tensor outside of torch.func's transforms: a clone within `torch.func.grad` ends with it."""
    with temporarily_clear_interpreter_stack():
        return tensor.clone()
