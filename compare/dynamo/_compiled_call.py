"""Check what `torch.compile` makes of one call of a model."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from filch.steal import Key, phase
from filch.steal.private._torch import pytree

from ..common._errors import reason_of
from ..float64._verdict import SUSPICIOUS
from ..metrics._metrics import compare_tensors
from ..metrics._tolerance import ToleranceOption, given_limits
from ..models._state import ModelState
from ..models._subject import Subject
from ..results._report import Report
from ..runs._measured_levels import measured_levels
from ._backend import filch
from ._options import DynamoOptions

_CALL = Key("", 0, "V")  # names what the call computes


@dataclass(frozen=True)
class CompiledCall:
    """One call of a model without gradients, as `torch.compile` compiles it.

    The model is compiled as it is, with its inputs as they are: what they share, their strides and offsets, and what
    the call writes to them. Its buffers are not changed.

    Attributes:
        subject: the model and its arguments.
        backend: the backend that compiles the graphs; see `DynamoOptions.inner`.
        options: the options of the backend.
        tolerance: see `compare`.
    """

    subject: Subject
    backend: str
    options: Mapping[str, Any]
    tolerance: ToleranceOption

    @property
    def obstacle(self) -> str:
        """Why the call can't be checked: an option that is not among `DynamoOptions`; `""` if it can."""
        others = sorted(self.options.keys() - {item.name for item in fields(DynamoOptions)})
        return f"the compiled call is not checked with the option {', '.join(others)}" if others else ""

    def is_close(self) -> bool:
        """Return whether the call returns, and writes to its inputs, what it does in eager PyTorch.

        What exceeds the tolerance is judged by its rounding level, as in `diff`. No value of the graphs is kept in
        memory. False also if the call fails.
        """
        try:
            expected, actual = self._tensors_of(self.subject.model), self._tensors_of(self._compiled(report=False))
        except Exception:  # noqa: BLE001  the reports say which
            return False
        if len(actual) != len(expected):
            return False
        limits = given_limits(self.tolerance)
        close = [compare_tensors(*pair, tolerance=limits).close for pair in zip(actual, expected, strict=True)]
        if all(close) or self.tolerance is not None:
            return all(close)
        levels, _ = measured_levels(self._put, {_CALL: expected})
        judged = (levels.get(f"{_CALL.label}[{index}]") for index in range(len(expected)))
        triples = zip(close, judged, expected, actual, strict=True)
        return all(
            known or (level is not None and level.reliable and level.ratio(value, other) <= SUSPICIOUS)
            for known, level, value, other in triples
        )

    def _put(self, put: Callable[[Key, str, torch.Tensor], None]) -> None:
        """Call the model, and pass on its results and the arguments afterwards."""
        for index, tensor in enumerate(self._tensors_of(self.subject.model)):
            put(_CALL, f"[{index}]", tensor)

    def reports(self) -> tuple[list[Report], str]:
        """Return a report for each graph that `torch.compile` makes of the call, and why there is none."""
        reports: list[Report] = []
        try:
            self._tensors_of(self._compiled(report=reports))
        except Exception as error:  # noqa: BLE001  Dynamo and compilers raise errors of all types
            return reports, f"torch.compile fails on this call: {reason_of(error)}"
        return reports, "" if reports else "torch.compile finds nothing to compile in this call"

    def _compiled(self, *, report: bool | list[Report]) -> Callable[..., Any]:
        """Return the compiled model; with a list, each graph is checked at its first call."""
        more = {"inner": self.backend, "correctness_report": report, "tolerance": self.tolerance}
        compiled: Callable[..., Any] = torch.compile(
            self.subject.model, backend=partial(filch, options={**self.options, **more})
        )
        return compiled

    def _tensors_of(self, function: Callable[..., Any]) -> list[torch.Tensor]:
        """Call a function on copies of the arguments; return the tensors of its result and the arguments afterwards."""
        args, kwargs = copy.deepcopy((self.subject.args, dict(self.subject.kwargs)))  # keeps how tensors share memory
        with phase("torch.compile"), ModelState(self.subject.model).restored(), torch.no_grad():
            result = function(*args, **kwargs)
        return [item for item in pytree.tree_leaves((result, args, kwargs)) if isinstance(item, torch.Tensor)]
