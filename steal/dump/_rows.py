"""Read the long JSON lists of an index in little memory: each row is parsed by itself, and again when it is accessed.

Parsed at once, the rows of a million records take sixteen times the memory of their text.
"""

import json
import operator
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from .._key import Key
from ..values._foreign import Spec
from . import _format as form
from ._protobuf import Span

_T = TypeVar("_T")

_WINDOW = 2**20  # bytes that are decoded at once
_COLON = re.compile(r"\s*:\s*")


def _refuse_constant(constant: str) -> NoReturn:  # NaN or an infinity, which Python's parser would accept
    raise ValueError(f"{constant} is not JSON")


_parse_at = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def parse_row(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and its end.

    Raises:
        ValueError: there is none, it is nested too deep, or a number in it is too long.
    """
    try:
        return _parse_at(text, start)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number in it has too many digits" if "digits" in str(error) else str(error)) from None


def _parse_entry(text: str, start: int) -> tuple[Any, int]:
    """Return the key and the value that begin at `start` in a JSON object, and their end; see `parse_row`."""
    key, end = parse_row(text, start)
    if (colon := _COLON.match(text, end)) is None:
        raise json.JSONDecodeError("Expecting ':' delimiter", text, end)
    value, end = parse_row(text, colon.end())
    return (key, value), end


class _JsonForm(NamedTuple):
    """A JSON list of lists, or an object.

    Attributes:
        first: the text before the first row.
        next: the text before any other one.
        end: the text after the last one.
        empty: the whole text if there is none.
        parse: see `parse_row`.
    """

    first: re.Pattern[str]
    next: re.Pattern[str]
    end: re.Pattern[str]
    empty: re.Pattern[str]
    parse: Callable[[str, int], tuple[Any, int]]


def _form(opening: str, closing: str, row: str, parse: Callable[[str, int], tuple[Any, int]]) -> _JsonForm:
    """Return the form of rows that begin with `row`, between two brackets."""
    patterns = rf"{opening}\s*(?={row})", rf",\s*(?={row})", rf"{closing}\s*", rf"{opening}\s*{closing}\s*"
    first, following, end, empty = (re.compile(rf"\s*{pattern}") for pattern in patterns)
    return _JsonForm(first, following, end, empty, parse)


_LIST = _form(r"\[", r"\]", r"\[", parse_row)
_OBJECT = _form("{", "}", '"', _parse_entry)


class Rows:
    """The rows of a JSON list of lists.

    Args:
        contents: of the file; rows are ASCII, at most `form.MAX_ROW_SIZE` bytes each.
        span: of the list in it.
        check: called with each row, in order.

    Raises:
        ValueError: the text is not such a list.
    """

    def __init__(self, contents: bytes, span: Span, check: Callable[[Any], object]) -> None:
        self._contents = contents
        self._starts = array("I")
        for start, row in _scan(contents, *span, _LIST):
            check(row)
            self._starts.append(start)
        self._starts.append(span[1])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Any:
        start, stop = self._starts[index], self._starts[index + 1]
        return parse_row(self._contents[start:stop].decode("ascii"))[0]


def entries(contents: bytes, span: Span) -> Iterator[tuple[str, Any]]:
    """Iterate over the keys and values of a JSON object.

    Raises:
        ValueError: the text is not an object.
    """
    return (entry for _, entry in _scan(contents, *span, _OBJECT))


def _scan(contents: bytes, position: int, stop: int, shape: _JsonForm) -> Iterator[tuple[int, Any]]:
    """Parse rows through a window, which only a long row makes larger; yield the start of each, and the row."""
    size, before = _WINDOW, shape.first
    while True:
        text, done = contents[position : min(position + size, stop)].decode("ascii"), 0
        problem = ""
        while match := before.match(text, done):
            try:
                row, done = shape.parse(text, match.end())
            except json.JSONDecodeError as error:  # perhaps as the window ends there
                problem = str(error)
                break
            yield position + match.end(), row
            before = shape.next
        if position + len(text) == stop:
            if (shape.end if before is shape.next else shape.empty).fullmatch(text, done) is None:
                raise ValueError(problem or f"it is not a list of rows: {text[done : done + 40]!r}")
            return
        if not done and size > form.MAX_ROW_SIZE:
            raise ValueError(f"a row of it has more than {form.MAX_ROW_SIZE:,} bytes")
        position, size = position + done, _WINDOW if done else min(2 * size, form.MAX_ROW_SIZE + _WINDOW)


class KeyedRows(Mapping[Key, _T]):
    """Rows by their keys.

    Args:
        contents: see `Rows`.
        span: see `Rows`.
        parse: returns the key and the value of a row.

    Raises:
        ValueError: see `Rows`; or a key occurs twice.
    """

    def __init__(self, contents: bytes, span: Span, parse: Callable[[Spec], tuple[Key, _T]]) -> None:
        self._parse = parse
        self._groups: dict[tuple[str, str], int] = {}  # by name and kind: there are many iterations of each
        self._group_of, self._iterations = array("I"), array("q")
        self._rows = Rows(contents, span, self._add)
        self._names = list(self._groups)
        # The rows of each group are neighbors in `_order`, by their iterations.
        group_of, iterations = np.asarray(self._group_of), np.asarray(self._iterations)
        order = np.lexsort((iterations, group_of))
        self._bounds: list[int] = np.searchsorted(group_of[order], np.arange(len(self._names) + 1)).tolist()
        same = (np.diff(group_of[order]) == 0) & (np.diff(iterations[order]) == 0)
        if same.any():
            raise ValueError(f"it has {self._key(int(order[same.argmax()]))!r:.200} twice")
        self._order: array[int] = array("I", order.astype(np.uint32).tobytes())
        self._last: tuple[int, _T] | None = None  # often, one row is asked for several times in turn

    def _add(self, row: Spec) -> None:
        (name, iteration, kind), _ = self._parse(row)
        self._group_of.append(self._groups.setdefault((name, kind), len(self._groups)))
        self._iterations.append(iteration)

    def _key(self, index: int) -> Key:
        name, kind = self._names[self._group_of[index]]
        return Key(name, self._iterations[index], kind)

    def _find(self, key: Any) -> int:
        """Return the index of the row of a key.

        Raises:
            KeyError: there is none.
        """
        try:
            name, iteration, kind = key
            group, wanted = self._groups[name, kind], operator.index(iteration)
        except (TypeError, ValueError):
            raise KeyError(key) from None
        start, stop = self._bounds[group], self._bounds[group + 1]
        place = start + wanted  # of most groups, every iteration is recorded
        if not start <= place < stop or self._iterations[self._order[place]] != wanted:
            place = bisect_left(self._order, wanted, start, stop, key=self._iterations.__getitem__)
        if place == stop or self._iterations[self._order[place]] != wanted:
            raise KeyError(key)
        return self._order[place]

    def __getitem__(self, key: Any) -> _T:
        index, last = self._find(key), self._last
        if last is None or last[0] != index:
            last = self._last = index, self._parse(self._rows[index])[1]
        return last[1]

    def __contains__(self, key: object) -> bool:
        try:
            self._find(key)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Key]:
        return map(self._key, range(len(self)))

    def __len__(self) -> int:
        return len(self._rows)


class NamedRows(Rows):
    """Rows that each begin with a name.

    Raises:
        ValueError: see `Rows`; or a name is not a string or occurs twice.
    """

    def __init__(self, contents: bytes, span: Span) -> None:
        hashes = array("q")  # the names themselves would take ten times the memory

        def check(row: Spec) -> None:
            if type(row[0]) is not str:
                raise TypeError(f"{row[0]!r:.200} is not a string")
            hashes.append(hash(row[0]))

        super().__init__(contents, span, check)
        if len(np.unique(np.asarray(hashes))) < len(hashes):
            name, count = Counter(self[index][0] for index in range(len(self))).most_common(1)[0]
            if count > 1:  # else only the hashes are the same
                raise ValueError(f"it has {name!r:.200} twice")
