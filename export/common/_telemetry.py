"""Switches ONNX Runtime's telemetry off, for this process and those that it starts.

From 1.30 on, the wheels of ONNX Runtime hold a client that collects telemetry: to import them writes `$TMPDIR/.ses` and
`~/.cache/Microsoft/DeveloperTools/.onnxruntime/`, with an identifier of the device, and starts a thread. Only this
variable, set before the import, keeps them from that; `disable_telemetry_events()` comes too late for the files.
`ORT_DISABLE_TELEMETRY=0`, set by the user, leaves it on.
"""

import os

_NAME = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(_NAME, "1")


def is_off() -> bool:
    """Whether telemetry is to be off, which it is unless the user says otherwise."""
    return os.environ.get(_NAME) != "0"
