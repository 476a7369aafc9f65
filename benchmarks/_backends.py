"""The backends that are compared, by label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from filch.export.backends import Backend, get_backend
from filch.steal import FilchError

LEVELS = ("basic", "extended", "layout", "all")
BACKENDS: dict[str, Callable[[], Backend]] = {
    "eager": lambda: get_backend("eager"),
    "reference": lambda: get_backend("reference"),
    "onnxruntime-cpu": lambda: get_backend("onnxruntime-cpu"),
    **{f"onnxruntime-{level}": lambda level=level: get_backend("onnxruntime-cpu", level=level) for level in LEVELS},
    "openvino": lambda: get_backend("openvino"),
    "inductor": lambda: get_backend("inductor"),
    "eager-cuda": lambda: get_backend("eager", device="cuda"),
    "inductor-cuda": lambda: get_backend("inductor", device="cuda"),
    "onnxruntime-cuda": lambda: get_backend("onnxruntime-cuda"),
    "onnxruntime-cuda-float32": lambda: get_backend("onnxruntime-cuda", tf32=False),
}


def available_backends(
    labels: Sequence[str], make: Callable[[str], Backend] = lambda label: BACKENDS[label]()
) -> list[str]:
    """Return the labels of those that can be made; print which are skipped, as their library or device is missing."""
    available = []
    for label in labels:
        try:
            make(label)
        except FilchError as error:
            print(f"{label}: skipped: {error}", flush=True)
        else:
            available.append(label)
    return available
