"""Open a dump: read its index at once, and each tensor when it is accessed."""

import contextlib
import errno
import gc
import itertools
import os
import reprlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from onnx import StringStringEntryProto

from .._errors import DAMAGE, DumpError, NotADumpError, one_line, os_error_reason
from .._key import Key
from .._records import ModuleInfo, Origin, Record, Records
from ..files._kinds import budget_of
from ..files._outputs import writing
from ..files._untrusted import parse_json, read_untrusted
from ..text._visible import short_line
from ..values._decode import decode
from ..values._foreign import MAX_EXACT_INT, Spec
from ..values._sharding import Sharding
from . import _format as form
from ._files import unfinished_hint
from ._model import module_info
from ._protobuf import MOST_FIELDS, Span, field, fields, graph_and_metadata
from ._reader import Reader, Spans
from ._rows import KeyedRows, NamedRows, Rows, entries

_ATTEMPTS = 10  # to read a dump that other ones replace meanwhile
_NONE = type(None)
# Of name, iteration, kind, path, call, iteration in the call, and source.
_RECORD_TYPES = {*itertools.product([str], [int], [str], [str, _NONE], [int, _NONE], [int], [str, _NONE])}


class Dump(Records):
    """A dump on disk: a mapping from key to value that reads values on access.

    Attributes:
        environment: versions, processor, settings and time of the run that wrote it.
        properties: what `add_properties` has added to the file, by key.
        shardings: the layouts of plain tensors that a DTensor was made of or converted to, by the reference in specs.
    """

    environment: dict[str, str]
    shardings: dict[int, Sharding]
    properties: dict[str, str]
    tensor_source: Reader

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """The name, dtype and shape of each tensor."""
        return [row[:3] for row in map(self.tensor_source.row, range(len(self.tensor_source)))]

    @property
    def files(self) -> list[Path]:
        """The dump, and the file beside it that has the bytes of its tensors, if there is one."""
        path, name = Path(self.source), self.tensor_source.location
        return [path] if name is None else [path, path.with_name(name)]

    def property_entries(self, key: str) -> Iterator[tuple[str, Any]]:
        """Parse the entries of a property that is a JSON object one by one, however many there are.

        Raises:
            ValueError: it is no such object, or an entry of it has more than 16 MiB.
        """
        text = self.properties[key].encode()
        return entries(text, (0, len(text)))

    def __getitem__(self, key: Any) -> Any:
        if key not in self.records:
            raise KeyError(self._missing(key))
        spec = self.records[key].spec
        if self.tensor_source.has_grown:  # by parts, which a damaged index may name again and again
            self.tensor_source.check_grown_size(_references(spec))
        return decode(spec, self.tensor_source.get, self.source, self.shardings)

    def _missing(self, key: Any) -> str:
        """Return the message for a key that does not exist, with the most similar ones."""
        known = {record.label: record for record in self.records}
        label = Key(*key).label if isinstance(key, tuple) and len(key) == len(Key._fields) else str(key)
        similar = [repr(known[name]) for name in get_close_matches(short_line(label), known, n=3)]
        hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
        return short_line(f"there is no record {key!r}{hint}")

    def borrow(self, key: Any) -> Any:
        """See `Records.borrow`; tensors mapped from the file share its memory anyway."""
        return self[key]

    def nbytes(self, key: Any) -> int:
        """Return the size of a record's tensors in bytes, without reading them."""
        source, references = self.tensor_source, _references(self.records[key].spec)
        return sum(map(source.nbytes, {part for reference in references for part in source.parts(reference)}))


def restore(path: str | os.PathLike[str]) -> Dump:
    """Open a dump.

    Args:
        path: a file that `steal_forward(dump_file=…)` wrote. If it is a link, its data file is beside the link, as for
            ONNX.

    Returns:
        the dump, with the keys, order and nesting of the capture. Tensors are on the CPU. Those of a large dump are
        mapped copy-on-write: writing to one does not change the file.

    Raises:
        DumpError: the file doesn't exist, is not a dump (`NotADumpError` if it is another ONNX model), is damaged, or
            is replaced by other dumps all the time.
    """
    file, failure = Path(path), None
    for _ in range(_ATTEMPTS):
        version = _version_of(file)
        try:
            contents = _read_model(file)
            dump = _open(file, contents)
            # Another dump may have replaced both files meanwhile, so that the index that was read is not that of the
            # data; a file that was only touched has the same index.
            if _version_of(file) == version or _read_model(file) == contents:
                return dump
            failure = None
        except DumpError as error:
            if _version_of(file) == version:
                raise
            failure = error
    raise failure or DumpError(f"{str(file)!r} was replaced by other dumps {_ATTEMPTS} times while it was read")


