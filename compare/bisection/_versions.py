"""Run a program with other versions of a backend's library."""

from collections.abc import Iterator, Sequence

from filch.export import Program
from filch.export.backends import Backend, RunsOtherVersions
from filch.steal import FilchError

from ..common._errors import CompareError
from ..common._progress import step
from ..results._bisection import Version
from ..results._precision import Outcome
from ._criterion import Criterion


def run_versions(
    interpreters: Sequence[str], program: Program, engine: Backend, criterion: Criterion
) -> Iterator[Version]:
    """Yield the outcome in each interpreter; one that can't run the program does not pass.

    Raises:
        CompareError: the backend can't run in another interpreter, or a value other than the outputs is judged.
    """
    if not interpreters:
        return
    if not isinstance(engine, RunsOtherVersions):
        raise CompareError(f"backend {engine.name!r} can't run in another interpreter")
    if criterion.watch:
        raise CompareError("other interpreters return only the outputs: `interpreters` can't be used with `value`")
    for number, interpreter in enumerate(interpreters):
        step(interpreter, number, len(interpreters))
        try:
            version, results = engine.run_in(interpreter, program, criterion.inputs)
        except FilchError as error:
            outcome = Outcome(passes=False, error=float("inf"), snr=float("-inf"), problem=str(error))
            yield Version(interpreter, "", outcome)
        else:
            yield Version(interpreter, version, criterion.judge(results))
