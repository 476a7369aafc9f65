"""Run parts of programs on a backend, and measure their errors."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from filch.export import Program
from filch.export.backends import Backend, CompilesTorch, Script, get_backend
from filch.export.operators._registry import operator_of

from ..metrics._limits import Limits
from ..metrics._metrics import compare_tensors, typical_magnitude
from ._case import Case, Tensors
from ._result import Culprit, ExpectedSource

_Call = Callable[..., Sequence[torch.Tensor]]


class Runner:
    """Runs parts of programs on a backend, and measures their errors.

    Attributes:
        backend: the backend.
        script: the code that runs it without Filch.
        optimize: see `Backend.compile`.
        fails: whether the fault is that the backend can't run the optimized part; a wrong result is none then.
    """

    def __init__(
        self, backend: Backend, script: Script, limits: Limits, *, optimize: bool, fails: bool = False
    ) -> None:
        self.backend = backend
        self.script = script
        self.optimize, self.fails = optimize, fails
        self._limits = limits
        self._reference = get_backend("reference")

    def actual(self, case: Case) -> Tensors | None:
        """Return the outputs of the backend, by name; None if the case can't be run."""
        if self._compiles_torch:
            return _run_function(case, self._compile)
        return _run_model(case, self.backend, optimize=self.optimize)

    def expected(self, case: Case, source: ExpectedSource) -> Tensors | None:
        """Return the expected outputs by name; None if `source` can't compute them."""
        if source == "model":
            return case.recorded or None
        if source == "float64":
            return case.in_float64()
        if source == "torch":
            return _run_function(case, lambda function, _: function)
        return _run_model(case, self._reference if source == "reference" else self.backend, optimize=False)

    def error(self, case: Case, source: ExpectedSource) -> float:
        """Return the largest harmonic error; 0 if all outputs are close or can't be computed, inf for other shapes.

        If the fault is that the backend fails, it is inf if it does, and 0 otherwise.
        """
        expected = self.expected(case, source)
        if expected is None:  # there is nothing to judge the case by
            return 0.0
        actual = self.actual(case)
        if self.fails:
            return math.inf if actual is None and self.expected(case, "unoptimized") is not None else 0.0
        return 0.0 if actual is None else self._largest_error(case, actual, expected)

    def error_from_captured(self, case: Case) -> float:
        """Return the error of a case whose inputs are captured values, relative to the captured outputs."""
        return self.error(case, "torch" if self._compiles_torch else "model")

    def choose_expected_source(self, case: Case) -> ExpectedSource | None:
        """Return the first source of expected values that agrees with the captured outputs; None if none does."""
        candidates: list[ExpectedSource] = ["torch"] if self._compiles_torch else ["reference", "unoptimized", "torch"]
        if not self.optimize and "unoptimized" in candidates:  # which is what is wrong
            candidates.remove("unoptimized")
        return next((source for source in candidates if self.agrees_with_captured(case, source)), None)

    def agrees_with_captured(self, case: Case, source: ExpectedSource) -> bool:
        """Return whether `source` agrees with the captured outputs; always true for compilers of torch."""
        if self._compiles_torch:
            return True
        return bool(case.recorded) and self._agree(case, self.expected(case, source), case.recorded)

    def culprit(self, case: Case, source: ExpectedSource) -> Culprit:
        """Return the faulty component, as far as the expected values of a source tell it."""
        if self._compiles_torch:
            return "compiler"
        if source == "model":
            return ""
        # If PyTorch's values are expected, onnx's evaluator may agree with the backend: then the translation is wrong.
        expected = self.expected(case, "reference" if source == "torch" else source)
        if source == "torch":
            return "translation" if self._agree(case, self.actual(case), expected) else ""
        if not self.optimize:
            return "runtime"
        return "optimizer" if self._agree(case, self.expected(case, "unoptimized"), expected) else "runtime"

    @property
    def _compiles_torch(self) -> bool:
        return self.script.takes == "torch"

    def _compile(self, function: fx.GraphModule, arguments: Sequence[torch.Tensor]) -> _Call:
        """Return the function as the backend, a compiler of torch, compiles it."""
        if not isinstance(self.backend, CompilesTorch):
            raise TypeError(f"backend {self.backend.name!r} compiles no torch function")
        handle: _Call = self.backend.compile_graph(function, arguments).handle
        return handle

    def _agree(self, case: Case, actual: Tensors | None, expected: Tensors | None) -> bool:
        """Return whether two results of a case are close; None is one that could not be computed."""
        return expected is not None and actual is not None and not self._largest_error(case, actual, expected)

    def _largest_error(self, case: Case, actual: Tensors, expected: Tensors) -> float:
        """Return the largest harmonic error of an output that is not close, inf if one can't be compared; else 0."""
        # Sums of large numbers may be small: their rounding is relative to what is added, estimated by the inputs.
        magnitudes = [typical_magnitude(tensor) for tensor in case.inputs.values() if tensor.is_floating_point()]
        magnitude = max(magnitudes, default=0.0) if any(operator_of(op).adds for op in case.operators) else 0.0
        largest = 0.0
        for name in case.outputs:
            limit = self._limits.of(name, expected[name].dtype if name in expected else None)
            pair = actual.get(name), expected.get(name)
            difference = compare_tensors(*pair, tolerance=limit, magnitude=magnitude)
            if not difference.close:
                largest = max(largest, math.inf if difference.problem else difference.error)
        return largest


def _run_model(case: Case, backend: Backend, *, optimize: bool) -> Tensors | None:
    """Return the outputs of the ONNX model, by name; None if there is none or it can't be run."""
    if case.model is None:
        return None
    try:
        return backend.run(backend.compile(Program(case.model), optimize=optimize), case.inputs)
    except Exception:  # noqa: BLE001  a reduced part may be invalid, and operators raise errors of any type
        return None


def _run_function(
    case: Case, compile_function: Callable[[fx.GraphModule, Sequence[torch.Tensor]], _Call]
) -> Tensors | None:
    """Return the outputs of the torch operations, by name; None if there are none or they can't be run."""
    if case.function is None:
        return None
    tensors = {**case.weights, **case.inputs}
    try:
        arguments = [tensors[node.name] for node in case.function.graph.find_nodes(op="placeholder")]
        with torch.no_grad():
            results = compile_function(case.function, arguments)(*arguments)
        return dict(zip(case.outputs, results, strict=True))
    except Exception:  # noqa: BLE001  a reduced part may be invalid, and operators raise errors of any type
        return None
