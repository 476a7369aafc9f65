"""What runs a program. A backend is one file here, or an entry point `filch.backends` of another package."""

from ._backend import (
    Backend,
    BackwardRun,
    Compiled,
    CompilesTorch,
    Observes,
    Profiles,
    Refers,
    RunsElsewhere,
    Stage,
    Switch,
    Switched,
    Switches,
)
from ._registry import backend_names, get_backend

__all__ = [
    "Backend",
    "BackwardRun",
    "Compiled",
    "CompilesTorch",
    "Observes",
    "Profiles",
    "Refers",
    "RunsElsewhere",
    "Stage",
    "Switch",
    "Switched",
    "Switches",
    "backend_names",
    "get_backend",
]
