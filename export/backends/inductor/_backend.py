"""The Inductor backend: compiles the exported program and returns what its kernels store."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec

from filch.steal._tf32 import tf32_products
from filch.steal.private import _torch
from filch.steal.text._python import python_literal

from ..._errors import BackendError
from ...evaluation._devices import changed_copy, module_on
from ...evaluation._eager import placeholder_values, weight_names
from ...evaluation._unpredictable import random_nodes
from ...graph._from_fx import graph_from_fx
from ...program._program import Program
from .._backend import Compiled, CompiledVariant, ReferenceLookup, Script, Stage, Switch, Values
from .._eager import checked_device, unchanged_export
from ._buffer_map import size_hint, views_of
from ._kernel_graph import CompileTask, KernelGraphs
from ._options import InductorOptions
from ._switches import fingerprint_of, switches_of, without


@dataclass(frozen=True)
class InductorBackend:
    """Compiles the torch program behind the ONNX graph, as torch.compile would.

    Attributes:
        options: the options of the compilation.
        device: the device to run on; None is the CPU.
    """

    options: InductorOptions = field(default_factory=InductorOptions)
    device: str | None = None
    name: str = "inductor"
    stages: tuple[Stage, ...] = ("compiled",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it always does
        """See `Backend.compile`."""
        return self._with_known_steps(self._compile(program))

    def _compile(self, program: Program) -> Compiled:
        """See `Backend.compile`; a step to leave out need not be one that Inductor takes."""
        exported = unchanged_export(program, self.name)
        task = self._task(program, exported)
        options = _with_eager_random(self.options, task.module)
        # Compile it for the shapes that it was exported with; `run` compiles again for others.
        compiled = KernelGraphs(task, options).compiled_for(placeholder_values(exported, _traced_zeros(exported)))
        return _with_note(replace(compiled, tf32=tf32_products(task.device)), options, self.options)

    def _task(self, program: Program, exported: ExportedProgram) -> CompileTask:
        """Return what to compile: the graph of an exported program on the backend's device."""
        inputs, outputs = exported.graph_signature.input_specs, exported.graph_signature.output_specs
        device = None if self.device is None else torch.device(self.device)
        module = exported.graph_module if device is None else _with_reshapes(module_on(exported.graph_module, device))
        return CompileTask(
            _without_prims(module),
            program.graph,
            partial(placeholder_values, exported),
            value_names=weight_names(exported),
            outputs=tuple(index for index, spec in enumerate(outputs) if _is_graph_output(spec)),
            read_only=frozenset(index for index, spec in enumerate(inputs) if spec.kind == InputKind.PARAMETER),
            device=device or torch.device("cpu"),
        )

    def compile_graph(self, module: fx.GraphModule, inputs: Sequence[Any], *, own_random: bool = False) -> Compiled:
        """See `CompilesTorch.compile_graph`."""
        return self._with_known_steps(self._compile_graph(module, inputs, own_random=own_random))

    def _with_known_steps(self, compiled: Compiled) -> Compiled:
        """Return a compiled program; raise an error if Inductor takes none of the steps to leave out for it."""
        graphs: KernelGraphs = compiled.handle
        if self.options.without and not graphs.left_out():
            raise BackendError(f"Inductor has no step {' or '.join(self.options.without)} for this program")
        return compiled

    def _compile_graph(self, module: fx.GraphModule, inputs: Sequence[Any], *, own_random: bool = False) -> Compiled:
        """See `CompilesTorch.compile_graph` and `_compile`."""
        graph = graph_from_fx(module.graph)
        returned: Any = module.graph.output_node().args[0]  # Dynamo's are flat
        task = CompileTask(
            module,
            graph,
            lambda values: [values[name] for name in graph.inputs],
            outputs=tuple(index for index, item in enumerate(returned) if isinstance(item, fx.Node)),
            guarded=True,
            gradients=torch.is_grad_enabled() and any(getattr(item, "requires_grad", False) for item in inputs),
        )
        options = self.options if own_random else _with_eager_random(self.options, module)
        return _with_note(KernelGraphs(task, options).compiled_for(inputs), options, self.options)

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """Compile with some optimizations off, and return which others may still be on; see `Switches.compile_without`.

        An optimization is a setting of Inductor, or an option of the user. Two variants with the same fingerprint, that
        of the code that Inductor wrote, compute the same.
        """
        variant = replace(self, options=without(self.options, off))
        return self._as_variant(variant._compile(program), off)  # noqa: SLF001  of this class

    def compile_graph_without(
        self, module: fx.GraphModule, inputs: Sequence[Any], off: Collection[Switch]
    ) -> CompiledVariant:
        """See `SwitchesTorch.compile_graph_without`."""
        variant = replace(self, options=without(self.options, off))
        return self._as_variant(variant._compile_graph(module, inputs), off)  # noqa: SLF001  as above

    def _as_variant(self, compiled: Compiled, off: Collection[Switch]) -> CompiledVariant:
        """Return a program that was compiled with some steps turned off, with what may still be turned off."""
        graphs: KernelGraphs = compiled.handle
        known = switches_of(self.options, self.options.settings(), _torch.get_config_copy(), graphs.steps())
        switches = tuple(switch for switch in known if switch not in off)
        return CompiledVariant(compiled, switches, fingerprint_of(graphs.source_codes()))

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`; for inputs of new shapes it compiles again, as torch.compile does."""
        graphs: KernelGraphs = compiled.handle
        return graphs.run(inputs, watch, compiled.graph.outputs)

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,  # noqa: ARG002  it runs all
        buffer: int,  # noqa: ARG002  all kernels run before the values are returned
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: the buffers are overwritten with the references after each kernel."""
        graphs: KernelGraphs = compiled.handle
        return iter(graphs.isolate(inputs, references).items())

    def reference(self, compiled: Compiled, inputs: Values) -> Values:
        """See `ProvidesReferences.reference`."""
        graphs: KernelGraphs = compiled.handle
        return graphs.reference(inputs)

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it always does
        """See `ProvidesScript.script`."""
        if self.options.use_fp16 or self.device is not None:
            raise BackendError("use_fp16 and device are implemented by Filch: a script can't contain them")
        settings = self.options.settings()
        try:
            argument = f", options={python_literal(settings)}" if settings else ""
        except TypeError as error:
            raise BackendError(f"these options can't be written as code: {error}") from error
        code = f"def run(function, inputs):\n    return torch.compile(function, dynamic=False{argument})(**inputs)"
        return Script("torch", ("import torch",), code, "torch")


def inductor(*, device: str | None = None, **options: Any) -> InductorBackend:
    """Return a backend of Inductor with the options of `InductorOptions`.

    Raises:
        BackendError: the option, its value or the device does not exist.
    """
    checked_device(device, "inductor")
    inductor_options = InductorOptions(**options)
    inductor_options.settings()  # raises an error for an unknown mode or setting
    return InductorBackend(inductor_options, device)


def _with_eager_random(options: InductorOptions, module: fx.GraphModule) -> InductorOptions:
    """Return the options, with `fallback_random` set if the graph draws random numbers.

    Otherwise Inductor draws them inside of its kernels, where they can't be replaced.
    """
    if "fallback_random" in options.settings() or not random_nodes(module.graph):  # set by the user
        return options
    return replace(options, config={**options.config, "fallback_random": True})


def _with_note(compiled: Compiled, options: InductorOptions, original: InductorOptions) -> Compiled:
    """Add a note to the compiled program if `_with_eager_random` has changed the options."""
    note = "fallback_random was set: PyTorch draws the random numbers instead of Inductor's kernels"
    return compiled if options is original else replace(compiled, notes=(*compiled.notes, note))


def _is_graph_output(spec: OutputSpec) -> bool:
    """Return whether the ONNX graph has this output: it has none where the model returns None or a number."""
    return spec.kind == OutputKind.USER_OUTPUT and not isinstance(spec.arg, ConstantArgument)


def _without_prims(module: fx.GraphModule) -> fx.GraphModule:
    """Return the module without the `prims` that torch.compile never meets and torch 2.13 can't compile.

    These are views, which can't be functionalized, and `prims.var`, which has no lowering. The exporter's
    decompositions make them; the functions that implement them are of ATen operations.
    """

    def change(node: fx.Node) -> None:
        target: Any = node.target
        if target is torch.ops.prims.var.default:
            values, dims, *correction = node.args
            node.target = torch.ops.aten.var.correction
            node.args, node.kwargs = (values, dims), {"correction": correction[0] if correction else 1}
        elif getattr(target, "namespace", "") == "prims" and views_of(node) is not None:
            node.target = target.prim_impl

    return changed_copy(module, change)


def _with_reshapes(module: fx.GraphModule) -> fx.GraphModule:
    """Replace `view` by `reshape` in a module that was exported on another device, and return it.

    Attention, for example, returns other strides on CUDA than on the CPU.
    """
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    module.recompile()
    return module


def _traced_zeros(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return zeros of the shapes and dtypes with which the inputs of a program were traced, by name."""
    pairs = zip(exported.graph.find_nodes(op="placeholder"), exported.graph_signature.input_specs, strict=True)
    traced = {node.name: node.meta.get("val") for node, spec in pairs if spec.kind == InputKind.USER_INPUT}
    return {
        name: torch.zeros([size_hint(size) for size in value.shape], dtype=value.dtype)
        for name, value in traced.items()
        if isinstance(value, torch.Tensor)
    }
