"""The OpenVINO backend: runs a program and returns the values between the executed layers (see `_search`)."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import openvino as ov
import torch

from ..._errors import BackendError
from ...common._arrays import same_bits, torch_to_array
from ...common._suggestions import hint
from ...graph._graph import Graph
from ...program._program import Program
from .._backend import Compiled, ReferenceLookup, Script, Stage, Values
from .._files import in_folder, write_model
from .._isolate import CutProgram
from ._layers import ExecutedLayers, NodesByLayer, RequestedOutput, shape_of, translated_nodes
from ._search import Compilation, ValueSearch

_PRECISION = "INFERENCE_PRECISION_HINT"
_PERF_COUNT = "PERF_COUNT"
_LARGE = 2**27  # bytes of weights, of which each compiled model has a copy: larger models are compiled for each run
_AS_ARRAY = '''\
def as_array(result, kind):
    """Return a result; bfloat16, which NumPy lacks, becomes float32."""
    return (result.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if kind == ov.Type.bf16 else result


'''
_VIRTUAL_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")
# Types that NumPy lacks, by OpenVINO's names, and the dtypes of the arrays as which OpenVINO exposes them, by itemsize.
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
        """Compile a program; with `watched`, also find the values that can be observed."""
        path = write_model(program.model, folder / "program.onnx")
        with _backend_errors("refuses the program"):
            model = ov.Core().read_model(path)
        exported = program.graph
        compile_with = partial(self._compile_with, translated_nodes(model, exported))
        plain = compile_with(model, ())
        layers = plain.layers
        search = ValueSearch(compile_with, plain, layers.boundary_values(exported))
        if watched:
            search.run(model)
        handle = _CompiledModels(program, plain, tuple(search.compilations))
        graph = layers.graph(exported, search.ports)
        notes = (*plain.notes, *_float64_note(exported, self.device))
        return Compiled(graph, handle, layers.origins(exported, search.ports), notes=notes)

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`.

        For some models, OpenVINO computes wrong outputs if further values are made outputs. The values of compilations
        whose outputs differ from those of the plain one are left out, unless all compilations differ; then the changed
        outputs are returned, too.
        """
        outputs = _infer(compiled.handle.plain.model(), inputs)
        results = [_infer(observing.model(), inputs) for observing in compiled.handle.observing] if watch else []
        unchanged = [
            values
            for values in results
            if all(same_bits(torch_to_array(values[name]), torch_to_array(outputs[name])) for name in outputs)
        ]
        observed: dict[str, torch.Tensor] = {}
        for values in unchanged or results:
            # The first compilation that returns a value counts.
            observed = {name: values[name] for name in values if name in watch or name in outputs} | observed
        return outputs | observed

    def profile(self, compiled: Compiled, inputs: Values) -> Mapping[str, float]:
        """See `Profiles.profile`."""
        plain = compiled.handle.plain.model()
        _infer(plain, inputs)  # a warm-up
        request = plain.create_infer_request()
        with _backend_errors("can't run the program"):
            request.infer(_feeds(plain, inputs))
        seconds = {item.node_name: item.real_time.total_seconds() for item in request.profiling_info}
        layers = {node.name: node.attributes["layers"] for node in compiled.graph.nodes}
        return {name: sum(seconds.get(layer, 0.0) for layer in executed) for name, executed in layers.items()}

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

    def _compile_with(self, nodes: NodesByLayer, model: ov.Model, names: Collection[str]) -> Compilation:
        """Compile a model with further outputs.

        Args:
            nodes: the exported nodes that each layer translates; see `translated_nodes`.
            model: the model, which is copied.
            names: names of the values to return besides the outputs.
        """
        extended = model.clone()
        properties = self._properties()

        def compile_model() -> ov.CompiledModel:
            with _backend_errors("refuses the program"):
                return _core(self.device).compile_model(extended, self.device, properties)

        with _backend_errors("refuses the program"):
            extended.add_outputs(list(names))
            compiled = compile_model()
            requested = {
                result.get_friendly_name(): RequestedOutput(
                    tuple(result.input(0).get_source_output().get_names()),
                    shape_of(result.get_output_partial_shape(0)),
                )
                for result in extended.get_results()
            }
            layers = ExecutedLayers(compiled.get_runtime_model(), nodes, requested)
        constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
        kept = compiled if sum(op.get_byte_size() for op in constants) <= _LARGE else None
        return Compilation(compile_model, layers, self._precision_notes(compiled), kept)

    def _properties(self) -> dict[str, Any]:
        """Return the properties of the compilation; the time of each layer is always measured."""
        known = _core(self.device).get_property(self.device, "SUPPORTED_PROPERTIES")
        for name in self.config:
            if name not in known:
                raise BackendError(f"OpenVINO's {self.device} has no property {name!r}; {hint(name, sorted(known))}")
        precision = {_PRECISION: self.precision} if self.precision is not None and _PRECISION in known else {}
        return {_PERF_COUNT: True, **precision, **self.config}

    def _precision_notes(self, compiled: ov.CompiledModel) -> tuple[str, ...]:
        """Return a note on the precision if it is not what a user may expect.

        That is if OpenVINO's choice (`precision` is None) is not float32, or another precision is not OpenVINO's
        default. Empty also if the user has set it in `config`, or the device has no such property.
        """
        if _PRECISION in self.config or _PRECISION not in compiled.get_property("SUPPORTED_PROPERTIES"):
            return ()
        used = compiled.get_property(_PRECISION).get_type_name()
        default = _core(self.device).get_property(self.device, _PRECISION).get_type_name()
        if self.precision is None:
            return () if used == "f32" else (f"OpenVINO computes in {used} here: precision='f32' keeps float32",)
        return () if default == used else (f"OpenVINO computes in {used}; with precision=None, in {default} here",)


