"""Run programs, and return every value of their graphs.

A backend is a module or a folder here, or an entry point `filch.backends` of another package.
"""

from ._backend import (
    Backend,
    BackwardRun,
    Compiled,
    CompiledVariant,
    CompilesTorch,
    Isolates,
    Observes,
    Profiles,
    ProvidesReferences,
    ProvidesScript,
    ReferenceLookup,
    RunsOtherVersions,
    Script,
    Stage,
    Switch,
    Switches,
)
from ._isolate import isolate
from ._limited import limit_backend
from ._registry import backend_names, get_backend

__all__ = [
    "Backend",
    "BackwardRun",
    "Compiled",
    "CompiledVariant",
    "CompilesTorch",
    "Isolates",
    "Observes",
    "Profiles",
    "ProvidesReferences",
    "ProvidesScript",
    "ReferenceLookup",
    "RunsOtherVersions",
    "Script",
    "Stage",
    "Switch",
    "Switches",
    "backend_names",
    "get_backend",
    "isolate",
    "limit_backend",
]
