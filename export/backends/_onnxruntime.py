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

from .._errors import BackendError
from .._fingerprint import fingerprint
from .._from_onnx import graph_from_onnx
from .._graph import Graph
from .._program import Program
from .._sizes import value_sizes
from ._backend import Compiled, Stage, Switch, Switched, Values
from ._files import DATA, first_line, in_folder, write_model
from ._forms import Form, forms
from ._nchwc import DOMAIN
from ._ort_elsewhere import run_in
from ._ort_log import changes_heard
from ._ort_options import CPU, TENSORRT, OrtOptions
from ._ort_probe import block_size
from ._ort_profile import seconds_of
from ._ort_run import feeds_of, run
from ._ort_switches import switches_of, without
from ._ort_values import is_plain, to_torch
from ._segments import cut, in_order_of, segments, type_proto

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

    def switched(self, program: Program, off: Collection[Switch]) -> Switched:
        """See `Switches.switched`: optimisers by the names that `disabled_optimizers` takes, and settings."""
        engine, changed = replace(self, options=without(self.options, off)), dict[str, None]()
        compiled = in_folder(partial(engine._compile, program, optimize=True, changed=changed))  # noqa: SLF001  its own
        model = compiled.graph.onnx
        seen = "" if model is None else fingerprint(model)
        return Switched(compiled, switches_of(changed, engine.options, self.provider), seen)

    def run_in(self, interpreter: str, program: Program, inputs: Sequence[Values]) -> tuple[str, list[Values]]:
        """See `RunsElsewhere.run_in`."""
        wanted = self.options.providers or (self.provider,)
        providers = (*wanted, *(name for name in self.behind if name not in wanted))
        return run_in(interpreter, program, inputs, options=self.options, providers=providers)

    @property
    def _device(self) -> str | None:
        """Where values stay; None is the CPU."""
        return None if self.provider == CPU else "cuda"

    def _compile(
        self, program: Program, folder: Path, *, optimize: bool, changed: dict[str, None] | None = None
    ) -> Compiled:
        """See `Backend.compile`; the names of what changed the graph go into `changed`, if it is given."""
        source = write_model(program.model, folder / _PROGRAM)
        before = program.graph
        if not optimize:
            start = partial(self._session, source, _OFF)
            return Compiled(before, _Handle(start, source, range(len(before.nodes)), running=start()))
        runs = folder / "optimized.onnx"
        start = partial(self._session, source, self.options.graph_level, replay=True)
        session = start(save_to=runs, changed=changed)
        model = ir.load(runs)
        graph = graph_from_onnx(model)
        block = block_size() if any(node.op.startswith(DOMAIN) for node in graph.nodes) else 0
        known = forms(_with_shapes(program) if block else before, graph, partial(_numbers, model), block)
        handle = _Handle(start, runs, in_order_of(graph, list(before.producer)), known, running=session)
        return Compiled(graph, handle, same={name: form.value for name, form in known.items()})

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        if watch:
            wanted = {*watch, *compiled.graph.outputs}
            return {name: value for name, value in self.observe(compiled, inputs, buffer=_UNBOUNDED) if name in wanted}
        session = compiled.handle.session
        replay = bool(self.options.use_cuda_graph) and compiled.handle.path.name != _PROGRAM
        found = run(session, feeds_of(compiled.handle.inputs, inputs), self._device, replay=replay)
        return {name: to_torch(value) for name, value in found.items() if is_plain(value)}

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Observes.observe`: the graph that was saved runs part by part, with optimisations off."""
        handle: _Handle = compiled.handle
        live = feeds_of(handle.inputs, inputs)
        handle.make_room(buffer)
        parts = segments(compiled.graph, handle.order, value_sizes(compiled.graph, inputs), buffer)
        needed = _last_uses(compiled.graph, parts)
        for number, part in enumerate(parts):
            keep = handle.weights <= buffer
            session = handle.part(tuple(part)) or self._part(handle, compiled.graph, part, live, keep=keep)
            found = run(session, {entry.name: live[entry.name] for entry in session.get_inputs()}, self._device)
            for name in list(found):
                value = found.pop(name)
                if needed.get(name, -1) > number:
                    live[name] = value
                if is_plain(value):
                    yield name, handle.shown(name, to_torch(value))
            live = {name: value for name, value in live.items() if needed.get(name, -1) > number}

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

    def _part(
        self, handle: "_Handle", graph: Graph, part: Sequence[int], live: Mapping[str, ort.OrtValue], *, keep: bool
    ) -> ort.InferenceSession:
        model = cut(handle.model, graph, part, {name: type_proto(value.data_type()) for name, value in live.items()})
        path = handle.path.with_name(f"part-{handle.path.name}")
        onnx.save(model, path)
        session = self._session(path, _OFF)
        if keep:
            handle.parts[tuple(part)] = session
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
        wanted = self.options.providers or (self.provider,)
        behind = [name for name in self.behind if name not in wanted]
        told = self.options.told(replay=replay)
        off = {"disabled_optimizers": self.options.disabled_optimizers} if self.options.disabled_optimizers else {}
        heard = contextlib.nullcontext() if changed is None else changes_heard(changed)
        try:
            with heard:
                session = ort.InferenceSession(
                    path,
                    options,
                    providers=[(wanted[0], told), *wanted[1:], *behind],
                    enable_fallback=0,  # else it prints that it falls back, also in the middle of a run
                    **off,
                )
        except Exception as error:
            raise BackendError(f"ONNX Runtime refuses the program: {first_line(error)}") from error
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
        parts: sessions that observe parts of it, by the indices of their nodes.
    """

    start: Callable[[], ort.InferenceSession]
    path: Path
    order: Sequence[int]
    forms: Mapping[str, Form] = field(default_factory=dict)
    parts: dict[tuple[int, ...], ort.InferenceSession] = field(default_factory=dict)
    running: ort.InferenceSession | None = None

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
        return self.forms[name].undo(tensor) if name in self.forms else tensor

    def part(self, nodes: tuple[int, ...]) -> ort.InferenceSession | None:
        return self.parts.get(nodes)

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path, load_external_data=False)


def _with_shapes(program: Program) -> Graph:
    """The graph, with the shapes that follow from those it has: how many channels a block holds can't be seen."""
    return graph_from_onnx(ShapeInferencePass()(program.model.clone()).model)


def _numbers(model: ir.Model, name: str) -> list[int] | None:
    held = model.graph.initializers.get(name)
    return None if held is None or held.const_value is None else held.const_value.numpy().tolist()


def _last_uses(graph: Graph, parts: Sequence[Sequence[int]]) -> dict[str, int]:
    """For each value, the number of the last part that reads it."""
    return {name: number for number, part in enumerate(parts) for index in part for name in graph.nodes[index].reads}
