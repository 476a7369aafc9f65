"""The judge and its wrong answers: none gets through, whether tensors, tolerances or float64 decide."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.answers import CASES
from filch.compare import Report, compare_tensors
from filch.compare.common._complex import complex_as_real
from filch.compare.engine._value_comparator import ValueComparator
from filch.compare.judging._run import Run
from filch.compare.metrics._limits import Limits
from filch.compare.references._resolver import Reference, ReferenceResolver
from filch.export import Graph, Node, Value
from filch.export.backends import Compiled
from support.models.hand_made import float64_values, judge_of

SPECIAL = (0.0, 1.5, -2.0, 1e-30, 3e4, float("inf"), float("-inf"), float("nan"))
GRAPH = Graph("main", ("x",), ("y",), (), (Node("copy", "Identity", ("x",), ("y",)),), {"y": Value("y")})


def compared(actual, expected, *, truth):
    """Return the report on a one-node graph that computes `actual` where the model has `expected`."""
    known = {} if expected is None else {"y": complex_as_real(expected)}
    made = {} if actual is None else {"y": complex_as_real(actual)}
    run = Run(0, "exported", Compiled(GRAPH, None), {"x": known["y"]} if known else {}, made)
    rounding = judge_of(float64_values(known), run) if truth and expected is not None else None
    references = {name: Reference(tensor, "module") for name, tensor in known.items()}
    judge = ValueComparator(run, ReferenceResolver(references), None, Limits(GRAPH, None), None, rounding)
    judge.compare((name, tensor, None) for name, tensor in made.items())
    return Report("backend", "model", "program", tuple(judge.rows()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wrong_answers_differ_and_right_ones_are_close(case):
    """They are judged by `compare_tensors`, in a comparison with a tolerance, and in one by float64."""
    alone = compare_tensors(case.actual, case.expected).close
    reports = [compared(case.actual, case.expected, truth=truth) for truth in (False, True)]

    assert [alone, *(report.close for report in reports)] == [case.close] * 3, [str(row) for row in reports[1].rows]


def test_there_are_wrong_answers_of_all_kinds():
    """Their names are unique, and some are right answers."""
    assert len({case.name for case in CASES}) == len(CASES) >= 120
    assert sum(case.close for case in CASES) >= 25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@settings(max_examples=30, deadline=None)
@given(pairs=st.lists(st.tuples(st.sampled_from(SPECIAL), st.sampled_from(SPECIAL)), min_size=1, max_size=4))
def test_a_nonfinite_value_on_one_side_alone_never_passes(dtype, pairs):
    """Nor do infinities of different signs or a number in place of NaN, however they are judged."""
    expected, actual = (torch.tensor(side).to(dtype) for side in zip(*pairs, strict=True))
    e, a = complex_as_real(expected), complex_as_real(actual)
    alike = (e == a) | (e.isnan() & a.isnan())
    odd = bool((~alike & ~(e.isfinite() & a.isfinite())).any())

    for report in (compared(actual, expected, truth=truth) for truth in (False, True)):
        assert not (odd and report.close), str(report.rows[0].float64)
        assert not odd or not any(row.float64 is not None and row.float64.sound for row in report.rows)
    assert not (odd and compare_tensors(actual, expected, tolerance=1e6, magnitude=1e30).close)
