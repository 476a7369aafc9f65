"""The OpenVINO backend: runs a program and returns the values between the executed layers.

Making a value an output can prevent layers from being fused. So only values between two layers are requested, and a
value counts only if the compilation without further outputs has the layer that computes it, too.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openvino as ov
import torch

from ..._errors import BackendError
from ...common._arrays import torch_to_array
from ...common._suggestions import hint
from ...graph._graph import Graph
from ...program._program import Program
from .._backend import Compiled, ReferenceLookup, Script, Stage, Values
from .._files import in_folder, write_model
from .._isolate import CutProgram
from ._layers import Border, ExecutedLayers, Owners, Port, apart_from_neighbours, by_pattern, owners_of, shape_of
from ._scalars import move_scalars

_PRECISION = "INFERENCE_PRECISION_HINT"
_TIMES = "PERF_COUNT"
_ATTEMPTS = 4  # compilations in search of outputs that change no layer


@dataclass(frozen=True)
class OpenVinoBackend:
    """OpenVINO on one device.

    Attributes:
        device: OpenVINO's name of the device.
        config: OpenVINO's properties for the compilation, by name.
        precision: OpenVINO's name of the type for floating-point layers. None is OpenVINO's choice: bfloat16 if the
            processor supports it, and then few values are close to the exported ones.
        name: `openvino`.
        stages: it always makes a graph of its own.
    """

    device: str = "CPU"
    config: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = "f32"
    name: str = "openvino"
    stages: tuple[Stage, ...] = ("compiled",)

    def compile(self, program: Program, *, optimize: bool) -> Compiled:  # noqa: ARG002  it always does
        """See `Backend.compile`."""
        return in_folder(partial(self._compile, program))

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,
        given: ReferenceLookup,
        *,
        buffer: int,  # noqa: ARG002  OpenVINO returns all outputs at once
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: the program is compiled once more, cut at the values that have references."""
        cut = CutProgram.of(compiled.handle.program, compiled, inputs, given, optimize=True)
        made = in_folder(partial(self._compile, cut.program, watched=False))
        return cut.shown(self.run(made, cut.inputs))

    def _compile(self, program: Program, folder: Path, *, watched: bool = True) -> Compiled:
        path = write_model(program.model, folder / "program.onnx")
        with _backend_errors("refuses the program"):
            model = ov.Core().read_model(path)
        exported = program.graph
        owners = owners_of(model, exported)
        plain = self._compile_with(model, (), owners)
        layers = plain.layers
        runs, found = self._search(model, owners, layers, layers.borders(exported)) if watched else ([], {})
        handle = _Handle(program, plain.compiled, tuple(run.compiled for run in runs))
        graph = layers.graph(exported, found)
        notes = (*self._precision_notes(plain.compiled), *_float64_note(exported, self.device))
        return Compiled(graph, handle, layers.origins(exported, found), notes=notes)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`.

        For some models, OpenVINO computes wrong outputs if further values are made outputs. The values of compilations
        whose outputs differ from those of the plain one are left out, unless all compilations differ; then the changed
        outputs are returned, too.
        """
        outputs = _infer(compiled.handle.plain, inputs)
        runs = [_infer(observing, inputs) for observing in compiled.handle.observing] if watch else []
        steady = [values for values in runs if all(_same_bits(values[name], outputs[name]) for name in outputs)]
        found: dict[str, torch.Tensor] = {}
        for values in steady or runs:
            found = {name: values[name] for name in values if name in watch or name in outputs} | found
        return outputs | found

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """See `Profiles.profile`."""
        plain = compiled.handle.plain
        _infer(plain, inputs)
        request = plain.create_infer_request()
        with _backend_errors("can't run the program"):
            request.infer(_feeds(plain, inputs))
        taken = {item.node_name: item.real_time.total_seconds() for item in request.profiling_info}
        return {
            node.name: sum(taken.get(layer, 0.0) for layer in node.attributes["layers"])
            for node in compiled.graph.nodes
        }

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it always does
        """See `ProvidesScript.script`."""
        properties = {name: value for name, value in self._properties().items() if name != _TIMES}
        lines = (
            "def run(path, names, inputs):",
            f"compiled = ov.Core().compile_model(path, {self.device!r}, {properties!r})",
            "found = compiled(inputs)",
            "return [found[name] for name in names]",
        )
        return Script("onnx", ("import openvino as ov",), "\n    ".join(lines), "openvino")

    def _search(
        self, model: ov.Model, owners: Owners, plain: ExecutedLayers, borders: Mapping[str, Border]
    ) -> tuple[list["_Run"], dict[str, Port]]:
        """Compile with further outputs until as many values as possible are found; map each to a layer of `plain`."""
        named = {name for op in model.get_ordered_ops() for port in op.outputs() for name in port.get_names()}
        wanted = asked = [name for name in borders if name in named and name not in plain.results]
        for _ in range(_ATTEMPTS):
            run = self._compile_with(model, wanted, owners)
            suspects = plain.near_changed(plain.missing_in(run.layers), {name: borders[name] for name in wanted})
            if not suspects:
                break
            wanted = [name for name in wanted if name not in suspects]
        run = self._without_missing(model, wanted, run, owners, plain)  # pyright: ignore[reportPossiblyUnboundVariable]  there are attempts
        runs = [run]
        found = dict(plain.ports_of(run.layers))

        def search(at: ov.Model, names: Collection[str]) -> None:
            run = self._without_missing(at, names, self._compile_with(at, names, owners), owners, plain)
            new = {name: port for name, port in plain.ports_of(run.layers).items() if port not in found.values()}
            runs.extend([run] if new.keys() & {*names} else [])
            found.update(new)

        for partition in (by_pattern, apart_from_neighbours):
            for part in partition({name: borders[name] for name in asked if name not in found}):
                search(model, part)
        moved = model.clone()
        if factors := move_scalars(moved, [name for name in asked if name not in found]):
            search(moved, factors)
        # A result may be a copy in another layout of the value that was found; the name belongs to the copy.
        return runs, {name: plain.results.get(name, port) for name, port in found.items()}

    def _without_missing(
        self, model: ov.Model, names: Collection[str], run: "_Run", owners: Owners, plain: ExecutedLayers
    ) -> "_Run":
        """Compile again without the values that were not found if a run changed layers: they may be the cause."""
        there = plain.ports_of(run.layers)
        seen = [name for name in names if name in there]
        if not seen or len(seen) == len(names):
            return run
        if not plain.missing_in(run.layers) and not run.layers.missing_in(plain):
            return run
        again = self._compile_with(model, seen, owners)
        return again if {*seen} <= plain.ports_of(again.layers).keys() else run

    def _compile_with(self, model: ov.Model, names: Collection[str], owners: Owners) -> "_Run":
        asked = model.clone()
        with _backend_errors("refuses the program"):
            asked.add_outputs(list(names))
            compiled = _core(self.device).compile_model(asked, self.device, self._properties())
            results = {
                result.get_friendly_name(): (
                    tuple(result.input(0).get_source_output().get_names()),
                    shape_of(result.get_output_partial_shape(0)),
                )
                for result in asked.get_results()
            }
            return _Run(compiled, ExecutedLayers(compiled.get_runtime_model(), owners, results))

    def _properties(self) -> dict[str, Any]:
        """Return the properties of the compilation; the time of each layer is always measured."""
        known = _core(self.device).get_property(self.device, "SUPPORTED_PROPERTIES")
        for name in self.config:
            if name not in known:
                raise BackendError(f"OpenVINO's {self.device} has no property {name!r}; {hint(name, sorted(known))}")
        precision = {_PRECISION: self.precision} if self.precision is not None and _PRECISION in known else {}
        return {_TIMES: True, **precision, **self.config}

    def _precision_notes(self, compiled: ov.CompiledModel) -> tuple[str, ...]:
        """Return a note on the precision, if it is not OpenVINO's choice or not float32."""
        if _PRECISION in self.config or _PRECISION not in compiled.get_property("SUPPORTED_PROPERTIES"):
            return ()
        taken = compiled.get_property(_PRECISION).get_type_name()
        own = _core(self.device).get_property(self.device, _PRECISION).get_type_name()
        if self.precision is None:
            return () if taken == "f32" else (f"OpenVINO computes in {taken} here: precision='f32' keeps float32",)
        return () if own == taken else (f"OpenVINO computes in {taken}; with precision=None, in {own} here",)


@dataclass(frozen=True)
class _Run:
    compiled: ov.CompiledModel
    layers: ExecutedLayers


@dataclass(frozen=True)
class _Handle:
    program: Program
    plain: ov.CompiledModel
    observing: tuple[ov.CompiledModel, ...]


def _float64_note(graph: Graph, device: str) -> tuple[str, ...]:
    """Return a note if the graph has float64 values, which the CPU computes in float32."""
    computed = (
        graph.values[name] for name in graph.producer if name not in graph.constant_values and name in graph.values
    )
    doubles = device.startswith("CPU") and any(value.dtype == "float64" for value in computed)
    return ("OpenVINO's CPU computes float64 in float32",) if doubles else ()


def _core(device: str) -> ov.Core:
    """Return OpenVINO's core, or raise an error if it lacks the device."""
    core = ov.Core()
    there = core.available_devices
    if device not in there and device.partition(".")[0].partition(":")[0] not in (*there, *_VIRTUAL):
        raise BackendError(f"OpenVINO has no device {device!r} here; there are {', '.join(there)}")
    return core


_VIRTUAL = ("AUTO", "HETERO", "MULTI", "BATCH")


def _infer(compiled: ov.CompiledModel, inputs: Values) -> dict[str, torch.Tensor]:
    """Run and return the outputs by all their names."""
    request = compiled.create_infer_request()
    feeds = _feeds(compiled, inputs)
    with _backend_errors("can't run the program"):
        request.infer(feeds)
        return {name: _to_torch(request.get_tensor(port)) for port in compiled.outputs for name in port.get_names()}


def _feeds(compiled: ov.CompiledModel, inputs: Values) -> dict[ov.ConstOutput, ov.Tensor]:
    feeds = {}
    for port in compiled.inputs:
        given = [inputs[name] for name in port.get_names() if name in inputs]
        if not given:
            raise BackendError(f"the program's input {port.get_any_name()!r} is missing")
        feeds[port] = _to_openvino(given[0])
    return feeds


_BY_TYPE: Mapping[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
_TYPES = {dtype: getattr(ov.Type, name) for name, dtype in _BY_TYPE.items()}


def _to_openvino(tensor: torch.Tensor) -> ov.Tensor:
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().contiguous().cpu()
    if plain.dtype not in _TYPES:
        return ov.Tensor(plain.numpy())
    made = ov.Tensor(_TYPES[plain.dtype], ov.Shape(plain.shape))
    made.data[...] = plain.view(_BITS[plain.itemsize]).numpy()
    return made


_BITS = {1: torch.uint8, 2: torch.float16}  # the dtypes with which OpenVINO exposes types that numpy lacks


def _to_torch(tensor: ov.Tensor) -> torch.Tensor:
    copied = torch.from_numpy(tensor.data.copy())
    dtype = _BY_TYPE.get(tensor.element_type.get_type_name())
    return copied if dtype is None else copied.view(dtype)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    return a.shape == b.shape and torch_to_array(a).tobytes() == torch_to_array(b).tobytes()


@contextlib.contextmanager
def _backend_errors(what: str) -> Iterator[None]:
    """Convert OpenVINO's errors, whose first lines are source locations; the last line is the message."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        messages = [line for line in lines if not line.startswith("Exception from ")]
        raise BackendError(f"OpenVINO {what}: {messages[-1] if messages else type(error).__name__}") from error
