"""A second set of faults in models that decode: of other kinds, and in other families, than those before.

Who wrote them had not read the code that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import onnx_ir as ir
import torch
from torch import nn
from transformers import cache_utils
from transformers.models.bart import modeling_bart
from transformers.models.cohere import modeling_cohere
from transformers.models.exaone4 import modeling_exaone4
from transformers.models.glm4 import modeling_glm4
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.granite import modeling_granite
from transformers.models.lfm2 import modeling_lfm2
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.stablelm import modeling_stablelm
from transformers.models.whisper import modeling_whisper

from filch.export import is_cache

from . import decoding_patches as patches
from . import decoding_plants as plants
from .decoding_patches import CHUNK, START, Function, Patch, Patched, forward, function
from .decoding_plants import FIRST, Change, Edit, Inputs, Plant, Planted, Run, applied, cache, fed, kept, on, out, part

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96, "pad_token_id": 0}
ATTENTION = SIZES | {"intermediate_size": 48, "num_attention_heads": 4}
GROUPED = ATTENTION | {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96, "bos_token_id": 1}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
BART = {"d_model": 32, "max_position_embeddings": 32, "vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1}
BART |= {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
SCALES = {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}
MODELS: dict[str, dict[str, Any]] = {
    "Phi3ForCausalLM": GROUPED | {"partial_rotary_factor": 0.5},
    "StableLmForCausalLM": GROUPED,
    "Gemma3ForCausalLM": GROUPED | WINDOW,
    "GptOssForCausalLM": GROUPED | WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "OPTForCausalLM": ATTENTION | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "pad_token_id": 0},
    "MptForCausalLM": {
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "expansion_ratio": 2,
        "max_seq_len": 32,
        "vocab_size": 96,
    },
    "GPTBigCodeForCausalLM": GPT | {"multi_query": True, "pad_token_id": 0, "eos_token_id": 2},
    "GPTJForCausalLM": GPT | {"rotary_dim": 4, "eos_token_id": 2},
    "Glm4ForCausalLM": GROUPED | {"partial_rotary_factor": 0.5},
    "CohereForCausalLM": GROUPED,
    "Cohere2ForCausalLM": GROUPED | WINDOW,
    "GraniteForCausalLM": GROUPED | SCALES,
    "Olmo2ForCausalLM": GROUPED,
    "Exaone4ForCausalLM": GROUPED | WINDOW,
    "SmolLM3ForCausalLM": GROUPED | {"no_rope_layers": [1, 0]},
    "DeepseekV3ForCausalLM": ATTENTION | LATENT | {"first_k_dense_replace": 2, "num_key_value_heads": 4},
    "Lfm2ForCausalLM": GROUPED | {"layer_types": ["conv", "full_attention"]},
    "Qwen3NextForCausalLM": GROUPED
    | LINEAR
    | EXPERTS
    | {
        "layer_types": ["linear_attention", "full_attention"],
        "num_experts": 4,
        "shared_expert_intermediate_size": 24,
    },
    "FalconH1ForCausalLM": GROUPED | MAMBA | {"mamba_d_ssm": 64},
    "BartForConditionalGeneration": BART | {"eos_token_id": 2, "decoder_start_token_id": 2},
}
"""Configurations of further models."""

Find = Callable[[Edit, int], ir.Node]
_ATTENTION = "model.layers.{layer}.self_attn"


def at(module: str, op: str, index: int = 0) -> Find:
    """Find a node by its module and operator among those that compute floats."""

    def find(edit: Edit, layer: int) -> ir.Node:
        modules = {name: node.module for node in edit.program.graph.nodes for name in node.outputs}
        nodes = [
            node
            for node in edit.graph
            if node.op_type == op
            and out(node).dtype == ir.DataType.FLOAT
            and modules.get(str(out(node).name)) == module.format(layer=layer)
        ]
        return nodes[index]

    return find


def reads(name: str, op: str) -> Find:
    """Find the first node of an operator that reads a value."""
    return lambda edit, _: next(
        node for node in edit.graph if node.op_type == op and name in [item.name for item in node.inputs if item]
    )


def instead(find: Find, make: Callable[[Edit, ir.Node, ir.Node], ir.Value]) -> Plant:
    """Replace the result of a node by what is made of the edit, the node, and the node to insert before."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = find(edit, layer)
        return edit.put(out(node), lambda anchor: make(edit, node, anchor))

    return plant


