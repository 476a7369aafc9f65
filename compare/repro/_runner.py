"""Run parts of a program on a backend, and measure their errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

from filch.export import BackendError, Program
from filch.export.backends import Backend, CompilesTorch, get_backend

from ..engine._allowances import adds
from ..metrics._limits import Limits
from ..metrics._metrics import compare_tensors, typical_magnitude
from ._case import Case, Tensors
from ._result import Culprit, ExpectedSource

T = TypeVar("T")


class Runner:
    """Runs parts of a program on a backend, and measures their errors.

    Args:
        engine: the backend.
        limits: the tolerance of each value.
        optimize: see `Backend.compile`.
        takes: the format that the backend takes, see `Script.takes`.
    """

    def __init__(self, engine: Backend, limits: Limits, *, optimize: bool, takes: str) -> None:
        self._engine = engine
        self._limits = limits
        self._optimize = optimize
        self._takes = takes
        self._reference = get_backend("reference")

    def actual(self, case: Case) -> Tensors | None:
        """Return the outputs of the backend, by name; None if the case can't be run."""
        if self._takes == "torch":
            return _tried(lambda: self._compiled(case))
        return _tried(lambda: _on(self._engine, case, optimize=self._optimize))

    def expected(self, case: Case, truth: ExpectedSource) -> Tensors | None:
        """Return the expected outputs by name; None if `truth` can't compute them."""
        if truth == "model":
            return case.recorded or None
        if truth == "torch":
            return _tried(lambda: _in_eager(case))
        engine = self._reference if truth == "reference" else self._engine
        return _tried(lambda: _on(engine, case, optimize=False))

    def error(self, case: Case, truth: ExpectedSource) -> float:
        """Return the largest harmonic error of outputs that differ; 0 if none does or it can't be run, inf for NaN."""
        expected = self.expected(case, truth)
        actual = None if expected is None else self.actual(case)
        return 0.0 if expected is None or actual is None else self._apart(case, expected, actual)

    def wrong(self, case: Case) -> float:
        """Return the error of a case whose inputs are captured values, relative to the captured outputs."""
        return self.error(case, "torch" if self._takes == "torch" else "model")

    def truth(self, case: Case) -> ExpectedSource | None:
        """Return the first source of expected values that agrees with the captured outputs; None if none does."""
        if self._takes == "torch":
            return "torch"
        candidates: tuple[ExpectedSource, ...] = (
            ("reference", "unoptimised", "torch") if self._optimize else ("reference", "torch")
        )
        return next((source for source in candidates if self.agrees(case, source)), None)

    def agrees(self, case: Case, truth: ExpectedSource) -> bool:
        """Return whether `truth` agrees with the captured outputs; always true for compilers of torch."""
        if self._takes == "torch":
            return True
        expected = self.expected(case, truth)
        return expected is not None and bool(case.recorded) and self._apart(case, case.recorded, expected) == 0.0

    def culprit(self, case: Case, truth: ExpectedSource) -> Culprit:
        """Return the faulty component."""
        if self._takes == "torch":
            return "compiler"
        if truth == "torch":
            found, actual = self.expected(case, "reference"), self.actual(case)
            both = found is not None and actual is not None
            return "translation" if both and not self._apart(case, found or {}, actual or {}) else ""
        if truth == "model":
            return ""
        expected, plain = self.expected(case, truth), self.expected(case, "unoptimised")
        known = self._optimize and expected is not None and plain is not None
        return "optimiser" if known and not self._apart(case, expected or {}, plain or {}) else "runtime"

    def _apart(self, case: Case, expected: Tensors, actual: Tensors) -> float:
        given = [typical_magnitude(held) for held in case.inputs.values() if held.is_floating_point()]
        magnitude = max(given, default=0.0) if adds(case.operators) else 0.0
        found = 0.0
        for name in case.outputs:
            limit = self._limits.of(name, expected[name].dtype if name in expected else None)
            pair = expected.get(name), actual.get(name)
            difference = compare_tensors(*pair, tolerance=limit, magnitude=magnitude)
            if not difference.close:
                found = max(found, float("inf") if difference.problem else difference.error_max)
        return found

    def _compiled(self, case: Case) -> Tensors:
        arguments = _arguments(case)
        if case.function is None or not isinstance(self._engine, CompilesTorch):
            raise BackendError(f"backend {self._engine.name!r} compiles no torch function")
        with torch.no_grad():
            made = self._engine.compile_graph(case.function, arguments)
            return dict(zip(case.outputs, made.handle(*arguments), strict=True))


def _on(engine: Backend, case: Case, *, optimize: bool) -> Tensors:
    if case.model is None:
        raise BackendError("there is no ONNX model to run")
    made = engine.compile(Program(case.model), optimize=optimize)
    return engine.run(made, case.inputs)


def _in_eager(case: Case) -> Tensors:
    if case.function is None:
        raise BackendError("there are no operations of torch to run")
    with torch.no_grad():
        return dict(zip(case.outputs, case.function(*_arguments(case)), strict=True))


def _arguments(case: Case) -> Sequence[torch.Tensor]:
    if case.function is None:
        return []
    held: Mapping[str, torch.Tensor] = {**case.weights, **case.inputs}
    return [held[node.name] for node in case.function.graph.find_nodes(op="placeholder")]


def _tried(run: Callable[[], T]) -> T | None:
    """Return the result of `run`; None if it raises, as a reduced part may be invalid."""
    try:
        return run()
    except Exception:  # noqa: BLE001  operators raise errors of any type for invalid shapes
        return None
