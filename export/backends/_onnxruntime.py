"""ONNX Runtime, with its optimised graph observed as it is.

Marking values as outputs changes what gets fused. So the untouched program is optimised first and the result saved;
then that graph's values are made outputs, and it runs with optimisations off.
"""

import contextlib
import ctypes
import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch.utils import dlpack

from .._errors import BackendError
from .._from_onnx import graph_from_onnx
from .._program import Program
from ._backend import Compiled, Stage, Values
from ._files import DATA, first_line, in_folder, write_model

_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """ONNX Runtime with one execution provider, and others for what that one does not have.

    Attributes:
        name: `onnxruntime-cpu`, `onnxruntime-cuda` or `onnxruntime-tensorrt`.
        provider: ONNX Runtime's name of the execution provider.
        behind: those that take what it leaves.
        stages: it runs the program both as it stands and optimised.
    """

    name: str
    provider: str
    behind: tuple[str, ...] = ("CPUExecutionProvider",)
    stages: tuple[Stage, ...] = ("exported", "compiled")

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """See `Backend.compile`."""
        return in_folder(partial(self._compile, program, optimize=optimize))

    def _compile(self, program: Program, folder: Path, *, optimize: bool) -> Compiled:
        source = write_model(program.model, folder / "program.onnx")
        if not optimize:
            return Compiled(program.graph, _Handle(self._session(source, _OFF, None), source))
        runs = folder / "optimized.onnx"
        session = self._session(source, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, runs)
        return Compiled(graph_from_onnx(ir.load(runs)), _Handle(session, runs))

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        handle: _Handle = compiled.handle
        session = self._observing(handle.path, watch) if watch else handle.session
        wanted = [entry.name for entry in session.get_inputs()]
        if missing := [name for name in wanted if name not in inputs]:
            raise BackendError(f"the program takes an input {missing[0]!r} that it was not given")
        feeds = {name: _to_ort(inputs[name]) for name in wanted}
        names = [entry.name for entry in session.get_outputs()]
        try:
            found = session.run_with_ort_values(names, feeds)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise BackendError(f"ONNX Runtime can't run the program: {first_line(error)}") from error
        return {name: _to_torch(value) for name, value in zip(names, found, strict=True) if value.is_tensor()}

    def _observing(self, path: Path, watch: Collection[str]) -> ort.InferenceSession:
        model = onnx.load(path, load_external_data=False)
        here = {entry.name for entry in model.graph.output}
        made = {name for node in model.graph.node for name in node.output}
        # A value without a type is typed by ONNX Runtime's own inference; one that is no tensor is not asked for.
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in watch if name in made - here)
        observed = path.with_name(f"observed-{path.name}")
        onnx.save(model, observed)
        return self._session(observed, _OFF, None)

    def _session(self, path: Path, level: ort.GraphOptimizationLevel, save_to: Path | None) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        options.log_severity_level = 4  # what matters is raised; the rest is advice
        if save_to is not None and self.provider == "TensorrtExecutionProvider":
            # A graph with compiled nodes can't be saved as it is; this writes it with the compiled engines in it.
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(save_to))
        elif save_to is not None:
            options.optimized_model_filepath = str(save_to)
            if path.with_name(DATA).exists():
                options.add_session_config_entry(
                    "session.optimized_model_external_initializers_file_name", "optimized.data"
                )
        try:
            session = ort.InferenceSession(
                path,
                options,
                providers=list(dict.fromkeys((self.provider, *self.behind))),
                enable_fallback=0,  # else it prints that it falls back, also in the middle of a run
            )
        except Exception as error:
            raise BackendError(f"ONNX Runtime refuses the program: {first_line(error)}") from error
        if self.provider not in session.get_providers():  # it falls back to the next one, and only logs it
            raise BackendError(f"backend {self.name!r}: ONNX Runtime can't start {self.provider} for this program")
        return session


@dataclass(frozen=True)
class _Handle:
    session: ort.InferenceSession
    path: Path


def cpu() -> OnnxRuntimeBackend:
    """ONNX Runtime on the CPU."""
    return OnnxRuntimeBackend("onnxruntime-cpu", "CPUExecutionProvider")


