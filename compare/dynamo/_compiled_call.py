"""Check what `torch.compile` makes of one call of a model."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from filch.export import Graph, Node, Value
from filch.export.backends import Compiled
from filch.steal import ModuleInfo, phase
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors

from ..common._errors import reason_of
from ..judging._run import Run
from ..metrics._limits import Limits
from ..metrics._tolerance import ToleranceOption, given_limits
from ..models._state import ModelState
from ..models._subject import Subject
from ..references._resolver import Reference
from ..results._report import EAGER_PYTORCH, Report
from ..runs._mode import float64_values
from ._agreement import agrees
from ._backend import filch
from ._changed_inputs import after
from ._compare_values import compare_values
from ._options import DynamoOptions

_TRACED = "the operations that torch.compile traces in this call ran in eager PyTorch: no compiler takes part in this"


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

        What exceeds the tolerance is judged by its rounding level. No value of the graphs is kept in memory. False also
        if the call fails.
        """
        try:
            actual = self.values_of(self._compiled(report=False))
            return agrees([*actual.values()], lambda: [*self.values_of(self.subject.model).values()], self.tolerance)
        except Exception:  # noqa: BLE001  the reports say which
            return False

    def reports(self) -> tuple[list[Report], str]:
        """Return a report for each graph that `torch.compile` makes of the call, and why there is none."""
        reports: list[Report] = []
        try:
            self.values_of(self._compiled(report=reports))
        except Exception as error:  # noqa: BLE001  Dynamo and compilers raise errors of all types
            return reports, f"torch.compile fails on this call: {reason_of(error)}"
        return reports, "" if reports else "torch.compile finds nothing to compile in this call"

    def traced(self) -> Report:
        """Return a report of what the call returns and writes to its arguments if its graphs run in eager PyTorch.

        No compiler takes part, which may decide a tie in another way.
        """
        run = partial(self.values_of, self.subject.model)
        expected, actual = run(), self.values_of(torch.compile(self.subject.model, backend="eager"))
        nodes = tuple(Node(name, "output", (), (name,)) for name in expected)
        values = {name: Value(name, shape=tuple(tensor.shape)) for name, tensor in expected.items()}
        graph = Graph("call", (), tuple(expected), (), nodes, values)
        rows, _ = compare_values(
            Run(0, "compiled", Compiled(graph, None), {}, actual),
            {},
            {name: Reference(tensor, "eager") for name, tensor in expected.items()},
            None,
            Limits(graph, given_limits(self.tolerance)),
            float64=None if self.tolerance is not None else float64_values(run),
        )
        outputs = tuple(row for row in rows if row.kind == "output")
        return Report("Dynamo", EAGER_PYTORCH, "the call as torch.compile traces it", outputs, notes=(_TRACED,))

    def _compiled(self, *, report: bool | list[Report]) -> Callable[..., Any]:
        """Return the compiled model; with a list, each graph is checked at its first call."""
        more = {"inner": self.backend, "correctness_report": report, "tolerance": self.tolerance}
        compiled: Callable[..., Any] = torch.compile(
            self.subject.model, backend=partial(filch, options={**self.options, **more})
        )
        return compiled

    def values_of(self, function: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Call a function on copies of the arguments; return its results and the arguments afterwards, by name."""
        args, kwargs = copy.deepcopy((self.subject.args, dict(self.subject.kwargs)))  # keeps how tensors share memory
        with phase("torch.compile"), ModelState(self.subject.model).restored(), torch.no_grad():
            results = function(*args, **kwargs)
        named = {f"result{pytree.keystr(path)}": item for path, item in pytree.tree_leaves_with_path(results)}
        arguments = argument_tensors(ModuleInfo.of(self.subject.model).parameters, args, kwargs)
        named |= {after(path): item for path, item in arguments.items()}
        return {name: item for name, item in named.items() if isinstance(item, torch.Tensor)}
