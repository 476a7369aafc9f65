"""Validated options of a capture: which records and tensors to store."""

from collections.abc import Callable, Iterable
from typing import Any

from .._errors import FilchError

Iterations = int | slice | range | Iterable[int] | Callable[[int], bool] | None


class Options:
    """Validated options of a capture.

    Attributes:
        inputs: whether to record inputs.
        outputs: whether to record outputs.
        wants: returns whether to record an iteration.
        storage_limit: the maximum bytes of one tensor; None is no limit.
        total_limit: the maximum bytes of all tensors; None is no limit.
        statistics_only: store statistics instead of tensors.
        strict: raise exceptions of the hooks into the model's run.
        stop: raise errors from writing into the model's run.
        to_sink: pass each record to a sink instead of storing it.

    Raises:
        FilchError: an option is not valid.
    """

    def __init__(
        self,
        *,
        kinds: Iterable[str],
        iterations: Iterations,
        storage_limit: float | None,
        total_limit: float | None,
        statistics_only: bool,
        strict: bool,
        on_error: str,
        to_sink: bool,
    ) -> None:
        for name, limit in {"storage_limit": storage_limit, "total_limit": total_limit}.items():
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0):
                raise FilchError(f"{name} must be a number of bytes like 2**28, not {limit!r}")
        if on_error not in ("continue", "raise"):
            raise FilchError(f"on_error must be 'continue' or 'raise', not {on_error!r}")
        chosen = list(kinds) if isinstance(kinds, Iterable) else [kinds]
        if not chosen or not all(kind in ("I", "O") for kind in chosen):
            raise FilchError(f"kinds must be 'I' (inputs) and 'O' (outputs), not {kinds!r}")
        self.inputs, self.outputs = "I" in chosen, "O" in chosen
        self.wants = _selector(iterations)
        self.storage_limit, self.total_limit = storage_limit, total_limit
        self.statistics_only = statistics_only
        self.strict, self.stop = strict, on_error == "raise"
        self.to_sink = to_sink


def _selector(iterations: Any) -> Callable[[int], bool]:
    """Return a function that returns whether an iteration is selected."""
    if iterations is None:
        return lambda _: True
    if isinstance(iterations, int) and not isinstance(iterations, bool) and iterations >= 0:
        return lambda iteration: iteration < iterations
    if isinstance(iterations, slice):
        start, stop, step = iterations.start or 0, iterations.stop, iterations.step or 1
        if all(isinstance(part, int) for part in (start, step, stop or 0)) and start >= 0 and step > 0:
            return lambda iteration: iteration in range(start, iteration + 1 if stop is None else stop, step)
    elif callable(iterations):
        return iterations  # type: ignore[no-any-return]
    elif isinstance(iterations, Iterable) and not isinstance(iterations, str):
        numbers = iterations if isinstance(iterations, range) else set(iterations)
        if isinstance(numbers, range) or all(isinstance(number, int) for number in numbers):
            return numbers.__contains__
    raise FilchError(
        "iterations must be a number (the first ones), a range or slice (`slice(None, None, 10)` for every tenth), "
        f"a list of numbers or a function of a number, not {iterations!r}"
    )
