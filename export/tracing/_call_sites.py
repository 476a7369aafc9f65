"""Call sites in Python code, as `file:line`."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn

from ..graph._nodes import Frame

_CALLS = nn.modules.module.__file__  # all calls of modules go through it
_TORCH, _FILCH = (str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_SHOWN = 3  # lines to show for an operation outside of modules, as in Jittor
_LOSS = str(Path(__file__).with_name("_loss.py"))  # a loss of ours, whose lines count as user code


def is_filch(file: str) -> bool:
    """Return whether a file is part of Filch and not of the traced code."""
    return file != _LOSS and file.startswith(_FILCH)


@cache
def is_machinery(file: str) -> bool:
    """Return whether a file is Filch's or torch's, or none: torch generates code in `<string>`; see `is_library`."""
    return is_filch(file) or file.startswith((_TORCH, "<"))


def is_library(file: str) -> bool:
    """Return whether a file is torch's or ours; code typed into a shell has no file and is the user's."""
    return is_filch(file) or file.startswith((_TORCH, "<frozen", "<eval_with_key"))


def line_of(frame: FrameType) -> str:
    """Return the current line of a frame."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def caller_outside(frame: FrameType | None, is_inside: Callable[[str], bool]) -> FrameType | None:
    """Return the innermost of a frame and its callers whose file is not `is_inside`; None if there is none."""
    while frame is not None and is_inside(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def callers(frame: FrameType | None, block: CodeType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers up to the one that runs `block`, or all if there is none."""
    while frame is not None:
        yield frame
        if frame.f_code is block:
            return
        frame = frame.f_back


def innermost_frames(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Return frames for the first of these lines, which are innermost first; the frames are outermost first."""
    return tuple(line_frame(line) for line in reversed(list(islice(lines, _SHOWN))))


def line_frame(line: str) -> Frame:
    """Return a frame for a line of a file."""
    return Frame(Path(line).name, "", line)


def module_call(hook: FrameType) -> FrameType | None:
    """Return the frame that calls the module whose hook runs; it may be in torch, for a container."""
    return caller_outside(hook.f_back, _CALLS.__eq__)


def outside(frame: FrameType | None) -> str | None:
    """Return the innermost line of a frame and its callers that is neither torch's nor ours, or None."""
    caller = caller_outside(frame, is_machinery)
    return None if caller is None else line_of(caller)


def lines_within(frame: FrameType | None, run: CodeType) -> list[str]:
    """Return the lines of user code between a frame and its caller `run`, innermost first.

    Returns nothing if `run` is not a caller of the frame. The line of a comprehension is that of its function.
    """
    frames = list(callers(frame, run))
    if not frames or frames[-1].f_code is not run:
        return []
    lines = (line_of(inner) for inner in frames[:-1] if not is_machinery(inner.f_code.co_filename))
    return [line for line, _ in groupby(lines)]
