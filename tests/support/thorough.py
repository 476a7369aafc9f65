"""Cases that take long or are like others run only with FILCH_ALL_STORIES=1, as in the coverage job of CI."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_THOROUGH = "FILCH_ALL_STORIES" in os.environ


def thorough(reason: str = "others are like this one") -> pytest.MarkDecorator:
    """Return the mark of a test, or of one of its cases, that `make test` leaves out."""
    return pytest.mark.skipif(not IS_THOROUGH, reason=f"{reason}: FILCH_ALL_STORIES=1 runs it")


slow = thorough("takes seconds")  # for tests whose file has quicker ones


def kept(cases: Iterable[Any], *names: Any) -> list[Any]:
    """Return the cases of a test, of which all but those of these names are thorough.

    Raises:
        LookupError: a name is none of the cases.
    """
    cases = [*cases]
    if unknown := {*names} - {*cases}:
        raise LookupError(f"these are no cases: {unknown}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[] if case in names else thorough())
        for case in cases
    ]
