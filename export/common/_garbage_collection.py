"""Pause Python's garbage collector while a graph is built.

A collection visits every live object. A graph of 100,000 nodes has millions of objects, none of which is garbage, so
collections would take longer than building the graph.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector if it is enabled. Usable as a context manager and as a decorator."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
