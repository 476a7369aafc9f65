"""Make a dump of the draft files that a killed capture left."""

import os
from pathlib import Path

from .._errors import DumpError
from ..files._kinds import budget_of
from ..files._outputs import write_problem
from ..files._untrusted import open_descriptor, open_untrusted, read_lines
from . import _format as form
from ._dump import Dump, restore
from ._files import Draft
from ._journal import read
from ._model import Index
from ._writer import publish


def recover(path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None) -> Dump:
    """Make a dump of the draft files of an interrupted capture.

    It contains all records that were complete, in the order of the run. The draft files are removed.

    Args:
        path: the `dump_file` of the capture.
        to: the path of the new dump, in the same folder; by default `path`, if that doesn't exist.

    Raises:
        DumpError: there is nothing to recover, the capture still runs, the target exists, or the dump can't be written.
    """
    source = Path(path).absolute()
    target = source if to is None else Path(to).absolute()
    if target.parent != source.parent:
        raise DumpError(
            f"can't recover {str(source)!r} to another folder: {str(target)!r}; name a file in the same one"
        )
    drafts = Draft.find_all(source)
    if not drafts:
        raise DumpError(f"there is nothing to recover of {str(path)!r}: no capture to it was interrupted")
    draft = next((draft for draft in drafts if draft.lock()), None)
    if draft is None:
        raise DumpError(f"a capture to {str(path)!r} still runs; recover it only after it has ended")
    try:
        if target.exists():
            raise DumpError(f"{str(target)!r} exists already; name another file for the recovered dump")
        dump = _finish(draft, target)
    except OSError as error:
        raise DumpError(f"can't recover {str(path)!r}: {write_problem(error, source)}") from error
    finally:
        draft.unlock()
    return dump


def _finish(draft: Draft, target: Path) -> Dump:
    """Publish a draft as a dump at `target`, and remove it."""
    data = open_descriptor(draft.data, os.O_RDWR, follow=False)
    try:
        draft.check_data_file(data)
        with open_untrusted(draft.journal, follow=False) as file:
            lines = read_lines(file, budget_of("journal of a capture"))
            index = read(lines, os.fstat(data).st_size, str(draft.journal))
        if index is None or not index.tensor_counts:
            draft.remove()
            raise DumpError(f"there is nothing to recover of {str(draft.path)!r}: it has no complete record")
        _check_overlaps(index)
        index.environment["recovered"] = f"{len(index.tensor_counts)} records"
        os.ftruncate(data, index.end)
        draft.path = target
        publish(draft, index, data, inline=index.end <= form.INLINE_LIMIT)
    finally:
        os.close(data)
    draft.remove()
    return restore(target)


def _check_overlaps(index: Index) -> None:
    """Refuse tensors whose bytes overlap, as each would be written separately."""
    end = 0
    for entry in sorted((entry for entry in index.tensors if entry.length), key=lambda entry: entry.offset):
        if entry.offset < end:
            raise DumpError(f"the journal is damaged: the bytes of {entry.name!r:.200} overlap those of another tensor")
        end = entry.end
