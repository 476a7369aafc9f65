"""Record which collectives run, in which module, and over which ranks."""

from collections import Counter
from typing import Any

import torch

from .._key import Key
from .._records import Origin
from ..capture._calls import graph_task_id
from ..private import _torch
from ..values._describe import describe
from ..values._sharding import is_dtensor_type
from ._dispatch import DispatchExtra

_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")
_NAMES = (  # an operator is the first collective with which its name begins, if underscores are left out
    *("all_reduce", "all_gather", "all_to_all", "reduce_scatter"),
    *("broadcast", "scatter", "gather", "reduce", "send", "recv"),
)


class Collectives(DispatchExtra):  # type: ignore[no-untyped-call]
    """Sees the collectives of the forward and the backward pass, and runs none of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()  # of the records under each name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a call if it is a collective, and run it."""
        if any(map(is_dtensor_type, types)):
            return NotImplemented  # DTensor's own dispatch makes calls on plain tensors, which come here
        if getattr(func, "namespace", "") in _NAMESPACES and not torch.compiler.is_compiling():
            self._record(func, args)
        return func(*args, **(kwargs or {}))

    def _record(self, func: Any, args: tuple[Any, ...]) -> None:
        """Record a collective under the name of the module that runs it; in a backward pass, under `""`."""
        operator = func._opname.replace("_", "")  # noqa: SLF001  `name()` has the overload
        collective = next((name for name in _NAMES if operator.startswith(name.replace("_", ""))), None)
        if collective is None:  # it waits, or is a barrier
            return
        is_backward = graph_task_id() != -1
        frame = None if is_backward else self._recorder.calls.innermost()
        name = "" if frame is None else frame.name
        with self._recorder.guarded(name):
            value = {
                "collective": collective,
                "ranks": next(filter(None, map(_ranks, args)), []),
                "tensors": describe(next((arg for arg in args if isinstance(arg, torch.Tensor | list)), None)),
                "backward": is_backward,
            }
            count = self._counts[name]
            self._counts[name] += 1
            origin = Origin(None, self._recorder.calls.current(), count) if frame is None else frame.origin
            self._recorder.record(Key(name, count, "C"), value, origin)


def _ranks(argument: Any) -> list[int]:
    """Return the global ranks of an argument that is a process group or the name of one; else none."""
    distributed: Any = torch.distributed
    try:
        if isinstance(argument, str):  # functional collectives pass names; another string is the reduction
            group = _torch.resolve_process_group(argument)
        elif isinstance(argument, torch.ScriptObject):
            group = distributed.ProcessGroup.unbox(argument)
        else:
            return []
    except (LookupError, RuntimeError, TypeError, ValueError):
        return []
    return list(distributed.get_process_group_ranks(group))
