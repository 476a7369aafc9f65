"""Where in a model's code a call comes from."""

import contextlib
import os
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__  # noqa: SLF001  where all calls of modules go through
# A line in these says how a call is made, not where from.
_TORCH, _FILCH = (str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_MACHINERY = (_TORCH, _FILCH, contextlib.__file__)


@cache
def _is_machinery(file: str) -> bool:
    return file.startswith(_MACHINERY)


def source_line() -> str | None:
    """The innermost line that is neither torch's nor ours, as `"model.py:12"`; None in a thread that has none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the frames below
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119  likewise


def runs_in(module: int) -> bool:
    """Whether the call of the module with this `id` is what runs, and not something below it that is compiled."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  as above
    while frame is not None:
        code = frame.f_code
        if code is _CALL and id(frame.f_locals["self"]) == module:
            return True
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):  # torch.compile's
            return False
        frame = frame.f_back
    return False  # it ended unseen: torch tells hooks of `Exception`s only