def _version_of(path: Path) -> tuple[int, ...] | None:
    """Return what differs between two files of one name, even if they have the same bytes; None if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns  # the number of a removed file may be that of the next one


def _open(path: Path, contents: bytes) -> Dump:
    graph, props = graph_and_metadata(path, contents)
    if form.VERSION_KEY not in props:
        raise NotADumpError(f"{str(path)!r} is an ONNX model but not a dump, which steal_forward(dump_file=…) writes")
    version = _text(contents, props[form.VERSION_KEY])
    if version not in form.READABLE:
        known = " and ".join(form.READABLE)
        raise DumpError(f"{str(path)!r} has format {version!r:.50}; this Filch reads format {known}")
    with _gc_disabled():
        return _parse_index(path, contents, graph, props)


def _parse_index(path: Path, contents: bytes, graph: Span, props: dict[str, Span]) -> Dump:
    try:
        tensors = NamedRows(contents, props[form.TENSORS_KEY])
        records = KeyedRows(contents, props[form.RECORDS_KEY], _parse_record)
        failed = KeyedRows(contents, props[form.FAILED_KEY], _parse_failure) if form.FAILED_KEY in props else {}
        versions = parse_json(_text(contents, props[form.ENVIRONMENT_KEY]))
        grown: list[Spec] = []
        if form.GROWN_KEY in props:
            Rows(contents, props[form.GROWN_KEY], grown.append)
        modules = _parse_modules(contents, props[form.MODULES_KEY])
        environment = {name: str(value) for name, value in versions.items()}
        shardings = _parse_shardings(contents, props.get(form.SHARDINGS_KEY))
        nodes = _nodes(contents, graph, len(tensors))
    except DAMAGE as error:
        raise DumpError(f"the index of {str(path)!r} is damaged: {one_line(error)}") from error
    dump = Dump(records, modules, Reader(path, contents, nodes, tensors, grown), failed, str(path))
    dump.environment, dump.shardings = environment, shardings
    dump.properties = {key: _text(contents, span) for key, span in props.items() if key not in form.KEYS}
    return dump


def _parse_modules(contents: bytes, span: Span) -> dict[str, ModuleInfo]:
    """Return what is known of the modules; most are equal to others, and are kept once."""
    known: dict[ModuleInfo, ModuleInfo] = {}
    parsed = ((name, module_info(info)) for name, info in entries(contents, span))
    return {name: known.setdefault(info, info) for name, info in parsed}


def _parse_shardings(contents: bytes, span: Span | None) -> dict[int, Sharding]:
    """Return the layouts of plain tensors, none without a span; most are equal to others, and are kept once."""
    known: dict[Sharding, Sharding] = {}
    parsed = ((int(reference), Sharding.from_json(spec)) for reference, spec in entries(contents, span or (0, 0)))
    return {reference: known.setdefault(layout, layout) for reference, layout in parsed} if span else {}


def _text(contents: bytes, span: Span) -> str:
    return contents[slice(*span)].decode(errors="replace")


def add_properties(path: str | os.PathLike[str], properties: Mapping[str, str]) -> None:
    """Add entries to the metadata of a dump; readers that do not know them ignore them.

    Args:
        path: the dump.
        properties: the entries by key; a key begins with `"filch."` and is not in the file yet.

    Raises:
        DumpError: the file can't be written, or has such a key already.
    """
    known = restore(path).properties.keys() | form.KEYS
    for key in properties:
        if key in known or not key.startswith("filch."):
            raise DumpError(f"can't add {key!r} to {os.fspath(path)!r}: it must begin with 'filch.' and be new")
    entries = (StringStringEntryProto(key=key, value=text) for key, text in properties.items())
    contents = b"".join(field(form.METADATA, entry.SerializeToString()) for entry in entries)
    with writing(path, DumpError), Path(path).open("ab", buffering=0) as file:
        before = file.tell()
        _check_size(before + len(contents))
        try:
            while contents:  # a protobuf message may be followed by further fields of it
                contents = contents[file.write(contents) :]
        except OSError:
            file.truncate(before)
            raise


def _check_size(size: int) -> None:
    if size >= form.MAX_MODEL_SIZE:
        raise OSError(errno.E2BIG, f"it would have {size:,} bytes, and fewer than {form.MAX_MODEL_SIZE:,} can be read")


@contextlib.contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection: scanning all the new objects takes longer than creating them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _read_model(path: Path) -> bytes:
    try:
        return read_untrusted(path, budget_of("dump"))
    except FileNotFoundError:
        hint = unfinished_hint(path.absolute())
        raise DumpError(f"there is no file {str(path)!r}" + (f": {hint}" if hint else "")) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DumpError(f"{str(path)!r} is not an ONNX file: it is larger than 2 GiB") from None
        raise DumpError(f"can't read {str(path)!r}: {os_error_reason(error)}") from error


def _nodes(contents: bytes, graph: Span, count: int) -> Spans:
    """Return the spans of a model's nodes, one for each tensor; a dump without tensors has one dummy node."""
    nodes = Spans()
    found = fields(contents, *graph, most=2 * count + MOST_FIELDS)  # a node and an output for each tensor
    spans = ((start, stop) for number, _, start, stop in found if number == form.NODE)
    for span in itertools.islice(spans, count + 1):
        nodes.append(*span)
    if len(nodes) != max(count, 1):
        raise ValueError(f"it lists {count} tensors, and the graph has {'more' if len(nodes) > count else len(nodes)}")
    return nodes


def _parse_record(row: Spec) -> tuple[Key, Record]:
    name, iteration, kind, spec, path, call, count, *source = row
    [source] = source or [None]  # the writer omits None
    counts = (iteration, count, 0 if call is None else call)
    if (*map(type, (name, iteration, kind, path, call, count, source)),) not in _RECORD_TYPES or not _are_counts(
        counts
    ):
        raise ValueError(f"the record {reprlib.repr(row)} is not valid")
    return Key(name, iteration, kind), Record(spec, Origin(path, call, count, source))


def _parse_failure(row: Spec) -> tuple[Key, str]:
    name, iteration, exception = row
    if (*map(type, row),) != (str, int, str) or not _are_counts((iteration,)):
        raise ValueError(f"the failed call {reprlib.repr(row)} is not valid")
    return Key(name, iteration, "O"), exception


def _are_counts(values: tuple[int, ...]) -> bool:
    return min(values) >= 0 and max(values) < MAX_EXACT_INT  # larger ones can be chosen to have equal hashes


def _references(spec: Spec) -> Iterator[Spec]:
    """Return the references to tensors in a spec; the key `"tensor"` has no other meaning in one."""
    pending = [spec]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "tensor" in part:
                yield part["tensor"]
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
