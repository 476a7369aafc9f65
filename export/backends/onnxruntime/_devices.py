"""The ONNX Runtime backends, one per execution provider."""

import contextlib
import ctypes
import io
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch

from filch.steal.private import _onnxruntime

from ..._errors import BackendError
from ._backend import OnnxRuntimeBackend
from ._options import CPU, CUDA, TENSORRT, OrtOptions, read_options
from ._probe import can_start


def cpu(**options: Any) -> OnnxRuntimeBackend:
    """Return ONNX Runtime on the CPU.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known.
    """
    return OnnxRuntimeBackend("onnxruntime-cpu", CPU, read_options("onnxruntime-cpu", CPU, options))


def cuda(**options: Any) -> OnnxRuntimeBackend:
    """Return ONNX Runtime on a CUDA device.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known, or the device, or a library that the provider needs, is missing.
    """
    cuda_options = _gpu_options("onnxruntime-cuda", CUDA, options, "is for the CPU")
    missing = _preload()
    if not can_start(CUDA):
        library = f"ONNX Runtime can't load {missing}" if missing else "ONNX Runtime can't start its CUDA provider"
        raise BackendError(f"backend 'onnxruntime-cuda'{_without_gpu()}; {library}")
    return OnnxRuntimeBackend("onnxruntime-cuda", CUDA, cuda_options)


def tensorrt(**options: Any) -> OnnxRuntimeBackend:
    """Return ONNX Runtime with TensorRT on a CUDA device.

    Each subgraph that TensorRT compiles is one node of the compiled graph: only its outputs can be observed.

    Args:
        options: see `OrtOptions`.

    Raises:
        BackendError: an option is not known, or the device, or a library that the provider needs, is missing.
    """
    tensorrt_options = _gpu_options("onnxruntime-tensorrt", TENSORRT, options, "has no TensorRT")
    _preload()
    with contextlib.suppress(ImportError):
        import_module("tensorrt")  # loads its libraries, which pip installs outside of the library search path
    if not can_start(TENSORRT):
        missing = f"ONNX Runtime can't load {_missing('tensorrt')}"
        raise BackendError(f"backend 'onnxruntime-tensorrt'{_without_gpu()}; {missing}")
    return OnnxRuntimeBackend("onnxruntime-tensorrt", TENSORRT, tensorrt_options, fallbacks=(CUDA, CPU))


def _gpu_options(backend: str, provider: str, options: dict[str, Any], problem: str) -> OrtOptions:
    """Return the options, or raise an error if the installed onnxruntime lacks the execution provider.

    `problem` says so, at the end of the message.
    """
    ort_options = read_options(backend, provider, options)
    if provider not in ort.get_available_providers():
        raise BackendError(f"backend {backend!r} needs onnxruntime-gpu; the onnxruntime that is installed {problem}")
    return ort_options


def _without_gpu() -> str:
    """Return the part of a message that says that there is no GPU, if torch sees none."""
    return "" if torch.cuda.is_available() else " needs a CUDA device, and torch sees none"


def _missing(library: str) -> str:
    """Return the first missing library that a provider needs; the provider's own if that is absent, or all exist."""
    providers = [*Path(_onnxruntime.capi.__file__).parent.glob(f"*onnxruntime_providers_{library}.*")]
    if not providers:
        return f"onnxruntime_providers_{library}, which it was installed without"
    (provider,) = providers
    try:
        ctypes.CDLL(str(provider))
    except OSError as error:
        return str(error).partition(":")[0]
    return provider.name


def _preload() -> str:
    """Load the CUDA libraries that pip or torch installed; return the first missing one, or `""`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        ort.preload_dlls()
    lines = [line for line in output.getvalue().splitlines() if line.startswith("Failed to load ")]
    return lines[0].removeprefix("Failed to load ").partition(":")[0] if lines else ""
