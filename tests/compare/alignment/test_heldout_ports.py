"""The ports that `benchmarks/porting_bugs.py --set second` aligns have to be right for its bugs to say anything."""

import pytest
import torch

from support.models.ports.heldout import HELD_OUT_PORTS


@pytest.mark.parametrize("name", HELD_OUT_PORTS)
def test_a_port_has_the_outputs_of_its_model(name):
    """Up to the rounding of float32."""
    a, b, args, b_args = HELD_OUT_PORTS[name].make(None)

    with torch.no_grad():
        torch.testing.assert_close(b(*b_args), a(*args).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "bug"), [(name, bug) for name, port in HELD_OUT_PORTS.items() for bug in port.bugs])
def test_a_bug_of_a_port_changes_its_outputs(name, bug):
    """More than rounding does."""
    a, b, args, b_args = HELD_OUT_PORTS[name].make(bug)

    with torch.no_grad():
        assert (b(*b_args) - a(*args).logits).abs().max() > 1e-4
