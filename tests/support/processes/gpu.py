"""What tests on a GPU need besides the device: ONNX Runtime's CUDA provider, and TF32."""

from typing import Any

import pytest
import torch

from filch.export import BackendError
from filch.export.backends import get_backend


def ort_cuda(**options: Any) -> Any:
    """Return ONNX Runtime on the device; skip the test, with the reason, if it can't start there at all."""
    try:
        get_backend("onnxruntime-cuda")
    except BackendError as error:
        pytest.skip(str(error))
    return get_backend("onnxruntime-cuda", **options)


def needs_tf32() -> None:
    """Skip the test on a device without TF32."""
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        pytest.skip(f"needs TF32, which devices of compute capability {major}.{minor} lack")
