"""With which versions of a library an error shows."""

from collections.abc import Iterator, Sequence

from filch.export import Program
from filch.export.backends import Backend, RunsOtherVersions
from filch.steal import FilchError

from ..common._errors import CompareError
from ..common._progress import step
from ..results._bisection import Version
from ..results._precision import Outcome
from ._criterion import Criterion


def versions(interpreters: Sequence[str], program: Program, engine: Backend, criterion: Criterion) -> Iterator[Version]:
    """What comes of it in each interpreter; where it can't be run, that is a problem and no pass.

    Raises:
        CompareError: the backend can't run elsewhere, or what is judged is no output.
    """
    if not interpreters:
        return
    if not isinstance(engine, RunsOtherVersions):
        raise CompareError(f"backend {engine.name!r} can't run in another interpreter")
    if criterion.watch:
        raise CompareError("other interpreters give the outputs alone: judge these, not a value inside")
    for number, interpreter in enumerate(interpreters):
        step(interpreter, number, len(interpreters))
        try:
            version, found = engine.run_in(interpreter, program, criterion.inputs)
        except FilchError as error:
            outcome = Outcome(passes=False, error=float("inf"), snr=float("-inf"), problem=str(error))
            yield Version(interpreter, "", outcome)
        else:
            yield Version(interpreter, version, criterion.judge(found))
