"""Reads a dump: nothing but the index at first, a tensor's bytes when it is asked for."""

import contextlib
import errno
import gc
import itertools
import os
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from onnx import StringStringEntryProto

from .._errors import DAMAGE, DumpError, in_short
from .._key import Key
from .._records import ModuleInfo, Origin, Record, Records
from ..files._untrusted import parse_index, read_untrusted
from ..values._structure import Spec, decode
from . import _format as form
from ._files import unfinished
from ._protobuf import Span, fields
from ._reader import Reader

_EXACT = 2**53  # see `_structure`; larger integers can be chosen so that all have one hash, and a dictionary crawls
_NONE = type(None)
_RECORD_TYPES = {*itertools.product([str], [int], [str], [str, _NONE], [int, _NONE], [int], [str, _NONE])}

_Name = TypeVar("_Name", bound=str | Key)
_T = TypeVar("_T")


class Dump(Records):
    """A dump on disk: a mapping from key to value that reads a value when it is asked for.

    Attributes:
        environment: versions and time of the run that made it.
    """

    environment: dict[str, str]
    holder: Reader

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each tensor."""
        return [row[:3] for row in map(self.holder.row, range(len(self.holder)))]

    def __getitem__(self, key: Any) -> Any:
        spec = self.records[key].spec
        if self.holder.joins:
            self.holder.check_joins(_references(spec))
        return decode(spec, self.holder.get, self.source)

    def borrow(self, key: Any) -> Any:
        """See `Records.borrow`; what is mapped from the file is shared as it is."""
        return self[key]

    def nbytes(self, key: Any) -> int:
        """The bytes of the tensors that the record holds; none is read for it."""
        parts = (part for reference in _references(self.records[key].spec) for part in self.holder.parts(reference))
        return sum(map(self.holder.nbytes, dict.fromkeys(parts)))


def restore(path: str | os.PathLike[str]) -> Dump:
    """Open a dump.

    Args:
        path: what `steal_forward(dump_file=…)` wrote; where it is a link, its data is beside the link, as for ONNX.

    Returns:
        the dump, with the keys, order and nesting of the capture. Tensors are on the CPU; those of a large dump are
        mapped from the file, privately: writing to one does not reach the file.

    Raises:
        DumpError: there is no such file, it is not a dump, or it is damaged.
    """
    where = Path(path)
    contents = _contents(where)
    while True:
        try:
            return _opened(where, contents)
        except DumpError:
            # Between the reading of the two files another dump may have come to their place; that one is whole.
            before, contents = contents, _contents(where)
            if contents == before:
                raise


def _opened(where: Path, contents: bytes) -> Dump:
    graph, props = _parts(where, contents)
    if form.VERSION_KEY not in props:
        raise DumpError(f"{str(where)!r} is an ONNX model, but no dump: steal_forward(dump_file=…) writes dumps")
    if props[form.VERSION_KEY] not in form.READABLE:
        known = " and ".join(form.READABLE)
        raise DumpError(f"{str(where)!r} has format {props[form.VERSION_KEY]!r:.50}; this Filch reads format {known}")
    with _all_kept():
        return _indexed(where, contents, graph, props)


def _indexed(path: Path, contents: bytes, graph: Span, props: dict[str, str]) -> Dump:
    keys = (form.TENSORS_KEY, form.RECORDS_KEY, form.MODULES_KEY, form.ENVIRONMENT_KEY)
    try:
        rows, lines, known, about = (_json(props[key]) for key in keys)
        names = _by_name((_text(name), None) for name, *_ in rows)
        records = _by_name(map(_record, lines))
        failed = _by_name(map(_failure, _json(props.get(form.FAILED_KEY, "[]"))))
        grown = _json(props.get(form.GROWN_KEY, "[]"))
        modules = {name: _module(info) for name, info in known.items()}
        environment = {name: str(value) for name, value in about.items()}
        nodes = _nodes(contents, graph, len(names))
    except DAMAGE as error:
        raise DumpError(f"the index of {str(path)!r} is damaged: {in_short(error)}") from error
    dump = Dump(records, modules, Reader(path, contents, nodes, rows, grown), str(path), failed=failed)
    dump.environment = environment
    return dump


@contextlib.contextmanager
def _all_kept() -> Iterator[None]:
    """Inside, no garbage is collected: looking for some among all the new objects takes longer than making them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _contents(path: Path) -> bytes:
    try:
        return read_untrusted(path, form.LARGEST)
    except FileNotFoundError:
        hint = unfinished(path.absolute())
        raise DumpError(f"there is no file {str(path)!r}" + (f": {hint}" if hint else "")) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DumpError(f"{str(path)!r} is not an ONNX file: those are never larger than 2 GiB") from None
        raise DumpError(f"can't read {str(path)!r}: {error.strerror or error}") from error


