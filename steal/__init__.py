"""Capture the tensors that a PyTorch model's modules receive and return, on disk or in memory.

>>> import torch
>>> with steal_forward(torch.nn.Linear(4, 2)) as capture:
...     _ = torch.nn.Linear(4, 2)  # another module: not captured
>>> len(capture)
0
"""

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
from .files._outputs import refuse_link_out, write_output
from .files._scratch import Scratch
from .files._untrusted import open_companion, open_untrusted, parse_json, read_toml, read_untrusted
from .ranks._assembled import AssembledRecords, assemble
from .ranks._distributed import Distributed, Part
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
from .values._tensors import unexpand

__all__ = [
    "AssembledRecords",
    "Call",
    "Capture",
    "Distributed",
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
    "Part",
    "Phase",
    "Placement",
    "Product",
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
    "describe",
    "environment",
    "has_tf32",
    "is_stealing",
    "is_watched",
    "load_layouts",
    "missing_tensors",
    "named_arguments",
    "no_modes_or_grad",
    "open_companion",
    "open_untrusted",
    "parse_json",
    "phase",
    "read_toml",
    "read_untrusted",
    "recover",
    "refuse_link_out",
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
]
