"""How long values live while a run is compared."""

import math

from filch.compare.common._value_cache import ValueCache


def test_a_value_is_dropped_after_its_last_read() -> None:
    """Not before, and another value stays."""
    cache = ValueCache[str]({"a": 2, "b": 1})
    cache.put("a", "A")
    cache.put("b", "B")

    assert cache.consume(["a"]) == [] and cache.values["a"] == "A"
    assert cache.consume(["a"]) == ["a"]
    assert dict(cache.values) == {"b": "B"} and not cache.needs("a")


def test_a_value_that_is_handed_out_stays_until_it_is_released() -> None:
    """In whichever order its readers and whoever asked for it are done with it."""
    for first in ("consume", "release"):
        cache = ValueCache[str]({"a": 1}, ["a"])
        cache.put("a", "A")
        done = {"consume": lambda cache=cache: cache.consume(["a"]), "release": lambda cache=cache: cache.release("a")}
        assert done.pop(first)() == [] and "a" in cache.values
        (last,) = done.values()
        assert last() == ["a"]


def test_releasing_twice_is_no_second_read() -> None:
    """Two passes over a graph release a value each; what reads it still needs it."""
    cache = ValueCache[str]({"a": 1}, ["a"])
    cache.put("a", "A")
    cache.release("a")
    cache.release("a")
    assert "a" in cache.values and cache.consume(["a"]) == ["a"]


def test_nothing_is_dropped_while_all_fits_the_buffer() -> None:
    """The first value that does not fit drops all that nobody needs any more."""
    cache = ValueCache[str]({}, ["a", "b"], buffer=10)
    cache.put("a", "A", 6)
    assert cache.release("a") == [] and cache.fully_cached and cache.values["a"] == "A"

    cache.put("b", "B", 6)
    assert not cache.fully_cached and dict(cache.values) == {"b": "B"}


def test_without_a_limit_a_released_value_is_needed_again() -> None:
    """As what was not computed in the first pass may be asked for in the second."""
    cache = ValueCache[str]({}, ["a"], buffer=math.inf)
    cache.release("a")
    assert cache.needs("a")
