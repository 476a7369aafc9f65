"""Tests of GGUF files, written by the package `gguf`: a tiny Llama, converted as llama.cpp does."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from filch.compare import CompareError, align
from filch.compare.models._gguf import load_gguf
from support.processes.commands import run

gguf = pytest.importorskip("gguf")
HEADS, KEY_HEADS, HEAD, WIDTH, INNER, LAYERS, WORDS = 4, 2, 16, 64, 96, 3, 50
TYPES = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def model():
    """Return the weights of a Llama, as transformers names them."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (WORDS, WIDTH), "model.norm": (WIDTH,), "lm_head": (WORDS, WIDTH)}
    for layer in range(LAYERS):
        own = {
            "self_attn.q_proj": (HEADS * HEAD, WIDTH),
            "self_attn.k_proj": (KEY_HEADS * HEAD, WIDTH),
            "self_attn.v_proj": (KEY_HEADS * HEAD, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    return {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}


def permuted(weight, heads):
    """Permute rows for rotary embeddings of neighbors, as `LlamaModel.permute` of llama.cpp does."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def converted(model, key_heads=None):
    """Return the weights by the names of GGUF; `key_heads` are wrong numbers of heads by layer."""
    found = {}
    for name, tensor in model.items():
        new, array = name, tensor.numpy()
        for old, short in NAMES.items():
            new = new.replace(old, short)
        if "attn_q" in new:
            array = permuted(array, HEADS)
        if "attn_k" in new:
            array = permuted(array, (key_heads or {}).get(int(new.split(".")[1]), KEY_HEADS))
        found[new] = array
    return found


def write(path, arrays, kind=TYPES.F32):
    """Write a file in which the matrices have this type, and the norms float32."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, array in arrays.items():
        own = TYPES.F32 if array.ndim < 2 else kind
        data = np.ascontiguousarray(array) if own == TYPES.F32 else gguf.quantize(np.ascontiguousarray(array), own)
        writer.add_tensor(name, data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_a_right_conversion_is_close(model, tmp_path, kind):
    """Heads are permuted, quantized or not, and the file says how it is quantized."""
    result = align(model, write(tmp_path / "b.gguf", converted(model), TYPES[kind]))
    assert result.close, result
    arrangements = {weight.name: weight.arrangement for weight in result.weights}
    quantized = f", quantized as {kind}" if kind.startswith("Q") else ""
    rows = f"heads permuted: rows 0, 8, 1, 9, … of {HEADS} blocks of {HEAD}"
    assert arrangements["blk.1.attn_q.weight"] == rows + quantized
    assert arrangements["blk.1.attn_v.weight"] == "same" + quantized
    assert arrangements["blk.1.attn_norm.weight"] == "same"
    assert any(f"quantized as {kind}: rounding by up to" in remark for remark in result.remarks) == bool(quantized)
    assert len(result.remarks) == bool(quantized)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_a_wrong_permutation_is_named(model, tmp_path, kind):
    """In one layer it is another than in most; in all layers, heads of q and k have other sizes."""
    result = align(model, write(tmp_path / "b.gguf", converted(model, {1: HEADS}), TYPES[kind]))
    assert not result.close
    assert [text.partition(" of B")[0] for text in result.wrong_outputs] == ["the weight 'blk.1.attn_k.weight'"]
    everywhere = dict.fromkeys(range(LAYERS), HEADS)
    result = align(model, write(tmp_path / "b.gguf", converted(model, everywhere), TYPES[kind]))
    assert "in blocks of several sizes, 16 (blk.0.attn_q.weight), 8 (blk.0.attn_k.weight)" in result.remarks[-1]


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_wrong_numbers_are_named(model, tmp_path, kind):
    """A single number that quantization does not explain."""
    arrays = converted(model)
    changed = arrays["blk.2.ffn_gate.weight"].copy()
    changed[tuple(np.argwhere(np.abs(changed) > 1)[0])] *= -1
    arrays["blk.2.ffn_gate.weight"] = changed
    result = align(model, write(tmp_path / "b.gguf", arrays, TYPES[kind]))
    assert not result.close
    (text,) = result.wrong_outputs
    assert "'blk.2.ffn_gate.weight' of B has other numbers than 'model.layers.2.mlp.gate_proj.weight'" in text
    assert f"1 of {INNER * WIDTH} numbers differ" in text


def test_two_files_and_the_command(model, tmp_path, capsys):
    """A quantized file may be A, and is compared with the file that it was made of."""
    arrays = converted(model)
    paths = [str(write(tmp_path / f"{kind}.gguf", arrays, TYPES[kind])) for kind in ("F16", "Q8_0")]
    assert run("align", *paths) == 0
    assert run("align", *paths[::-1], "--all") == 0
    assert "20 weights of A are quantized as Q8_0" in " ".join(capsys.readouterr().out.split())
    arrays["blk.0.attn_v.weight"], arrays["blk.1.attn_v.weight"] = (
        arrays["blk.1.attn_v.weight"],
        arrays["blk.0.attn_v.weight"],
    )
    write(Path(paths[1]), arrays, TYPES.Q8_0)
    assert run("align", *paths) == 1
    assert "blk.0.attn_v.weight" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [False, True])
def test_scales_that_are_quantized_too(tmp_path, wrong):
    """The package can't write Q6_K: blocks of 256 numbers, of which 16 share a scale of 8 bits."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (64, 192), np.uint8)  # of 6 bits
    scales = random.integers(16, 127, (64, 16), np.int8)
    halves = np.full((64, 1), 0.01, np.float16)
    data = np.concatenate([codes, scales.view(np.uint8), halves.view(np.uint8)], -1)
    weight = gguf.dequantize(data, TYPES.Q6_K)
    steps = 0.01 * np.repeat(scales.astype(np.float32), 16, -1)
    original = weight + random.uniform(-0.5, 0.5, weight.shape).astype(np.float32) * steps
    original[7, 9] += 4 * steps.max() * wrong
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    writer.add_tensor("w", data, raw_dtype=TYPES.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = align({"a": original}, tmp_path / "b.gguf")
    assert result.close is not wrong, result


def test_types_that_are_not_evenly_spaced_do_not_pass(tmp_path):
    """What can't be judged is said, and is no match."""
    weight = np.linspace(-1, 1, 32 * 256, dtype=np.float32).reshape(32, 256)
    path = write(tmp_path / "b.gguf", {"w": weight}, TYPES.TQ1_0)
    result = align({"w": weight}, path)
    assert not result.close
    assert "quantized as TQ1_0, whose numbers are not evenly spaced: they can't be judged" in result.remarks[0]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    """It is an optional dependency."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CompareError, match=r"a\.gguf' needs gguf: pip install 'filch\[gguf\]'"):
        load_gguf(tmp_path / "a.gguf")


def test_other_files_are_refused(tmp_path):
    """The message says what is wrong."""
    (tmp_path / "a.gguf").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(CompareError, match=r"a\.gguf' can't be read as GGUF: GGUF magic invalid"):
        load_gguf(tmp_path / "a.gguf")
    with pytest.raises(CompareError, match="can't read"):
        load_gguf(tmp_path / "b.gguf")
