"""Switch off ONNX Runtime's telemetry in this process and its child processes.

Since version 1.30, the wheels of ONNX Runtime contain a telemetry client. Importing them starts a thread and writes
`$TMPDIR/.ses` and `~/.cache/Microsoft/DeveloperTools/.onnxruntime/`, with an identifier of the device. Only this
variable, set before the import, prevents that: `disable_telemetry_events()` runs after the files are written. A user
who sets `ORT_DISABLE_TELEMETRY=0` leaves telemetry on.
"""

import os

_NAME = "ORT_DISABLE_TELEMETRY"

os.environ.setdefault(_NAME, "1")


def is_off() -> bool:
    """Whether telemetry is off, which is the default."""
    return os.environ.get(_NAME) != "0"
