"""Options of backends in reports that come from others."""

from collections.abc import Mapping
from typing import Any

# Options that can't make a backend run another program, load a library or write a file. OpenVINO's and Inductor's
# `config` and a provider's own options can: Inductor's `cpp.cxx` is a command.
_HARMLESS = (
    *("device", "disabled_optimizers", "level", "mode", "providers", "search_space", "session_config"),
    *("session_options", "tf32", "threads", "tunable", "use_cuda_graph", "use_fp16", "use_fp16_reduction"),
)
_FILES = "ep."  # session configuration entries with this prefix name files that are written


def unsafe_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of options that may run programs or write files, so that their value has to be trusted."""
    return [name for name, value in options.items() if name not in _HARMLESS or _FILES in str(value)]
