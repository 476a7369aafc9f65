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
    from ._phases import Phase, is_watched, phase, watch_phases
    from ._records import Call, ModuleInfo, Origin, Record, Records, Totals
    from ._steal import Capture, is_stealing, steal_append, steal_forward
    from ._tf32 import Product, has_tf32, tf32_products
    from .dump._dump import Dump, add_properties, restore
    from .dump._environment import environment
    from .dump._recover import recover
    from .extras._watch import NonFinite
    from .files._budget import Budget, FileKind, LimitError
    from .files._kinds import budget_of
    from .files._outputs import (
        free_space,
        has_no_room,
        new_files,
        refuse_foreign,
        refuse_link_out,
        replacing,
        write_output,
        write_problem,
        writing,
    )
    from .files._scratch import Scratch
    from .files._untrusted import (
        open_companion,
        open_descriptor,
        open_untrusted,
        parse_json,
        read_lines,
        read_toml,
        read_untrusted,
        reopened,
    )
    from .ranks._assembled import AssembledRecords, assemble
    from .ranks._distributed import Distributed, RankPart
    from .ranks._layouts import Layouts
    from .ranks._layouts_file import load_layouts, save_layouts
    from .ranks._write import write_assembled
    from .values._arguments import argument_tensors, named_arguments
    from .values._describe import describe
    from .values._foreign import Foreign, Skipped
    from .values._raw import no_modes_or_grad
    from .values._sharding import LocalShard, Mesh, Placement, Sharding
    from .values._statistics import Statistics, statistics
    from .values._string_type import string_type
    from .values._structure import missing_tensors, structure, tensors
    from .values._tensors import is_dense, unexpand

__all__ = [
    "AssembledRecords",
    "Budget",
    "Call",
    "Capture",
    "Distributed",
    "Dump",
    "DumpError",
    "FilchError",
    "FileKind",
    "Foreign",
    "Key",
    "Layouts",
    "LimitError",
    "LocalShard",
    "Mesh",
    "ModuleInfo",
    "NonFinite",
    "NonFiniteError",
    "NotADumpError",
    "Origin",
    "Phase",
    "Placement",
    "Product",
    "RankPart",
    "Record",
    "Records",
    "Scratch",
    "Sharding",
    "Skipped",
    "Statistics",
    "Totals",
    "add_properties",
    "argument_tensors",
    "assemble",
    "budget_of",
    "describe",
    "environment",
    "free_space",
    "has_no_room",
    "has_tf32",
    "is_dense",
    "is_stealing",
    "is_watched",
    "load_layouts",
    "missing_tensors",
    "named_arguments",
    "new_files",
    "no_modes_or_grad",
    "open_companion",
    "open_descriptor",
    "open_untrusted",
    "parse_json",
    "phase",
    "read_lines",
    "read_toml",
    "read_untrusted",
    "recover",
    "refuse_foreign",
    "refuse_link_out",
    "reopened",
    "replacing",
    "restore",
    "save_layouts",
    "statistics",
    "steal_append",
    "steal_forward",
    "string_type",
    "structure",
    "tensors",
    "tf32_products",
    "unexpand",
    "watch_phases",
    "write_assembled",
    "write_output",
    "write_problem",
    "writing",
]

_NAMES_BY_MODULE = {
    "_errors": ("DumpError", "FilchError", "NonFiniteError", "NotADumpError"),
    "_key": ("Key",),
    "_phases": ("Phase", "is_watched", "phase", "watch_phases"),
    "_records": ("Call", "ModuleInfo", "Origin", "Record", "Records", "Totals"),
    "_steal": ("Capture", "is_stealing", "steal_append", "steal_forward"),
    "_tf32": ("Product", "has_tf32", "tf32_products"),
    "dump._dump": ("Dump", "add_properties", "restore"),
    "dump._environment": ("environment",),
    "dump._recover": ("recover",),
    "extras._watch": ("NonFinite",),
    "files._budget": ("Budget", "FileKind", "LimitError"),
    "files._kinds": ("budget_of",),
    "files._outputs": (
        "free_space",
        "has_no_room",
        "new_files",
        "refuse_foreign",
        "refuse_link_out",
        "replacing",
        "write_output",
        "write_problem",
        "writing",
    ),
    "files._scratch": ("Scratch",),
    "files._untrusted": (
        "open_companion",
        "open_descriptor",
        "open_untrusted",
        "parse_json",
        "read_lines",
        "read_toml",
        "read_untrusted",
        "reopened",
    ),
    "ranks._assembled": ("AssembledRecords", "assemble"),
    "ranks._distributed": ("Distributed", "RankPart"),
    "ranks._layouts": ("Layouts",),
    "ranks._layouts_file": ("load_layouts", "save_layouts"),
    "ranks._write": ("write_assembled",),
    "values._arguments": ("argument_tensors", "named_arguments"),
    "values._describe": ("describe",),
    "values._foreign": ("Foreign", "Skipped"),
    "values._raw": ("no_modes_or_grad",),
    "values._sharding": ("LocalShard", "Mesh", "Placement", "Sharding"),
    "values._statistics": ("Statistics", "statistics"),
    "values._string_type": ("string_type",),
    "values._structure": ("missing_tensors", "structure", "tensors"),
    "values._tensors": ("is_dense", "unexpand"),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
