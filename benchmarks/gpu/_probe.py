"""Look for a GPU with one library: print its properties as JSON, or exit with `SKIPPED` and the reason.

`python _probe.py torch` and `python _probe.py onnxruntime` run in processes of their own, because a broken driver can
hang or crash them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata

from _steps import SKIPPED

DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime", "onnx", "triton", "transformers", "numpy", "pytest")


class MissingDeviceError(Exception):
    """There is no device; the message is the reason."""


def torch_properties() -> dict[str, str]:
    """Return the properties of torch and of the device that it sees, after a computation on it."""
    import torch

    if not torch.cuda.is_available():
        raise MissingDeviceError(f"torch {torch.__version__} sees no CUDA device")
    total = float(torch.ones(256, device="cuda").sum())
    if total != 256:
        raise RuntimeError(f"the sum of 256 ones on the device is {total}")
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "memory of the device": f"{properties.total_memory / 2**30:.0f} GiB",
        "devices": str(torch.cuda.device_count()),
        "driver": driver(),
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
        "cuDNN of torch": str(torch.backends.cudnn.version()),
    }


def onnxruntime_properties() -> dict[str, str]:
    """Return the properties of ONNX Runtime, after a session on the device: it lists CUDA without a GPU, too."""
    import onnxruntime as ort

    from filch.export import BackendError
    from filch.export.backends import get_backend

    try:
        get_backend("onnxruntime-cuda")
    except BackendError as error:
        raise MissingDeviceError(f"ONNX Runtime {ort.__version__}: {error}") from error
    return {"ONNX Runtime": ort.__version__, "providers": ", ".join(ort.get_available_providers())}


def driver() -> str:
    """Return the version of the driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown: there is no nvidia-smi"
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return lines[0] if lines else "unknown"


def versions() -> dict[str, str]:
    """Return the versions of Python, Filch and the optional distributions."""
    found = {"Python": sys.version.split()[0]}
    try:
        filch = import_module("filch")
        found["filch"] = f"{filch.__version__} in {next(iter(filch.__path__))}"
    except ImportError as error:
        found["filch"] = str(error)
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


PROBES: dict[str, Callable[[], dict[str, str]]] = {"torch": torch_properties, "onnxruntime": onnxruntime_properties}


def main() -> int:
    """Print the properties that one library reports."""
    try:
        properties = PROBES[sys.argv[1]]()
    except MissingDeviceError as error:
        print(" ".join(str(error).split()))
        return SKIPPED
    except ModuleNotFoundError as error:
        print(f"{sys.argv[1]}: {error}")
        return SKIPPED
    print(json.dumps(properties))
    return 0


if __name__ == "__main__":
    sys.exit(main())
