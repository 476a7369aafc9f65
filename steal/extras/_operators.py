"""Record the ATen calls inside of captured module calls."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from .._errors import FilchError
from .._key import Key
from ..capture._calls import RunningCall, graph_task_id
from ..capture._selection import compile_patterns, matching
from ..private._torch import OpOverload
from ._dispatch import DispatchExtra
from ._source import runs_in, source_line
from ._uninitialized import UninitializedMemory
from ._watch import Watch

Operator = Any  # torch._ops.OpOverload or HigherOrderOperator (`torch.cond`)

_is_compiling = torch.compiler.is_compiling


class Operators(DispatchExtra):  # type: ignore[no-untyped-call]
    """Records the selected ATen calls inside of module calls.

    All calls inside a module call are numbered, whether recorded or not, so that numbers are comparable between
    captures.
    """

    supports_higher_order_operators = True  # otherwise `torch.cond` and flex attention raise

    def __init__(self, wanted: bool | str | Iterable[str], watch: Watch | None = None) -> None:  # noqa: FBT001  as users write it
        super().__init__()
        patterns: list[Any] = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
        if wanted is not True and not (patterns and all(isinstance(pattern, str) for pattern in patterns)):
            raise FilchError(f"operators must be True or patterns like 'aten.mm.default', not {wanted!r}")
        self._wanted = compile_patterns(None if wanted is True else patterns)
        self._matched: set[str] = set()  # patterns that have matched a call
        self._names: dict[Operator, tuple[str, bool]] = {}  # the name of each operator, and whether it is recorded
        self._uninitialized = UninitializedMemory()
        self._watch = watch

    def stop(self) -> None:
        """Exit the mode, and warn of a pattern that matched no call."""
        super().stop()
        if (missed := sorted(self._wanted.keys() - self._matched)) and self._names:
            names = sorted(name for name, _ in self._names.values())
            self._recorder.warn_once(f"no ATen call matches {missed[0]!r}; some calls are {', '.join(names[:5])}")

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one ATen call, and record it if selected."""
        operator, kwargs = func, kwargs or {}
        frame = None if _is_compiling() or graph_task_id() != -1 else self._recorder.calls.innermost()
        if frame is None or not runs_in(frame.module):
            return operator(*args, **kwargs)
        name = self._record_name(frame, operator)
        finish = None if name is None else self._record_inputs(name, frame, operator, args, kwargs)
        output = operator(*args, **kwargs)
        with self._recorder.guarded(frame.name):
            if isinstance(operator, OpOverload):
                self._uninitialized.track(operator, args, kwargs, output)
            if finish is not None:
                finish(output)
        return output

    def _record_inputs(
        self, name: str, frame: RunningCall, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """Record the inputs, and return a function that records the output; None after an error."""
        key, origin = Key(name, frame.iteration, "I"), frame.origin._replace(source=source_line())
        wanted, watch = self._recorder.options.wants(frame.iteration), self._watch
        with self._recorder.guarded(name):
            if wanted and self._recorder.accepts("I"):
                self._recorder.record(key, self._uninitialized.skip((args, kwargs)), origin)
            allowed_kinds = None if watch is None else watch.before_operator(operator, args, kwargs)

            def finish(output: Any) -> None:
                output_key = key._replace(kind="O")
                if wanted and self._recorder.accepts("O"):
                    self._recorder.record(output_key, self._uninitialized.skip(output), origin)
                if watch is not None and allowed_kinds is not None:
                    watch.after_operator(
                        output_key, frame, str(operator), (args, kwargs), output, allowed_kinds=allowed_kinds
                    )

            return finish
        return None  # `guarded` has handled an exception

    def _record_name(self, frame: RunningCall, operator: Operator) -> str | None:
        """Return the record name of a call; None if it isn't selected. Without patterns, all calls are."""
        if operator not in self._names:
            name = str(operator) if isinstance(operator, OpOverload) else f"higher_order.{operator}"
            hits = matching(self._wanted, name)
            self._matched |= hits
            self._names[operator] = name, bool(hits) or not self._wanted
        name, wanted = self._names[operator]
        if name.startswith("prim."):  # prim.device, which calls from Python make, and an exported program doesn't
            return None
        position = frame.extra_data.get("position", 0)
        frame.extra_data["position"] = position + 1
        return f"{frame.name}/{position}.{name}" if wanted else None
