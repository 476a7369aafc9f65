"""What a PyTorch model did: every tensor that its modules took and gave, on disk or in memory.

>>> import torch
>>> with steal_forward(torch.nn.Linear(4, 2)) as capture:
...     _ = torch.nn.Linear(4, 2)  # another model: not stolen
>>> len(capture)
0
"""

from ._arguments import argument_tensors, named_arguments
from ._describe import describe
from ._dump import Dump, restore
from ._errors import DumpError, FilchError, NonFiniteError
from ._key import Key
from ._outputs import refuse_link_out, write_output
from ._records import Call, ModuleInfo, Origin, Record, Records, Totals
from ._recover import recover
from ._scratch import Scratch
from ._statistics import Statistics, statistics
from ._steal import Capture, is_stealing, steal_append, steal_forward
from ._string_type import string_type
from ._structure import Foreign, Skipped, left_out, structure, tensors
from ._tensors import compact
from ._untrusted import open_companion, open_untrusted, parse_json, read_untrusted
from ._watch import NonFinite

__all__ = [
    "Call",
    "Capture",
    "Dump",
    "DumpError",
    "FilchError",
    "Foreign",
    "Key",
    "ModuleInfo",
    "NonFinite",
    "NonFiniteError",
    "Origin",
    "Record",
    "Records",
    "Scratch",
    "Skipped",
    "Statistics",
    "Totals",
    "argument_tensors",
    "compact",
    "describe",
    "is_stealing",
    "left_out",
    "named_arguments",
    "open_companion",
    "open_untrusted",
    "parse_json",
    "read_untrusted",
    "recover",
    "refuse_link_out",
    "restore",
    "statistics",
    "steal_append",
    "steal_forward",
    "string_type",
    "structure",
    "tensors",
    "write_output",
]
