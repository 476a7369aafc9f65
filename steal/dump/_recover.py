"""Makes a dump of what a killed run left."""

import os
from pathlib import Path

from .._errors import DumpError
from ..files._untrusted import open_untrusted
from . import _format as form
from ._dump import Dump, restore
from ._files import Draft
from ._journal import read
from ._model import Index
from ._writer import publish


def recover(path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None) -> Dump:
    """Make a dump of the drafts that a capture left which did not come to its end.

    All records that were complete when it was killed are in it, in the order of the run. The drafts are used up.

    Args:
        path: the `dump_file` that the capture was to write.
        to: where the dump is put, in the same folder; `path` if nothing is there.

    Raises:
        DumpError: there is nothing to recover, the capture still runs, something else is at that place, or the disk
            refuses.
    """
    where = Path(path).absolute()
    target = where if to is None else Path(to).absolute()
    if target.parent != where.parent:
        raise DumpError(f"{str(target)!r} is in another folder than what is left of {str(where)!r}; give a name in it")
    drafts = Draft.beside(where)
    if not drafts:
        raise DumpError(f"there is nothing to recover of {str(path)!r}: no capture to it was cut short")
    draft = next((draft for draft in drafts if draft.take()), None)
    if draft is None:
        raise DumpError(f"a capture to {str(path)!r} still runs; there is nothing to recover before it ends")
    try:
        if target.exists():
            raise DumpError(f"{str(target)!r} is there already; name another file for what is left of the capture")
        dump = _finish(draft, target)
    except OSError as error:
        raise DumpError(f"can't recover {str(path)!r}: {error.strerror or error}") from error
    finally:
        draft.leave()
    return dump


def _finish(draft: Draft, target: Path) -> Dump:
    data = os.open(draft.data, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        draft.check_own(data)
        with open_untrusted(draft.journal, follow=False) as lines:
            index = read(lines, os.fstat(data).st_size, str(draft.journal))
        if index is None or not index.tops:
            draft.remove()
            raise DumpError(f"there is nothing to recover of {str(draft.path)!r}: it has no complete record")
        _check_places(index)
        index.environment["recovered"] = f"{len(index.tops)} records"
        os.ftruncate(data, index.end)
        publish(draft.to(target), index, data, inline=index.end <= form.INLINE_LIMIT)
    finally:
        os.close(data)
    draft.remove()
    return restore(target)


def _check_places(index: Index) -> None:
    """Refuse tensors that have bytes in common: each would be written by itself."""
    end = 0
    for entry in sorted((entry for entry in index.tensors if entry.length), key=lambda entry: entry.offset):
        if entry.offset < end:
            raise DumpError(f"the journal is damaged: {entry.name!r:.200} has bytes in common with another tensor")
        end = entry.offset + entry.length
