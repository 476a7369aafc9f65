"""The kernels of generated code as a `Graph`, and what they store in a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ...graph._from_fx import graph_from_fx
from ...graph._graph import Graph
from ...graph._nodes import Node, Value
from .._backend import Compiled, ReferenceLookup
from .._forms import fitting_reference
from ._buffer_map import BufferMap, Label, Stored
from ._compiled_fx import GeneratedCode
from ._kernels import Kernel


@dataclass(frozen=True)
class NamedKernels:
    """The kernels of generated code; the values that they store have the names of the values of a graph.

    Attributes:
        code: the generated code.
        buffers: maps its buffers to the nodes of a torch graph, `buffers.source`.
        graph: a graph of the same operations. The `target` of each of its nodes is the name of the node of the torch
            graph that it translates (in part).
        value_names: the names of values in `graph`, by the names of the nodes of the torch graph, if they differ.
    """

    code: GeneratedCode
    buffers: BufferMap
    graph: Graph
    value_names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_aot_graph(cls, code: GeneratedCode) -> "NamedKernels":
        """Return the kernels with the names of the graph that AOTAutograd passed to Inductor."""
        aot_graph = code.lowered.aot_graph
        return cls(code, BufferMap(aot_graph, code.lowered), graph_from_fx(aot_graph))

    @cached_property
    def labels(self) -> Mapping[str, Label]:
        """The labels of the buffers that the kernels write, by the names of the buffers."""
        value_names = {**{name: name for name in self.graph.known}, **self.value_names}
        return self.buffers.labels(value_names, self.graph.outputs)

    @cached_property
    def labels_by_value(self) -> Mapping[str, str]:
        """The name of the label of the buffer that holds a value, or of which it is a view, by the value's node."""
        return {name: label.name for buffer, label in self.labels.items() for name, _ in self.buffers.values(buffer)}

    @cached_property
    def computed_nodes(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes of `graph` that each kernel computes, by the name of the kernel."""
        nodes_by_target: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            nodes_by_target.setdefault(node.target or "", []).append(node)
        return {
            kernel: self._input_dependent([node for target in targets for node in nodes_by_target.get(target, ())])
            for kernel, targets in self.buffers.all_computed.items()
        }

    def _input_dependent(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes whose values depend on the inputs, or all nodes but `Constant` if none does."""
        dependent = tuple(node for node in nodes if not self.graph.constant_values.issuperset(node.outputs))
        return dependent or tuple(node for node in nodes if node.op != "Constant")

    def compiled(self, handle: Any = None) -> Compiled:
        """Return the kernels as a compiled graph; `handle` is what the backend runs (see `Compiled.handle`)."""
        graph, lowered, labels = self.graph, self.code.lowered, self.labels
        input_names = self._input_names()
        constants = tuple(name for name in dict.fromkeys(input_names.values()) if name in graph.constants)
        names = {**input_names, **{buffer: label.name for buffer, label in labels.items()}}
        kernel_graph = Graph(
            name=graph.name,
            inputs=graph.inputs,
            outputs=graph.outputs,
            constants=constants,
            nodes=tuple(_kernel_node(kernel, names, self.computed_nodes[kernel.name]) for kernel in lowered.kernels),
            values={name: graph.values.get(name, Value(name)) for name in (*graph.inputs, *constants, *names.values())},
        )
        return Compiled(
            kernel_graph,
            handle,
            {kernel: tuple(node.name for node in nodes) for kernel, nodes in self.computed_nodes.items()},
            {label.name: label.value for label in labels.values() if label.value not in (None, label.name)},
            intermediate_graphs=lambda: {
                "AOTAutograd": graph_from_fx(lowered.aot_graph, graph.name),
                "Inductor": graph_from_fx(lowered.graph, graph.name),
            },
        )

    def _input_names(self) -> dict[str, str]:
        """Return the names in `graph` of the inputs of the code, by their names in AOTAutograd's graph."""
        source_inputs = self.buffers.source.find_nodes(op="placeholder")
        aot_inputs = self.code.lowered.aot_graph.find_nodes(op="placeholder")
        pairs = zip(aot_inputs, source_inputs, strict=False)
        return {node.name: self.value_names.get(source.name, source.name) for node, source in pairs}

    def run(self, inputs: list[Any], observe: Callable[[Sequence[Stored]], None]) -> Any:
        """Run the code and call `observe` with the values that each kernel has stored; `inputs` are emptied."""

        def observe_buffers(_: Kernel, buffers: Mapping[str, torch.Tensor]) -> None:
            observe([self.labels[name].of(tensor) for name, tensor in buffers.items()])

        return self.code.run_observed(inputs, observe_buffers)


def replacing_observer(
    values: dict[str, torch.Tensor], references: ReferenceLookup, copy: Callable[[Stored], torch.Tensor]
) -> Callable[[Sequence[Stored]], None]:
    """Return an observer for `NamedKernels.run` that overwrites stored values with references, for later kernels.

    Args:
        values: the stored values are added to it, by name.
        references: returns the reference of a value; one of another dtype or shape is not used.
        copy: copies a stored value.
    """

    def observe(stored: Sequence[Stored]) -> None:
        new = [item for item in stored if item.name not in values]  # an overwritten value may be observed again
        values.update({item.name: copy(item) for item in new})
        for item in new:  # after all are copied, as one may be part of another
            if (reference := fitting_reference(references, item.name, values[item.name])) is not None:
                item.overwrite(reference)

    return observe


def _kernel_node(kernel: Kernel, names: Mapping[str, str], computed: Sequence[Node]) -> Node:
    """Return a kernel as a node, with the module and the line of the last of the nodes that it computes."""
    last = next((node for node in reversed(computed) if node.module is not None), None)
    return Node(
        kernel.name,
        kernel.op,
        tuple(names[name] for name in kernel.reads if name in names),
        tuple(names[name] for name in kernel.writes),
        {"buffers": list(kernel.variables)},
        module=last.module if last else None,
        source=last.source if last else None,
        code=kernel.code,
    )
