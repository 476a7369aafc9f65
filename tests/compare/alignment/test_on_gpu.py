"""Two implementations on a GPU: weights and values correspond, and a bug is named, as on the CPU."""

import pytest
import torch

from faults.porting import make, read_set
from filch.compare import align

pytestmark = pytest.mark.gpu
BUG = "gptj: branches one after the other in layer 0"


def on_device(bugs):
    a, b, args, actual_args = make(bugs, "gptj", "fresh")
    move = [tuple(x.cuda() if isinstance(x, torch.Tensor) else x for x in part) for part in (args, actual_args)]
    return a.cuda(), b.cuda(), *move


def test_a_port_on_the_device_is_aligned():
    result = align(*on_device(()))
    assert result.close, str(result)
    assert not result.departures


def test_a_bug_on_the_device_is_named():
    bug = read_set("second").bugs[BUG]
    first, *_ = align(*on_device((bug,))).departures
    assert bug.found(first) == "operation"
