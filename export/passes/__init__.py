"""Transform a program pass by pass, with instruments that observe each pass.

A pass is a name of `pass_names()`, a pass of onnx-ir, or a callable that takes a `Program` and returns one. Other
packages add theirs as entry points `filch.passes`.
"""

from ._context import PassContext
from ._instrument import Instrument
from ._pass import Pass
from ._registry import default_passes, get_pass, pass_names

__all__ = ["Instrument", "Pass", "PassContext", "default_passes", "get_pass", "pass_names"]
