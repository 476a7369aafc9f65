"""Let a model of transformers use another implementation of attention or of its experts."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

from torch import nn

from ..common._errors import CompareError

EXPORTED_EXPERTS = "batched_mm"  # the implementation of experts that `export` uses for programs with a cache


@contextlib.contextmanager
def implementation(model: nn.Module, part: Literal["attn", "experts"], name: str) -> Iterator[None]:
    """Let a model of transformers use an implementation of a part inside of the block, if it has several.

    Raises:
        CompareError: it does not have this one.
    """
    before = getattr(getattr(model, "config", None), f"_{part}_implementation", None)
    change: Callable[[str], None] | None = getattr(model, f"set_{part}_implementation", None)
    if change is None or before is None:  # it has only one
        yield
        return
    try:
        change(name)
    except (ImportError, ValueError) as error:
        raise CompareError(f"the model does not support {name!r}") from error
    try:
        yield
    finally:
        change(before)