@dataclass(frozen=True)
class _CompiledModels:
    """A program, compiled without further outputs and several times with further ones."""

    program: Program
    plain: Compilation
    observing: tuple[Compilation, ...]


def _float64_note(graph: Graph, device: str) -> tuple[str, ...]:
    """Return a note if the graph has float64 values, which the CPU computes in float32."""
    computed = (graph.producer.keys() & graph.values.keys()) - graph.constant_values
    has_doubles = device.startswith("CPU") and any(graph.values[name].dtype == "float64" for name in computed)
    return ("OpenVINO's CPU computes float64 in float32",) if has_doubles else ()


_made_core = cache(ov.Core)  # which takes a while to make


def _core(device: str) -> ov.Core:
    """Return OpenVINO's core, or raise an error if it lacks the device."""
    core = _made_core()
    devices = core.available_devices  # `device` may also be one of several (`GPU.1`), or have a list (`AUTO:GPU,CPU`)
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
    """Return the inputs by port; raise an error if one is missing."""
    feeds = {}
    for port in compiled.inputs:
        tensors = [inputs[name] for name in port.get_names() if name in inputs]
        if not tensors:
            raise BackendError(f"the program's input {port.get_any_name()!r} is missing")
        feeds[port] = _to_openvino(tensors[0])
    return feeds


def _to_openvino(tensor: torch.Tensor) -> ov.Tensor:
    """Convert a tensor; a complex one gets a last dimension with the real and the imaginary part."""
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().contiguous().cpu()
    for name, dtype in _TYPES.items():
        if plain.dtype == dtype:
            result = ov.Tensor(getattr(ov.Type, name), ov.Shape(plain.shape))
            result.data[...] = plain.view(_ARRAY_DTYPES[plain.itemsize]).numpy()
            return result
    return ov.Tensor(plain.numpy())


def _to_torch(tensor: ov.Tensor) -> torch.Tensor:
    """Copy a tensor of OpenVINO."""
    copied = torch.from_numpy(tensor.data.copy())
    dtype = _TYPES.get(tensor.element_type.get_type_name())
    return copied if dtype is None else copied.view(dtype)


@contextlib.contextmanager
def _backend_errors(what: str) -> Iterator[None]:
    """Convert OpenVINO's errors, whose first lines are source locations; the last line is the message."""
    try:
        yield
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        messages = [line for line in lines if not line.startswith("Exception from ")]
        raise BackendError(f"OpenVINO {what}: {messages[-1] if messages else type(error).__name__}") from error
