"""Faults of ten kinds, alone and two at once: the report says where they were introduced; clean runs are silent."""

from functools import cache
from random import Random

import pytest
import torch
from torch import nn

from faults.nodes.blaming import (
    COMPILED,
    EXPORTED,
    INSIDE,
    INT8,
    MISSED,
    NODE,
    Subject,
    Verdict,
    blamed,
    judge,
    wheres,
)
from faults.nodes.kinds import KINDS, LEAST, NAN, NOISE, QDQ, STALE

ALLOWED = (Verdict(NODE, besides=0), Verdict(INSIDE, besides=0))
# What needs `truth`, `repeats`, `introduced` and `unstable` of `compare` is marked in blaming.py.


class Block(nn.Module):
    """Attention with a causal mask and a padding mask, and a perceptron, in a few dozen nodes."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.keys, self.values, self.wide, self.narrow = (
            nn.Linear(*size) for size in ((16, 16), (16, 16), (16, 24), (24, 16))
        )

    def forward(self, x, kept):
        hidden = self.before(x)
        places = torch.arange(x.shape[1])
        mask = (places[None] <= places[:, None])[None] & kept[:, None, :].bool()
        scores = (hidden @ self.keys(hidden).transpose(1, 2)).masked_fill(~mask, torch.finfo(x.dtype).min)
        x = x + torch.softmax(scores / 4, -1) @ self.values(hidden)
        return torch.sigmoid(x + self.narrow(nn.functional.gelu(self.wide(self.after(x)))))


@cache
def subject():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        kept = torch.ones(2, 6, dtype=torch.int64)
        kept[1, 4:] = 0
        return Subject("block", Block().eval(), (torch.randn(2, 6, 16), kept), {})


def draw(kind, where, *, seed=0, beside=()):
    fault = subject().faults[where].plant(kind, Random(seed), beside=beside)  # noqa: S311  no secret
    assert fault is not None
    return fault


@pytest.mark.parametrize("where", [EXPORTED, COMPILED, INT8])
def test_nothing_is_blamed_in_a_clean_run(where):
    """Neither float rounding nor the rounding of 8-bit integers is reported, in two calls with repeats."""
    assert blamed(subject().compare(where)) == []


@pytest.mark.parametrize(("kind", "where"), [(kind, where) for kind in KINDS for where in dict.fromkeys(wheres(kind))])
def test_a_fault_is_blamed_on_the_node_that_it_is_in_and_on_no_other(kind, where):
    """Each of the ten kinds is planted in the exported graph and in the graph that ONNX Runtime compiles."""
    fault = draw(kind, where)
    report = subject().compare(where, [fault])
    # Quantization makes integers, which are judged after dequantization.
    assert judge(report, [fault]) in ALLOWED, f"{fault.text}\n{blamed(report)}"


@pytest.mark.parametrize(
    ("kinds", "where"),
    [
        (("wrong epsilon", "dropped bias"), EXPORTED),
        ((NAN, "lower precision"), EXPORTED),
        ((NOISE, STALE), EXPORTED),
        (("approximated activation", "dropped bias"), COMPILED),
        ((QDQ, QDQ), INT8),
    ],
)
def test_of_two_faults_at_once_each_is_blamed_on_its_node(kinds, where):
    """The second fault is distinguished from the error that its node inherits from the first."""
    faults = [draw(kinds[0], where)]
    faults.append(draw(kinds[1], where, beside=faults))
    report = subject().compare(where, faults)
    assert judge(report, faults) in ALLOWED, f"{[fault.text for fault in faults]}\n{blamed(report)}"


def test_the_evaluation_of_blame_finds_missing_and_wrong_names():
    """It counts a fault as missed if the run is clean or another fault is named."""
    one, other = draw("dropped bias", EXPORTED), draw("wrong epsilon", EXPORTED)
    assert judge(subject().compare(EXPORTED), [one]) == Verdict(MISSED, besides=0)
    report = subject().compare(EXPORTED, [one])
    assert judge(report, [other]) == Verdict(MISSED, besides=1)
    assert judge(report, [one, other]).at == MISSED


@pytest.mark.parametrize("kind", KINDS)
def test_faults_are_larger_than_rounding_and_found_again_by_their_seed(kind):
    """The same seed plants the same fault."""
    where = wheres(kind)[0]
    faults = [draw(kind, where, seed=seed) for seed in (0, 0, 1)]
    assert all(fault.off != fault.off if kind == NAN else fault.off >= LEAST for fault in faults)
    assert faults[0].text == faults[1].text
