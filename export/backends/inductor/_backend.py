"""Inductor, the compiler behind torch.compile, with its kernels observed as they are."""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, OutputKind, OutputSpec

from filch.steal.text import python_literal

from ..._errors import BackendError
from ...evaluation._eager import placeholder_values, weight_names
from ...evaluation._unpredictable import random_nodes
from ...graph._from_fx import graph_from_fx
from ...program._program import Program
from .._backend import Compiled, CompiledVariant, ReferenceLookup, Script, Stage, Switch, Values
from .._tf32 import torch_matmul_input_eps
from ._kernel_graph import Given, KernelGraphs
from ._options import InductorOptions
from ._switches import fingerprint_of, switches_of, without


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
        exported = program.exported_program
        if exported is None:
            raise BackendError(
                "backend 'inductor' needs the exported program: use what export() returned, "
                "or a file saved by Program.save with its .pt2 beside it"
            )
        if program.is_changed():
            raise BackendError(
                "backend 'inductor' compiles the exported program, not its graph, and this graph was changed since"
            )
        specs = exported.graph_signature.output_specs
        given = Given(
            _lowerable(exported.graph_module),
            program.graph,
            partial(placeholder_values, exported),
            known_as=weight_names(exported),
            outputs=tuple(index for index, spec in enumerate(specs) if _is_given(spec)),
            device=torch.device(self.device or "cpu"),
        )
        options = _drawing_as_eager(self.options, given.module)
        graphs = KernelGraphs(given, options)
        placeholders = {node.name: node.meta.get("val") for node in exported.graph.find_nodes(op="placeholder")}
        like = {name: _like(value) for name, value in placeholders.items() if isinstance(value, torch.Tensor)}
        made = graphs.compiled_for(placeholder_values(exported, like))
        return _noted(replace(made, matmul_input_eps=torch_matmul_input_eps(given.device)), options, self.options)

    def compile_graph(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        """See `CompilesTorch.compile_graph`."""
        graph = graph_from_fx(module.graph)
        returned: Any = module.graph.output_node().args[0]  # Dynamo's are flat
        given = Given(
            module,
            graph,
            lambda values: [values[name] for name in graph.inputs],
            outputs=tuple(index for index, item in enumerate(returned) if isinstance(item, fx.Node)),
            guarded=True,
            gradients=_needed(inputs),
        )
        options = _drawing_as_eager(self.options, module)
        return _noted(KernelGraphs(given, options).compiled_for(inputs), options, self.options)

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """See `Switches.compile_without`: Inductor's settings by their names, and the user's own."""
        options = without(self.options, off)
        compiled = replace(self, options=options).compile(program, optimize=True)
        graphs: KernelGraphs = compiled.handle
        known = torch._inductor.config.get_config_copy()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  as list_options, which torch documents
        return CompiledVariant(
            compiled, switches_of(options, options.settings(), known), fingerprint_of(graphs.codes())
        )

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`; for inputs of other shapes it compiles again, as torch.compile does."""
        graphs: KernelGraphs = compiled.handle
        return graphs.run(inputs, watch)

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        given: ReferenceLookup,
        *,
        buffer: int,  # noqa: ARG002  what kernels store is shown while they run, not one by one
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: what a kernel stored is overwritten in its buffer, once it was seen."""
        graphs: KernelGraphs = compiled.handle
        return iter(graphs.isolate(inputs, given).items())

    def reference(self, compiled: Compiled, inputs: Values) -> Values:
        """See `ProvidesReferences.reference`."""
        graphs: KernelGraphs = compiled.handle
        return graphs.reference(inputs)

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it always does
        """See `ProvidesScript.script`."""
        if self.options.use_fp16 or self.device is not None:
            raise BackendError("what use_fp16 and device do is Filch's own: no script without it shows that")
        settings = self.options.settings()
        try:
            told = f", options={python_literal(settings)}" if settings else ""
        except TypeError as error:
            raise BackendError(f"no script shows what these options do: {error}") from error
        code = f"def run(function, inputs):\n    return torch.compile(function, dynamic=False{told})(**inputs)"
        return Script("torch", ("import torch",), code, "torch")


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


def _drawing_as_eager(options: InductorOptions, module: fx.GraphModule) -> InductorOptions:
    """The options, with random numbers drawn by PyTorch's generator where the graph draws some.

    Inductor draws its own inside of its kernels, where nothing can be put in their place.
    """
    if "fallback_random" in options.settings() or not random_nodes(module.graph):
        return options
    return replace(options, config={**options.config, "fallback_random": True})


def _noted(made: Compiled, options: InductorOptions, asked: InductorOptions) -> Compiled:
    return made if options is asked else replace(made, notes=(*made.notes, _DRAWN))


_DRAWN = "fallback_random was set: PyTorch draws the random numbers, which Inductor would draw inside of its kernels"


def _is_given(spec: OutputSpec) -> bool:
    """Whether it is an output of the ONNX graph, which has none for what the model returns as None."""
    is_none = isinstance(spec.arg, ConstantArgument) and spec.arg.value is None
    return spec.kind == OutputKind.USER_OUTPUT and not is_none


def _lowerable(module: fx.GraphModule) -> fx.GraphModule:
    """The module, or a copy whose variances are those of ATen: Inductor 2.13 can't lower a call of `prims.var`."""
    variance = torch.ops.prims.var.default
    if not module.graph.find_nodes(op="call_function", target=variance):
        return module
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in made.graph.find_nodes(op="call_function", target=variance):
        values, dims, *correction = node.args
        node.target = torch.ops.aten.var.correction
        node.args, node.kwargs = (values, dims), {"correction": correction[0] if correction else 1}
    made.recompile()
    return made


def _like(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape that a traced one has."""
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
    return torch.zeros(shape, dtype=value.dtype)


def _needed(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(item, torch.Tensor) and item.requires_grad for item in inputs)