def operand(find: Find, index: int, change: Change) -> Plant:
    """Change what a node reads."""

    def plant(edit: Edit, layer: int) -> set[str]:
        node = find(edit, layer)
        value = node.inputs[index]
        assert value is not None
        return edit.redirect(node, index, lambda anchor: change(edit, value, anchor))

    return plant


def left_out(find: Find, index: int = 0) -> Plant:
    """Replace the result of a node by what it reads."""
    return instead(find, lambda _edit, node, _anchor: node.inputs[index])  # type: ignore[arg-type,return-value]


def without_norm(module: str) -> Plant:
    """Leave out a normalization."""

    def plant(edit: Edit, layer: int) -> set[str]:
        value = at(module, "Pow")(edit, layer).inputs[0]
        assert value is not None
        return edit.put(out(at(module, "Mul", -1)(edit, layer)), lambda _: value)

    return plant


def other(find: Find, wrong: Find) -> Plant:
    """Replace the result of a node by that of another one."""
    return lambda edit, layer: edit.put(out(find(edit, layer)), lambda _: out(wrong(edit, layer)))


def joined(edit: Edit, value: ir.Value, anchor: ir.Node, *ends: tuple[int, int], axis: int = 2) -> ir.Value:
    """Concatenate slices of a value."""
    parts = [part(edit, value, anchor, *end, axis=axis) for end in ends]
    return edit.add("Concat", parts, before=anchor, axis=axis)


def slices(*ends: tuple[int, int], axis: int = 2) -> Change:
    """Concatenate slices of a value."""
    return lambda edit, value, anchor: joined(edit, value, anchor, *ends, axis=axis)


def recomputed(edit: Edit, value: ir.Value, old: ir.Value, new: ir.Value, anchor: ir.Node) -> ir.Value:
    """Compute a value as it is computed, but of another value."""
    known = {old: new}

    def copied(item: ir.Value | None) -> ir.Value | None:
        node = item.producer() if item is not None else None
        if item is None or node is None or item in known:
            return known.get(item, item)  # type: ignore[arg-type]
        inputs = [copied(operand) for operand in node.inputs]
        if all(one is two for one, two in zip(inputs, node.inputs, strict=True)):
            known[item] = item
        else:
            options = {name: attribute.value for name, attribute in node.attributes.items()}
            known[item] = edit.add(node.op_type, inputs, before=anchor, **options)  # type: ignore[arg-type]
        return known[item]

    result = copied(value)
    assert result is not None
    return result


def early_key(edit: Edit, layer: int) -> set[str]:
    """Rotate keys by the position before."""
    names = set[str]()
    for index in (2, 3):
        node = at(_ATTENTION, "Mul", index)(edit, layer)
        value, source = node.inputs[1], plants.places(edit)
        assert value is not None

        def make(anchor: ir.Node, value: ir.Value = value, source: ir.Value = source) -> ir.Value:
            return recomputed(edit, value, source, edit.add("Sub", [source, 1], before=anchor), anchor)

        names |= edit.redirect(node, 1, make)
    return names


def frequencies_of(layer: int) -> Plant:
    """Rotate queries and keys by the angles of another layer."""

    def plant(edit: Edit, wrong: int) -> set[str]:
        names = set[str]()
        for index in range(4):
            value = at(_ATTENTION, "Mul", index)(edit, layer).inputs[1]
            assert value is not None
            names |= edit.redirect(at(_ATTENTION, "Mul", index)(edit, wrong), 1, lambda _, value=value: value)  # type: ignore[misc]
        return names

    return plant


def rotated_key(edit: Edit, layer: int) -> set[str]:
    """Rotate the keys of a layer that has no positions, as those of the first layer are."""
    key = plants.producer(plants.named(edit, f"present.{layer}.key")).inputs[1]
    cos, sin = (at(_ATTENTION, "Mul", index)(edit, 0).inputs[1] for index in (2, 3))
    assert key is not None
    assert cos is not None
    assert sin is not None

    def make(anchor: ir.Node) -> ir.Value:
        low, high = part(edit, key, anchor, 0, 4, axis=-1), part(edit, key, anchor, 4, 8, axis=-1)
        turned = edit.add("Concat", [edit.add("Neg", [high], before=anchor), low], before=anchor, axis=-1)
        products = [edit.add("Mul", pair, before=anchor) for pair in ([key, cos], [turned, sin])]
        return edit.add("Add", products, before=anchor)

    return edit.put(key, make)


