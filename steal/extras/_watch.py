"""Find the first NaN or infinity."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import FilchError, NonFiniteError
from .._key import Key
from ..capture._calls import RunningCall
from ..capture._recorder import Extra
from ..private._torch import OpOverload, pytree
from ..values._describe import describe
from ..values._dtypes import COMPLEX_HALVES, is_storable
from ..values._raw import no_modes_or_grad
from ..values._structure import tensors
from ._source import source_line
from ._uninitialized import allocates_uninitialized

_NO_KINDS: frozenset[str] = frozenset()  # of the kinds of non-finite values, "nan" and "inf"


@dataclass(frozen=True)
class NonFinite:
    """A NaN or an infinity in the output of a module or an ATen call.

    Attributes:
        key: the key of the output, whether or not it was recorded.
        path: the path of the tensor in the output.
        module: the name of the module, or of the module that made the ATen call.
        operator: the name of the ATen call (`"aten.log.default"`); None for a module.
        source: the line of the model's code that made the call (`"model.py:12"`).
        inputs: the inputs, as described by `describe(statistics=True)`.
        output: the output, likewise.
        finite_inputs: whether all numbers in the inputs were finite.
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
        state = "were all finite" if self.finite_inputs else "were not all finite"
        return (
            f"{what} (call {self.key.iteration}, from {self.source or 'no line of Python'}) returned non-finite values"
            f": {self.key.place(self.path)} of {self.output}; its inputs {state}: {self.inputs}"
        )


class Watch(Extra):
    """Checks all outputs for non-finite values; inputs may contain infinities, as masks do.

    Args:
        what: `"nonfinite"`, or `"nan"` for NaNs alone.
        on_nonfinite: called with each `NonFinite`; if None, the first one is raised.
    """

    def __init__(self, what: str, on_nonfinite: Callable[[NonFinite], object] | None) -> None:
        if what not in ("nonfinite", "nan"):
            raise FilchError(f"watch must be 'nonfinite' or 'nan', not {what!r}")
        if not (on_nonfinite is None or callable(on_nonfinite)):
            raise FilchError(f"on_nonfinite must be a function that takes a NonFinite, not {on_nonfinite!r}")
        self._wanted = frozenset({"nan"} if what == "nan" else {"nan", "inf"})
        self._on_nonfinite = on_nonfinite

    def call_ended(self, frame: RunningCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Check the output of a module."""
        path = self._find_nonfinite(output, lambda: _NO_KINDS)  # none is exempt, even if an input contains it
        if path is not None:
            self._report(Key(frame.name, frame.iteration, "O"), path, (frame.name, None), (args, kwargs), output)

    def before_operator(self, operator: Any, args: Any, kwargs: Any) -> Callable[[], frozenset[str]] | None:
        """Return what `after_operator` takes as `allowed_kinds`; None for an ATen call that is not checked.

        It is a function, because the inputs are read only if the output has a NaN or an infinity. A call may return
        what it is asked to write (`masked_fill(mask, -inf)`) and infinities of its inputs, as masks are created and
        added that way. A NaN of an input is reported again.
        """
        if isinstance(operator, OpOverload):
            if operator.is_view or allocates_uninitialized(operator):  # these compute no values
                return None
            if operator._schema.is_mutable:  # noqa: SLF001  the inputs must be read before the call changes them
                known = _allowed_kinds((args, kwargs))
                return lambda: known
        return lambda: _allowed_kinds((args, kwargs))

    def after_operator(
        self,
        key: Key,
        frame: RunningCall,
        operator: str,
        inputs: Any,
        output: Any,
        *,
        allowed_kinds: Callable[[], frozenset[str]],
    ) -> None:
        """Check the output of an ATen call.

        Args:
            key: the key of the output.
            frame: the module call in which it runs.
            operator: its name.
            inputs: its arguments.
            output: what it returned.
            allowed_kinds: returns which of `"nan"` and `"inf"` the output may contain.
        """
        path = self._find_nonfinite(output, allowed_kinds)
        if path is not None:
            self._report(key, path, (frame.name, operator), inputs, output)

    def _find_nonfinite(self, output: Any, allowed_kinds: Callable[[], frozenset[str]]) -> str | None:
        """Return the path of the first tensor with a NaN or an infinity that is not allowed; None if there is none."""
        for path, tensor in tensors(output).items():
            kinds = nonfinite_kinds(tensor) & self._wanted
            if kinds and kinds - allowed_kinds():
                return path
        return None

    def _report(self, key: Key, path: str, caller: tuple[str, str | None], inputs: Any, output: Any) -> None:
        """Raise a NonFiniteError, or call `on_nonfinite`; `caller` is the module and its ATen call, if it was one."""
        # The module may have changed its inputs in place.
        recorded = self._recorder.recorded_value(key._replace(kind="I"))
        if len(tensors(recorded)) == len(tensors(inputs)):  # no tensor is skipped or only summarized
            inputs = recorded
        with no_modes_or_grad():
            finite = not any(map(nonfinite_kinds, tensors(inputs).values()))
            descriptions = describe(inputs, statistics=True), describe(output, statistics=True)
        nonfinite = NonFinite(key, path, *caller, source_line(), *descriptions, finite_inputs=finite)
        if self._on_nonfinite is None:
            raise NonFiniteError(nonfinite)
        try:
            self._on_nonfinite(nonfinite)
        except Exception as error:
            raise FilchError(f"on_nonfinite raised {type(error).__name__}: {error}") from error


def _allowed_kinds(inputs: Any) -> frozenset[str]:
    """Return which non-finite kinds an ATen call with these inputs may pass on."""
    kinds: set[str] = set()
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            kinds |= nonfinite_kinds(leaf) & {"inf"}
        elif isinstance(leaf, float) and not math.isfinite(leaf):
            kinds.add("nan" if math.isnan(leaf) else "inf")
    return frozenset(kinds)


def nonfinite_kinds(tensor: torch.Tensor) -> frozenset[str]:
    """Return which of `"nan"` and `"inf"` a tensor contains; none if its data can't be read."""
    with no_modes_or_grad():
        floating = tensor.is_floating_point() or tensor.is_complex()
        if not floating or not is_storable(tensor) or tensor.dtype == torch.float4_e2m1fn_x2:  # float4 has neither
            return _NO_KINDS
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():  # reading a result would break the capture
            return _NO_KINDS
        if tensor.element_size() == 1:  # float8
            tensor = tensor.to(torch.float32)
        elif tensor.dtype in COMPLEX_HALVES:
            tensor = tensor.to(torch.complex64)
        if bool(tensor.sum().isfinite()):  # fast and without a copy; a sum may overflow, hence the tests below
            return _NO_KINDS
        tests = {"nan": torch.isnan, "inf": torch.isinf}
        return frozenset(name for name, test in tests.items() if bool(test(tensor).any()))
