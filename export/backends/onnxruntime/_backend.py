"""ONNX Runtime, with its optimised graph observed as it is.

Marking values as outputs changes what gets fused. So the untouched program is optimised first and the result saved;
then that graph's values are made outputs, and it runs with optimisations off: part by part, so that its values never
exist all at once.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx_ir.passes.common import ShapeInferencePass

from ..._errors import BackendError
from ...common._quiet import quiet
from ...graph._cutting import AGAIN
from ...graph._fingerprint import fingerprint
from ...graph._from_onnx import graph_from_onnx
from ...graph._graph import Graph
from ...graph._sizes import value_sizes
from ...program._program import Program
from .._backend import Compiled, CompiledVariant, ReferenceLookup, Script, Stage, Switch, Values
from .._files import DATA, first_line, in_folder, write_model
from .._forms import Form, TensorSpec, find_forms, spec_of
from .._nchwc import DOMAIN
from .._tf32 import tf32_input_eps
from ._log import changes_heard
from ._options import CPU, TENSORRT, OrtOptions
from ._probe import block_size
from ._profile import seconds_of
from ._run import OrtValues, feeds_of, run
from ._script import session_code
from ._segments import cut, in_order_of, segments, type_proto
from ._switches import switches_of, without
from ._values import is_plain, to_ort, to_torch
from ._versions import run_in

_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_UNBOUNDED = sys.maxsize
_PROGRAM = "program.onnx"
_WEIGHTS = "optimized.data"


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """ONNX Runtime with one execution provider, and others for what that one does not have.

    Attributes:
        name: `onnxruntime-cpu`, `onnxruntime-cuda` or `onnxruntime-tensorrt`.
        provider: ONNX Runtime's name of the execution provider.
        options: what it is told besides.
        behind: those that take what it leaves.
        stages: it runs the program both as it stands and optimised.
    """

    name: str
    provider: str
    options: OrtOptions = field(default_factory=OrtOptions)
    behind: tuple[str, ...] = (CPU,)
    stages: tuple[Stage, ...] = ("exported", "compiled")

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """See `Backend.compile`."""
        return in_folder(partial(self._compile, program, optimize=optimize))

    def compile_without(self, program: Program, off: Collection[Switch]) -> CompiledVariant:
        """See `Switches.compile_without`: optimisers by the names that `disabled_optimizers` takes, and settings."""
        engine, changed = replace(self, options=without(self.options, off)), dict[str, None]()
        compiled = in_folder(partial(engine._compile, program, optimize=True, changed=changed))  # noqa: SLF001  its own
        model = compiled.graph.onnx
        seen = "" if model is None else fingerprint(model)
        return CompiledVariant(compiled, switches_of(changed, engine.options, self.provider), seen)

    def run_in(self, interpreter: str, program: Program, inputs: Sequence[Values]) -> tuple[str, list[Values]]:
        """See `RunsOtherVersions.run_in`."""
        return run_in(interpreter, program, inputs, self.script(optimize=True))

    @property
    def _device(self) -> str | None:
        """Where values stay; None is the CPU."""
        return None if self.provider == CPU else "cuda"

    @property
    def _products(self) -> float:
        """See `Compiled.matmul_input_eps`: the CUDA and TensorRT providers use TF32 unless `use_tf32` is 0."""
        told = self.options.told(replay=False).get("use_tf32")
        return 0.0 if self.provider == CPU or told == "0" else tf32_input_eps()

    def _compile(
        self, program: Program, folder: Path, *, optimize: bool, changed: dict[str, None] | None = None
    ) -> Compiled:
        """See `Backend.compile`; the names of what changed the graph go into `changed`, if it is given."""
        source = write_model(program.model, folder / _PROGRAM)
        before = program.graph
        if not optimize:
            start = partial(self._session, source, _OFF)
            handle = _Handle(start, source, range(len(before.nodes)), running=start())
            return Compiled(before, handle, matmul_input_eps=self._products)
        runs = folder / "optimized.onnx"
        start = partial(self._session, source, self.options.graph_level, replay=True)
        session = start(save_to=runs, changed=changed)
        model = ir.load(runs)
        graph = graph_from_onnx(model)
        block = block_size() if any(node.op.startswith(DOMAIN) for node in graph.nodes) else 0
        known = find_forms(_with_shapes(program) if block else before, graph, partial(_numbers, model), block)
        handle = _Handle(start, runs, in_order_of(graph, list(before.producer)), known, running=session)
        value_aliases = {name: form.value for name, form in known.items()}
        return Compiled(graph, handle, value_aliases=value_aliases, matmul_input_eps=self._products)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        made = compiled.graph.producer
        if watch:
            wanted = {*watch, *compiled.graph.outputs}
            passed = {} if made.keys() >= {*compiled.graph.outputs} else self.run(compiled, inputs)
            observed = self.observe(compiled, inputs, buffer=_UNBOUNDED)
            return {**passed, **{name: value for name, value in observed if name in wanted}}
        session = compiled.handle.session
        replay = bool(self.options.use_cuda_graph) and compiled.handle.path.name != _PROGRAM
        feeds = feeds_of(compiled.handle.inputs, inputs)
        found = run(session, feeds, self._device, replay=replay)
        plain = {name: to_torch(value) for name, value in found.items() if is_plain(value)}
        # An input or a weight that is an output shares the memory of `feeds` or of the session, and does not keep it.
        return {name: value if name in made else value.clone() for name, value in plain.items()}

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Observes.observe`: the graph that was saved runs part by part, with optimisations off."""
        return self._walk(compiled, inputs, buffer, buffer)

    def isolate(
        self, compiled: Compiled, inputs: Values, given: ReferenceLookup, *, buffer: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: as `observe`, but for what the nodes of a part read."""
        return self._walk(compiled, inputs, buffer, buffer // 2, given)  # the other half is for what is given

    def _walk(
        self, compiled: Compiled, inputs: Values, buffer: int, made: int, given: ReferenceLookup | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each value, part by part of `made` bytes; what nodes read is the given one, where there is one."""
        handle: _Handle = compiled.handle
        live = feeds_of(handle.inputs, inputs)
        handle.make_room(buffer)
        graph = compiled.graph
        parts = segments(graph, handle.order, value_sizes(graph, inputs), made)
        needed = _last_uses(graph, parts)
        for number, part in enumerate(parts):
            keep = handle.weights <= buffer
            should = {} if given is None else _asked(graph, part, given)
            read = {name for index in part for name in graph.nodes[index].reads}
            feeds = {name: live[name] for name in read & live.keys()}
            found, fed = self._ran(handle, graph, part, feeds, should, keep=keep)
            for name in list(found):
                value = found.pop(name)
                if needed.get(name, -1) > number:
                    live[name] = fed.get(name, value)
                if is_plain(value):
                    yield name, handle.shown(name, to_torch(value))
            for name in read:
                if needed[name] == number:
                    live.pop(name, None)

    def _ran(
        self,
        handle: "_Handle",
        graph: Graph,
        part: Sequence[int],
        read: OrtValues,
        should: Values,
        *,
        keep: bool,
    ) -> tuple[dict[str, ort.OrtValue], OrtValues]:
        """What the nodes of a part make, and what is to be read in place of it.

        In which form a value is made is known once it was seen; and it may be another one, once what its node reads is
        given. So this runs again until that stays as it is; each time, it does so for one value more at least.
        """
        inside = {name for index in part for name in graph.nodes[index].reads}
        fed, found = handle.held(should), {}
        for _ in (*part, None):
            specs = {name: handle.seen[name] for name in fed if name in inside}
            feeds = {**read, **fed}
            session = handle.part(part, specs) or self._part(handle, graph, part, feeds, specs, keep=keep)
            made = run(session, {entry.name: feeds[entry.name] for entry in session.get_inputs()}, self._device)
            found = {name.removesuffix(AGAIN): value for name, value in made.items()}
            handle.see(found)
            fed = handle.held(should)
            if specs == {name: handle.seen[name] for name in fed if name in inside}:
                break
        return found, fed

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """See `Profiles.profile`: the graph that runs is run once more by itself, with nothing observed.

        On a device, it is the time until a node's kernels were handed over.
        """
        handle: _Handle = compiled.handle
        session = self._session(handle.path, _OFF, profile=True)
        try:
            found = seconds_of(session, feeds_of(compiled.handle.inputs, inputs))
        except Exception as error:
            raise BackendError(f"ONNX Runtime can't run the program: {first_line(error)}") from error
        return {node.name: found[node.name] for node in compiled.graph.nodes if node.name in found}

    def script(self, *, optimize: bool) -> Script:
        """See `ProvidesScript.script`."""
        level = self.options.graph_level if optimize else _OFF
        code = session_code(self.options, level.name, self._providers(replay=False))
        return Script("onnx", ("import onnxruntime as ort",), code, "onnxruntime")

    def _providers(self, *, replay: bool) -> list[str | tuple[str, dict[str, str]]]:
        """The execution providers in order of preference, the first one with what it is told."""
        first, *others = self.options.providers or (self.provider,)
        behind = [name for name in self.behind if name not in (first, *others)]
        told = self.options.told(replay=replay)
        return [(first, told) if told else first, *others, *behind]

    def _part(
        self,
        handle: "_Handle",
        graph: Graph,
        part: Sequence[int],
        feeds: OrtValues,
        fed: Collection[str],
        *,
        keep: bool,
    ) -> ort.InferenceSession:
        types = {name: type_proto(value.data_type()) for name, value in feeds.items()}
        model = cut(handle.model, graph, part, handle.initializers, types, fed=fed)
        path = handle.path.with_name(f"part-{handle.path.name}")
        onnx.save(model, path)
        session = self._session(path, _OFF)
        if keep:
            handle.parts[tuple(part), frozenset(fed)] = session
        return session

    def _session(
        self,
        path: Path,
        level: ort.GraphOptimizationLevel,
        *,
        save_to: Path | None = None,
        replay: bool = False,
        profile: bool = False,
        changed: dict[str, None] | None = None,
    ) -> ort.InferenceSession:
        options = self.options.session(level)
        if changed is not None:
            options.log_severity_level = 1
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(path.with_name("profile"))
        elif level == _OFF:
            options.enable_cpu_mem_arena = False  # each part's own would never be given to the next
        if save_to is not None and self.provider == TENSORRT:
            # A graph with compiled nodes can't be saved as it is; this writes it with the compiled engines in it.
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(save_to))
        elif save_to is not None:
            options.optimized_model_filepath = str(save_to)
            if path.with_name(DATA).exists():
                options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        off = {"disabled_optimizers": self.options.disabled_optimizers} if self.options.disabled_optimizers else {}
        heard = contextlib.nullcontext() if changed is None else changes_heard(changed)
        try:
            with heard:
                session = ort.InferenceSession(
                    path,
                    options,
                    providers=self._providers(replay=replay),
                    enable_fallback=0,  # else it prints that it falls back, also in the middle of a run
                    **off,  # pyright: ignore[reportArgumentType]
                )
        except Exception as error:
            raise BackendError(f"ONNX Runtime refuses the program: {first_line(error)}") from error
        wanted = self.options.providers or (self.provider,)
        if missing := [name for name in wanted if name not in session.get_providers()]:
            raise BackendError(f"ONNX Runtime can't start {missing[0]} for this program")
        return session


