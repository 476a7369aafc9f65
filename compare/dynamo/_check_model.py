"""Check a model on a backend: the program that torch.export makes of it, and what `torch.compile` makes of the call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from filch.export import BackendError, ExportError, Program
from filch.export.backends import CompilesTorch, get_backend
from filch.steal import FilchError, Records

from .._compare import compare
from .._compare_export import compare_with_fallback
from ..common._errors import CompareError
from ..models._subject import Subject
from ..results._report import EAGER_PYTORCH, Report
from ._compiled_call import CompiledCall

_ANOTHER = (
    "from the recorded inputs, the program that torch.export makes of the model computes other numbers in eager "
    "PyTorch, too: it is not compared"
)


@dataclass(frozen=True)
class ModelCheck:
    """A model with what was recorded and exported of it.

    Attributes:
        capture: the capture of a call.
        program: the exported program; None if torch refuses to export the model.
        compiled: the model and the arguments of the call, which backends that compile torch graphs compile as
            `torch.compile` does; None if another program is checked than the model as it is.
        refusal: why torch refuses to export the model.
    """

    capture: Records
    program: Program | None
    compiled: Subject | None
    refusal: FilchError | None = None

    @classmethod
    def of(cls, exported: Subject, recorded: Subject) -> "ModelCheck":
        """Export a model and record a call of it; the two may have inputs of other sizes."""
        try:
            program, refusal = exported.export(), None
        except ExportError as error:
            program, refusal = None, error
        return cls(recorded.steal(), program, recorded, refusal)

    def call(self, backend: str, *, options: Mapping[str, Any], **judging: Any) -> CompiledCall | None:
        """Return the compiled call; None if there is none, or if the backend compiles no torch graphs."""
        if self.compiled is None or not isinstance(get_backend(backend, **options), CompilesTorch):
            return None
        return CompiledCall(self.compiled, backend, options, judging.get("tolerance"))

    def on(self, backend: str, *, options: Mapping[str, Any], **judging: Any) -> tuple[Report, Program | None]:
        """Return the report of a backend, and the program that it is about; None if that is the compiled call.

        `torch.compile` compiles another program than torch.export makes: with the inputs that the call changes, other
        operations, and weights that can be frozen. What is wrong in the exported program is reported first, as its
        cause can be found; else what is wrong in the compiled call. If the exported program is not the model in eager
        PyTorch either, only the call is reported.

        Args:
            backend: the name of the backend.
            options: the options of the backend.
            **judging: further keyword arguments of `compare`.

        Raises:
            FilchError: neither can be compared.
        """
        exported, used, error = None, None, self.refusal
        try:
            if self.program is not None:
                exported, used = compare_with_fallback(
                    self.capture, self.program, backend=backend, options=options, **judging
                )
        except BackendError as rejection:
            error = rejection
        report = exported
        call = self.call(backend, options=options, **judging)
        is_wrong = exported is not None and exported.outcome == "different"
        if call is not None and not is_wrong:
            report = _with_call(exported, call)
        elif call is not None and not call.obstacle and not self._is_exported(judging):
            alone = _with_call(None, call)
            report = exported if alone is None else replace(alone, notes=(*alone.notes, _ANOTHER))
        if report is None:
            raise error or CompareError("there is no program to compare")
        return report, used if report.reference != EAGER_PYTORCH else None

    def _is_exported(self, judging: Mapping[str, Any]) -> bool:
        """Return whether the exported program is the model in eager PyTorch, with the recorded inputs.

        It is not if the model reads what is not recorded, as `as_strided` does around a part of a storage.
        """
        if self.program is None:
            return True
        try:
            report = compare(self.capture, self.program, backend="eager", tolerance=judging.get("tolerance"))
        except FilchError:
            return True
        return report.outcome != "different"


def _with_call(exported: Report | None, call: CompiledCall) -> Report | None:
    """Return the report that says most of a program and a call: one that differs, else a complete one; None for none.

    Of a call that is close, beside a program that is, there is no report: it would hold the values of all its graphs.

    Args:
        exported: the report of the exported program, which does not differ; None if there is none.
        call: the compiled call.
    """
    if exported is not None and call.obstacle:
        return replace(exported, notes=(*exported.notes, call.obstacle))
    is_close = call.is_close()
    if exported is not None and exported.close and is_close and not exported.random:
        return exported
    reports, problem = call.reports()
    notes = [f"torch.compile makes {len(reports)} graphs of this call"] if len(reports) > 1 else []
    if not is_close and not problem:
        reports.append(call.traced())
    wrong = next((report for report in reports if report.outcome == "different"), None)
    is_complete = bool(reports) and not problem and all(report.close for report in reports)
    if exported is not None and wrong is None and (exported.close or not is_complete):
        return replace(exported, notes=(*exported.notes, problem)) if problem else exported
    found = wrong or next((report for report in reports if not report.close), next(iter(reports), None))
    if found is None:
        return None
    if exported is not None:
        notes.append(f"the program that torch.export makes of the model is {exported.outcome}: this is another one")
    return replace(found, notes=(*notes, *filter(None, [problem]), *found.notes))
