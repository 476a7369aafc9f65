"""The OpenVINO backend: runs a program and returns the values between the executed layers.

Making a value an output can prevent layers from being fused. So only values between two layers are requested, and a
value counts only if the compilation without further outputs has the layer that computes it, too.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
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
from ._layers import Border, ExecutedLayers, Owners, Port, apart_from_neighbors, by_pattern, owners_of, shape_of
from ._scalars import move_scalars

_PRECISION = "INFERENCE_PRECISION_HINT"
_PERF_COUNT = "PERF_COUNT"
_ATTEMPTS = 4  # compilations in search of outputs that change no layer
_LARGE = 2**27  # bytes of weights, of which each compiled model has a copy: larger models are compiled for each run
_AS_ARRAY = '''\
def as_array(result, kind):
    """Return a result; bfloat16, which NumPy lacks, becomes float32."""
    return (result.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if kind == ov.Type.bf16 else result


'''
_VIRTUAL_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")
# Types that NumPy lacks, by OpenVINO's names, and the dtypes of the arrays as which OpenVINO exposes them, by size.
_TYPES = {"bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
_ARRAY_DTYPES = {1: torch.uint8, 2: torch.float16}


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
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,  # noqa: ARG002  it runs all
        buffer: int,  # noqa: ARG002  OpenVINO returns all outputs at once
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: the program is compiled once more, cut at the values that have references."""
        cut = CutProgram.of(compiled.handle.program, compiled, inputs, references, optimize=True)
        cut_compiled = in_folder(partial(self._compile, cut.program, watched=False))
        return cut.computed_values(self.run(cut_compiled, cut.inputs))

    def _compile(self, program: Program, folder: Path, *, watched: bool = True) -> Compiled:
        path = write_model(program.model, folder / "program.onnx")
        with _backend_errors("refuses the program"):
            model = ov.Core().read_model(path)
        exported = program.graph
        owners = owners_of(model, exported)
        plain = self._compile_with(model, (), owners)
        layers = plain.layers
        compilations, ports = self._search(model, owners, layers, layers.borders(exported)) if watched else ([], {})
        handle = _CompiledModels(program, plain, tuple(compilations))
        graph = layers.graph(exported, ports)
        notes = (*plain.notes, *_float64_note(exported, self.device))
        return Compiled(graph, handle, layers.origins(exported, ports), notes=notes)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`.

        For some models, OpenVINO computes wrong outputs if further values are made outputs. The values of compilations
        whose outputs differ from those of the plain one are left out, unless all compilations differ; then the changed
        outputs are returned, too.
        """
        outputs = _infer(compiled.handle.plain.model(), inputs)
        results = [_infer(observing.model(), inputs) for observing in compiled.handle.observing] if watch else []
        unchanged = [values for values in results if all(_same_bits(values[name], outputs[name]) for name in outputs)]
        observed: dict[str, torch.Tensor] = {}
        for values in unchanged or results:
            observed = {name: values[name] for name in values if name in watch or name in outputs} | observed
        return outputs | observed

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """See `Profiles.profile`."""
        plain = compiled.handle.plain.model()
        _infer(plain, inputs)
        request = plain.create_infer_request()
        with _backend_errors("can't run the program"):
            request.infer(_feeds(plain, inputs))
        seconds = {item.node_name: item.real_time.total_seconds() for item in request.profiling_info}
        return {
            node.name: sum(seconds.get(layer, 0.0) for layer in node.attributes["layers"])
            for node in compiled.graph.nodes
        }

    def script(self, *, optimize: bool) -> Script:  # noqa: ARG002  it always does
        """See `ProvidesScript.script`."""
        properties = {name: value for name, value in self._properties().items() if name != _PERF_COUNT}
        lines = (
            "def run(path, names, inputs):",
            f"compiled = ov.Core().compile_model(path, {self.device!r}, {properties!r})",
            "results = compiled(inputs)",
            "return [as_array(results[name], compiled.output(name).get_element_type()) for name in names]",
        )
        imports = ("import openvino as ov", "import numpy as np")
        return Script("onnx", imports, _AS_ARRAY + "\n    ".join(lines), "openvino")

    def _search(
        self, model: ov.Model, owners: Owners, plain: ExecutedLayers, borders: Mapping[str, Border]
    ) -> tuple[list["_Compilation"], dict[str, Port]]:
        """Compile with further outputs until as many of the values `borders` as possible are found.

        Returns the compilations, and the port of a layer of `plain` that computes each value that was found. `plain`
        are the layers of the compilation without further outputs.
        """
        named = {name for op in model.get_ordered_ops() for port in op.outputs() for name in port.get_names()}
        wanted = requested = [name for name in borders if name in named and name not in plain.results]
        for _ in range(_ATTEMPTS):
            compilation = self._compile_with(model, wanted, owners)
            missing = plain.missing_in(compilation.layers)
            suspects = plain.near_changed(missing, {name: borders[name] for name in wanted})
            if not suspects:
                break
            wanted = [name for name in wanted if name not in suspects]
        compilation = self._without_missing(model, wanted, compilation, owners, plain)  # pyright: ignore[reportPossiblyUnboundVariable]  there are attempts
        compilations = [compilation]
        ports = dict(plain.ports_of(compilation.layers))

        def search(changed: ov.Model, names: Collection[str]) -> None:
            compilation = self._compile_with(changed, names, owners)
            compilation = self._without_missing(changed, names, compilation, owners, plain)
            found = plain.ports_of(compilation.layers)
            new = {name: port for name, port in found.items() if port not in ports.values()}
            compilations.extend([compilation] if new.keys() & {*names} else [])
            ports.update(new)

        for partition in (by_pattern, apart_from_neighbors):
            for part in partition({name: borders[name] for name in requested if name not in ports}):
                search(model, part)
        moved = model.clone()
        if factors := move_scalars(moved, [name for name in requested if name not in ports]):
            search(moved, factors)
        # A result may be a copy in another layout of the value that was found; the name belongs to the copy.
        return compilations, {name: plain.results.get(name, port) for name, port in ports.items()}

    def _without_missing(
        self,
        model: ov.Model,
        names: Collection[str],
        compilation: "_Compilation",
        owners: Owners,
        plain: ExecutedLayers,
    ) -> "_Compilation":
        """Compile again without the values that were not found, which may be the cause, if layers have changed."""
        ports = plain.ports_of(compilation.layers)
        found = [name for name in names if name in ports]
        changed = plain.missing_in(compilation.layers) or compilation.layers.missing_in(plain)
        if not found or len(found) == len(names) or not changed:
            return compilation
        again = self._compile_with(model, found, owners)
        return again if {*found} <= plain.ports_of(again.layers).keys() else compilation

    def _compile_with(self, model: ov.Model, names: Collection[str], owners: Owners) -> "_Compilation":
        """Compile a model with further outputs.

        Args:
            model: the model, which is copied.
            names: names of the values to return besides the outputs.
            owners: the exported nodes that each layer translates; see `owners_of`.
        """
        extended = model.clone()
        properties = self._properties()

        def compile_model() -> ov.CompiledModel:
            with _backend_errors("refuses the program"):
                return _core(self.device).compile_model(extended, self.device, properties)

        with _backend_errors("refuses the program"):
            extended.add_outputs(list(names))
            compiled = compile_model()
            results = {  # the names and shape of each output, by the layer that returns it
                result.get_friendly_name(): (
                    tuple(result.input(0).get_source_output().get_names()),
                    shape_of(result.get_output_partial_shape(0)),
                )
                for result in extended.get_results()
            }
            layers = ExecutedLayers(compiled.get_runtime_model(), owners, results)
        constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
        kept = compiled if sum(op.get_byte_size() for op in constants) <= _LARGE else None
        return _Compilation(compile_model, layers, self._precision_notes(compiled), kept)

    def _properties(self) -> dict[str, Any]:
        """Return the properties of the compilation; the time of each layer is always measured."""
        known = _core(self.device).get_property(self.device, "SUPPORTED_PROPERTIES")
        for name in self.config:
            if name not in known:
                raise BackendError(f"OpenVINO's {self.device} has no property {name!r}; {hint(name, sorted(known))}")
        precision = {_PRECISION: self.precision} if self.precision is not None and _PRECISION in known else {}
        return {_PERF_COUNT: True, **precision, **self.config}

    def _precision_notes(self, compiled: ov.CompiledModel) -> tuple[str, ...]:
        """Return a note on the precision, if it is not OpenVINO's choice or not float32."""
        if _PRECISION in self.config or _PRECISION not in compiled.get_property("SUPPORTED_PROPERTIES"):
            return ()
        used = compiled.get_property(_PRECISION).get_type_name()
        default = _core(self.device).get_property(self.device, _PRECISION).get_type_name()
        if self.precision is None:
            return () if used == "f32" else (f"OpenVINO computes in {used} here: precision='f32' keeps float32",)
        return () if default == used else (f"OpenVINO computes in {used}; with precision=None, in {default} here",)


@dataclass(frozen=True)
class _Compilation:
    """One compilation.

    Attributes:
        compile: compiles the model again.
        layers: the layers of the compiled model.
        notes: remarks on its precision.
        compiled: the compiled model; None if it is large.
    """

    compile: Callable[[], ov.CompiledModel]
    layers: ExecutedLayers
    notes: tuple[str, ...]
    compiled: ov.CompiledModel | None

    def model(self) -> ov.CompiledModel:
        """Return the compiled model, compiled again if it was not kept."""
        return self.compile() if self.compiled is None else self.compiled


@dataclass(frozen=True)
class _CompiledModels:
    """A program, compiled without further outputs and several times with further ones."""

    program: Program
    plain: _Compilation
    observing: tuple[_Compilation, ...]


def _float64_note(graph: Graph, device: str) -> tuple[str, ...]:
    """Return a note if the graph has float64 values, which the CPU computes in float32."""
    computed = (graph.producer.keys() & graph.values.keys()) - graph.constant_values
    has_doubles = device.startswith("CPU") and any(graph.values[name].dtype == "float64" for name in computed)
    return ("OpenVINO's CPU computes float64 in float32",) if has_doubles else ()


_made_core = cache(ov.Core)  # which takes a while to make


def _core(device: str) -> ov.Core:
    """Return OpenVINO's core, or raise an error if it lacks the device."""
    core = _made_core()
    devices = core.available_devices
    if device not in devices and device.partition(".")[0].partition(":")[0] not in (*devices, *_VIRTUAL_DEVICES):
        raise BackendError(f"OpenVINO has no device {device!r} here; there are {', '.join(devices)}")
    return core


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
        tensors = [inputs[name] for name in port.get_names() if name in inputs]
        if not tensors:
            raise BackendError(f"the program's input {port.get_any_name()!r} is missing")
        feeds[port] = _to_openvino(tensors[0])
    return feeds


def _to_openvino(tensor: torch.Tensor) -> ov.Tensor:
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().contiguous().cpu()
    for name, dtype in _TYPES.items():
        if plain.dtype == dtype:
            result = ov.Tensor(getattr(ov.Type, name), ov.Shape(plain.shape))
            result.data[...] = plain.view(_ARRAY_DTYPES[plain.itemsize]).numpy()
            return result
    return ov.Tensor(plain.numpy())


def _to_torch(tensor: ov.Tensor) -> torch.Tensor:
    copied = torch.from_numpy(tensor.data.copy())
    dtype = _TYPES.get(tensor.element_type.get_type_name())
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
