"""Print a Markdown table of what Filch and its peers, with the options that help them, make of planted comparisons."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

# The cases live with the tests, which are no package and are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faults.wrong_answers import CASES, Case

Tensor = torch.Tensor | None
Adapter = Callable[[Tensor, Tensor], bool]

RIGHT, WRONG, RAISES, NOT_INSTALLED = "right", "WRONG", "raises", "not installed"


def _as_numpy(tensor: Tensor) -> Any:  # an array or None, without importing numpy
    if tensor is None:
        return None
    try:
        return tensor.numpy()
    except TypeError:  # numpy has no bfloat16 and no float8; float32 holds all their values
        return tensor.float().numpy()


def judge_numpy(expected: Tensor, actual: Tensor) -> bool:
    """numpy.testing.assert_allclose; strict, as its default broadcasts scalars and ignores the dtype."""
    import numpy as np

    wanted, given = _as_numpy(expected), _as_numpy(actual)
    try:
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-5, strict=True)
    except AssertionError:
        return False
    return True


def judge_torch_testing(expected: Tensor, actual: Tensor) -> bool:
    """torch.testing.assert_close with its tolerance per dtype; equal_nan, as its default fails NaN against NaN."""
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError:
        return False
    return True


def judge_torch_onnx(expected: Tensor, actual: Tensor) -> bool:
    """VerificationInfo by the rule of torch.onnx.export(verify=True)."""
    from torch.onnx.verification import VerificationInfo

    # The exporter turns a complex output into pairs of real numbers, and from_tensors views only `expected` so.
    if actual is not None and actual.is_complex():
        actual = torch.view_as_real(actual)
    info = VerificationInfo.from_tensors("value", expected, actual)  # type: ignore[arg-type]  # a missing value is None
    large_abs, large_rel = 5e-3, 1e-1
    return not (info.max_abs_diff >= large_abs or info.max_rel_diff >= large_rel)


def judge_onnx_diagnostic(expected: Tensor, actual: Tensor) -> bool:
    """max_diff by the rule and the default tolerances of its ExtTestCase.assert_onnx_disc."""
    from onnx_diagnostic.helpers import max_diff

    diff = max_diff(expected, actual)
    atol, rtol = 1e-5, 1e-3
    return not math.isnan(diff["abs"]) and diff["abs"] <= atol and not math.isnan(diff["rel"]) and diff["rel"] <= rtol


def judge_polygraphy(expected: Tensor, actual: Tensor) -> bool:
    """Comparator.compare_accuracy with its default tolerances; +inf equals +inf, which its default fails."""
    from polygraphy.comparator import Comparator, RunResults, SimpleCompareFunc
    from polygraphy.logger import G_LOGGER

    results = RunResults()
    # The reference comes second: its relative error is that to the second value.
    for runner, value in (("actual", actual), ("expected", expected)):
        results.add([{} if value is None else {"value": value}], runner_name=runner)
    with G_LOGGER.verbosity():
        return bool(Comparator.compare_accuracy(results, compare_func=SimpleCompareFunc(infinities_compare_equal=True)))


def judge_filch(expected: Tensor, actual: Tensor) -> bool:
    """filch.compare.compare_tensors with its defaults."""
    from filch.compare import compare_tensors

    close: bool = compare_tensors(expected, actual).close
    return close


PEERS: dict[str, tuple[str, Adapter]] = {
    "numpy": ("numpy", judge_numpy),
    "torch.testing": ("torch", judge_torch_testing),
    "torch.onnx": ("torch", judge_torch_onnx),
    "onnx-diagnostic": ("onnx-diagnostic", judge_onnx_diagnostic),
    "Polygraphy": ("polygraphy", judge_polygraphy),
    "Filch": ("filch", judge_filch),
}


def missing(adapter: Adapter) -> str | None:
    """Say what cannot be imported for an adapter, or None if it can be used."""
    try:
        adapter(torch.ones(1), torch.ones(1))
    except ImportError as error:
        return str(error)
    except Exception:  # noqa: BLE001 (it is there; the table shows where it raises)
        return None
    return None


def outcome(adapter: Adapter, case: Case) -> str:
    """Compare the verdict of one peer with the truth."""
    # Clones: Polygraphy adds its epsilon to the zeros of the caller's tensor, in place.
    expected, actual = (None if tensor is None else tensor.clone() for tensor in (case.expected, case.actual))
    try:
        close = adapter(expected, actual)
    except Exception:  # noqa: BLE001 (whatever a peer raises is its answer)
        return RAISES
    return RIGHT if close == case.close else WRONG


def totals(outcomes: list[str]) -> tuple[str, str]:
    """Count the right answers, and the wrong values that a peer let pass."""
    if NOT_INSTALLED in outcomes:
        return NOT_INSTALLED, NOT_INSTALLED
    counts = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in (RIGHT, WRONG, RAISES))
    let_through = [WRONG for case, cell in zip(CASES, outcomes, strict=True) if cell == WRONG and not case.close]
    return counts, str(len(let_through))


def version(distribution: str) -> str:
    """Name a distribution with its version."""
    try:
        return f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        return f"{distribution} {NOT_INSTALLED}"


def report() -> str:
    """Judge every case with every peer and return the table, followed by the versions."""
    reasons = {name: missing(adapter) for name, (_, adapter) in PEERS.items()}
    columns = {
        name: [NOT_INSTALLED if reasons[name] else outcome(adapter, case) for case in CASES]
        for name, (_, adapter) in PEERS.items()
    }
    sums = [totals(outcomes) for outcomes in columns.values()]
    truths = ["close" if case.close else "different" for case in CASES]
    rows = [
        ["case", "truth", *columns],
        ["---"] * (len(columns) + 2),
        *([case.name, *cells] for case, *cells in zip(CASES, truths, *columns.values(), strict=True)),
        ["**total**", f"{len(CASES)} cases", *(counts for counts, _ in sums)],
        ["**wrong values let through**", f"of {truths.count('different')}", *(passed for _, passed in sums)],
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    distributions = dict.fromkeys(distribution for distribution, _ in PEERS.values())
    lines += ["", "Versions: " + ", ".join(map(version, distributions)) + "."]
    lines += [f"{name} could not be imported: {reason}." for name, reason in reasons.items() if reason]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
