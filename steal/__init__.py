"""Capture the tensors that a PyTorch model's modules receive and return, on disk or in memory.

>>> import torch
>>> from filch.steal import steal_forward
>>> with steal_forward(torch.nn.Linear(4, 2)) as capture:
...     _ = torch.nn.Linear(4, 2)  # another module: not captured
>>> len(capture)
0

Names are imported when they are first used: reading a file of text does not need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._errors import DumpError, FilchError, NonFiniteError, NotADumpError
    from ._key import Key
    from ._phases import Phase, phase, watch_phases
    from ._records import Call, ModuleInfo, Origin, Record, Records, Totals
    from ._steal import Capture, is_stealing, steal_append, steal_forward
    from .dump._dump import Dump, add_properties, restore
    from .dump._environment import environment
    from .dump._recover import recover
    from .extras._watch import NonFinite
    from .files._outputs import writing
    from .ranks._assembled import AssembledRecords, assemble
    from .ranks._layouts import Layouts
    from .ranks._layouts_file import load_layouts, save_layouts
    from .values._describe import describe
    from .values._foreign import Foreign, Skipped
    from .values._sharding import LocalShard, Mesh, Placement, Sharding
    from .values._statistics import Statistics, statistics
    from .values._string_type import string_type
    from .values._structure import missing_tensors, tensors

__all__ = [
    "AssembledRecords",
    "Call",
    "Capture",
    "Dump",
    "DumpError",
    "FilchError",
    "Foreign",
    "Key",
    "Layouts",
    "LocalShard",
    "Mesh",
    "ModuleInfo",
    "NonFinite",
    "NonFiniteError",
    "NotADumpError",
    "Origin",
    "Phase",
    "Placement",
    "Record",
    "Records",
    "Sharding",
    "Skipped",
    "Statistics",
    "Totals",
    "add_properties",
    "assemble",
    "describe",
    "environment",
    "is_stealing",
    "load_layouts",
    "missing_tensors",
    "phase",
    "recover",
    "restore",
    "save_layouts",
    "statistics",
    "steal_append",
    "steal_forward",
    "string_type",
    "tensors",
    "watch_phases",
    "writing",
]

_NAMES_BY_MODULE = {
    "_errors": ("DumpError", "FilchError", "NonFiniteError", "NotADumpError"),
    "_key": ("Key",),
    "_phases": ("Phase", "phase", "watch_phases"),
    "_records": ("Call", "ModuleInfo", "Origin", "Record", "Records", "Totals"),
    "_steal": ("Capture", "is_stealing", "steal_append", "steal_forward"),
    "dump._dump": ("Dump", "add_properties", "restore"),
    "dump._environment": ("environment",),
    "dump._recover": ("recover",),
    "extras._watch": ("NonFinite",),
    "files._outputs": ("writing",),
    "ranks._assembled": ("AssembledRecords", "assemble"),
    "ranks._layouts": ("Layouts",),
    "ranks._layouts_file": ("load_layouts", "save_layouts"),
    "values._describe": ("describe",),
    "values._foreign": ("Foreign", "Skipped"),
    "values._sharding": ("LocalShard", "Mesh", "Placement", "Sharding"),
    "values._statistics": ("Statistics", "statistics"),
    "values._string_type": ("string_type",),
    "values._structure": ("missing_tensors", "tensors"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
