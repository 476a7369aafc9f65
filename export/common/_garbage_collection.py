"""Pauses Python's garbage collector while a graph is built.

A collection visits every object that is alive. Graphs of 100,000 nodes have millions of objects, all of which stay, so
that collections take longer than building the graph.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector, unless it is off already; also a decorator."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
