"""What is known of the values of a run."""

from types import SimpleNamespace

import pytest
import torch

from filch.compare.float64._verdict import Float64Value
from filch.compare.judging._facts import RunFacts


@pytest.mark.parametrize(("dtype", "is_compared"), [(torch.float64, True), (torch.int64, False)])
def test_integers_that_a_decision_compares_have_no_rounding_level(dtype, is_compared):
    """As integers among the inputs; no rounding brings them near a tie."""
    exact = Float64Value(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype), 2**-24)
    facts = SimpleNamespace(
        float64={"a": exact},
        decisions=SimpleNamespace(values=None),
        program=SimpleNamespace(exported=SimpleNamespace(producer={"a": object()})),
        longest_sum=lambda *_: 1,
        _run_names={},
    )
    assert (RunFacts.compared(facts, "a", torch.ones(2)) is not None) is is_compared
