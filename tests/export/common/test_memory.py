"""Memory is released where there is much of it."""

import gc
import mmap
import weakref

import pytest

from filch.export.common._memory import _resident, release_memory


class Cycle:
    """An object that only the garbage collector removes."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize(("resident", "released"), [(2**31 - 1, False), (2**31, True), (None, True)])
def test_garbage_is_looked_for_in_large_processes_alone(monkeypatch, resident, released):
    """Where only Linux would tell the size of a process, it counts as large."""
    monkeypatch.setattr("filch.export.common._memory._resident", lambda: resident)
    monkeypatch.setattr("filch.export.common._memory._libc", lambda _: None)
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        release_memory()
        assert (garbage() is None) == released
    finally:
        gc.enable()


def test_the_size_of_a_process_is_read():
    """It has the pages that it wrote."""
    if (before := _resident()) is None:
        pytest.skip("only Linux tells what memory a process has")
    with mmap.mmap(-1, 2**26) as block:  # memory that no earlier object has left behind
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        assert _resident() - before > 0.9 * len(block)
