"""The graph of the kernels that Inductor made of a torch graph, and what it computes."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..._errors import BackendError
from ...evaluation._eager import show_nodes
from ...graph._from_fx import graph_from_fx
from ...graph._graph import Graph
from ...graph._nodes import Node, Value
from .._backend import BackwardRun, Compiled, ReferenceLookup, Values
from .._forms import spec_of
from ._buffer_map import BufferMap, Label, Stored
from ._compiled_fx import CompiledGraph, Part
from ._half import in_half, widened
from ._kernels import Kernel
from ._options import InductorOptions

_IDLE = "{} has no effect: the graph runs on the CPU"


@dataclass(frozen=True)
class Given:
    """A torch graph to compile, and the graph that its reader knows.

    Attributes:
        module: takes and returns flat values.
        graph: each node's target is the name of the node of `module` that it is (part of) the translation of.
        bind: from the inputs by name to what `module` takes.
        known_as: what `graph` calls the nodes of `module` that it has by another name.
        outputs: which of the results of `module` are those of `graph`.
        device: where it runs; None is where its inputs are.
        guarded: whether the caller sees to it that it is only run with inputs that it was compiled for.
        gradients: whether it is compiled for a backward pass to follow.
    """

    module: fx.GraphModule
    graph: Graph
    bind: Callable[[Values], list[Any]]
    known_as: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    device: torch.device | None = None
    guarded: bool = False
    gradients: bool = False


class KernelGraphs:
    """A torch graph, compiled once for each set of shapes that it is run with."""

    def __init__(self, given: Given, options: InductorOptions) -> None:
        self._given = given
        self._options = options
        self._module = in_half(given.module) if options.use_fp16 else given.module
        self._made: dict[tuple[Any, ...], CompiledGraph] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Run it undisturbed, as the graph that it was made of is called: gradients flow through it."""
        made = next(iter(self._made.values()))
        with self._options.reductions():
            return made(*inputs)

    def watch_backward(self, see: Callable[[BackwardRun], None]) -> None:
        """Let `see` have what the first backward pass did, and what it should have done."""
        made = next(iter(self._made.values()))
        seen: list[Part] = []

        def observer(part: Part, inputs: list[Any]) -> Any:
            if not part.lowered.backward or part in seen:
                return part.plain(inputs)
            seen.append(part)
            watched = _backward(part, inputs)
            outputs = part.plain(inputs)
            see(watched(outputs))
            return outputs

        made.observer = observer

    def compiled_for(self, inputs: Sequence[Any]) -> Compiled:
        """What Inductor makes of the graph for such inputs, which may be anywhere if the device is said."""
        notes = self._notes(inputs)
        part = _forward(self._ready(inputs if self._given.guarded else self._copied(inputs)))
        made = _described(part, part.holding, self._given.graph, self._given.known_as, self)
        return replace(made, notes=notes)

    def _notes(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        """What was asked for and has no effect: refused, but for CUDA graphs if torch.compile asks for the graph.

        A model that is compiled with this option may have graphs on several devices.
        """
        devices = {self._given.device or item.device for item in inputs if isinstance(item, torch.Tensor)}
        if not devices or any(device.type != "cpu" for device in devices):
            return ()
        if self._options.use_fp16_reduction is not None:
            raise BackendError(f"backend 'inductor': {_IDLE.format('use_fp16_reduction')}")
        if self._options.use_cuda_graph and not self._given.guarded:
            raise BackendError(f"backend 'inductor': {_IDLE.format('use_cuda_graph')}")
        return (_IDLE.format("use_cuda_graph"),) if self._options.use_cuda_graph else ()

    def codes(self) -> list[str]:
        """What was generated."""
        files = (part.lowered.module.__file__ or "" for made in self._made.values() for part in made.parts)
        return [Path(file).read_text("utf-8") for file in files]

    def run(self, inputs: Values, watch: Collection[str]) -> Values:
        """Run it for these inputs, and show what is watched if anything is."""
        arguments = self._copied(self._given.bind(inputs))
        made = self._ready(arguments, replayed=not watch)
        found: dict[str, torch.Tensor] = {}

        def look(stored: Sequence[Stored]) -> None:
            found.update({item.name: self._shown(item) for item in stored if item.name in watch})

        with self._running():
            given = self._observed(made, arguments, look) if watch else made(*arguments)
        for name, index in zip(self._given.graph.outputs, self._given.outputs, strict=True):
            if isinstance(given[index], torch.Tensor):
                found[name] = given[index].detach().cpu()
        return found

    def reference(self, inputs: Values) -> Values:
        """What the stored values should be that the reader's graph does not have."""
        arguments = self._copied(self._given.bind(inputs))
        part = _forward(self._ready(arguments))
        wanted: dict[str, list[str]] = {}
        for buffer, label in self._labels(part).items():
            operation = part.holding.operation(buffer) if label.value is None else None
            if operation is not None:
                wanted.setdefault(operation, []).append(label.name)
        found: dict[str, torch.Tensor] = {}

        def visit(name: str, value: torch.Tensor) -> None:
            found.update(dict.fromkeys(wanted.get(name, ()), self._as_given(value).detach().cpu()))

        show_nodes(part.lowered.given, arguments, visit)
        return found

    def isolate(self, inputs: Values, given: ReferenceLookup) -> dict[str, torch.Tensor]:
        """What each kernel stores if what those before it stored is overwritten with what is given, by name.

        What is given is rounded to what the buffer holds: to float16, where the graph is in that.
        """
        arguments = self._copied(self._given.bind(inputs))
        made = self._ready(arguments, replayed=False)
        found: dict[str, torch.Tensor] = {}

        def look(stored: Sequence[Stored]) -> None:
            new = [item for item in stored if item.name not in found]  # what was overwritten may be shown once more
            found.update({item.name: self._shown(item) for item in new})
            for item in new:  # after all are copied: one may be part of another
                tensor = given(item.name)
                if tensor is not None and spec_of(tensor) == spec_of(found[item.name]):
                    item.overwrite(tensor)

        with self._running():
            self._observed(made, arguments, look)
        return found

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        with torch.set_grad_enabled(self._given.gradients), self._options.reductions():
            try:
                yield
            except Exception as error:  # the compiled code raises whatever it meets
                raise BackendError(f"backend 'inductor' can't run the program: {error}") from error

    def _observed(self, made: CompiledGraph, arguments: Sequence[Any], look: Callable[[Sequence[Stored]], None]) -> Any:
        """Run it, and show what each kernel has stored."""
        labels = {id(part): self._labels(part) for part in made.parts}

        def observer(part: Part, inputs: list[Any]) -> Any:
            own = labels[id(part)]
            return part.watched(inputs, lambda _, held: look([own[name].of(tensor) for name, tensor in held.items()]))

        with made.observed_by(observer):
            return made(*arguments)

    def _shown(self, stored: Stored) -> torch.Tensor:
        """A copy of what is stored, as the reader's graph has it."""
        return self._as_given(stored.tensor).to("cpu", copy=True)

    def _ready(self, arguments: Sequence[Any], *, replayed: bool = True) -> CompiledGraph:
        """The graph compiled for such inputs; its kernels called one by one if they are not to be replayed."""
        settings = self._options.settings()
        replayed = replayed or not settings.get("triton.cudagraphs")
        key = (replayed, *(() if self._given.guarded else map(_kind, arguments)))
        if key not in self._made:
            settings |= {} if replayed else {"triton.cudagraphs": False}
            with torch.set_grad_enabled(self._given.gradients), self._options.reductions():
                self._made[key] = CompiledGraph(self._module, arguments, settings)
        return self._made[key]

    def _copied(self, values: Sequence[Any]) -> list[Any]:
        """Copies where the graph runs: a kernel may write to what it is given."""
        return [_copy(item, self._given.device) if isinstance(item, torch.Tensor) else item for item in values]

    def _as_given(self, value: torch.Tensor) -> torch.Tensor:
        return widened(value) if self._options.use_fp16 else value

    def _labels(self, part: Part) -> Mapping[str, Label]:
        return _labels(part.holding, self._given.graph, self._given.known_as)


@dataclass(frozen=True)
class OwnKernels:
    """The kernels of one part, in the words of the graph that AOTAutograd handed to Inductor.

    Attributes:
        graph: each node says in `wrapper` where it is called or defined; its `code` is its own file, if there is one.
        computed: by a kernel's name, the names of all operations that it computes, constants and views, too.
        held: by the name of a value, what the buffer is called that holds it, or something of which it is a view.
    """

    graph: Graph
    computed: Mapping[str, Sequence[str]]
    held: Mapping[str, str]


def own_kernels(part: Part) -> OwnKernels:
    """The kernels of one part, for itself."""
    given = part.lowered.given
    holding, reader = BufferMap(given, part.lowered), graph_from_fx(given)
    made = _described(part, holding, reader, {}, None)
    kernels = {kernel.name: kernel for kernel in part.lowered.kernels}
    nodes = tuple(_with_files(node, kernels[node.name]) for node in made.graph.nodes)
    held = {
        name: label.name for buffer, label in _labels(holding, reader, {}).items() for name, _ in holding.values(buffer)
    }
    return OwnKernels(replace(made.graph, nodes=nodes), holding.all_computed, held)


def _with_files(node: Node, kernel: Kernel) -> Node:
    code = f"{kernel.own}:1" if kernel.own else node.code
    return replace(node, code=code, attributes={**node.attributes, "wrapper": kernel.code})


def _described(part: Part, holding: BufferMap, reader: Graph, known_as: Mapping[str, str], handle: Any) -> Compiled:
    """The kernels of one part as a graph, in the words of the graph that its reader knows."""
    labels = _labels(holding, reader, known_as)
    targets: dict[str, list[Node]] = {}
    for node in reader.nodes:
        targets.setdefault(node.target or "", []).append(node)
    computed = {
        kernel: _lasting(reader, [node for name in names for node in targets.get(name, ())])
        for kernel, names in holding.all_computed.items()
    }
    return Compiled(
        _graph(part, labels, computed, reader, _taken(part, holding, known_as)),
        handle,
        {kernel: tuple(node.name for node in nodes) for kernel, nodes in computed.items()},
        {label.name: label.value for label in labels.values() if label.value not in (None, label.name)},
        intermediate_graphs=lambda: {
            "AOTAutograd": graph_from_fx(part.lowered.given, reader.name),
            "Inductor": graph_from_fx(part.lowered.graph, reader.name),
        },
    )


def _labels(holding: BufferMap, reader: Graph, known_as: Mapping[str, str]) -> Mapping[str, Label]:
    return holding.labels({**{name: name for name in reader.known}, **known_as}, reader.outputs)


def _lasting(reader: Graph, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Those whose values depend on the inputs; all that compute, where none does."""
    lasting = tuple(node for node in nodes if not reader.constant_values.issuperset(node.outputs))
    return lasting or tuple(node for node in nodes if node.op != "Constant")


def _taken(part: Part, holding: BufferMap, known_as: Mapping[str, str]) -> dict[str, str]:
    """What the reader's graph calls Inductor's inputs."""
    given = [node.name for node in holding.given.find_nodes(op="placeholder")]
    inner = [node.name for node in part.lowered.given.find_nodes(op="placeholder")]
    return {name: known_as.get(other, other) for name, other in zip(inner, given, strict=False)}


def _graph(
    part: Part,
    labels: Mapping[str, Label],
    computed: Mapping[str, Sequence[Node]],
    reader: Graph,
    taken: Mapping[str, str],
) -> Graph:
    names = {**taken, **{buffer: label.name for buffer, label in labels.items()}}
    constants = tuple(name for name in dict.fromkeys(taken.values()) if name in reader.constants)
    everything = (*reader.inputs, *constants, *names.values())
    return Graph(
        name=reader.name,
        inputs=reader.inputs,
        outputs=reader.outputs,
        constants=constants,
        nodes=tuple(_node(kernel, names, computed[kernel.name]) for kernel in part.lowered.kernels),
        values={name: reader.values.get(name, Value(name)) for name in everything},
    )


def _forward(made: CompiledGraph) -> Part:
    if not made.parts:
        raise BackendError("backend 'inductor' found nothing to compile: the program computes nothing")
    return next(part for part in made.parts if not part.lowered.backward)


def _kind(value: Any) -> Any:
    """What decides whether a graph that was compiled for one value can be run with another."""
    return (value.shape, value.dtype, value.stride()) if isinstance(value, torch.Tensor) else value


def _copy(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """A copy with the strides of the original, which generated code insists on: a copy of a slice has others."""
    held = tensor.detach()
    copied = held.to(device, copy=True)
    if held.layout is torch.strided and held.numel() and copied.stride() != held.stride():
        span = 1 + sum((size - 1) * stride for size, stride in zip(held.shape, held.stride(), strict=True))
        copied = held.as_strided((span,), (1,)).to(device, copy=True).as_strided(held.shape, held.stride(), 0)
    return copied.requires_grad_(tensor.requires_grad)


def _node(kernel: Kernel, names: Mapping[str, str], computed: Sequence[Node]) -> Node:
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


def _backward(part: Part, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], BackwardRun]:
    """Run a backward graph on copies, with all shown; what is left to know are the undisturbed outputs."""
    given = part.lowered.given
    graph = graph_from_fx(given)
    holding = BufferMap(given, part.lowered)
    labels = _labels(holding, graph, {})
    values: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}

    def look(_: Kernel, held: Mapping[str, torch.Tensor]) -> None:
        stored = [labels[name].of(tensor) for name, tensor in held.items()]
        values.update({item.name: item.tensor.to("cpu", copy=True) for item in stored})

    def named(results: Sequence[Any]) -> dict[str, torch.Tensor]:
        flat: Any = given.output_node().args[0]
        items = zip(flat, results, strict=True)
        return {
            item.name: result.detach().cpu()
            for item, result in items
            if isinstance(item, fx.Node) and isinstance(result, torch.Tensor)
        }

    held = {name: item.detach().cpu() for name, item in zip(graph.inputs, inputs, strict=True) if _is_tensor(item)}
    again = part.watched([_copy(item, None) if _is_tensor(item) else item for item in inputs], look)
    show_nodes(given, inputs, lambda name, value: expected.update({name: value.detach().cpu()}))
    compiled = _described(part, holding, graph, {}, None)
    found = {**held, **values, **named(again)}
    return lambda outputs: BackwardRun(graph, compiled, found, expected, named(outputs))


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)
