"""The phases of long work arrive at whoever watches, with names, counts and an estimate of the time left."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from filch.steal import phase, watch_phases
from filch.steal._phases import is_watched


class Watched:
    """The phases that a watcher received, as text."""

    def __init__(self):
        self.seen: list[list[str]] = []

    def __call__(self, phases):
        self.seen.append([str(item) for item in phases])


def test_nested_phases_arrive_in_order_and_counts_reach_their_totals():
    """An outer phase stays while inner ones come and go."""
    watched = Watched()
    with watch_phases(watched), phase("cell", 2) as cells:
        for name in ("first", "second"):
            cells.next(name)
            with phase("value", 1_000) as values:
                values.next()

    cell = [f"cell {number} of 2: {name}" for number, name in ((1, "first"), (2, "second"))]
    assert watched.seen == [
        ["cell 0 of 2"],
        *(
            phases
            for outer in cell
            for phases in (
                [outer],
                [outer, "value 0 of 1,000"],
                [outer, "value 1 of 1,000"],
                [outer, "value 1,000 of 1,000"],
                [outer],
            )
        ),
        [cell[1]],
        [],
    ]


def test_the_time_left_follows_from_the_work_done(monkeypatch):
    """Items differ in their work; an estimate that has run out is none."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with watch_phases(lambda _: None), phase("value", 3, work=10.0) as values:
        values.next(work=4.0)
        now = 8.0
        assert (values.done, values.seconds_left()) == (0.0, None)
        values.next(work=5.0)
        assert (values.done, values.seconds_left()) == (0.4, 12.0)
        now = 18.0
        assert values.seconds_left() == 2.0
        now = 30.0
        assert values.seconds_left() is None


def test_a_phase_that_fails_ends_without_being_complete():
    """Its count stays where it was, and the next phase is not inside of it."""
    watched = Watched()
    with watch_phases(watched):
        with suppress(ValueError), phase("value", 3) as values:
            values.next()
            raise ValueError
        with phase("next"):
            pass
    assert values.count == 1
    assert watched.seen[-2:] == [["next"], []]


def test_without_a_watcher_phases_are_only_logged_once(caplog):
    """Also with debug messages, a thousand values do not make a thousand records."""
    assert not is_watched()
    with caplog.at_level(logging.DEBUG), phase("value", 1_000) as values:
        for _ in range(1_000):
            values.next()
    assert caplog.messages == ["value"]