def rotated_halves(edit: Edit, node: ir.Node, anchor: ir.Node) -> ir.Value:
    """Turn halves instead of pairs, before they are multiplied by sines."""
    pairs = plants.above(out(node), "Slice").inputs[0]
    assert pairs is not None
    low, high = part(edit, pairs, anchor, 0, 2, axis=-1), part(edit, pairs, anchor, 2, 4, axis=-1)
    return edit.add("Concat", [edit.add("Neg", [high], before=anchor), low], before=anchor, axis=-1)


def last_hidden(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Hide the last column of a mask that is added."""
    parts = [part(edit, value, anchor, 0, -1, axis=-1), part(edit, value, anchor, -1, 999, axis=-1)]
    parts[1] = edit.add("Sub", [parts[1], 1e4], before=anchor)
    return edit.add("Concat", parts, before=anchor, axis=-1)


def next_slot_shown(edit: Edit, layer: int) -> set[str]:
    """Show the slot behind the token's."""
    value, (keys, queries) = plants.mask(edit, layer).inputs[0], plants.causal(edit, layer).inputs
    assert value is not None

    def make(anchor: ir.Node) -> ir.Value:
        following = edit.add("Add", [queries, 1], before=anchor)  # type: ignore[list-item]
        return edit.add("Or", [value, edit.add("Equal", [keys, following], before=anchor)], before=anchor)  # type: ignore[list-item]

    return edit.put(value, make)


def reversed_rows(edit: Edit, value: ir.Value, anchor: ir.Node) -> ir.Value:
    """Reverse the order of any number of sequences."""
    return edit.add("Slice", [value, [-1], [-(2**62)], [0], [-1]], before=anchor)


def past(name: str) -> Change:
    """Take an input of the program."""
    return lambda edit, _value, _anchor: next(item for item in edit.graph.inputs if item.name == name)


def constant(number: float) -> Change:
    """Take a constant."""
    return lambda edit, _value, anchor: edit.add("Identity", [number], before=anchor)


def once(position: int, run: Run) -> Run:
    """Change the inputs of one call only."""

    def change(inputs: Inputs, previous: Inputs | None) -> Inputs:
        return run(inputs, previous) if plants.past_length(inputs) == position else {}

    return change


_KEY, _VALUE = "past_key_values.0.key", "past_key_values.0.value"
_REVERSED = plants.taken([3, 2, 1, 0], 0)
_TWICE = slices((0, -2), (-1, 999), (-1, 999))
_POSITIONS = "model.decoder.embed_positions.weight"
_MIXER, _LINEAR = "model.layers.{layer}.mamba", "model.layers.{layer}.linear_attn"
_CROSS = "model.decoder.layers.{layer}.encoder_attn"
_BIAS = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

PLANTED: Sequence[Planted] = (
    # Rotation.
    Planted(
        "Phi3ForCausalLM",
        "parts of the key exchanged",
        5,
        on(at(_ATTENTION, "Concat", 3), slices((4, 8), (0, 4), axis=-1)),
        start=5,
    ),
    Planted("StableLmForCausalLM", "key rotated by the position before", FIRST, early_key, start=FIRST),
    Planted("Gemma3ForCausalLM", "frequencies of another layer", 1, frequencies_of(0), layer=1),
    Planted(
        "Glm4ForCausalLM",
        "halves rotated instead of pairs",
        5,
        instead(at(_ATTENTION, "Reshape", 6), rotated_halves),
        start=5,
    ),
    Planted("SmolLM3ForCausalLM", "rotated without positions", 5, rotated_key, layer=1, start=5),
    Planted(
        "GPTJForCausalLM", "positions of 3 bits", 8, operand(reads("position_ids", "Unsqueeze"), 0, applied("Mod", 8))
    ),
    # The cache.
    Planted("StableLmForCausalLM", "ring of 8 slots", 8, cache("key", slices((-1, 999), (1, 999))), layer=1, start=8),
    Planted("GPTJForCausalLM", "slot written twice", 6, cache("value", _TWICE), start=6),
    Planted(
        "DeepseekV3ForCausalLM",
        "halves of the shared key exchanged",
        5,
        cache("value", slices((2, 4), (0, 2), axis=-1)),
        layer=1,
        start=5,
    ),
    Planted(
        "DeepseekV3ForCausalLM",
        "latent not normalized",
        6,
        without_norm("model.layers.{layer}.self_attn.kv_a_layernorm"),
        start=6,
    ),
    Planted("Olmo2ForCausalLM", "key not normalized", 5, without_norm(f"{_ATTENTION}.k_norm"), start=5),
    Planted(
        "BloomForCausalLM",
        "values are keys",
        7,
        other(
            at("transformer.h.{layer}.self_attention", "Gather", 2),
            at("transformer.h.{layer}.self_attention", "Gather", 1),
        ),
        layer=1,
        start=7,
    ),
    Planted(
        "GPTBigCodeForCausalLM",
        "values are keys",
        5,
        other(at("transformer.h.{layer}.attn", "SequenceAt", 2), at("transformer.h.{layer}.attn", "SequenceAt", 1)),
        start=5,
    ),
    Planted(
        "GPTBigCodeForCausalLM",
        "last head has no key",
        6,
        on(
            at("transformer.h.{layer}.attn", "Reshape", 1),
            applied("Mul", torch.tensor([1.0, 1, 1, 0])[:, None, None]),
        ),
        layer=1,
        start=6,
    ),
    Planted(
        "CohereForCausalLM",
        "heads in another order",
        6,
        on(at(_ATTENTION, "Reshape", 5), plants.taken([0, 2, 1, 3], 1)),
        layer=1,
        start=6,
    ),
    # Scales.
    Planted(
        "Gemma3ForCausalLM",
        "embedding not scaled",
        FIRST,
        left_out(at("model.embed_tokens", "Mul")),
        start=FIRST,
    ),
    Planted(
        "OPTForCausalLM",
        "query not scaled",
        6,
        left_out(at("model.decoder.layers.{layer}.self_attn", "Mul")),
        layer=1,
        start=6,
    ),
    Planted(
        "GraniteForCausalLM", "scores of another scale", 4, on(at(_ATTENTION, "MatMul"), applied("Mul", 1.77)), start=4
    ),
    Planted(
        "GraniteForCausalLM",
        "residual not scaled",
        5,
        left_out(at("model.layers.{layer}", "Mul", 1)),
        layer=1,
        start=5,
    ),
    Planted(
        "GraniteForCausalLM",
        "embedding of a sequence not scaled",
        6,
        on(at("model", "Mul"), applied("Mul", torch.tensor([1, 1 / 3])[:, None, None])),
        start=6,
        sequence=1,
    ),
    Planted("CohereForCausalLM", "logits not scaled", FIRST, operand(at("", "Mul"), 1, constant(1.0)), start=FIRST),
    Planted(
        "Glm4ForCausalLM",
        "attention not normalized",
        6,
        without_norm("model.layers.{layer}.post_self_attn_layernorm"),
        layer=1,
        start=6,
    ),
    # Sinks.
    Planted(
        "GptOssForCausalLM",
        "no sink",
        FIRST,
        on(at(_ATTENTION, "Expand", 2), applied("Sub", 1e4)),
        layer=1,
        start=FIRST,
    ),
    Planted(
        "GptOssForCausalLM",
        "sinks of other heads",
        0,
        on(at(_ATTENTION, "Expand", 2), plants.taken([3, 2, 1, 0], 1)),
        shows=0,
    ),
    Planted(
        "GptOssForCausalLM",
        "first column dropped for the sink",
        5,
        instead(
            at(_ATTENTION, "Slice", 4),
            lambda edit, node, anchor: part(edit, node.inputs[0], anchor, 1, 999, axis=-1),  # type: ignore[arg-type]
        ),
        start=5,
    ),
    # Positions and biases.
    Planted(
        "OPTForCausalLM",
        "position too early",
        FIRST,
        operand(reads(_POSITIONS, "Gather"), 1, applied("Sub", 1)),
        start=FIRST,
    ),
    Planted(
        "BartForConditionalGeneration",
        "position too early",
        FIRST,
        operand(reads(_POSITIONS, "Gather"), 1, applied("Sub", 1)),
        start=FIRST,
    ),
    Planted("BloomForCausalLM", "slopes of other heads", 5, on(at("transformer", "Pow"), _REVERSED), start=5),
    Planted(
        "BloomForCausalLM",
        "new token has the bias of the one before",
        4,
        on(at("transformer", "Cast", 1), plants.repeated_slot),
        start=4,
    ),
    Planted(
        "MptForCausalLM",
        "slopes of other heads",
        6,
        on(at("transformer", "Mul", -1), plants.taken([3, 2, 1, 0], 1)),
        start=6,
    ),
    Planted("T5ForConditionalGeneration", "buckets end at 5", 6, operand(reads(_BIAS, "Gather"), 1, applied("Min", 5))),
    # Masks.
    Planted("GptOssForCausalLM", "window of 4", 7, plants.window_of(4), start=7),
    Planted("Olmo2ForCausalLM", "a column too many", 5, next_slot_shown, start=5, cache="static"),
    Planted("BartForConditionalGeneration", "last frame is hidden", 4, on(at(_CROSS, "Where"), last_hidden), start=4),
    # The encoder.
    Planted(
        "BartForConditionalGeneration",
        "values of another layer",
        6,
        operand(reads("past_key_values.1.encoder.value", "MatMul"), 1, past("past_key_values.0.encoder.value")),
        layer=1,
        start=6,
    ),
    # States.
    Planted("Lfm2ForCausalLM", "convolution state moved backward", 5, kept("conv", plants.late_slot), start=5, shows=6),
    Planted(
        "Lfm2ForCausalLM",
        "gate of another sequence",
        7,
        on(at("model.layers.{layer}.conv", "SequenceAt", 1), reversed_rows),
        start=7,
    ),
    Planted(
        "Lfm2ForCausalLM",
        "convolution without the new token",
        4,
        instead(
            at("model.layers.{layer}.conv", "Slice", -1),
            lambda edit, node, anchor: part(edit, node.inputs[0], anchor, 0, 1),  # type: ignore[arg-type]
        ),
        start=4,
    ),
    Planted(
        "Qwen3NextForCausalLM", "state not decayed", 6, left_out(reads("past_key_values.0.recurrent", "Mul")), start=6
    ),
    Planted(
        "Qwen3NextForCausalLM",
        "state not stored",
        5,
        kept("recurrent", past("past_key_values.0.recurrent")),
        start=5,
        shows=6,
    ),
    Planted(
        "Qwen3NextForCausalLM",
        "heads repeated in another order",
        7,
        on(
            at(_LINEAR, "Expand", 2),
            lambda edit, value, anchor: edit.add("Transpose", [value], before=anchor, perm=[0, 1, 3, 2, 4]),
        ),
        start=7,
    ),
    Planted(
        "FalconH1ForCausalLM",
        "state decayed twice",
        4,
        instead(
            reads("past_key_values.0.recurrent", "Mul"),
            lambda edit, node, anchor: edit.add("Mul", [out(node), node.inputs[1]], before=anchor),  # type: ignore[list-item]
        ),
        start=4,
    ),
    Planted(
        "FalconH1ForCausalLM",
        "groups exchanged",
        6,
        on(at(_MIXER, "Reshape", 5), plants.taken([4, 5, 6, 7, 0, 1, 2, 3], 1)),
        start=6,
    ),
    Planted(
        "FalconH1ForCausalLM",
        "input of a convolution not stored",
        5,
        kept("conv", plants.repeated_slot),
        layer=1,
        start=5,
        shows=6,
    ),
    # Windows of the cache.
    Planted(
        "Gemma3ForCausalLM",
        "slots moved by one",
        4,
        kept("key", plants.late_slot),
        start=4,
        shows=5,
        cache="window",
    ),
    Planted(
        "Cohere2ForCausalLM",
        "slot not written",
        7,
        kept("value", plants.repeated_slot),
        start=7,
        shows=8,
        cache="static-window",
    ),
    # What runs a program.
    Planted(
        "Phi3ForCausalLM",
        "keys and values exchanged in a call",
        6,
        run=once(6, plants.exchanged_inputs(_KEY, _VALUE)),
        start=6,
        inputs=(_KEY, _VALUE),
    ),
    Planted(
        "GPTBigCodeForCausalLM",
        "one layer reordered",
        7,
        run=once(7, fed(lambda x: x.flip(0), "1.key", "1.value")),
        start=7,
        inputs=("past_key_values.1.key", "past_key_values.1.value"),
    ),
    Planted(
        "BartForConditionalGeneration",
        "keys of another sequence's encoder",
        5,
        run=fed(lambda x: x.flip(0), "0.encoder.key"),
        start=5,
        inputs=("past_key_values.0.encoder.key",),
    ),
    Planted(
        "WhisperForConditionalGeneration",
        "frames of the encoder moved by one",
        4,
        run=fed(lambda x: x.roll(1, 2), "1.encoder.key"),
        start=4,
        inputs=("past_key_values.1.encoder.key",),
    ),
    Planted(
        "BloomForCausalLM",
        "second token is masked",
        6,
        run=fed(lambda x: x * (torch.arange(x.shape[1]) != 1), "attention_mask"),
        start=6,
        inputs=("attention_mask",),
    ),
    Planted(
        "Olmo2ForCausalLM",
        "even positions",
        5,
        run=fed(lambda x: x // 2 * 2, "position_ids"),
        start=5,
        inputs=("position_ids",),
    ),
    Planted(
        "CohereForCausalLM",
        "cache in float16",
        4,
        run=fed(lambda x: x.half().float(), ".key", ".value"),
        start=4,
        inputs=(_KEY, _VALUE),
    ),
    Planted(
        "DeepseekV3ForCausalLM",
        "tokens of the first sequence",
        5,
        run=fed(lambda x: x[[0, 0]], "input_ids"),
        start=5,
        sequence=1,
        inputs=("input_ids",),
    ),
    Planted(
        "GraniteForCausalLM",
        "slot is cleared",
        6,
        run=fed(lambda x: x * (torch.arange(x.shape[2])[:, None] != 2), "1.value"),
        start=6,
        cache="static",
        inputs=("past_key_values.1.value",),
    ),
)
"""Faults in programs and in what runs them: 46 in programs, 9 in runners."""


# Faults in models.


@contextmanager
def early_keys(model: nn.Module) -> Iterator[None]:
    """Rotate keys by the position before, in calls with one token."""
    rotary: Any = model.get_submodule("model.rotary_emb")
    before, angles = rotary.forward, list[Any]()

    def rotate(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        if x.shape[1] == 1:
            angles[:] = before(x, position_ids - 1)
        return before(x, position_ids)

    def make(apply: Function) -> Function:
        def changed(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> Any:
            query, key = apply(q, k, cos, sin, **options)
            return query, apply(q, k, *angles, **options)[1] if k.shape[2] == 1 else key

        return changed

    with (
        mock.patch.object(rotary, "forward", rotate),
        function(modeling_stablelm, "apply_rotary_pos_emb", make)(model),
    ):
        yield


def window_frequencies(call: Function) -> Function:
    """Take the angles of layers with a window, in calls with one token."""
    return lambda x, positions, kind: call(x, positions, "sliding_attention" if x.shape[1] == 1 else kind)


def no_sinks(attention: Function) -> Function:
    """Let attention ignore the sinks, in calls with one token."""

    def changed(module: Any, query: torch.Tensor, *args: Any, **options: Any) -> Any:
        if query.shape[2] == 1:
            groups = module.num_key_value_groups
            module = SimpleNamespace(sinks=module.sinks - 1e4, num_key_value_groups=groups, training=False)
        return attention(module, query, *args, **options)

    return changed


def early_embedding(call: Function) -> Function:
    """Take the embedding of the position before, in calls with one token, from position 5 on."""

    def changed(mask: torch.Tensor, length: int = 0, position_ids: torch.Tensor | None = None) -> Any:
        if position_ids is not None and position_ids.shape[1] == 1:
            position_ids = position_ids - (position_ids >= 5).long()
        return call(mask, length, position_ids)

    return changed


def other_slopes(call: Function) -> Function:
    """Take the biases of heads in the opposite order, in calls with one token."""

    def changed(x: torch.Tensor, *args: Any, alibi: torch.Tensor, **options: Any) -> Any:
        return call(x, *args, alibi=alibi.flip(0) if x.shape[1] == 1 else alibi, **options)

    return changed


def moved_back(call: Function) -> Function:
    """Move the state of a convolution in the wrong direction."""

    def changed(x: torch.Tensor, state: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = call(x, state, *args, **options)
        state.copy_(state.roll(1, -1))
        return result

    return changed


def undecayed(call: Function) -> Function:
    """Leave out the decay of a recurrent state."""

    def changed(*args: Any, **options: Any) -> Any:
        names = ("query", "key", "value", "g", "beta")
        given = dict(zip(names, args, strict=False)) | options
        return call(**given | {"g": torch.zeros_like(given["g"])})

    return changed


def in_module(owner: Any, path: str, change: Callable[[torch.Tensor], torch.Tensor], *, single: bool = True) -> Patch:
    """Change the keys that the attention of one module reads, in calls with one token or with several sequences."""

    def patch(model: nn.Module) -> AbstractContextManager[object]:
        wrong = model.get_submodule(path)

        def make(attention: Function) -> Function:
            def changed(module: nn.Module, query: torch.Tensor, key: torch.Tensor, *args: Any, **options: Any) -> Any:
                if module is wrong and (query.shape[2] == 1 if single else query.shape[0] > 1):
                    key = change(key)
                return attention(module, query, key, *args, **options)

            return changed

        return function(owner, "eager_attention_forward", make)(model)

    return patch


def rotating(path: str) -> Patch:
    """Let a layer without positions rotate queries and keys, in calls with one token."""

    def patch(model: nn.Module) -> AbstractContextManager[object]:
        module: Any = model.get_submodule(path)
        call = module.forward

        def changed(hidden_states: torch.Tensor, **options: Any) -> Any:
            with mock.patch.object(module, "use_rope", int(hidden_states.shape[1] == 1)):
                return call(hidden_states, **options)

        return mock.patch.object(module, "forward", changed)

    return patch


def stored_twice(update: Function) -> Function:
    """Let a static cache write a token to the slot before, too, from position 5 on."""

    def changed(self: Any, key: torch.Tensor, *args: Any, **options: Any) -> Any:
        past = int(self.cumulative_length) if self.is_initialized else 0
        keys, values = update(self, key, *args, **options)
        if key.shape[2] == 1 and past >= 5:
            keys[:, :, past - 1] = keys[:, :, past]
        return keys, values

    return changed


def narrow(mask: torch.Tensor, **_: object) -> torch.Tensor:
    """Hide the first of five keys, in calls with a chunk."""
    if mask.shape[2] != CHUNK:
        return mask
    visible = mask == 0
    is_first = visible & (visible.cumsum(-1) == 1) & (visible.sum(-1, keepdim=True) == 5)
    return mask.masked_fill(is_first, torch.finfo(mask.dtype).min)


def further_column(mask: torch.Tensor, **given: Any) -> torch.Tensor:
    """Show the slot behind the token's, in calls with one token."""
    if mask.shape[2] == 1:
        mask[..., int(next(filter(is_cache, given.values())).get_seq_length()) + 1] = 0
    return mask


_READS = "cat index_copy index_copy_ flip bmm mm matmul clone expand"
_MASK = "add _softmax softmax"

PATCHED: Sequence[Patched] = (
    Patched(
        "StableLmForCausalLM",
        "key rotated by the position before",
        "decode",
        early_keys,
        ("model.layers.0.self_attn", "model.rotary_emb"),
        "sub _to_copy mul bmm cos cat add",
        START,
    ),
    Patched(
        "Gemma3ForCausalLM",
        "frequencies of another layer",
        "decode",
        forward("model.rotary_emb", window_frequencies),
        ("model.rotary_emb",),
        "unsqueeze expand _to_copy mul bmm cos cat",
        START,
    ),
    Patched(
        "GptOssForCausalLM",
        "no sinks",
        "decode",
        function(modeling_gpt_oss, "eager_attention_forward", no_sinks),
        ("model.layers.0.self_attn",),
        "sub reshape view expand cat",
        START,
    ),
    Patched(
        "OPTForCausalLM",
        "position too early",
        "decode",
        forward("model.decoder.embed_positions", early_embedding),
        ("model.decoder.embed_positions",),
        "sub add embedding",
        5,
    ),
    Patched(
        "BloomForCausalLM",
        "slopes of other heads",
        "decode",
        forward("transformer.h.1.self_attention", other_slopes),
        ("transformer.h.1.self_attention",),
        "flip baddbmm",
        START,
    ),
    Patched(
        "Lfm2ForCausalLM",
        "convolution state moved backward",
        "decode",
        function(modeling_lfm2, "causal_conv1d_update", moved_back),
        ("model.layers.0.conv",),
        "roll copy_ copy cat conv1d convolution clone slice mul sum _to_copy",
        START + 1,
    ),
    Patched(
        "Qwen3NextForCausalLM",
        "state not decayed",
        "decode",
        function(modeling_qwen3_next, "torch_recurrent_gated_delta_rule", undecayed),
        ("model.layers.0.linear_attn",),
        "zeros_like exp mul",
        START,
    ),
    Patched(
        "BartForConditionalGeneration",
        "keys of another sequence's encoder",
        "decode",
        in_module(modeling_bart, "model.decoder.layers.1.encoder_attn", lambda key: key.flip(0)),
        ("model.decoder.layers.1.encoder_attn",),
        f"{_READS} transpose",
        START,
    ),
    Patched(
        "WhisperForConditionalGeneration",
        "encoder of the first sequence",
        "batch",
        in_module(
            modeling_whisper,
            "model.decoder.layers.0.encoder_attn",
            lambda key: key[:1].expand_as(key),
            single=False,
        ),
        ("model.decoder.layers.0.encoder_attn",),
        f"{_READS} transpose slice",
        0,
        1,
    ),
    Patched(
        "GraniteForCausalLM",
        "scores not scaled",
        "decode",
        function(modeling_granite, "eager_attention_forward", patches.in_attention(scaling=lambda _: 1.0)),
        ("model.layers.0.self_attn",),
        "mul",
        START,
    ),
    Patched(
        "Olmo2ForCausalLM",
        "key not normalized",
        "decode",
        forward("model.layers.1.self_attn.k_norm", patches.when(lambda _call, x: x)),
        ("model.layers.1.self_attn", "model.layers.1.self_attn.k_norm"),
        "view transpose mul slice neg cat",
        START,
    ),
    Patched(
        "SmolLM3ForCausalLM",
        "rotated without positions",
        "decode",
        rotating("model.layers.1.self_attn"),
        ("model.layers.1.self_attn",),
        "mul add slice neg cat",
        START,
    ),
    Patched(
        "DeepseekV3ForCausalLM",
        "shared key moved by one",
        "decode",
        patches.read(lambda keys, values: (keys, values.roll(1, -1)), 1, 5),
        ("model.layers.1.self_attn",),
        f"{_READS} roll copy copy_ slice_scatter",
        5,
    ),
    Patched(
        "Phi3ForCausalLM",
        "keys and values exchanged",
        "decode",
        patches.read(lambda keys, values: (values, keys), 0, 6),
        ("model.layers.0.self_attn",),
        _READS,
        6,
    ),
    Patched(
        "CohereForCausalLM",
        "padding is seen later",
        "decode with padding on the left",
        patches.masks(modeling_cohere, "create_causal_mask", patches.show_padding),
        ("model.layers.0.self_attn", "model"),
        f"{_MASK} fill fill_ index_put index_put_",
        6,
        1,
    ),
    Patched(
        "GPTBigCodeForCausalLM",
        "slot written twice",
        "static cache",
        function(cache_utils.StaticLayer, "update", stored_twice),
        ("transformer.h.0.attn",),
        f"{_READS} copy copy_ select slice select_scatter fill",
        5,
    ),
    Patched(
        "Exaone4ForCausalLM",
        "window of 4",
        "chunked prefill",
        patches.masks(modeling_exaone4, "create_sliding_window_causal_mask", narrow),
        ("model.layers.0.self_attn", "model"),
        f"{_MASK} masked_fill",
        4,
    ),
    Patched(
        "Glm4ForCausalLM",
        "a column too many",
        "static cache",
        patches.masks(modeling_glm4, "create_causal_mask", further_column),
        ("model.layers.0.self_attn", "model"),
        f"{_MASK} fill fill_ index_put index_put_ copy_",
        START,
    ),
)
"""Faults in models."""
