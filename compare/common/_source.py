"""Lines of the user's code."""

import sysconfig
import traceback
from pathlib import Path

from filch.steal.text._visible import short_line

_ROOT = Path(__file__).resolve().parents[2]
_FILCH = tuple(f"{_ROOT / room}/" for room in ("steal", "export", "compare"))
_PYTHON = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


def short_source(source: str) -> str:
    """Shorten the path of a line of code: relative to site-packages or to the current folder."""
    _, installed, inside = source.rpartition("site-packages/")
    if installed:
        return inside
    return source.removeprefix(f"{Path.cwd()}/")


def user_frame(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error or its causes; `""` if there is none.

    Code of Filch, of Python and of installed packages is not the user's.
    """
    frame = None
    current: BaseException | None = error
    while current is not None:
        frames = traceback.extract_tb(current.__traceback__)
        frame = next((item for item in reversed(frames) if _is_users(item.filename)), frame)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    if frame is None:
        return ""
    source = f": {frame.line}" if frame.line else ""
    return short_line(f"{short_source(frame.filename)}:{frame.lineno}, in {frame.name}{source}")


def _is_users(filename: str) -> bool:
    """Return whether a file is the user's; code without a file, such as `<string>`, is not."""
    if filename.startswith("<") or {"site-packages", "dist-packages"} & {*Path(filename).parts}:
        return False
    return not str(Path(filename).resolve()).startswith((*_FILCH, *_PYTHON))
