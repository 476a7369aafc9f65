"""Backends, which compile and run programs. Other packages add theirs as entry points `filch.backends`."""

from ._backend import (
    Backend,
    BackwardRun,
    Compiled,
    CompiledVariant,
    CompilesTorch,
    Isolates,
    NotCompiledError,
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
    SwitchesTorch,
)
from ._isolate import isolate
from ._registry import backend_names, get_backend
from ._unrolled import unrolled

__all__ = [
    "Backend",
    "BackwardRun",
    "Compiled",
    "CompiledVariant",
    "CompilesTorch",
    "Isolates",
    "NotCompiledError",
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
    "SwitchesTorch",
    "backend_names",
    "get_backend",
    "isolate",
    "unrolled",
]
