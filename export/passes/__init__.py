"""Transform a program one pass at a time, with instruments that watch.

A pass is a name of `pass_names()`, one of onnx-ir's passes, or anything that takes a `Program` and returns one; other
packages add theirs by an entry point `filch.passes`.
"""

from ._context import PassContext
from ._instrument import Instrument
from ._pass import Pass
from ._registry import default_passes, get_pass, pass_names

__all__ = [
    "Instrument",
    "Pass",
    "PassContext",
    "default_passes",
    "get_pass",
    "pass_names",
]
