"""Routers and next tokens that rounding decides otherwise, and those that are wrong."""

import onnx_ir as ir
import pytest
import torch

from filch.compare import compare_decode
from filch.export import export
from support.faults.decoding import change_late
from support.models.exports import copied
from support.models.zoo import build
from support.thorough import slow

TOKENS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 96, "pad_token_id": 0}
MIXTURE = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
NEARLY, LESS, START, PAST = 1 - 2**-21, 1 - 2**-20, 4, "past_key_values.0.key"


@pytest.fixture(scope="module")
def mixture():
    """A mixture of experts in which two experts and two words have nearly the same scores, and its program."""
    model = build("MixtralForCausalLM", MIXTURE)
    with torch.no_grad():
        router, words = model.model.layers[0].mlp.gate.weight, model.lm_head.weight
        router[1] = router[0] * NEARLY
        words[5] *= 8
        words[6] = words[5] * NEARLY
        words[7:9] = -words[5:7]  # so that one of both pairs has the largest logits
    return model, export(model, TOKENS, cache="dynamic")


def decoded(mixture, name="", factor=1.0, indices=(), count=1, **options):
    """Compare a program that multiplies some numbers of a value by a factor, from some position on."""
    model, program = mixture
    program = copied(program)

    def change(add, value):
        factors = [factor if place in indices else 1.0 for place in range(count)]
        return add("Mul", [value, add("Constant", [], value=ir.tensor(factors, dtype=ir.DataType.FLOAT))])

    if name:
        program = change_late(program, name, START, change, PAST)
    return compare_decode(model, TOKENS, program=program, tokens=9, prefill=3, **{"stages": ["exported"], **options})


@pytest.fixture(scope="module")
def scores(mixture):
    """The name of what the router compares."""
    (node,) = (node for node in mixture[1].model.graph if node.op_type == "TopK")
    return node.inputs[0].name


@slow
def test_near_ties_that_are_decided_alike_are_no_decisions(mixture):
    result = decoded(mixture)
    assert result.close, result
    assert (result.decisions, sum(item.flips for item in result.positions)) == ((), 0)


@slow
def test_another_expert_within_rounding_is_a_decision_with_its_position(mixture, scores):
    result = decoded(mixture, scores, LESS, (0,), 4)
    assert result.close, result
    (first,) = result.decisions
    assert (first.op, first.module, first.position >= START) == ("TopK", "model.layers.0.mlp.gate", True)
    assert 0 < first.flips.count < first.flips.elements
    assert 0 < first.flips.ratio <= 2
    assert "rounding decides otherwise" in str(result)
    assert max(item.worst for item in result.positions) < 1e-4


@slow
@pytest.mark.parametrize("stages", [["exported"], ["exported", "compiled"]], ids=" ".join)
def test_another_next_token_within_rounding_is_a_decision_with_its_position(mixture, stages):
    """One, of the last stage."""
    result = decoded(mixture, "logits", LESS, (5, 7), 96, stages=stages)
    assert result.close, result
    (first,) = result.decisions
    flipped = [item.position for item in result.positions if item.flips]
    assert (first.op, first.position, first.position >= START) == ("next token", flipped[0], True)
    assert first.flips.count == sum(item.flips for item in result.positions)
    assert 0 < first.flips.ratio <= 2


@slow
@pytest.mark.parametrize(("value", "indices", "count"), [("", (0,), 4), ("logits", (5, 7), 96)])
def test_another_choice_that_rounding_does_not_explain_is_a_fault(mixture, scores, value, indices, count):
    result = decoded(mixture, value or scores, 0.9, indices, count)
    assert (result.first_break.position, result.first_break.value) == (START, value or scores), result
    assert result.decisions == ()