def cuda() -> OnnxRuntimeBackend:
    """ONNX Runtime on a CUDA device.

    Raises:
        BackendError: the device, or a library that the provider needs, is missing.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise BackendError(
            "backend 'onnxruntime-cuda' needs onnxruntime-gpu; the onnxruntime that is installed is for the CPU"
        )
    missing = _preload()
    if not _runs_on("CUDAExecutionProvider"):
        device = "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"
        library = f"ONNX Runtime can't load {missing}" if missing else "ONNX Runtime can't start its CUDA provider"
        raise BackendError(f"backend 'onnxruntime-cuda'{device}; {library}")
    return OnnxRuntimeBackend("onnxruntime-cuda", "CUDAExecutionProvider")


def tensorrt() -> OnnxRuntimeBackend:
    """ONNX Runtime on a CUDA device, with what TensorRT takes compiled by it.

    Each subgraph that TensorRT takes is one node of the compiled graph: its results are judged, what is inside has no
    values.

    Raises:
        BackendError: the device, or a library that the provider needs, is missing.
    """
    provider = "TensorrtExecutionProvider"
    if provider not in ort.get_available_providers():
        raise BackendError(
            "backend 'onnxruntime-tensorrt' needs onnxruntime-gpu; the onnxruntime that is installed has no TensorRT"
        )
    _preload()
    with contextlib.suppress(ImportError):
        import_module("tensorrt")  # loads its libraries, which pip puts where nobody looks for them
    if not _runs_on(provider):
        device = "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"
        raise BackendError(f"backend 'onnxruntime-tensorrt'{device}; ONNX Runtime can't load {_missing('tensorrt')}")
    return OnnxRuntimeBackend("onnxruntime-tensorrt", provider, ("CUDAExecutionProvider", "CPUExecutionProvider"))


def _missing(library: str) -> str:
    """The first library that a provider needs and that is not there."""
    (provider,) = (Path(ort.__file__).parent / "capi").glob(f"*onnxruntime_providers_{library}.*")
    try:
        ctypes.CDLL(str(provider))
    except OSError as error:
        return str(error).partition(":")[0]
    return provider.name


def _preload() -> str:
    """Load CUDA's libraries from where pip or torch put them; returns the first that is missing, or nothing."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    lines = [line for line in said.getvalue().splitlines() if line.startswith("Failed to load ")]
    return lines[0].removeprefix("Failed to load ").partition(":")[0] if lines else ""


def _runs_on(provider: str) -> bool:
    """Ask a session: a provider that is listed may still fail to load, and then the CPU steps in."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "probe", [value], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    ort.set_default_logger_severity(4)  # it would write to the terminal's standard error by itself
    try:
        session = ort.InferenceSession(model.SerializeToString(), providers=[provider], enable_fallback=0)
    except Exception:  # noqa: BLE001  ONNX Runtime's exceptions have no common base
        return False
    finally:
        ort.set_default_logger_severity(2)
    return provider in session.get_providers()


def _to_ort(tensor: torch.Tensor) -> ort.OrtValue:
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().contiguous().cpu()
    if plain.dtype in (torch.bfloat16, *_FLOAT8):
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            plain.view(_BITS[plain.itemsize]).numpy(), _ONNX_TYPES[plain.dtype]
        )
    return ort.OrtValue.ortvalue_from_numpy(plain.numpy())


def _to_torch(value: ort.OrtValue) -> torch.Tensor:
    kind = value.element_type()
    if kind in _BY_TYPE:
        dtype = _BY_TYPE[kind]
        raw = dlpack.from_dlpack(value._ortvalue.to_dlpack())  # noqa: SLF001  the public class has no way to these bits
        return raw.clone() if raw.dtype == dtype else raw.clone().view(dtype)
    return torch.from_numpy(value.numpy().copy())


_BITS = {1: torch.uint8, 2: torch.int16}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_ONNX_TYPES = {
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.float8_e4m3fn: onnx.TensorProto.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: onnx.TensorProto.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: onnx.TensorProto.FLOAT8E5M2,
    torch.float8_e5m2fnuz: onnx.TensorProto.FLOAT8E5M2FNUZ,
}
_BY_TYPE: Mapping[int, torch.dtype] = {onnx_type: dtype for dtype, onnx_type in _ONNX_TYPES.items()}
