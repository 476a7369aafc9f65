"""What runs a program. A backend is one file here, or an entry point `filch.backends` of another package."""

from ._backend import (
    Backend,
    BackwardRun,
    Compiled,
    CompilesTorch,
    Isolates,
    Observes,
    Profiles,
    Refers,
    Script,
    Scripted,
    Should,
    Stage,
)
from ._isolate import isolate
from ._registry import backend_names, get_backend

__all__ = [
    "Backend",
    "BackwardRun",
    "Compiled",
    "CompilesTorch",
    "Isolates",
    "Observes",
    "Profiles",
    "Refers",
    "Script",
    "Scripted",
    "Should",
    "Stage",
    "backend_names",
    "get_backend",
    "isolate",
]
