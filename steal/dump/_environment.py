"""The environment of a run: versions, processor and settings, on which the rounding of its values depends."""

import functools
import os
import platform
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import torch

_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
)


def environment(type_names: Iterable[str] = ()) -> dict[str, str]:
    """Return versions, processor, settings and time (UTC, ISO 8601) of the run.

    Args:
        type_names: the classes of the captured modules as `"module:QualifiedName"`; the versions of the packages that
            define them are included.
    """
    settings = {
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    return {
        **_packages(type_names),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "onnx": onnx.__version__,
        "python": platform.python_version(),
        "blas": _blas(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "settings": ", ".join(f"{name}={value}" for name, value in settings.items()),
        "platform": platform.platform(),
        **_rank(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _packages(type_names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that define these classes; transformers' also if it is merely loaded."""
    names = {name.partition(":")[0].partition(".")[0] for name in type_names} | {"transformers"}
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in sorted(names))
    return {name: version for name, version in loaded if isinstance(version, str)}


def _rank() -> dict[str, str]:
    """Return the rank and the number of processes, if there are several."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    return {"rank": str(torch.distributed.get_rank()), "world_size": str(torch.distributed.get_world_size())}


@functools.cache
def _blas() -> str:
    """Return the libraries for matrix products and convolutions that torch was built with."""
    text = torch.__config__.show()
    found = {"": r"BLAS_INFO=(\w+)", "oneDNN ": r"MKL-DNN v([\w.]+)"}
    if torch.cuda.is_available():
        found |= {"CUDA ": r"CUDA_VERSION=([\w.]+)", "cuDNN ": r"CUDNN_VERSION=([\w.]+)"}
    matches = ((name, re.search(pattern, text)) for name, pattern in found.items())
    return ", ".join(name + match[1] for name, match in matches if match) or "unknown"


@functools.cache
def _processor() -> str:
    """Return the name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine()
