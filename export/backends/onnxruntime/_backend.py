"""ONNX Runtime: runs its optimized graph and returns the values in it.

Marking values as outputs changes what is fused. So the unchanged program is optimized first and the optimized graph
saved. Then the values of that graph are made outputs, and it runs with optimizations disabled: segment by segment, so
that the values need not all be in memory at once.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx_ir.passes.common import ShapeInferencePass

from filch.steal._tf32 import Product, has_tf32

from ..._errors import BackendError
from ...common._memory import release_memory
from ...common._quiet import quiet
from ...common._weights import weight_bytes
from ...graph._cutting import AGAIN
from ...graph._fingerprint import fingerprint
from ...graph._from_onnx import graph_from_onnx
from ...graph._graph import Graph
from ...graph._sizes import value_sizes
from ...program._program import Program
from .._backend import Compiled, CompiledVariant, NotCompiledError, ReferenceLookup, Script, Stage, Switch, Values
from .._files import DATA, first_line, in_folder, write_model, write_without_weights
from .._forms import Form, FormFinder, TensorSpec, spec_of
from .._nchwc import DOMAIN
from ._log import record_transformers
from ._options import CPU, TENSORRT, OrtOptions
from ._probe import block_size
from ._run import OrtValues, feeds_of, node_seconds, run
from ._segments import Segment, cut, order_like, segments, type_proto
from ._switches import switches_of, without
from ._values import DTYPES, array_to_ort, is_plain, size_of, to_comparable, to_ort, to_torch
from ._versions import run_in

_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_PROGRAM = "program.onnx"
_WEIGHTS = "optimized.data"
_COPIED = 2**26  # bytes of weights that ONNX Runtime may copy: it does so where it is given weights to optimize


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """ONNX Runtime with one execution provider, and others for the operators that it lacks.

    Attributes:
        name: `onnxruntime-cpu`, `onnxruntime-cuda` or `onnxruntime-tensorrt`.
        provider: ONNX Runtime's name of the execution provider.
        options: further options.
        fallbacks: execution providers for operators that `provider` lacks.
        stages: it runs the program both as it stands and optimized.
    """

    name: str
    provider: str
    options: OrtOptions = field(default_factory=OrtOptions)
    fallbacks: tuple[str, ...] = (CPU,)
    stages: tuple[Stage, ...] = ("exported", "compiled")

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """See `Backend.compile`."""
        return in_folder(partial(self._compile, program, optimize=optimize))

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """See `Switches.compile_without`: optimizers by the names in `disabled_optimizers`, and settings."""
        backend, changed = replace(self, options=without(self.options, off)), dict[str, None]()
        try:
            compiled = in_folder(partial(backend._compile, program, optimize=True, changed=changed))  # noqa: SLF001  its own
        except BackendError as error:
            raise NotCompiledError(str(error), switches_of(changed, backend.options, self.provider)) from error
        switches = switches_of(changed, backend.options, self.provider)
        model = compiled.graph.onnx
        return CompiledVariant(compiled, switches, "" if model is None else fingerprint(model))

    def run_in(self, interpreter: str, program: Program, inputs: Sequence[Values]) -> tuple[str, list[Values]]:
        """See `RunsOtherVersions.run_in`."""
        return run_in(interpreter, program, inputs, self.script(optimize=True))

    @property
    def _device(self) -> str | None:
        """The device of the values; None is the CPU."""
        return None if self.provider == CPU else "cuda"

    @property
    def _tf32(self) -> frozenset[Product]:
        """See `Compiled.tf32`: the CUDA and TensorRT providers use TF32 unless `use_tf32` is 0."""
        use_tf32 = self.options.provider_settings(replay=False).get("use_tf32")
        return frozenset(Product) if self.provider != CPU and use_tf32 != "0" and has_tf32() else frozenset()

    def _compile(
        self, program: Program, folder: Path, *, optimize: bool, changed: dict[str, None] | None = None
    ) -> Compiled:
        """See `Backend.compile`; adds the names of the optimizers that changed the graph to `changed`, if given."""
        source, exported = folder / _PROGRAM, program.graph
        given = self._write_source(program.model, source, optimize=optimize)
        if not optimize:
            start = partial(self._session, source, _OFF, weights=given)
            order = [*range(len(exported.nodes))]
            handle = _CompiledFile(exported, start, source, order, given=given, running=self._kept(start(), source))
            return Compiled(exported, handle, tf32=self._tf32)
        optimized = folder / "optimized.onnx"
        start = partial(self._session, source, self.options.graph_level, weights=given, replay=True)
        running = self._kept(start(save_to=optimized, changed=changed), source)
        model = ir.load(optimized)
        graph = graph_from_onnx(model)
        block = block_size() if any(node.op.startswith(DOMAIN) for node in graph.nodes) else 0
        source_graph = _with_shapes(program) if block else exported
        forms = FormFinder(source_graph, graph, partial(_constant, model), block).forms
        order = order_like(graph, list(exported.producer))
        handle = _CompiledFile(graph, start, optimized, order, forms, running=running)
        value_aliases = {name: form.value for name, form in forms.items()}
        return Compiled(graph, handle, value_aliases=value_aliases, tf32=self._tf32)

    def _write_source(self, model: ir.Model, path: Path, *, optimize: bool) -> dict[str, ort.OrtValue]:
        """Write a model; return the weights that its sessions are to be given.

        Devices other than the CPU read the weights from the file. So do sessions that optimize a large program: they
        map the file, while they have a copy of given weights until they are created.
        """
        if self._providers(replay=False) != [CPU] or (optimize and weight_bytes(model) > _COPIED):
            write_model(model, path)
            return {}
        given = write_without_weights(model, path, DTYPES)
        return {name: array_to_ort(tensor.numpy()) for name, tensor in given.items()}

    def _is_frugal(self, path: Path) -> bool:
        """Return whether sessions of a program have to save memory: it is large, and runs on the CPU.

        Only a program with large weights has the file `DATA`.
        """
        return self.provider == CPU and path.with_name(DATA).exists()

    def _kept(self, session: ort.InferenceSession, path: Path) -> ort.InferenceSession | None:
        """Return a session that was created to see that it can be; None where it would be in memory with others.

        One that has optimized a large program has the weights twice, and can't free them: it is created again when it
        is needed.

        Args:
            session: the session.
            path: the file of the program.
        """
        return None if self._is_frugal(path) else session

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        computed = compiled.graph.producer
        if watch:
            wanted = {*watch, *compiled.graph.outputs}
            # Nodes do not compute outputs that are inputs or weights: a run without watched values returns these.
            outputs = {} if computed.keys() >= {*compiled.graph.outputs} else self.run(compiled, inputs)
            observed = self.observe(compiled, inputs, buffer=sys.maxsize)
            return {**outputs, **{name: value for name, value in observed if name in wanted}}
        session = compiled.handle.session
        replay = bool(self.options.use_cuda_graph) and compiled.handle.path.name != _PROGRAM  # if it is optimized
        feeds = feeds_of(compiled.graph.inputs, inputs)
        results = run(session, feeds, self._device, replay=replay)
        converted = {name: to_comparable(value) for name, value in results.items()}
        tensors = {name: tensor.cpu() for name, tensor in converted.items() if tensor is not None}
        # An output that is an input or a weight shares the memory of `feeds` or of the session, which is freed.
        return {name: tensor if name in computed else tensor.clone() for name, tensor in tensors.items()}

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Observes.observe`: the saved graph runs segment by segment, with optimizations disabled."""
        return self._run_segments(compiled, inputs, buffer)

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,
        buffer: int,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: like `observe`, but nodes read the references."""
        return self._run_segments(compiled, inputs, buffer, references, nodes)

    def _run_segments(
        self,
        compiled: Compiled,
        inputs: Values,
        buffer: int,
        references: ReferenceLookup | None = None,
        selected: Collection[str] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run the graph, or the selected nodes, and yield each value; nodes read references if given."""
        handle: _CompiledFile = compiled.handle
        handle.release_session(buffer)
        graph, specs = handle.graph, handle.specs_of(inputs)
        size = buffer if references is None else buffer // 2  # the other half is for the references
        order = [index for index in handle.order if selected is None or graph.nodes[index].name in selected]
        parts = segments(graph, order, value_sizes(graph, inputs), size)
        last_reader = {name: number for number, segment in enumerate(parts) for name in segment.reads}
        available = feeds_of([name for name in graph.inputs if name in last_reader], inputs)  # until the last reader
        for number, segment in enumerate(parts):
            replacements = {} if references is None else handle.references_of(segment, references)
            if references is not None and selected is not None:  # the nodes of some values that are read do not run
                not_computed = segment.reads - {*segment.computed} - available.keys()
                available |= handle.given_values(not_computed, references, specs)
            feeds = {name: available[name] for name in segment.reads & available.keys()}
            keep = handle.weights <= buffer  # each session that is kept may have its own copy of the weights
            values, replaced = self._run_segment(handle, segment, feeds, replacements, specs, keep=keep)
            for name in list(values):
                value = values.pop(name)
                if last_reader.get(name, -1) > number:
                    available[name] = replaced.get(name, value)
                if is_plain(value):  # other values are yielded only if they are outputs
                    tensor = to_torch(value)
                    specs.setdefault(name, spec_of(tensor))
                    yield name, handle.form(name).to_exported(tensor.cpu())
                elif name in handle.rare_outputs and (comparable := to_comparable(value)) is not None:
                    yield name, comparable
            for name in segment.reads:
                if last_reader[name] == number:
                    available.pop(name, None)

    def _run_segment(
        self,
        handle: "_CompiledFile",
        segment: Segment,
        inputs: OrtValues,
        references: Values,
        specs: dict[str, TensorSpec],
        *,
        keep: bool,
    ) -> tuple[dict[str, ort.OrtValue], OrtValues]:
        """Return the values that the nodes of a segment compute, and the references that replace some of them.

        The dtype and shape of a value are known only after it was computed, and may change when its node reads
        references. So the segment runs again until they no longer change; each run settles at least one more value.

        Args:
            handle: the compiled program.
            segment: the nodes.
            inputs: the values of other nodes that they read, by name.
            references: the references of values that they compute, by name.
            specs: see `_CompiledFile.specs_of`.
            keep: whether to keep the session for the next run.
        """
        replaced, values = handle.to_ort_values(references, specs), {}
        for _ in (*segment.nodes, None):
            specs_before = {name: specs[name] for name in replaced if name in segment.reads}
            feeds = {**inputs, **replaced}
            session = self._segment_session(handle, segment, feeds, specs_before, keep=keep)
            results = run(session, {entry.name: feeds[entry.name] for entry in session.get_inputs()}, self._device)
            values = {name.removesuffix(AGAIN): value for name, value in results.items()}
            if not references:
                break
            specs |= {name: spec_of(to_torch(value)) for name, value in values.items() if is_plain(value)}
            replaced = handle.to_ort_values(references, specs)
            if specs_before == {name: specs[name] for name in replaced if name in segment.reads}:
                break
        return values, replaced

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """See `Profiles.profile`: the graph runs once more, without watched values.

        On a GPU, it is the time to launch the kernels of a node.
        """
        handle: _CompiledFile = compiled.handle
        session = self._session(handle.path, _OFF, weights=handle.given, profile=True)
        try:
            seconds = node_seconds(session, feeds_of(handle.graph.inputs, inputs))
        except Exception as error:
            raise BackendError(f"ONNX Runtime can't run the program: {first_line(error)}") from error
        return {node.name: seconds[node.name] for node in compiled.graph.nodes if node.name in seconds}

    def script(self, *, optimize: bool) -> Script:
        """See `ProvidesScript.script`."""
        level = self.options.graph_level if optimize else _OFF
        code = self.options.code(level.name, self._providers(replay=False))
        imports = ("import onnxruntime as ort", "import ctypes", "import numpy as np")
        return Script(takes="onnx", imports=imports, code=code, module="onnxruntime")

    def _providers(self, *, replay: bool) -> list[str | tuple[str, dict[str, str]]]:
        """Return the execution providers in order of preference, the first one with its options."""
        first, *others = self.options.providers or (self.provider,)
        fallbacks = [name for name in self.fallbacks if name not in (first, *others)]
        settings = self.options.provider_settings(replay=replay)
        return [(first, settings) if settings else first, *others, *fallbacks]

    def _segment_session(
        self, handle: "_CompiledFile", segment: Segment, feeds: OrtValues, replaced: Collection[str], *, keep: bool
    ) -> ort.InferenceSession:
        """Return the session of a segment, in which references replace some values; it may be kept from an earlier run.

        Args:
            handle: the compiled program.
            segment: the nodes.
            feeds: the inputs, which have the types of those of the session.
            replaced: the names of the values that are replaced.
            keep: whether to keep the session for the next run.
        """
        key = segment.indices, frozenset(replaced)
        if key in handle.sessions:
            return handle.sessions[key]
        types = {name: type_proto(value.data_type()) for name, value in feeds.items()}
        model = cut(handle.model, segment, handle.initializers, types, replaced=replaced)
        path = handle.path.with_name(f"part-{handle.path.name}")
        onnx.save(model, path)
        given = handle.given and {
            item.name: handle.given[item.name] for item in model.graph.initializer if item.name in handle.given
        }
        session = self._session(path, _OFF, weights=given)
        if keep:
            handle.sessions[key] = session
        return session

    def _save_optimized(self, options: ort.SessionOptions, path: Path, save_to: Path) -> None:
        """Let a session of the program in the file `path` save its optimized graph to `save_to`."""
        if self.provider == TENSORRT:
            # ONNX Runtime can't save a graph with compiled nodes like others; this saves it with the compiled engines.
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(save_to))
            return
        options.optimized_model_filepath = str(save_to)
        if path.with_name(DATA).exists():
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        if self._is_frugal(path):
            options.add_session_config_entry("session.disable_prepacking", "1")

    def _session_options(self, path: Path, level: ort.GraphOptimizationLevel, *, profile: bool) -> ort.SessionOptions:
        """Return the options of a session of the program in the file `path`; with `profile`, it measures its nodes."""
        options = self.options.session(level)
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(path.with_name("profile"))
        elif level == _OFF or self._is_frugal(path):
            options.enable_cpu_mem_arena = False  # each session has its own arena, which the next one can't reuse
        return options

    def _session(
        self,
        path: Path,
        level: ort.GraphOptimizationLevel,
        *,
        weights: OrtValues = MappingProxyType({}),
        save_to: Path | None = None,
        replay: bool = False,
        profile: bool = False,
        changed: dict[str, None] | None = None,
    ) -> ort.InferenceSession:
        """Return a session of the program in the file `path`, with these weights in place of those in the file.

        The optimized graph is saved to `save_to`, and the names of the optimizers that change it are added to
        `changed`, if given. See `OrtOptions.provider_settings` for `replay`.
        """
        options = self._session_options(path, level, profile=profile)
        _add_weights(options, weights, are_constants=level != _OFF)
        if save_to is not None:
            self._save_optimized(options, path, save_to)
        recording: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if changed is not None:
            options.log_severity_level = 1
            recording = record_transformers(changed)
        off = {"disabled_optimizers": self.options.disabled_optimizers} if self.options.disabled_optimizers else {}
        if level != _OFF and self._is_frugal(path):
            release_memory()  # what was freed by now, before the weights take as much memory again
        try:
            with recording:
                session = ort.InferenceSession(
                    path,
                    options,
                    providers=self._providers(replay=replay),
                    enable_fallback=0,  # otherwise it falls back to other providers, and prints so, even during a run
                    **off,  # pyright: ignore[reportArgumentType]
                )
        except Exception as error:
            text = first_line(error) + _dtypes_read(path, str(error))
            raise BackendError(f"ONNX Runtime refuses the program: {text}") from error
        wanted = self.options.providers or (self.provider,)
        if missing := [name for name in wanted if name not in session.get_providers()]:
            raise BackendError(f"ONNX Runtime can't start {missing[0]} for this program")
        return session


