"""Tests that take seconds, and cases that are like others: they run only with FILCH_ALL_STORIES=1, as in `.ci/run`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

SLOW = "it takes seconds, or is like others: FILCH_ALL_STORIES=1 runs it"


def runs_slow_tests() -> bool:
    """Whether all tests run."""
    return "FILCH_ALL_STORIES" in os.environ


slow = pytest.mark.skipif(not runs_slow_tests(), reason=SLOW)


def kept(cases: Iterable[Any], *names: Any) -> list[Any]:
    """Return the cases of a test, of which all but those of these names are slow.

    Raises:
        LookupError: a name is none of the cases.
    """
    cases = [*cases]
    if unknown := {*names} - {*cases}:
        raise LookupError(f"these are no cases: {unknown}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[] if case in names else slow)
        for case in cases
    ]
