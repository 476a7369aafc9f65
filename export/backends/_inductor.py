"""Inductor, the compiler behind torch.compile, with its kernels observed as they are."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from .._eager import bound, held_names, show_nodes
from .._errors import BackendError
from .._graph import Graph, Node, Value
from .._program import Program
from ._backend import Compiled, Stage, Values
from ._compiled_fx import CompiledGraph, Part
from ._half import halved, in_half, widened
from ._held import Label
from ._inductor_options import InductorOptions
from ._kernels import Kernel


@dataclass(frozen=True)
class InductorBackend:
    """Compiles the torch program behind the ONNX graph, as torch.compile would.

    Attributes:
        options: how.
        device: where it runs; None is the CPU.
    """

    options: InductorOptions = field(default_factory=InductorOptions)
    device: str | None = None
    name: str = "inductor"
    stages: tuple[Stage, ...] = ("compiled",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it always does
        """See `Backend.compile`."""
        if program.exported_program is None:
            raise BackendError(
                "backend 'inductor' needs the exported program: use what export() returned, "
                "or a file saved by Program.save with its .pt2 beside it"
            )
        if program.is_changed():
            raise BackendError(
                "backend 'inductor' compiles the exported program, not its graph, and this graph was changed since"
            )
        handle = _Handle(program.exported_program, program.graph, self.options, torch.device(self.device or "cpu"))
        return handle.compiled_for(handle.examples())

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`; inputs of other shapes are compiled for, as torch.compile does."""
        handle: _Handle = compiled.handle
        return handle.run(inputs, watch)

    def reference(self, compiled: Compiled, inputs: Values) -> Values:
        """See `Refers.reference`."""
        handle: _Handle = compiled.handle
        return handle.reference(inputs)


def inductor(*, device: str | None = None, **options: Any) -> InductorBackend:
    """Inductor with the options of `InductorOptions`.

    Raises:
        BackendError: an option or a device that there is not.
    """
    if device is not None and torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise BackendError(f"backend 'inductor' on {device!r} needs a CUDA device, and torch sees none")
    made = InductorOptions(**options)
    made.settings()
    return InductorBackend(made, device)


