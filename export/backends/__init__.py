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
    RunsElsewhere,
    Script,
    Scripted,
    Should,
    Stage,
    Switch,
    Switched,
    Switches,
)
from ._isolate import isolate
from ._limited import limit_backend
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
    "RunsElsewhere",
    "Script",
    "Scripted",
    "Should",
    "Stage",
    "Switch",
    "Switched",
    "Switches",
    "backend_names",
    "get_backend",
    "isolate",
    "limit_backend",
]
