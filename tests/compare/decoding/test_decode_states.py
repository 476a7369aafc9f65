"""Programs whose cache has more than the decoder's keys and values: recurrent states, and those of an encoder."""

import pytest
import torch

from filch.compare import CompareError, compare_decode
from filch.export import ExportError, export, load_program
from support.faults.decoding import change_late, exchanged, replaced
from support.models.exports import copied
from support.models.zoo import build
from support.thorough import slow

TOKENS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 96, "pad_token_id": 0}
HYBRID = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1], "mamba_n_heads": 8}
HYBRID |= {"mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
WHISPER = {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 15, "max_target_positions": 40}
WHISPER |= {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 48))
}
WHISPER |= {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
FEATURES = torch.randn(2, 8, 30, generator=torch.Generator().manual_seed(1))
SPOKEN = {"input_features": FEATURES, "decoder_input_ids": TOKENS}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """A model with a recurrent layer and one of attention, and its program, read from a file."""
    model, path = build("BambaForCausalLM", HYBRID), tmp_path_factory.mktemp("hybrid") / "hybrid.onnx"
    export(model, TOKENS, cache="dynamic").save(path)
    return model, load_program(path)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A model with an encoder, and its decoder's program, read from a file."""
    model, path = build("WhisperForConditionalGeneration", WHISPER), tmp_path_factory.mktemp("w") / "whisper.onnx"
    export(model, kwargs=SPOKEN, cache="dynamic").save(path)
    return model, load_program(path)


@slow
def test_a_right_program_with_recurrent_states_is_silent(hybrid):
    model, program = hybrid
    assert {"past_key_values.0.conv", "past_key_values.0.recurrent"} < {*program.graph.inputs}
    result = compare_decode(model, TOKENS, program=program, tokens=9)
    assert result.close, result
    assert [item.step for item in result.positions] == [*range(9)]
    assert all(0 < item.state < 1e-4 for item in result.positions)
    assert result.judged > 0.7 * result.values


def before(add, value):
    """Return the state that a step began with, in place of the one that it leaves behind."""
    states = {item.name: item for item in value.producer().graph.inputs}
    return add("Identity", [states[value.name.replace("present", "past_key_values")]])


# The value that is changed, the position, how, and the operator and the value that are named.
FAULTS = {
    "a state that is not updated": ("present.0.recurrent", 4, before, "present.0.recurrent"),
    "a window of the convolution that is not moved": ("present.0.conv", 3, before, "present.0.conv"),
    "states of other sequences": ("present.0.recurrent", 5, exchanged, "present.0.recurrent"),
    "a state that is read twice": ("past_key_values.0.recurrent", 6, lambda add, value: add("Add", [value, value]), ""),
    "keys of other sequences": ("present.1.key", 5, exchanged, "present.1.key"),
}


@slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_state_is_named_with_its_position(hybrid, fault):
    model, program = hybrid
    name, start, change, value = FAULTS[fault]
    wrong = change_late(copied(program), name, start, change, "past_key_values.1.key")
    result = compare_decode(model, TOKENS, program=wrong, tokens=9, stages=["exported"])
    first = result.first_break
    assert first.position == start, result.table(wide=True)
    assert first.introduced
    assert first.value == value or (not value and first.module == "model.layers.0.mamba"), first


@slow
@pytest.mark.parametrize("name", ["recurrent", "conv"])
def test_a_state_that_is_never_updated_does_not_pass(hybrid, name):
    """It is computed from the cache alone, and no other value of this step depends on it."""
    model, program = hybrid
    wrong = replaced(copied(program), f"present.0.{name}", before)
    first = compare_decode(model, TOKENS, program=wrong, tokens=9, stages=["exported"]).first_break
    assert (first.position, first.value) == (0, f"present.0.{name}")


@slow
def test_a_right_decoder_with_an_encoder_is_silent(whisper):
    model, program = whisper
    result = compare_decode(model, kwargs=SPOKEN, program=program, tokens=9, prefill=3)
    assert result.close, result
    assert all(0 < item.logits < 1e-4 for item in result.positions)
    assert result.judged > 0.8 * result.values


@slow
@pytest.mark.parametrize("name", ["past_key_values.0.encoder.key", "past_key_values.0.encoder.value"])
def test_a_wrong_cross_attention_cache_is_named_with_its_position(whisper, name):
    model, program = whisper
    wrong = change_late(copied(program), name, 5, exchanged, "past_key_values.0.decoder.key")
    result = compare_decode(model, kwargs=SPOKEN, program=wrong, tokens=9, prefill=3, stages=["exported"])
    first = result.first_break
    assert first.position == 5, result.table(wide=True)
    assert first.module == "model.decoder.layers.0.encoder_attn", first


@slow
def test_what_such_a_program_can_not_do_is_said(hybrid, whisper):
    model, program = hybrid
    with pytest.raises(CompareError, match="takes one token in each step"):
        compare_decode(model, TOKENS, program=program, tokens=9, prefill=3)
    with pytest.raises(ExportError, match="recurrent states, which have no static cache"):
        export(model, TOKENS, cache="static", slots=16)
    with pytest.raises(ExportError, match="has an encoder"):
        export(whisper[0], kwargs=SPOKEN, cache="static", slots=16)
    with pytest.raises(ExportError, match="must not have padding"):
        export(whisper[0], kwargs={**SPOKEN, "attention_mask": torch.tensor([[1, 0], [1, 1]])}, cache="dynamic")
    with pytest.raises(ExportError, match="the encoder of WhisperForConditionalGeneration fails"):
        export(whisper[0], kwargs={"decoder_input_ids": TOKENS}, cache="dynamic")