class _Handle:
    """A program, compiled once for each set of shapes that it is run with."""

    def __init__(
        self, program: ExportedProgram, exported: Graph, options: InductorOptions, device: torch.device
    ) -> None:
        self._program = program
        self._exported = exported
        self._options = options
        self._device = device
        self._module = in_half(program.graph_module) if options.use_fp16 else program.graph_module
        self._made: dict[tuple[Any, ...], CompiledGraph] = {}
        specs = program.graph_signature.output_specs
        self._outputs = [index for index, spec in enumerate(specs) if spec.kind.name == "USER_OUTPUT"]

    def examples(self) -> list[Any]:
        """Inputs like those that the program was exported with."""
        placeholders = {node.name: node.meta.get("val") for node in self._program.graph.find_nodes(op="placeholder")}
        given = {name: _like(value) for name, value in placeholders.items() if isinstance(value, torch.Tensor)}
        return self._moved(bound(self._program, given))

    def compiled_for(self, arguments: Sequence[Any]) -> Compiled:
        """What Inductor makes of the program for such arguments."""
        part = self._ready(arguments).parts[-1]
        labels = self._labels(part)
        targets: dict[str, list[Node]] = {}
        for node in self._exported.nodes:
            targets.setdefault(node.target or "", []).append(node)
        computed = {
            kernel: self._lasting([node for name in names for node in targets.get(name, ())])
            for kernel, names in part.holding.all_computed.items()
        }
        return Compiled(
            self._graph(part, labels, computed),
            self,
            {kernel: tuple(node.name for node in nodes) for kernel, nodes in computed.items()},
            {label.name: label.value for label in labels.values() if label.value not in (None, label.name)},
        )

    def _lasting(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Those whose values depend on the inputs; all that compute, where none does."""
        fixed = self._exported.fixed
        lasting = tuple(node for node in nodes if not fixed.issuperset(node.outputs))
        return lasting or tuple(node for node in nodes if node.op != "Constant")

    def reference(self, inputs: Values) -> Values:
        """What the stored values should be that no exported value is."""
        arguments = self._moved(bound(self._program, inputs))
        part = self._ready(arguments).parts[-1]
        wanted: dict[str, list[str]] = {}
        for buffer, label in self._labels(part).items():
            operation = part.holding.operation(buffer) if label.value is None else None
            if operation is not None:
                wanted.setdefault(operation, []).append(label.name)
        found: dict[str, torch.Tensor] = {}

        def visit(name: str, value: torch.Tensor) -> None:
            found.update(dict.fromkeys(wanted.get(name, ()), value.detach().cpu()))

        show_nodes(part.lowered.given, arguments, visit)
        return found

    def run(self, inputs: Values, watch: Collection[str]) -> Values:
        """Run it for these inputs, and show what is watched if anything is."""
        arguments = self._moved(bound(self._program, inputs))
        made = self._ready(arguments)
        found: dict[str, torch.Tensor] = {}
        with torch.no_grad(), self._options.reductions():
            try:
                given = made(*arguments) if not watch else self._observed(made, arguments, watch, found)
            except Exception as error:  # the compiled code raises whatever it meets
                raise BackendError(f"backend 'inductor' can't run the program: {error}") from error
        results = [given[index] for index in self._outputs]
        for name, value in zip(self._exported.outputs, self._as_given(results), strict=True):
            if isinstance(value, torch.Tensor):
                found[name] = value.detach().cpu()
        return found

    def _observed(
        self, made: CompiledGraph, arguments: Sequence[Any], watch: Collection[str], found: dict[str, torch.Tensor]
    ) -> Any:
        labels = {id(part): self._labels(part) for part in made.parts}

        def observer(part: Part, inputs: list[Any]) -> Any:
            def look(kernel: Kernel, buffer: str, tensor: torch.Tensor) -> None:  # noqa: ARG001  the buffer tells
                label = labels[id(part)][buffer]
                if label.name in watch:
                    (value,) = self._as_given([label.view(tensor)])
                    found[label.name] = value.detach().to("cpu", copy=True)

            return part.watched(inputs, look)

        with made.observed_by(observer):
            return made(*arguments)

    def _as_given(self, values: Sequence[Any]) -> Sequence[Any]:
        return widened(values) if self._options.use_fp16 else values

    def _ready(self, arguments: Sequence[Any]) -> CompiledGraph:
        key = tuple((item.shape, item.dtype) if isinstance(item, torch.Tensor) else item for item in arguments)
        if key not in self._made:
            with torch.no_grad(), self._options.reductions():
                self._made[key] = CompiledGraph(self._module, arguments, self._options.settings())
        return self._made[key]

    def _labels(self, part: Part) -> Mapping[str, Label]:
        known = {**dict.fromkeys(self._exported.known), **held_names(self._program)}
        return part.holding.labels({name: other or name for name, other in known.items()}, self._exported.outputs)

    def _moved(self, values: Sequence[Any]) -> list[Any]:
        """Copies where the program runs: a kernel may write to what it is given."""
        held = [
            item.detach().to(self._device, copy=True) if isinstance(item, torch.Tensor) else item for item in values
        ]
        return halved(held) if self._options.use_fp16 else held

    def _graph(self, part: Part, labels: Mapping[str, Label], computed: Mapping[str, Sequence[Node]]) -> Graph:
        taken = self._taken(part)
        names = {**taken, **{buffer: label.name for buffer, label in labels.items()}}
        nodes = []
        for kernel in part.lowered.kernels:
            last = next((node for node in reversed(computed[kernel.name]) if node.module is not None), None)
            node = Node(
                kernel.name,
                kernel.op,
                tuple(names[name] for name in kernel.reads if name in names),
                tuple(names[name] for name in kernel.writes),
                {"buffers": list(kernel.writes)},
                module=last.module if last else None,
                source=last.source if last else None,
                code=kernel.code,
            )
            nodes.append(node)
        held = set(held_names(self._program).values())
        constants = tuple(name for name in dict.fromkeys(taken.values()) if name in held)
        known = {name: value for name, value in self._exported.values.items()}
        values = {name: known.get(name, Value(name)) for name in (*self._exported.inputs, *constants, *names.values())}
        return Graph(
            name=self._exported.name,
            inputs=self._exported.inputs,
            outputs=self._exported.outputs,
            constants=constants,
            nodes=tuple(nodes),
            values=values,
        )

    def _taken(self, part: Part) -> dict[str, str]:
        """What Inductor's inputs are called in the exported graph."""
        weights = held_names(self._program)
        given = [node.name for node in self._program.graph.find_nodes(op="placeholder")]
        inner = [node.name for node in part.lowered.given.find_nodes(op="placeholder")]
        return {name: weights.get(other, other) for name, other in zip(inner, given, strict=False)}


def _like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape that a traced one has."""
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
    return torch.zeros(shape, dtype=value.dtype)
