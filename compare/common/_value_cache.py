"""Keep values until their last use."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class ValueCache(Generic[T]):
    """Map names to values; drop each value after its last use, unless all values together fit in a buffer.

    Args:
        uses: how often each value is read to compute others; each read is reported with `consume`.
        wanted: the names of the values that callers also read, until they call `release`.
        buffer: bytes up to which nothing is dropped; inf keeps everything, for a second pass that may read any value.
    """

    def __init__(self, uses: Mapping[str, int], wanted: Iterable[str] = (), *, buffer: float = 0) -> None:
        self._uses = Counter(uses)
        self._wanted = {*wanted}
        self._buffer = buffer
        self._total_size = 0  # of all values that were put, also of those that were dropped
        self._values: dict[str, T] = {}

    @property
    def values(self) -> Mapping[str, T]:
        """The values in the cache."""
        return self._values

    @property
    def fully_cached(self) -> bool:
        """Whether nothing was dropped, so that every value that was put can be read again."""
        return self._total_size <= self._buffer

    def needs(self, name: str) -> bool:
        """Whether a value has uses left."""
        return self._uses[name] > 0 or name in self._wanted

    def put(self, name: str, value: T, size: int = 1) -> None:
        """Add a value of `size` bytes (any positive number if there is no buffer).

        If it exceeds the buffer, all values without uses left are dropped, and from then on each after its last use.
        """
        was_fully_cached = self.fully_cached
        self._values[name] = value
        self._total_size += size
        if was_fully_cached and not self.fully_cached:
            self._drop([*self._values])

    def consume(self, names: Iterable[str]) -> list[str]:
        """Count one read of each value, and return the names of those that were dropped."""
        read = [*names]
        self._uses.subtract(read)
        return self._drop(read)

    def release(self, name: str) -> list[str]:
        """Declare that callers will not read a value again, and return its name if it was dropped."""
        if self._buffer < float("inf"):  # else a second pass may read it
            self._wanted.discard(name)
        return self._drop([name])

    def _drop(self, names: Iterable[str]) -> list[str]:
        """Drop those of some values that have no uses left, and return their names; none while all fit."""
        if self.fully_cached:
            return []
        unused = [name for name in names if name in self._values and not self.needs(name)]
        for name in unused:
            del self._values[name]
        return unused
