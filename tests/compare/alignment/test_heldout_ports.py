"""The ports that `benchmarks/porting_bugs.py` aligns have to be right for its bugs to say anything."""

import pytest
import torch

from faults.porting import STYLES, make, read_set
from filch.compare import align
from ports import HELD_OUT_PORTS, PORTS
from support.thorough import slow


@pytest.mark.parametrize("name", HELD_OUT_PORTS)
def test_a_port_has_the_outputs_of_its_model(name):
    """Up to the rounding of float32."""
    a, b, args, actual_args = HELD_OUT_PORTS[name].make(None)

    with torch.no_grad():
        torch.testing.assert_close(b(*actual_args), a(*args).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "bug"), [(name, bug) for name, port in HELD_OUT_PORTS.items() for bug in port.bugs])
def test_a_bug_of_a_port_changes_its_outputs(name, bug):
    """More than rounding does."""
    a, b, args, actual_args = HELD_OUT_PORTS[name].make(bug)

    with torch.no_grad():
        assert (b(*actual_args) - a(*args).logits).abs().max() > 1e-4


# One bug for each thing that the sets of bugs showed, with what the first departure has to name.
NAMED = {
    "opt: eps of the last norm": "operation",  # a step of a norm that is one operation in the model
    "gptj: branches one after the other in layer 0": "operation",  # an operation that no other layer has
    "roberta: variance divided by one less in layer 3": "operation",  # convolutions in place of linear layers
    "bloom: no bias of the output in layer 3": "operation",  # a bias, and not the residual sum
    "gemma2: logits not capped": "operation",  # an output that the model computes on from
    "gemma2: gelu without tanh in layer 0": "operation",  # stacked weights, copied in another order
    "mamba: softplus of the decay in layer 3": "operation",  # a table beside large numbers
    "wav2vec2: frames backwards": "operation",  # rows by length, with a bug before the first layer
    "swin: windows by columns in layer 3": "operation",  # another order of rows in a single layer
    "convnext: layer of another block in stage 1": "operation",  # a weight that another operation reads, too
    "opt: residual of the norm in layer 0": "operation",  # a sum of a norm that must be right, as its readers are
    "deberta_v2: eps of the words": "operation",  # attention that amplifies rounding, behind the bug
    "falcon: first query for the key in layer 1": "operation",  # joined weights, of which one part is wrong
    "segformer: corners in their places": "operation",  # a value that is computed from products of A's weights
    "segformer: second residual twice in stage 2": "operation",  # beside steps that no layer has in A
    "bert: eps of the second norm in layer 1": "operation",  # behind a sum that A computes in another order
    "rwkv: bonus of another layer in layer 0": "operation",  # the weight of another layer, which only a sum reads
}
FRESH = "opt", "gptj", "bloom", "gemma2", "falcon", "segformer: corners", "rwkv"
SETS = "second", "third", "fourth", "sixth", "seventh"
BUGS = {name: bug for part in SETS for name, bug in read_set(part).bugs.items()}


@slow
@pytest.mark.parametrize("name", NAMED)
def test_a_bug_is_named_first_and_alone(name):
    style = "fresh" if name.startswith(FRESH) else "trained"
    bug = BUGS[name]

    result = align(*make((bug,), bug.port, style))

    first, *further = result.departures
    assert bug.found(first) == NAMED[name], str(result)
    assert sum(bug.found(item) == "elsewhere" for item in further) == (name == "opt: eps of the last norm")


@slow
@pytest.mark.parametrize(("port", "style"), [("gptj", STYLES[0]), ("opt", STYLES[1]), ("mamba", STYLES[1])])
def test_weights_in_no_regular_order_or_folded_by_head_are_found(port, style):
    """And a port without a bug has no departure."""
    result = align(*make((), port, style))

    assert result.close
    assert result.departures == ()
    assert [weight.name for weight in result.weights if not weight.complete] == []


@slow
def test_a_bias_that_a_joined_projection_lacks_in_all_layers_is_named():
    """The projection, and not what reads its result, although that is a value of A in no layer."""
    a, b, args, actual_args = PORTS["qwen2"].make("key bias")

    result = align(a, b, args, actual_args)

    assert [item.module for item in result.departures] == ["stack.0.packed", "stack.1.packed"]
    assert result.departures[0].note == "lacks model.layers.0.self_attn.k_proj.bias of A"
