"""Find the line of the model's code that makes a call."""

import contextlib
import os
import sys
from pathlib import Path
from types import FrameType

import torch

from ..capture._calls import MODULE_CALL

_TORCH, _FILCH = (str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_NOT_MODEL = (_TORCH, _FILCH, contextlib.__file__)  # files whose lines are not part of the model's code


def source_line() -> str | None:
    """Return the innermost line outside of torch and Filch, as `"model.py:12"`; None if the thread has none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the caller's frames
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_MODEL):
        frame = frame.f_back
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119  likewise


def runs_in(module: int) -> bool:
    """Return whether the innermost call is that of the module with this `id`, and not of compiled code inside it."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  as above
    while frame is not None:
        code = frame.f_code
        if code is MODULE_CALL and id(frame.f_locals["self"]) == module:
            return True
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):  # of torch.compile
            return False
        frame = frame.f_back
    return False  # the call has ended with a BaseException, for which torch calls no hook
