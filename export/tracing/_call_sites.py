"""Where in Python a call comes from, as `file:line`."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn

from ..graph._nodes import Frame

_CALLS = nn.modules.module.__file__  # all calls of modules go through it
_TORCH, _OURS = (str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_LOSS = str(Path(__file__).with_name("_loss.py"))  # its lines are the loss's, not what calls it


def is_ours(file: str) -> bool:
    """Whether a file traces, and is no part of what is traced."""
    return file != _LOSS and file.startswith(_OURS)


@cache
def is_machinery(file: str) -> bool:
    """Whether a line of a file says how a call is made, and not where from."""
    return is_ours(file) or file.startswith((_TORCH, "<"))


def is_library(file: str) -> bool:
    """Whether a file is torch's or ours; what is typed into a shell has no file, and is the user's."""
    return is_ours(file) or file.startswith((_TORCH, "<frozen", "<eval_with_key"))


def line_of(frame: FrameType) -> str:
    """The line that a frame is at."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_frame(line: str) -> Frame:
    """The call that a line of a file is."""
    return Frame(Path(line).name, "", line)


def module_call(hook: FrameType) -> FrameType | None:
    """The frame that calls the module whose hook runs in a frame; it may be torch's own, if a container does."""
    frame = hook.f_back
    while frame is not None and frame.f_code.co_filename == _CALLS:
        frame = frame.f_back
    return frame


def outside(frame: FrameType | None) -> str | None:
    """The innermost line of a frame and those that called it that is neither torch's nor ours."""
    while frame is not None and is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else line_of(frame)


def lines_within(frame: FrameType | None, run: CodeType) -> Iterator[str]:
    """The lines of a frame and those that called it, innermost first, as far as they are the user's and `run` is not.

    Nothing is given if `run` has not called the frame; a comprehension's line is its function's.
    """
    found: list[str] = []
    while frame is not None and frame.f_code is not run:
        line = line_of(frame)
        if not is_machinery(frame.f_code.co_filename) and line not in found[-1:]:
            found.append(line)
        frame = frame.f_back
    yield from found if frame is not None else ()