def _dtypes_read(path: Path, message: str) -> str:
    """Return the dtypes that the node in an error message reads, as text: it may have no kernel for these.

    `""` if the message names no node, or their dtypes are not known.
    """
    found = re.search(r"node with name '([^']+)'", message)
    dtypes: list[str] = []
    with contextlib.suppress(Exception):  # the file may be damaged
        nodes = () if found is None else (node for node in ir.load(path).graph if node.name == found[1])
        dtypes = [value.dtype.name.lower() for node in nodes for value in node.inputs if value and value.dtype]
    return f", which reads {', '.join(dtypes)}" if dtypes else ""


@dataclass
class _CompiledFile:
    """A compiled program.

    Attributes:
        graph: the graph that runs.
        start: creates the session that runs the graph without watched values.
        path: the file of the graph.
        order: the indices of its nodes in the order in which they are observed.
        forms: the forms of the values that the exported graph has in another form, by name.
        sessions: sessions of segments, by the indices of their nodes and the names of the values that are replaced.
        running: the session that runs the graph without watched values, if there is one at the moment.
        specs: dtype and shape of each value when it was first computed, or last computed from references, by name; for
            each of the shapes that the inputs have had.
        given: the weights that sessions of the graph or of a segment are given, by name; the file has the others.
    """

    graph: Graph
    start: Callable[[], ort.InferenceSession]
    path: Path
    order: Sequence[int]
    forms: Mapping[str, Form] = field(default_factory=dict)
    sessions: dict[tuple[tuple[int, ...], frozenset[str]], ort.InferenceSession] = field(default_factory=dict)
    running: ort.InferenceSession | None = None
    specs: dict[tuple[torch.Size, ...], dict[str, TensorSpec]] = field(default_factory=dict)
    given: OrtValues = field(default_factory=dict)

    @property
    def session(self) -> ort.InferenceSession:
        """The session that runs the graph without watched values; created again if it was released."""
        if self.running is None:
            self.running = self.start()
        return self.running

    @cached_property
    def weights(self) -> int:
        """The size of the weights in bytes."""
        if self.given:
            return sum(map(size_of, self.given.values()))
        files = (self.path, self.path.with_name(DATA if self.path.name == _PROGRAM else _WEIGHTS))
        return sum(file.stat().st_size for file in files if file.exists())

    def release_session(self, buffer: int) -> None:
        """Release the session if its weights exceed `buffer`: the sessions of the segments load them, too."""
        if self.weights > buffer:
            self.running = None
            release_memory()

    def form(self, name: str) -> Form:
        """Return how a value of the graph is converted to the exported one."""
        return self.forms.get(name, Form(name))

    def specs_of(self, inputs: Values) -> dict[str, TensorSpec]:
        """Return dtype and shape of each value for inputs of these shapes, as far as they are known, to be added to."""
        return self.specs.setdefault(tuple(inputs[name].shape for name in self.graph.inputs if name in inputs), {})

    def to_ort_values(self, values: Values, specs: Mapping[str, TensorSpec]) -> dict[str, ort.OrtValue]:
        """Convert exported values to the form that they have in the graph; those that can't be are left out."""
        known = {name: tensor for name, tensor in values.items() if name in specs}
        tensors = {name: self.form(name).to_compiled(tensor, specs[name]) for name, tensor in known.items()}
        return {name: to_ort(tensor) for name, tensor in tensors.items() if tensor is not None}

    def given_values(
        self, names: Collection[str], references: ReferenceLookup, specs: dict[str, TensorSpec]
    ) -> dict[str, ort.OrtValue]:
        """Return the references of values that are not computed, in the form that they have in the graph."""
        tensors = self._references(names, references)
        for name in tensors.keys() - self.forms.keys():  # they have the form of the exported value, so its spec, too
            specs.setdefault(name, spec_of(tensors[name]))
        return self.to_ort_values(tensors, specs)

    def references_of(self, segment: Segment, references: ReferenceLookup) -> dict[str, torch.Tensor]:
        """Return the references of the values that a segment computes and any node reads, constants excepted."""
        computed = (name for node in segment.nodes if node.op != "Constant" for name in node.outputs)
        return self._references([name for name in computed if name in self.graph.consumers], references)

    def _references(self, names: Iterable[str], references: ReferenceLookup) -> dict[str, torch.Tensor]:
        """Return the references of values that have one and are tensors of numbers."""
        found = {name: references(name) for name in names if name not in self.rare_outputs}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model in the file, without its external weights."""
        return onnx.load(self.path, load_external_data=False)

    @cached_property
    def rare_outputs(self) -> frozenset[str]:
        """The outputs that are no tensors of numbers: strings, sequences and optionals."""
        without_numbers = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
        outputs = self.model.graph.output
        return frozenset(value.name for value in outputs if value.type.tensor_type.elem_type in without_numbers)

    @cached_property
    def initializers(self) -> Mapping[str, onnx.TensorProto]:
        """The weights in the file, by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}


def _add_weights(options: ort.SessionOptions, weights: OrtValues, *, are_constants: bool) -> None:
    """Give weights to a session; `are_constants` lets it optimize them and convert them to other layouts."""
    if are_constants and weights:
        options.add_external_initializers([*weights], [*weights.values()])
        return
    for name, value in weights.items():
        options.add_initializer(name, value)


def _with_shapes(program: Program) -> Graph:
    """Return the graph with inferred shapes: the number of channels can't be read from a blocked tensor."""
    with quiet():  # on contradictory shapes, the pass logs a traceback and leaves the model unchanged
        return graph_from_onnx(ShapeInferencePass()(program.model.clone()).model)


def _constant(model: ir.Model, name: str) -> list[int] | None:
    """Return the numbers of a constant, such as the shape of a Reshape; None if there is no such constant."""
    value = model.graph.initializers.get(name)
    return None if value is None or value.const_value is None else value.const_value.numpy().tolist()
