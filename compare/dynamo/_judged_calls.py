"""Judge each call of a graph that torch.compile has compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from filch.export.common._copies import copy_tensors, has_plain_memory
from filch.export.evaluation._unpredictable import random_nodes

from ..common._complex import complex_as_real
from ..common._errors import reason_of
from ..results._report import Report
from ._agreement import agrees
from ._eager_run import eager_run, results_of
from ._graph_check import GraphCheck
from ._trace import Trace, has_sizes, is_same_code, trace_of_caller

_OTHER_CODE = (
    "this call runs the graph of an earlier one, although its code, numbers or tensors are others: torch.compile has "
    "no guard that tells the two apart. What the earlier graph computes is compared with a graph that is traced anew"
)
_OWN_RANDOM = "random numbers that kernels draw, in a compilation without fallback_random,"
_OTHER_SIZES = (
    "what the graph for all sizes computes is compared with a graph that is traced for the sizes of this call"
)


@dataclass
class JudgedCalls:
    """A compiled graph whose calls are judged: the first one in full, a later one if its results differ.

    A call for which all guards of torch.compile hold runs the graph of an earlier one. Each later call is traced
    anew, and its results are compared with those of the new graph in eager PyTorch. So is the first call of a graph
    for all sizes: the new graph is one for the sizes of the call.

    Attributes:
        check: the check of the graph.
        deliver: receives the reports.
        with_own_random: returns the check of the graph whose kernels draw random numbers themselves; None if those of
            `check` do.
    """

    check: GraphCheck
    deliver: Callable[[Report], None]
    with_own_random: Callable[[], GraphCheck] | None = None
    _count: int = field(default=0, init=False)
    _can_trace: bool = field(default=False, init=False)

    def __call__(self, *inputs: Any) -> Any:
        """Judge the call, which changes neither the inputs nor the random number state; then run the graph."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            report = self._later_report(inputs) if self._count else self._first_report(inputs)
        self._count += 1
        if report is not None:
            self.deliver(report)
        return self.check.run(*inputs)

    def _first_report(self, inputs: Sequence[Any]) -> Report:
        """Return the report of the graph, or that of its sizes if only it differs."""
        report, trace, module = self._full_report(inputs), trace_of_caller(), self.check.module
        obstacle = _obstacle(trace, module)
        if obstacle or isinstance(trace, str):
            note = f"later calls of {self.check.name} are not judged: {obstacle}"
            return replace(report, notes=(*report.notes, note))
        self._can_trace = True
        if not has_sizes(module) or report.outcome == "different":
            return report
        return self._report_beside(trace, inputs) or report

    def _full_report(self, inputs: Sequence[Any]) -> Report:
        """Return the report of the graph; if only its kernels with their own random numbers differ, that of these."""
        report = self.check.report(inputs)
        is_random = bool(random_nodes(self.check.module.graph))
        if self.with_own_random is None or not is_random or report.outcome == "different":
            return report
        try:
            own = self.with_own_random().with_its_draws(inputs)
            found = own if isinstance(own, str) else own.report(inputs)
        except Exception as error:  # noqa: BLE001  compilers raise errors of all types; the call itself can run
            found = reason_of(error)
        if isinstance(found, str):
            return replace(report, notes=(*report.notes, f"{_OWN_RANDOM} were not judged: {found}"))
        if found.outcome == "different":
            return found
        return replace(report, notes=(*report.notes, f"{_OWN_RANDOM} and what reads them are {found.outcome}"))

    def _later_report(self, inputs: Sequence[Any]) -> Report | None:
        """Return a report of a later call if its results differ."""
        if not self._can_trace:
            return None
        found = trace_of_caller()
        trace = Trace(self.check.module, inputs) if isinstance(found, str) else found
        results = partial(_outcome_of, expected=trace, inputs=inputs)
        if agrees(results(self.check.run), partial(results, None), self.check.tolerance):
            return None
        report = replace(self.check, name=f"{self.check.name}, call {self._count}").report(inputs)
        return report if report.outcome == "different" else self._report_beside(trace, inputs)

    def _report_beside(self, trace: Trace, inputs: Sequence[Any]) -> Report | None:
        """Return a report of the graph beside the one that is traced for this call; None if they do not differ.

        Both run in eager PyTorch: what the compiler makes of the graph is not asked here, and may decide a tie in
        another way.
        """
        module, count = self.check.module, len(results_of(trace.module))

        def own(given: Sequence[Any]) -> Sequence[Any]:
            """Return the inputs of the graph: those of the traced one where they are the same tensors."""
            known = {id(item): copied for item, copied in zip(trace.inputs, given, strict=True)}
            return [known[id(item)] if id(item) in known else copy_tensors(item) for item in inputs]

        def run(*given: Any) -> Sequence[Any]:
            """Return as many results as the traced graph does; one that the graph does not have is empty."""
            return [*module(*own(given)), *[torch.empty(0)] * count][:count]

        def values(given: Sequence[Any]) -> dict[str, torch.Tensor]:
            """Return what the graph computes, by the names of its nodes."""
            return eager_run(module, own(given), with_written=True).values

        name = f"{self.check.name}, call {self._count}"
        beside = replace(self.check, name=name, module=trace.module, run=run, kernels=None, values=values)
        report = beside.report(trace.inputs)
        if report.outcome != "different":
            return None
        are_same = is_same_code(trace.module, module) and {*map(id, trace.inputs)} <= {*map(id, inputs)}
        note = _OTHER_SIZES if are_same and has_sizes(module) else _OTHER_CODE
        return replace(report, notes=(note, *report.notes))


def _obstacle(trace: Trace | str, module: fx.GraphModule) -> str:
    """Return why later calls of a graph can't be compared with a trace; `""` if they can."""
    if isinstance(trace, str):
        return f"torch.compile does not trace the first one again: {trace}"
    if random := random_nodes(module.graph):
        return f"{random[0]} draws random numbers"
    if not is_same_code(trace.module, module):
        return "tracing gives another graph, as torch.compile has changed this one or compiles it in parts"
    return ""


def _outcome_of(run: Callable[..., Any] | None, *, expected: Trace, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return the results of a graph, and what is in the tensors of both graphs after the call; on copies of them.

    Args:
        run: takes `inputs`; None is the graph of `expected`.
        expected: a graph and its inputs.
        inputs: the inputs of `run`, some of which may be those of `expected`.
    """
    others, own = copied = copy_tensors((list(expected.inputs), list(inputs)))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        returned = expected.module(*others) if run is None else run(*own)
    tensors = (item for items in (returned, *copied) for item in items if has_plain_memory(item))
    return [complex_as_real(item.detach().cpu()) for item in tensors]
