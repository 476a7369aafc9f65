"""`ValueCache` drops each value after its last use."""

import math

from filch.compare.common._value_cache import ValueCache


def test_a_value_is_dropped_after_its_last_read():
    """It is not dropped before, and no other value is."""
    cache = ValueCache[str]({"a": 2, "b": 1})
    cache.put("a", "A")
    cache.put("b", "B")

    assert cache.consume(["a"]) == [] and cache.values["a"] == "A"
    assert cache.consume(["a"]) == ["a"]
    assert dict(cache.values) == {"b": "B"} and not cache.needs("a")


def test_a_wanted_value_is_kept_until_it_is_released():
    """It is dropped after the later of its last read and its release."""
    for first in ("consume", "release"):
        cache = ValueCache[str]({"a": 1}, ["a"])
        cache.put("a", "A")
        done = {"consume": lambda cache=cache: cache.consume(["a"]), "release": lambda cache=cache: cache.release("a")}
        assert done.pop(first)() == [] and "a" in cache.values
        (last,) = done.values()
        assert last() == ["a"]


def test_releasing_a_value_twice_does_not_count_as_a_read():
    """Two passes over a graph each release a value; its reader still needs it."""
    cache = ValueCache[str]({"a": 1}, ["a"])
    cache.put("a", "A")
    cache.release("a")
    cache.release("a")
    assert "a" in cache.values and cache.consume(["a"]) == ["a"]


def test_nothing_is_dropped_while_all_fits_the_buffer():
    """The first value that exceeds the buffer drops all values without uses."""
    cache = ValueCache[str]({}, ["a", "b"], buffer=10)
    cache.put("a", "A", 6)
    assert cache.release("a") == [] and cache.fully_cached and cache.values["a"] == "A"

    cache.put("b", "B", 6)
    assert not cache.fully_cached and dict(cache.values) == {"b": "B"}


def test_with_an_infinite_buffer_a_released_value_is_still_needed():
    """A second pass may read any value."""
    cache = ValueCache[str]({}, ["a"], buffer=math.inf)
    cache.release("a")
    assert cache.needs("a")