@dataclass
class _Handle:
    """What is kept of a program.

    Attributes:
        start: makes the session that runs it undisturbed.
        path: the file of the graph that the session runs.
        order: the indices of its nodes in the order in which they are observed.
        forms: what the values are that the exported graph has in another form, by name.
        parts: sessions that observe parts of it, by the indices of their nodes and the values that these are given.
        running: the session that runs it undisturbed, if there is one at the moment.
        seen: the type and the shape in which values were last made, by name.
    """

    start: Callable[[], ort.InferenceSession]
    path: Path
    order: Sequence[int]
    forms: Mapping[str, Form] = field(default_factory=dict)
    parts: dict[tuple[tuple[int, ...], frozenset[str]], ort.InferenceSession] = field(default_factory=dict)
    running: ort.InferenceSession | None = None
    seen: dict[str, TensorSpec] = field(default_factory=dict)

    @property
    def session(self) -> ort.InferenceSession:
        """The session that runs it undisturbed; made again if it was let go."""
        if self.running is None:
            self.running = self.start()
        return self.running

    @cached_property
    def inputs(self) -> list[str]:
        """What the session takes, by name."""
        return [entry.name for entry in self.session.get_inputs()]

    @cached_property
    def weights(self) -> int:
        """The bytes of what is computed with."""
        files = (self.path, self.path.with_name(DATA if self.path.name == _PROGRAM else _WEIGHTS))
        return sum(file.stat().st_size for file in files if file.exists())

    def make_room(self, buffer: int) -> None:
        """Let the session go, if its weights are larger than what may be held: those that observe need them, too."""
        if self.weights > buffer:
            self.running = None

    def shown(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A value of the graph in the form that the exported graph has it in."""
        return self._form(name).to_exported(tensor)

    def _form(self, name: str) -> Form:
        return self.forms.get(name, Form(name))

    def held(self, values: Values) -> dict[str, ort.OrtValue]:
        """What `shown` shows as `values`, for those whose form is known and that could be so shown, by name."""
        found = {}
        for name, tensor in values.items():
            made = self._form(name).to_compiled(tensor, self.seen[name]) if name in self.seen else None
            if made is not None:
                found[name] = to_ort(made)
        return found

    def see(self, values: OrtValues) -> None:
        """Note in which form values are made."""
        self.seen |= {name: spec_of(to_torch(value)) for name, value in values.items() if is_plain(value)}

    def part(self, nodes: Sequence[int], fed: Collection[str]) -> ort.InferenceSession | None:
        """The session of some nodes that are given some values, if it was kept."""
        return self.parts.get((tuple(nodes), frozenset(fed)))

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path, load_external_data=False)

    @cached_property
    def initializers(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}


def _with_shapes(program: Program) -> Graph:
    """The graph, with the shapes that follow from those it has: how many channels a block holds can't be seen."""
    with quiet():  # where shapes contradict each other, it logs a traceback and leaves the model as it is
        return graph_from_onnx(ShapeInferencePass()(program.model.clone()).model)


def _numbers(model: ir.Model, name: str) -> list[int] | None:
    held = model.graph.initializers.get(name)
    return None if held is None or held.const_value is None else held.const_value.numpy().tolist()


def _asked(graph: Graph, part: Sequence[int], given: ReferenceLookup) -> dict[str, torch.Tensor]:
    """What the values should be that nodes of a part make and any node reads; constants are what they are."""
    nodes = (graph.nodes[index] for index in part)
    names = (name for node in nodes if node.op != "Constant" for name in node.outputs if name in graph.consumers)
    return {name: tensor for name in names if (tensor := given(name)) is not None}


def _last_uses(graph: Graph, parts: Sequence[Sequence[int]]) -> dict[str, int]:
    """For each value, the number of the last part that reads it."""
    return {name: number for number, part in enumerate(parts) for index in part for name in graph.nodes[index].reads}