def _parts(path: Path, contents: bytes) -> tuple[Span, dict[str, str]]:
    """Where the graph is in a model, and what of its `metadata_props` is ours."""
    graphs: list[Span] = []
    props: dict[str, str] = {}
    try:
        for number, _, start, stop in fields(contents, 0, len(contents)):
            if number == form.GRAPH:
                graphs.append((start, stop))
            if number == form.METADATA:
                entry = StringStringEntryProto.FromString(contents[start:stop])
                if entry.key in props:
                    raise DumpError(f"{str(path)!r} is damaged: it has {entry.key!r:.200} twice")
                if str(entry.key).startswith("filch."):  # what is not UTF-8 is given as bytes
                    props[entry.key] = entry.value
        [graph] = graphs
    except (DecodeError, ValueError):
        raise DumpError(f"{str(path)!r} is not an ONNX file, or it is cut short") from None
    return graph, props


def _nodes(contents: bytes, graph: Span, count: int) -> list[Span]:
    """Where the nodes are in a model, one for each tensor; a dump without any has one all the same."""
    found = ((start, stop) for number, _, start, stop in fields(contents, *graph) if number == form.NODE)
    nodes = list(itertools.islice(found, count + 1))
    if len(nodes) != max(count, 1):
        raise ValueError(f"it speaks of {count} tensors, and there are {'more' if len(nodes) > count else len(nodes)}")
    return nodes[:count]


def _json(text: Spec) -> Any:
    return parse_index(_text(text))


def _record(row: Spec) -> tuple[Key, Record]:
    name, iteration, kind, spec, path, call, count, *source = row
    [source] = source or [None]
    counts = (iteration, count, 0 if call is None else call)
    if (*map(type, (name, iteration, kind, path, call, count, source)),) not in _RECORD_TYPES or not _are_counts(
        counts
    ):
        raise ValueError(f"no record is like {reprlib.repr(row)}")
    return Key(name, iteration, kind), Record(spec, Origin(path, call, count, source))


def _failure(row: Spec) -> tuple[Key, str]:
    name, iteration, what = row
    if (*map(type, row),) != (str, int, str) or not _are_counts((iteration,)):
        raise ValueError(f"no call that raised is like {reprlib.repr(row)}")
    return Key(name, iteration, "O"), what


def _are_counts(values: tuple[int, ...]) -> bool:
    return min(values) >= 0 and max(values) < _EXACT


def _module(info: Spec) -> ModuleInfo:
    return ModuleInfo(_text(info["class"]), tuple(map(_text, info["parameters"])))


def _text(value: Spec) -> str:
    if type(value) is not str:
        raise TypeError(f"{reprlib.repr(value)} is no text")
    return value


def _by_name(pairs: Iterable[tuple[_Name, _T]]) -> dict[_Name, _T]:
    """A dictionary of things of which each has a name of its own."""
    listed = list(pairs)
    found = dict(listed)
    if len(found) < len(listed):
        twice = next(name for name, count in Counter(name for name, _ in listed).items() if count > 1)
        raise ValueError(f"it has {twice!r:.200} twice")
    return found


def _references(spec: Spec) -> Iterator[Spec]:
    """What stands for a tensor in a spec; in one, objects with the key `"tensor"` are nothing else."""
    left = [spec]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if "tensor" in part:
                yield part["tensor"]
            left.extend(part.values())
        elif isinstance(part, list):
            left.extend(part)
