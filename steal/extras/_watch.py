"""Looks for the first NaN or infinity."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from .._errors import FilchError, NonFiniteError
from .._key import Key
from ..capture._calls import Frame
from ..capture._extra import Recording
from ..values._describe import describe
from ..values._dtypes import not_storable
from ..values._raw import no_modes_or_grad
from ..values._structure import tensors
from ._source import source_line
from ._uninitialized import reserves

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NonFinite:
    """A NaN or an infinity that came out of a module or an ATen call.

    Attributes:
        key: of the output, whether or not it was recorded.
        path: where in the output the tensor stands.
        module: the module's name; for an ATen call, that of the one that made it.
        operator: the ATen call, if it was one (`"aten.log.default"`).
        source: the line of the model's code that made the call (`"model.py:12"`).
        inputs: what came in, as `describe(statistics=True)` writes it.
        output: what came out, likewise.
        finite_inputs: whether all numbers that came in were finite.
    """

    key: Key
    path: str
    module: str
    operator: str | None
    source: str | None
    inputs: str
    output: str
    finite_inputs: bool

    def __str__(self) -> str:
        what = f"module {self.module or '(root)'!r}"
        what = what if self.operator is None else f"{self.operator} in {what}"
        state = "were finite" if self.finite_inputs else "were not all finite already"
        return (
            f"{what} (call {self.key.iteration}, from {self.source or 'no line of Python'}) gave what is not finite: "
            f"{self.key.place(self.path)} of {self.output}; its inputs {state}: {self.inputs}"
        )


class Watch:
    """Checks outputs as they come.

    Args:
        what: `"nonfinite"`, or `"nan"` for NaNs alone.
        on_nonfinite: called with each finding; None raises the first one.
    """

    def __init__(self, what: str, on_nonfinite: Callable[[NonFinite], object] | None) -> None:
        if what not in ("nonfinite", "nan"):
            raise FilchError(f"watch is 'nonfinite' or 'nan', not {what!r}")
        if not (on_nonfinite is None or callable(on_nonfinite)):
            raise FilchError(f"on_nonfinite is a function that takes a NonFinite, not {on_nonfinite!r}")
        self._wanted = frozenset({"nan"} if what == "nan" else {"nan", "inf"})
        self._on_nonfinite = on_nonfinite

    def start(self, recording: Recording) -> None:
        """See `Extra.start`."""
        self._recording = recording

    def entered(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Inputs are no findings: masks hold infinities."""

    def left(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """See `Extra.left`."""
        path = self._flawed(output, lambda: _NONE)
        if path is not None:
            self._tell(Key(frame.name, frame.iteration, "O"), path, (frame.name, None), (args, kwargs), output)

    def stop(self) -> None:
        """Nothing is left to look at."""

    def before_operator(self, operator: Any, args: Any, kwargs: Any) -> Callable[[], frozenset[str]] | None:
        """Which of NaN and infinity an ATen call would only pass on; None if its output isn't worth a look.

        It passes on what it is told to write (`masked_fill(mask, -inf)`), and infinities that come in: so masks are
        made and added. A NaN is news wherever it comes out.
        """
        if isinstance(operator, OpOverload):
            if operator.is_view or reserves(operator):
                return None
            if operator._schema.is_mutable:  # noqa: SLF001  afterwards the inputs are no longer what came in
                known = _passed_on((args, kwargs))
                return lambda: known
        return lambda: _passed_on((args, kwargs))

    def after_operator(
        self,
        key: Key,
        frame: Frame,
        operator: str,
        inputs: Any,
        output: Any,
        *,
        passed_on: Callable[[], frozenset[str]],
    ) -> None:
        """Check what an ATen call gave."""
        path = self._flawed(output, passed_on)
        if path is not None:
            self._tell(key, path, (frame.name, operator), inputs, output)

    def _flawed(self, output: Any, passed_on: Callable[[], frozenset[str]]) -> str | None:
        for path, tensor in tensors(output).items():
            news = flaws(tensor) & self._wanted
            if news and news - passed_on():
                return path
        return None

    def _tell(self, key: Key, path: str, place: tuple[str, str | None], inputs: Any, output: Any) -> None:
        taken = self._recording.value(key._replace(kind="I"), None)  # a module may have changed them in place since
        if len(tensors(taken)) == len(tensors(inputs)):  # neither skipped nor kept as statistics
            inputs = taken
        with no_modes_or_grad():
            finite = not any(map(flaws, tensors(inputs).values()))
            told = describe(inputs, statistics=True), describe(output, statistics=True)
        found = NonFinite(key, path, *place, source_line(), *told, finite_inputs=finite)
        if self._on_nonfinite is None:
            raise NonFiniteError(found)
        try:
            self._on_nonfinite(found)
        except Exception as error:
            raise FilchError(f"on_nonfinite raised {type(error).__name__}: {error}") from error


def _passed_on(inputs: Any) -> frozenset[str]:
    found: set[str] = set()
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            found |= flaws(leaf) & {"inf"}
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            found.add("nan" if math.isnan(leaf) else "inf")
    return frozenset(found)


def flaws(tensor: torch.Tensor) -> frozenset[str]:
    """Which of `"nan"` and `"inf"` are among a tensor's numbers; none in one whose numbers can't be had."""
    with no_modes_or_grad():
        floating = tensor.is_floating_point() or tensor.is_complex()
        if not floating or not_storable(tensor) is not None or tensor.dtype == torch.float4_e2m1fn_x2:
            return _NONE
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():  # the answer would have to be waited for
            return _NONE
        if tensor.element_size() == 1:
            tensor = tensor.to(torch.float32)
        elif tensor.dtype == torch.complex32:
            tensor = tensor.to(torch.complex64)
        if bool(tensor.sum().isfinite()):  # one pass without a copy, but a sum can overflow
            return _NONE
        tests = {"nan": torch.isnan, "inf": torch.isinf}
        return frozenset(name for name, test in tests.items() if bool(test(tensor).any()))
