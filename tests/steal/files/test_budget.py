"""What a file costs is counted, and a file that costs too much is refused."""

import contextlib
import sys
import time

import pytest

from filch.steal.files._budget import LimitError
from filch.steal.files._kinds import budget_of


def test_bytes_items_and_depth_are_counted():
    """Over several files, if they share a budget; what fits is not refused."""
    budget = budget_of("report", size=10, items=3, depth=2)
    budget.take_bytes(6)
    budget.take_items(3)
    budget.check_depth(2)
    with pytest.raises(LimitError, match="it has 11 bytes, and at most 10 are read"):
        budget.take_bytes(5)
    with pytest.raises(LimitError, match="it has more than 3 lines"):
        budget.take_items(what="lines")
    with pytest.raises(LimitError, match="it is nested more than 2 deep"):
        budget.check_depth(3)


def test_steps_are_counted_over_all_blocks():
    """The same work takes the same number; an error of the block is raised as it is."""
    budget = budget_of("report", steps=1000)
    for _ in range(2):
        with budget.watched("sorting"):
            sorted(range(100), key=lambda number: -number)
    with pytest.raises(KeyError), budget.watched("looking"):
        raise KeyError
    with pytest.raises(LimitError, match="takes more than 1,000 steps or 120 seconds"), budget.watched("sorting"):
        sorted(range(1000), key=lambda number: -number)
    assert sys.getprofile() is None


def test_a_block_that_catches_all_exceptions_is_left():
    """Libraries have an `except Exception` for what they expect."""

    def stubborn():
        while True:
            with contextlib.suppress(Exception):
                len(())

    with pytest.raises(LimitError), budget_of("report", steps=100).watched("waiting"):
        stubborn()


def test_seconds_are_the_last_bound():
    """Of code that takes few steps for much time."""

    def slow():
        while True:
            time.monotonic()

    with pytest.raises(LimitError, match=r"or 0\.01 seconds"), budget_of("report", seconds=0.01).watched("waiting"):
        slow()


def test_a_profiler_that_is_active_goes_on():
    """Python has one per thread; then nothing is counted."""
    calls = []
    sys.setprofile(lambda *event: calls.append(event[1]))
    try:
        with budget_of("report", steps=1).watched("sorting"):
            sorted(range(9), key=lambda number: -number)
    finally:
        sys.setprofile(None)
    assert len(calls) > 9
