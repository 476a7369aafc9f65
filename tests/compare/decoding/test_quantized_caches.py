"""Quantized caches, which hold what they were given up to half a step of their scale, and faulty ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from transformers import QuantizedCache
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    Fp8QuantizedLayer,
    QuantizedLayer,
)

from filch.compare import CompareError, check_invariance
from support.models.zoo import build
from support.thorough import kept

SETTINGS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "pad_token_id": 0,
}  # fmt: skip
TOKENS = torch.randint(3, 96, (2, 13), generator=torch.Generator().manual_seed(0))
saturating = pytest.mark.skipif(
    not torch.tensor(500.0).to(torch.float8_e4m3fn).float().isfinite(),
    reason="with this torch, numbers beyond the range of float8 become NaN, and transformers' cache has them",
)
FIRST, LATE = 3, 8  # tokens of the first call, and the position at which faults begin


class IntegerLayer(QuantizedLayer):  # mypy does not follow transformers
    """Keeps integers, with a scale and a zero point for each vector of a head."""

    def __init__(self, nbits=4):
        super().__init__(nbits=nbits, residual_length=2)

    def _quantize(self, tensor, axis):
        numbers, largest = tensor.float(), 2**self.nbits - 1
        low, high = numbers.aminmax(dim=-1, keepdim=True)
        scale = (high - low) / largest
        zero = -(low / scale).round()
        return (numbers / scale + zero).round().clamp(0, largest).to(torch.uint8), {"scale": scale, "zero": zero}

    def _dequantize(self, quantized):
        numbers, about = quantized
        return ((numbers.float() - about["zero"]) * about["scale"]).to(self.keys.dtype)


class ByteLayer(QuantizedLayer):  # as above
    """Keeps integers of 8 bits, with a scale for each token."""

    def __init__(self, residual_length=2):
        super().__init__(residual_length=residual_length)

    def _quantize(self, tensor, axis):
        scale = self.scale_of(tensor.float())
        return (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8), scale

    def scale_of(self, numbers):
        return numbers.abs().amax((0, 1, 3), keepdim=True) / 127

    def _dequantize(self, quantized):
        codes, scale = quantized
        return (codes * scale).to(self.keys.dtype)


class SlotsOfFloats(Fp8QuantizedLayer):  # as above
    """Writes its numbers into slots that it has since the first update."""

    def update(self, keys, values, *_args, **_kwargs):
        start = self.cumulative_length
        if not start:
            results = super().update(keys, values)
            stored = self._quantized_keys, self._quantized_values
            self._quantized_keys, self._quantized_values = (
                (torch.cat([codes] * 5, 2), scale) for codes, scale in stored
            )
            return results
        self.cumulative_length += keys.shape[2]
        stored = self._quantized_keys, self._quantized_values
        for new, (codes, scale) in zip((keys, values), stored, strict=True):
            codes[:, :, start : self.cumulative_length] = self._quantize(new, scale)[0]
        return tuple(map(self._dequantize, stored))

    def _dequantize(self, qtensor):
        numbers: torch.Tensor = super()._dequantize(qtensor)[:, :, : self.cumulative_length]
        return numbers


def checked(model, make, **kwargs):
    name = "quantized cache own"
    args = () if kwargs else TOKENS
    (row,) = check_invariance(model, args, kwargs or None, only=[name], quantized={"own": make}).rows
    return row


@pytest.fixture
def llama():
    return build("LlamaForCausalLM", SETTINGS)


INTEGERS = [*itertools.product([2, 4, 8], [torch.float32, torch.bfloat16, torch.float16])]


@pytest.mark.parametrize(("nbits", "dtype"), kept(INTEGERS, *INTEGERS[::4]))
def test_a_right_cache_of_integers_holds_what_it_was_given(llama, nbits, dtype):
    row = checked(llama.to(dtype), lambda: Cache(layers=[IntegerLayer(nbits) for _ in range(2)]))
    assert (row.verdict, row.note) == ("holds", ""), row
    assert row.compared == 2 * 2 * (1 + TOKENS.shape[1] - FIRST)
    assert row.difference is not None and row.difference > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [ByteLayer, pytest.param(SlotsOfFloats, marks=saturating)])
def test_layers_that_quantize_and_others_hold_what_they_were_given(llama, other, dtype):
    row = checked(llama.to(dtype), lambda: Cache(layers=[DynamicLayer(), other()]))
    assert row.verdict == "holds", row
    assert ("beyond the first call's range" in row.note) == (other is SlotsOfFloats)
    assert row.compared == 2 * 2 * (1 + TOKENS.shape[1] - FIRST)


@saturating
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_cache_of_8_bit_floats_holds_what_it_was_given(llama, dtype):
    result = check_invariance(llama.to(dtype), TOKENS, only=["quantized cache fp8"], quantized=["fp8"])
    (row,) = result.rows
    assert result.close, result
    assert (
        "numbers of layers 0, 1 are beyond the first call's range, up to 1." in row.note
    )  # its scale is not made again


def test_the_cache_of_a_decoder_with_an_encoder_is_quantized_too():
    sizes = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 96}
    model = build("T5ForConditionalGeneration", sizes | {"pad_token_id": 0, "decoder_start_token_id": 0})
    given = {"input_ids": TOKENS[:, :7], "decoder_input_ids": TOKENS}
    row = checked(model, lambda: Cache(layers=[IntegerLayer(), IntegerLayer()]), **given)
    assert row.verdict == "holds", row
    assert row.compared > 0
    first = checked(model, lambda: Cache(layers=[IntegerLayer(), WrongScale()]), **given).first
    assert first is not None
    assert (first.module, first.position) == ("decoder.block.1.layer.0.SelfAttention", LATE)


@pytest.mark.parametrize("fault", ["scale", "zero"])
@pytest.mark.parametrize("name", ["hqq", "quanto"])
def test_the_quantizers_of_other_libraries_are_judged(llama, name, fault):
    pytest.importorskip({"hqq": "hqq", "quanto": "optimum.quanto"}[name])

    def make():
        return QuantizedCache(name, llama.config, nbits=4, q_group_size=16, residual_length=2)

    def faulty():
        cache = make()
        layer = cache.layers[1]
        quantize = layer._quantize  # noqa: SLF001  what such layers define
        layer._quantize = lambda tensor, axis: _changed(quantize(tensor, axis), fault)  # noqa: SLF001
        return cache

    row = checked(llama, make)
    assert row.verdict == "holds", row
    row = checked(llama, faulty)
    assert row.verdict == "breaks" and row.first is not None, row
    assert (row.first.module, row.first.operator, row.first.position) == ("model.layers.1.self_attn", "keys", 0)


def _changed(quantized, fault):
    """Return what HQQ or quanto has quantized, with a larger scale, or a zero point off by one."""
    if isinstance(quantized, tuple):
        numbers, about = quantized
        return numbers, about | {fault: about[fault] * 1.2 if fault == "scale" else about[fault] + 1}
    if fault == "scale":
        quantized._scale = quantized._scale * 1.2  # noqa: SLF001  quanto has no other names
    else:
        quantized._shift = quantized._shift + quantized._scale  # noqa: SLF001
    return quantized


def late(states):
    """Whether these are the keys or values with which the token at the late position is quantized."""
    return states.shape[-2] == LATE + 1


class WrongScale(IntegerLayer):
    def _quantize(self, tensor, axis):
        numbers, about = super()._quantize(tensor, axis)
        if late(tensor):
            about["scale"][:, :, -1] *= 1.2
        return numbers, about


class ZeroOffByOne(IntegerLayer):
    def _quantize(self, tensor, axis):
        numbers, about = super()._quantize(tensor, axis)
        if late(tensor):
            about["zero"][1, :, -1] += 1
        return numbers, about


class ClippedRange(IntegerLayer):
    """A scale that is too small for the largest numbers, with which it is also used."""

    def _quantize(self, tensor, axis):
        numbers, about = super()._quantize(tensor, axis)
        if late(tensor):
            scale, largest = about["scale"] * 0.7, 2**self.nbits - 1
            zero = (about["zero"] * about["scale"] / scale).round()
            again = (tensor.float() / scale + zero).round().clamp(0, largest).to(torch.uint8)
            numbers = torch.cat([numbers[:, :, :-1], again[:, :, -1:]], 2)
            about = {
                name: torch.cat([about[name][:, :, :-1], item[:, :, -1:]], 2)
                for name, item in (("scale", scale), ("zero", zero))
            }
        return numbers, about


class ExchangedSequences(IntegerLayer):
    def _quantize(self, tensor, axis):
        if late(tensor):
            tensor = torch.cat([tensor[:, :, :-1], tensor[:, :, -1:].flip(0)], 2)
        return super()._quantize(tensor, axis)


class Residual(IntegerLayer):
    """Keeps more tokens as they are, so that the late one is among them."""

    def __init__(self):
        super().__init__()
        self.residual_length = 20

    def update(self, keys, values, *args, **kwargs):
        results = super().update(keys, values, *args, **kwargs)
        return self.changed(*results) if late(results[0]) else results

    def changed(self, keys, values):
        return keys, values


class ChangedScale(Residual):
    """Changes a scale by a thousandth, long after the numbers have been quantized."""

    def changed(self, keys, values):
        self._quantized_values[1]["scale"][1, :, -1] *= 1.001
        return keys, values


class StaleSlot(Residual):
    def changed(self, keys, values):
        self.values = torch.cat([self.values[:, :, :-1], self.values[:, :, -2:-1]], 2)
        return keys, values


class SwappedHeads(Residual):
    def changed(self, keys, values):
        return torch.cat([keys[:, :, :-1], keys[:, :, -1:].flip(1)], 2), values


class LostToken(Residual):
    def changed(self, keys, values):
        self.keys, self.values = self.keys[:, :, :-1], self.values[:, :, :-1]
        return keys, values


class LengthOfQuantized(Residual):
    def get_seq_length(self):
        count: int = super().get_seq_length()
        return count if count <= LATE else 1


class OwnScale(Fp8QuantizedLayer):  # mypy does not follow transformers
    """Quantizes a late token with a scale of its own, which is forgotten."""

    def _quantize(self, tensor, scale=None):
        is_late = self.cumulative_length == LATE + 1
        return super()._quantize(tensor, None if is_late else scale)


class SmallRange(ByteLayer):
    """Makes a scale that is too small for the largest numbers of the token itself."""

    def scale_of(self, numbers):
        scale = super().scale_of(numbers)
        scale[:, :, LATE:] *= 0.7
        return scale


class ChangedBytes(ByteLayer):
    """Changes a scale by a thousandth, long after the numbers have been quantized."""

    def __init__(self):
        super().__init__(residual_length=20)

    def update(self, keys, values, *args, **kwargs):
        results = super().update(keys, values, *args, **kwargs)
        if late(results[0]):
            self._quantized_values[1].mul_(1.001)
        return results


class Drifting(Fp8QuantizedLayer):  # as above
    """Moves all numbers a little in each update from a late one on."""

    def _dequantize(self, qtensor):
        numbers: torch.Tensor = super()._dequantize(qtensor)
        return numbers * (1 + 1e-3 * max(0, self.cumulative_length - LATE))


class StaleUnquantized(DynamicLayer):  # as above
    def update(self, keys, values, *args, **kwargs):
        results = super().update(keys, values, *args, **kwargs)
        if late(results[0]):
            self.values[:, :, -1] = self.values[:, :, -2]
        return results


# What is wrong in the second layer, the first sequence, and its first position.
FAULTS: dict[type, tuple[str, int | None, int]] = {
    WrongScale: ("keys", 0, LATE),
    ZeroOffByOne: ("keys", 1, LATE),
    ClippedRange: ("keys", 0, LATE),
    ExchangedSequences: ("keys", 0, LATE),
    ChangedScale: ("values", 1, FIRST - 1),
    StaleSlot: ("values", 0, LATE),
    SwappedHeads: ("keys", 0, LATE),
    LostToken: ("keys", 0, LATE),
    LengthOfQuantized: ("length", None, LATE),
    OwnScale: ("keys", 0, LATE),
    SmallRange: ("keys", 0, LATE),
    ChangedBytes: ("values", 0, 0),
    Drifting: ("keys", 0, 0),
    StaleUnquantized: ("values", 0, LATE),
}


_SATURATED = {OwnScale, Drifting}


@pytest.mark.parametrize(
    "faulty", [pytest.param(item, marks=saturating if item in _SATURATED else ()) for item in FAULTS]
)
def test_a_wrong_state_is_named_with_its_layer_and_position(llama, faulty):
    right = Fp8QuantizedLayer if faulty is OwnScale else IntegerLayer
    row = checked(llama, lambda: Cache(layers=[right(), faulty()]))
    what, sequence, position = FAULTS[faulty]
    first = row.first
    assert row.verdict == "breaks" and first is not None, row
    assert (first.module, first.operator) == ("model.layers.1.self_attn", what), first
    assert (first.sequence, first.position) == (sequence, position), first
    assert first.difference > 1e-4
    assert first.source is not None and first.source.startswith(("cache_utils.py:", "test_quantized_caches.py:"))


def test_numbers_that_are_not_finite_are_wrong(llama):
    class Overflowing(IntegerLayer):
        def _dequantize(self, quantized):
            states = super()._dequantize(quantized)
            return torch.where(torch.arange(states.shape[-2])[:, None] == LATE, torch.nan, states)

    row = checked(llama, lambda: Cache(layers=[IntegerLayer(), Overflowing()]))
    assert row.verdict == "breaks" and row.first is not None
    assert (row.first.position, row.first.difference, row.difference) == (LATE, torch.inf, torch.inf)


def test_what_is_not_run_is_said(llama, monkeypatch):
    with pytest.raises(CompareError, match="no quantizer 'int4'; there are fp8, hqq, quanto"):
        check_invariance(llama, TOKENS, quantized=["int4"])
    windows = build("MistralForCausalLM", SETTINGS | {"sliding_window": 5})
    (row,) = check_invariance(windows, TOKENS, only=["quantized cache fp8"], quantized=["fp8"]).rows
    assert row.verdict == "not run" and "only supported for models" in row.note
    (row,) = check_invariance(nn.Embedding(96, 8), TOKENS, only=["quantized cache fp8"], quantized=["fp8"]).rows
    assert (row.verdict, row.note) == ("not run", "the model takes no cache")

    row = checked(llama, lambda: IntegerLayer(bits=4))
    assert row.verdict == "fails" and row.note.startswith("TypeError: "), row
    row = checked(llama, lambda: Cache(layers=[IntegerLayer(), DynamicSlidingWindowLayer(5)]))
    assert (row.verdict, row.note) == ("not judged", "layers of DynamicSlidingWindowLayer can't be compared")
    monkeypatch.setattr(IntegerLayer, "_dequantize", lambda _self, quantized: quantized[0].float())
    monkeypatch.setattr(IntegerLayer, "_quantize", lambda _self, tensor, axis: (tensor,))
    row = checked(llama, lambda: Cache(layers=[IntegerLayer(), IntegerLayer()]))
    assert (
        row.verdict == "fails"
        and "IntegerLayer does not quantize to (8-bit numbers, scale), (integers, dict)" in row.note
    ), row
    row = checked(llama, DynamicCache)
    assert (row.verdict, row.note) == ("not judged", "no quantized layer of the cache was updated")

    def failing(*_args, **_kwargs):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(IntegerLayer, "_quantize", failing)
    row = checked(llama, lambda: Cache(layers=[IntegerLayer(), IntegerLayer()]))
    assert (row.verdict, row.note) == ("fails", "RuntimeError: no kernel")
