"""Compare right and wrong tensors with Filch and other tools, each with its best options; print a Markdown table."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from _measure import version

from faults.answers import CASES, Case

Tensor = torch.Tensor | None
Adapter = Callable[[Tensor, Tensor], bool]

RIGHT, WRONG, RAISES, NOT_INSTALLED = "right", "WRONG", "raises", "not installed"


def _as_numpy(tensor: Tensor) -> Any:  # an array or None; numpy is not imported at the top of this file
    if tensor is None:
        return None
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16 and float8; float32 represents all their values
        return tensor.float().numpy()


def is_close_numpy(actual: Tensor, expected: Tensor) -> bool:
    """Use numpy.testing.assert_allclose; strict, because the default broadcasts scalars and ignores the dtype."""
    import numpy as np

    actual_array, expected_array = _as_numpy(actual), _as_numpy(expected)
    try:
        np.testing.assert_allclose(actual_array, expected_array, rtol=1e-5, atol=1e-5, strict=True)
    except AssertionError:
        return False
    return True


def is_close_torch_testing(actual: Tensor, expected: Tensor) -> bool:
    """Use torch.testing.assert_close with its tolerances per dtype; by default NaN differs from NaN."""
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError:
        return False
    return True


def is_close_torch_onnx(actual: Tensor, expected: Tensor) -> bool:
    """Use VerificationInfo with the rule of torch.onnx.export(verify=True)."""
    from torch.onnx.verification import VerificationInfo

    # The exporter converts complex outputs to pairs of real numbers; from_tensors converts only `expected`.
    if actual is not None and actual.is_complex():
        actual = torch.view_as_real(actual)
    info = VerificationInfo.from_tensors("value", expected, actual)  # type: ignore[arg-type]  # a missing value is None
    large_abs, large_rel = 5e-3, 1e-1
    return not (info.max_abs_diff >= large_abs or info.max_rel_diff >= large_rel)


def is_close_onnx_diagnostic(actual: Tensor, expected: Tensor) -> bool:
    """Use max_diff with the rule and the default tolerances of ExtTestCase.assert_onnx_disc."""
    from onnx_diagnostic.helpers import max_diff

    diff = max_diff(expected, actual)
    atol, rtol = 1e-5, 1e-3
    return not math.isnan(diff["abs"]) and diff["abs"] <= atol and not math.isnan(diff["rel"]) and diff["rel"] <= rtol


def is_close_polygraphy(actual: Tensor, expected: Tensor) -> bool:
    """Use Comparator.compare_accuracy with its default tolerances; +inf equals +inf, unlike by default."""
    from polygraphy.comparator import Comparator, RunResults, SimpleCompareFunc
    from polygraphy.logger import G_LOGGER

    results = RunResults()
    # The reference is the second value: the relative error is relative to it.
    for runner, value in (("actual", actual), ("expected", expected)):
        results.add([{} if value is None else {"value": value}], runner_name=runner)
    with G_LOGGER.verbosity():
        return bool(Comparator.compare_accuracy(results, compare_func=SimpleCompareFunc(infinities_compare_equal=True)))


def is_close_filch(actual: Tensor, expected: Tensor) -> bool:
    """Use filch.compare.compare_tensors with its defaults."""
    from filch.compare import compare_tensors

    close: bool = compare_tensors(actual, expected).close
    return close


PEERS: dict[str, tuple[str, Adapter]] = {
    "numpy": ("numpy", is_close_numpy),
    "torch.testing": ("torch", is_close_torch_testing),
    "torch.onnx": ("torch", is_close_torch_onnx),
    "onnx-diagnostic": ("onnx-diagnostic", is_close_onnx_diagnostic),
    "Polygraphy": ("polygraphy", is_close_polygraphy),
    "Filch": ("filch", is_close_filch),
}


def import_error(adapter: Adapter) -> str | None:
    """Return the message of the ImportError of an adapter, or None if its tool is installed."""
    try:
        adapter(torch.ones(1), torch.ones(1))
    except ImportError as error:
        return str(error)
    except Exception:  # noqa: BLE001 (the tool is installed; the table shows where it raises)
        return None
    return None


def outcome(adapter: Adapter, case: Case) -> str:
    """Return whether a tool gives the right answer for a case."""
    # Clones: Polygraphy adds its epsilon to the zeros of the caller's tensor, in place.
    actual, expected = (None if tensor is None else tensor.clone() for tensor in (case.actual, case.expected))
    try:
        close = adapter(actual, expected)
    except Exception:  # noqa: BLE001 (any exception is counted as an answer)
        return RAISES
    return RIGHT if close == case.close else WRONG


def totals(outcomes: list[str]) -> tuple[str, str]:
    """Count the answers of each kind, and the wrong values that a tool accepts."""
    if NOT_INSTALLED in outcomes:
        return NOT_INSTALLED, NOT_INSTALLED
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in (RIGHT, WRONG, RAISES))
    accepted = [WRONG for case, cell in zip(CASES, outcomes, strict=True) if cell == WRONG and not case.close]
    return counts, str(len(accepted))


def format_report() -> str:
    """Judge each case with each tool, and return the table and the versions."""
    reasons = {name: import_error(adapter) for name, (_, adapter) in PEERS.items()}
    columns = {
        name: [NOT_INSTALLED if reasons[name] else outcome(adapter, case) for case in CASES]
        for name, (_, adapter) in PEERS.items()
    }
    sums = [totals(outcomes) for outcomes in columns.values()]
    answers = ["close" if case.close else "different" for case in CASES]
    rows = [
        ["case", "expected", *columns],
        ["---"] * (len(columns) + 2),
        *([case.name, *cells] for case, *cells in zip(CASES, answers, *columns.values(), strict=True)),
        ["**total**", f"{len(CASES)} cases", *(counts for counts, _ in sums)],
        ["**wrong values accepted**", f"of {answers.count('different')}", *(accepted for _, accepted in sums)],
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    distributions = dict.fromkeys(distribution for distribution, _ in PEERS.values())
    lines += ["", "Versions: " + ", ".join(map(version, distributions)) + "."]
    lines += [f"{name} could not be imported: {reason}." for name, reason in reasons.items() if reason]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(format_report() + "\n")
