"""ONNX Runtime, with its optimised graph observed as it is.

Marking values as outputs changes what gets fused. So the untouched program is optimised first and the result saved;
then that graph's values are made outputs, and it runs with optimisations off.
"""

import contextlib
import io
import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx_ir import serde
from torch.utils import dlpack

from .._errors import BackendError
from .._from_onnx import graph_from_onnx
from .._program import Program
from ._backend import Compiled, Stage, Values
from ._forms import Form, forms
from ._nchwc import DOMAIN
from ._ort_options import CUDA, OrtOptions, read_options

_LARGE = 2**24  # beyond, weights stand in a file of their own, so that observing a graph does not write them again
_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """ONNX Runtime with one execution provider (and the CPU's behind it).

    Attributes:
        name: `onnxruntime-cpu` or `onnxruntime-cuda`.
        provider: ONNX Runtime's name of the execution provider.
        options: what it is told besides.
        stages: it runs the program both as it stands and optimised.
    """

    name: str
    provider: str
    options: OrtOptions = field(default_factory=OrtOptions)
    stages: tuple[Stage, ...] = ("exported", "compiled")

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """See `Backend.compile`."""
        folder = Path(tempfile.mkdtemp(prefix="filch-"))
        try:
            compiled = self._compile(program, folder, optimize=optimize)
        except ValueError as error:  # onnx-ir's, for a graph that is not whole
            shutil.rmtree(folder, ignore_errors=True)
            raise BackendError(f"the program can't be written for ONNX Runtime: {_first_line(error)}") from error
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(compiled, shutil.rmtree, folder, ignore_errors=True)
        return compiled

    def _compile(self, program: Program, folder: Path, *, optimize: bool) -> Compiled:
        source = _write(program.model, folder / "program.onnx")
        exported = program.graph
        if not optimize:
            return Compiled(exported, _Handle(self._session(source, _OFF, None), source))
        runs = folder / "optimized.onnx"
        session = self._session(source, self.options.graph_level, runs)
        model = ir.load(runs)
        graph = graph_from_onnx(model)
        block = _block() if any(node.op.startswith(DOMAIN) for node in graph.nodes) else 0
        known = forms(exported, graph, partial(_numbers, model), block)
        same = {name: form.value for name, form in known.items()}
        return Compiled(graph, _Handle(session, runs, known), same=same)

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
            raise BackendError(f"ONNX Runtime can't run the program: {_first_line(error)}") from error
        shown = compiled.handle.shown
        return {
            name: shown(name, _to_torch(value)) for name, value in zip(names, found, strict=True) if value.is_tensor()
        }

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
        options = self.options.session(level)
        if save_to is not None:
            options.optimized_model_filepath = str(save_to)
            if path.with_name(_DATA).exists():
                options.add_session_config_entry(
                    "session.optimized_model_external_initializers_file_name", "optimized.data"
                )
        wanted = self.options.providers or (self.provider,)
        told = self.options.told(replay=save_to is not None)
        off = {"disabled_optimizers": self.options.disabled_optimizers} if self.options.disabled_optimizers else {}
        try:
            session = ort.InferenceSession(
                path,
                options,
                providers=[(wanted[0], told), *wanted[1:], *({_CPU} - {*wanted})],
                **off,
            )
        except Exception as error:
            raise BackendError(f"ONNX Runtime refuses the program: {_first_line(error)}") from error
        if missing := [name for name in wanted if name not in session.get_providers()]:
            raise BackendError(f"ONNX Runtime can't start its provider {missing[0]!r}")
        return session


@dataclass(frozen=True)
class _Handle:
    session: ort.InferenceSession
    path: Path
    forms: Mapping[str, Form] = field(default_factory=dict)

    def shown(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A value of the graph in the form that the exported graph has it in."""
        return self.forms[name].undo(tensor) if name in self.forms else tensor


def _numbers(model: ir.Model, name: str) -> list[int] | None:
    held = model.graph.initializers.get(name)
    return None if held is None or held.const_value is None else held.const_value.numpy().tolist()


@cache
def _block() -> int:
    """How many channels ONNX Runtime puts side by side on this processor: the place of the second row, blocked."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64, 1, 2]) for name in "xy"]
    node = onnx.helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN.removesuffix("::"))
    session = ort.InferenceSession(_model(node, *ends), providers=[_CPU])
    (found,) = session.run(None, {"x": np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)})
    return int(np.flatnonzero(found.reshape(-1) == 1)[0])  # the first is channel 0, column 0; the second, column 1


def _model(node: onnx.NodeProto, x: onnx.ValueInfoProto, y: onnx.ValueInfoProto) -> bytes:
    """A model of one node."""
    opsets = [onnx.helper.make_opsetid(domain, 1 if domain else 18) for domain in {"", node.domain}]
    graph = onnx.helper.make_graph([node], "probe", [x], [y])
    content: bytes = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content


_DATA = "program.data"
_CPU = "CPUExecutionProvider"


def cpu(**options: Any) -> OnnxRuntimeBackend:
    """ONNX Runtime on the CPU.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known.
    """
    return OnnxRuntimeBackend("onnxruntime-cpu", _CPU, read_options("onnxruntime-cpu", _CPU, options))


def cuda(**options: Any) -> OnnxRuntimeBackend:
    """ONNX Runtime on a CUDA device.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known, or the device, or a library that the provider needs, is missing.
    """
    read = read_options("onnxruntime-cuda", CUDA, options)
    if CUDA not in ort.get_available_providers():
        raise BackendError(
            "backend 'onnxruntime-cuda' needs onnxruntime-gpu; the onnxruntime that is installed is for the CPU"
        )
    missing = _preload()
    if not _runs_on_cuda():
        device = "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"
        library = f"ONNX Runtime can't load {missing}" if missing else "ONNX Runtime can't start its CUDA provider"
        raise BackendError(f"backend 'onnxruntime-cuda'{device}; {library}")
    return OnnxRuntimeBackend("onnxruntime-cuda", CUDA, read)


def _preload() -> str:
    """Load CUDA's libraries from where pip or torch put them; returns the first that is missing, or nothing."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    lines = [line for line in said.getvalue().splitlines() if line.startswith("Failed to load ")]
    return lines[0].removeprefix("Failed to load ").partition(":")[0] if lines else ""


def _runs_on_cuda() -> bool:
    """Ask a session: a provider that is listed may still fail to load, and then the CPU steps in."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    model = _model(onnx.helper.make_node("Abs", ["x"], ["y"]), *ends)
    ort.set_default_logger_severity(4)  # it would write to the terminal's standard error by itself
    try:
        session = ort.InferenceSession(model, providers=[CUDA])
    except Exception:  # noqa: BLE001  ONNX Runtime's exceptions have no common base
        return False
    finally:
        ort.set_default_logger_severity(2)
    return CUDA in session.get_providers()


def _write(model: ir.Model, path: Path) -> Path:
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > _LARGE:
        ir.save(model, path, external_data=_DATA)
    else:
        path.write_bytes(serde.serialize_model(ir.external_data.load_to_model(model.clone())).SerializeToString())
    return path


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


def _first_line(error: BaseException) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
