"""ONNX Runtime on each kind of device that it is to be had for here."""

import contextlib
import ctypes
import io
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch

from ..._errors import BackendError
from ._backend import OnnxRuntimeBackend
from ._options import CPU, CUDA, TENSORRT, read_options
from ._probe import starts


def cpu(**options: Any) -> OnnxRuntimeBackend:
    """ONNX Runtime on the CPU.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known.
    """
    return OnnxRuntimeBackend("onnxruntime-cpu", CPU, read_options("onnxruntime-cpu", CPU, options))


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
    if not starts(CUDA):
        device = "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"
        library = f"ONNX Runtime can't load {missing}" if missing else "ONNX Runtime can't start its CUDA provider"
        raise BackendError(f"backend 'onnxruntime-cuda'{device}; {library}")
    return OnnxRuntimeBackend("onnxruntime-cuda", CUDA, read)


def tensorrt(**options: Any) -> OnnxRuntimeBackend:
    """ONNX Runtime on a CUDA device, with what TensorRT takes compiled by it.

    Each subgraph that TensorRT takes is one node of the compiled graph: its results are judged, what is inside has no
    values.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known, or the device, or a library that the provider needs, is missing.
    """
    read = read_options("onnxruntime-tensorrt", TENSORRT, options)
    if TENSORRT not in ort.get_available_providers():
        raise BackendError(
            "backend 'onnxruntime-tensorrt' needs onnxruntime-gpu; the onnxruntime that is installed has no TensorRT"
        )
    _preload()
    with contextlib.suppress(ImportError):
        import_module("tensorrt")  # loads its libraries, which pip puts where nobody looks for them
    if not starts(TENSORRT):
        device = "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"
        raise BackendError(f"backend 'onnxruntime-tensorrt'{device}; ONNX Runtime can't load {_missing('tensorrt')}")
    return OnnxRuntimeBackend("onnxruntime-tensorrt", TENSORRT, read, behind=(CUDA, CPU))


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
