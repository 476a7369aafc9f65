"""Decoding and the relations of `check_invariance` on a GPU: right ones are silent, and planted faults are found."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from filch.compare import check_invariance, compare_decode
from filch.export import export
from filch.export.backends import get_backend
from support.models.small import module_of
from support.processes.compilers import needs_compiler
from support.processes.gpu import ort_cuda

pytestmark = pytest.mark.gpu

TOKENS = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(0))
BACKENDS = [
    pytest.param("eager", id="eager"),
    pytest.param("onnxruntime", id="onnxruntime"),
    pytest.param("inductor", id="inductor", marks=needs_compiler),
]


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(dtype)


def backend_of(name):
    return ort_cuda(tf32=False) if name == "onnxruntime" else get_backend(name, device="cuda")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_decode_on_the_device_is_right_at_each_position(name, cache):
    model = llama()
    program = export(model, TOKENS, cache=cache, slots=20)
    result = compare_decode(model, TOKENS, program=program, tokens=12, prefill=4, backend=backend_of(name))
    assert result.close, result
    assert len(result.positions) == TOKENS.shape[1]
    assert result.judged >= 5, result  # the logits, and the keys and values of both layers


@pytest.mark.parametrize("name", BACKENDS)
def test_a_wrong_layer_is_found_in_a_decode_on_the_device(name):
    model, wrong = llama(), llama()
    with torch.no_grad():
        wrong.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    program = export(wrong, TOKENS, cache="dynamic")
    result = compare_decode(model, TOKENS, program=program, tokens=12, prefill=4, backend=backend_of(name))
    assert not result.close
    assert result.breaks[0].position == 0
    if name != "inductor":  # which fuses what follows the product with later layers
        assert "layers.1.mlp" in str(result.breaks[0]), result


def test_a_model_on_the_device_is_decoded_as_its_program():
    result = compare_decode(llama().cuda(), TOKENS.cuda(), tokens=12, prefill=4, backend=backend_of("onnxruntime"))
    assert result.close, result


def test_a_model_on_the_device_gives_the_same_numbers_however_it_is_called():
    result = check_invariance(llama().cuda(), TOKENS.cuda())
    assert result.close, result


def test_a_layer_that_depends_on_the_batch_is_found_on_the_device():
    model = llama().cuda()
    # A wrong normalization: a row of a batch depends on how many rows there are.
    scaled_by_batch = module_of(lambda self, x: x * (1 + 0.01 * (x.shape[0] - 1)))
    model.model.layers[1].mlp.act_fn = nn.Sequential(model.model.layers[1].mlp.act_fn, scaled_by_batch)
    result = check_invariance(model, TOKENS.cuda(), only=["batch"])
    assert not result.close
    assert "layers.1.mlp" in str(result), result
