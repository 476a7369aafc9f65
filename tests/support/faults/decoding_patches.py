"""Faults of caches, masks, positions and states in the code of models that decode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import cache_utils
from transformers.modeling_utils import AttentionInterface
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from filch.export import cache_argument, returned_cache

START, CHUNK, WINDOW = 2, 3, 5  # tokens in the first call of those that decode, and in each chunk; of sliding windows

Function = Callable[..., Any]
Patch = Callable[[nn.Module], AbstractContextManager[object]]


def function(owner: Any, name: str, make: Callable[[Function], Function]) -> Patch:
    """Replace a function of a module or a class by one that is made of it."""
    return lambda _: mock.patch.object(owner, name, make(getattr(owner, name)))


def forward(path: str, make: Callable[[Function], Function]) -> Patch:
    """Replace the `forward` of a module of the model."""

    def patch(model: nn.Module) -> AbstractContextManager[object]:
        module = model.get_submodule(path)
        return mock.patch.object(module, "forward", make(module.forward))

    return patch


def read(
    change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    layer: int,
    start: int = START,
    tokens: int = 1,
) -> Patch:
    """Change the keys and values that attention gets of a cache, in calls with some tokens, from a position on."""

    def make(update: Function) -> Function:
        def changed(self: Any, key: torch.Tensor, value: torch.Tensor, index: int, *args: Any, **options: Any) -> Any:
            past = int(self.layers[index].get_seq_length())
            keys, values = update(self, key, value, index, *args, **options)
            if index == layer and key.shape[2] == tokens and past >= start:
                return change(keys, values)
            return keys, values

        return changed

    return function(cache_utils.Cache, "update", make)


def stored(layer: type, start: int) -> Patch:
    """Let a static cache write tokens to the slot behind theirs."""

    def make(update: Function) -> Function:
        def changed(self: Any, key: torch.Tensor, *args: Any, **options: Any) -> Any:
            late = key.shape[2] == 1 and self.cumulative_length >= start
            self.cumulative_length.add_(int(late))
            keys, values = update(self, key, *args, **options)
            self.cumulative_length.sub_(int(late))
            return keys, values

        return changed

    return function(layer, "update", make)


def masks(owner: Any, name: str, change: Callable[..., torch.Tensor]) -> Patch:
    """Change the mask that is added to scores, given the arguments that it is made of."""

    def make(create: Function) -> Function:
        def changed(*args: Any, **options: Any) -> torch.Tensor | None:
            mask = create(*args, **options)
            return mask if mask is None else change(mask.clone(), **options)

        return changed

    return function(owner, name, make)


def without_padding(owner: Any, name: str) -> Patch:
    """Make a mask as if there were no padding."""

    def make(create: Function) -> Function:
        def changed(*args: Any, attention_mask: torch.Tensor | None, **options: Any) -> Any:
            full = None if attention_mask is None else torch.ones_like(attention_mask)
            return create(*args, attention_mask=full, **options)

        return changed

    return function(owner, name, make)


def hide_oldest(mask: torch.Tensor, **_: object) -> torch.Tensor:
    """Hide the first slot of a full window."""
    if mask.shape[2:] == (1, WINDOW):
        mask[..., 0] = torch.finfo(mask.dtype).min
    return mask


def show_padding(mask: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: object) -> torch.Tensor:
    """Show the first slot of padded sequences, in calls with one token, from position 6 on."""
    if attention_mask is not None and mask.shape[2] == 1:
        mask[(attention_mask[:, 0] == 0) & (attention_mask.sum(-1) >= 7), :, :, 0] = 0
    return mask


def when(single: Callable[..., Any]) -> Callable[[Function], Function]:
    """Make a function that calls another one in its own way if its first argument has one token."""
    return lambda call: (
        lambda x, *args, **options: single(call, x, *args, **options) if x.shape[-2] == 1 else call(x, *args, **options)
    )


def shifted_positions(call: Function, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
    """Count one position too many from 5 on."""
    return call(x, position_ids + (position_ids >= 5))


def restarted_positions(call: Function) -> Function:
    """Count positions from the first token of a chunk."""
    return lambda x, position_ids: call(x, position_ids - position_ids[:, :1])


def unrotated_key(call: Function, q: torch.Tensor, k: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Leave out the rotation of the key."""
    return call(q, k, *args, **options)[0], k


def in_attention(**change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Make an attention function that changes some of its arguments in calls with one token."""

    def make(attention: Function) -> Function:
        def changed(
            module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **options: Any
        ) -> Any:
            if query.shape[2] == 1:
                key = change.get("key", lambda x: x)(key)
                value = change.get("value", lambda x: x)(value)
                options |= {name: make(options.get(name)) for name, make in change.items() if name in options}
            return attention(module, query, key, value, *args, **options)

        return changed

    return make


def sdpa(make: Callable[[Function], Function]) -> Patch:
    """Change the attention implementation `sdpa`."""
    mapping = AttentionInterface._global_mapping  # noqa: SLF001  the class has no method for it
    return lambda _: mock.patch.dict(mapping, {"sdpa": make(mapping["sdpa"])})


def early_bias(call: Function) -> Function:
    """Take the relative positions of the token before, in calls with one token."""

    def changed(self: Any, query_length: int, *args: Any, past_seen_tokens: Any = 0, **options: Any) -> Any:
        early = past_seen_tokens - 1 if query_length == 1 else past_seen_tokens
        return call(self, query_length, *args, past_seen_tokens=early, **options)

    return changed


def early_embedding(call: Function) -> Function:
    """Take the embedding of the position before, in calls with one token."""

    def changed(
        input_ids: torch.Tensor, past_key_values_length: Any = 0, position_ids: torch.Tensor | None = None
    ) -> Any:
        if input_ids.shape[1] != 1 or position_ids is None:
            return call(input_ids, past_key_values_length, position_ids)
        return call(input_ids, past_key_values_length, position_ids - 1)

    return changed


def unwritten_convolution(call: Function) -> Function:
    """Do not store the input of a convolution for the next call."""
    return lambda x, state, *args, **options: call(x, state.clone(), *args, **options)


def recurrent(change: Callable[[torch.Tensor], torch.Tensor], layer: int) -> Patch:
    """Change the recurrent state of a layer that calls read; they write to it if it is the same tensor."""

    def make(get: Function) -> Function:
        def changed(self: Any, index: int, *args: Any, **options: Any) -> torch.Tensor | None:
            state = get(self, index, *args, **options)
            return change(state) if state is not None and index == layer else state

        return changed

    return function(cache_utils.Cache, "get_recurrent_state", make)


def kept_length(reset: Function) -> Function:
    """Leave a token in a static cache that is reset."""

    def changed(self: Any) -> None:
        reset(self)
        self.cumulative_length.add_(1)

    return changed


def emptied(x: torch.Tensor, end: int) -> torch.Tensor:
    """Return keys or values with empty slots before an end."""
    return torch.cat([torch.zeros_like(x[:, :, :end]), x[:, :, end:]], 2)


def first_again(x: torch.Tensor) -> torch.Tensor:
    """Return keys or values whose first slot has what belongs to the second."""
    return torch.cat([x[:, :, 1:2], x[:, :, 1:]], 2)


def for_last(x: torch.Tensor) -> torch.Tensor:
    """Return keys or values of which the last sequence has those of the first."""
    return torch.cat([x[:-1], x[:1]])


@dataclass(frozen=True)
class Patched:
    """A fault in a model, and where it shows.

    Attributes:
        model: the name of the model.
        kind: what is wrong.
        relation: the way of calling the model that it breaks.
        patch: makes the model wrong.
        modules: the modules in which the first wrong number may be computed.
        operators: the operators that may compute it.
        position: the first position with a wrong number.
        sequence: the first wrong sequence there.
    """

    model: str
    kind: str
    relation: str
    patch: Patch
    modules: tuple[str, ...]
    operators: str
    position: int
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.model}, {self.relation}: {self.kind}"


_ATTENTION = "model.layers.0.self_attn"
_READS = "cat index_copy index_copy_ flip bmm mm matmul clone expand"
_MASK = "add _softmax softmax"

PATCHED = (
    Patched(
        "Qwen2ForCausalLM",
        "position too late",
        "decode",
        forward("model.rotary_emb", when(shifted_positions)),
        ("model.rotary_emb",),
        "add _to_copy mul bmm cos",
        5,
    ),
    Patched(
        "GPT2LMHeadModel",
        "positions end at 6",
        "decode",
        forward("transformer.wpe", lambda call: lambda x: call(x.clamp(max=6) if x.shape[-1] == 1 else x)),
        ("transformer.wpe",),
        "clamp embedding",
        7,
    ),
    Patched(
        "GPT2LMHeadModel",
        "values of another sequence",
        "decode",
        read(lambda keys, values: (keys, values.flip(0)), 1, 6),
        ("transformer.h.1.attn",),
        _READS,
        6,
    ),
    Patched(
        "GPTNeoXForCausalLM",
        "key not rotated",
        "decode",
        function(modeling_gpt_neox, "apply_rotary_pos_emb", when(unrotated_key)),
        ("gpt_neox.layers.0.attention",),
        _READS,
        START,
    ),
    Patched(
        "MistralForCausalLM",
        "slot overwritten",
        "decode",
        read(lambda keys, values: (first_again(keys), values), 0, 4),
        (_ATTENTION,),
        _READS,
        4,
    ),
    Patched(
        "MistralForCausalLM",
        "window too small",
        "decode",
        masks(modeling_mistral, "create_sliding_window_causal_mask", hide_oldest),
        (_ATTENTION, "model"),
        f"{_MASK} fill fill_ index_put index_put_",
        4,
    ),
    Patched(
        "Gemma2ForCausalLM",
        "scores of another scale",
        "decode",
        function(modeling_gemma2, "eager_attention_forward", in_attention(scaling=lambda scale: scale / 2)),
        (_ATTENTION,),
        "mul",
        START,
    ),
    Patched(
        "Gemma2ForCausalLM",
        "window in another layer",
        "decode",
        read(lambda keys, values: (emptied(keys, keys.shape[2] - WINDOW), values), 1, 5),
        ("model.layers.1.self_attn",),
        f"{_READS} zeros_like",
        5,
    ),
    Patched(
        "Gemma2ForCausalLM",
        "padding is seen in a window",
        "padding on the left",
        without_padding(modeling_gemma2, "create_sliding_window_causal_mask"),
        (_ATTENTION, "model"),
        _MASK,
        0,
        1,
    ),
    Patched(
        "MixtralForCausalLM",
        "router reads another sequence",
        "decode",
        forward("model.layers.1.mlp.gate", lambda call: lambda x: call(x.flip(0) if x.shape[:-1].numel() == 3 else x)),
        ("model.layers.1.mlp.gate",),
        "flip mm linear addmm",
        START,
    ),
    Patched(
        "MixtralForCausalLM",
        "values moved by one",
        "decode",
        read(lambda keys, values: (keys, values.roll(1, 2)), 0, 5),
        (_ATTENTION,),
        f"{_READS} roll",
        5,
    ),
    Patched(
        "Mamba2ForCausalLM",
        "convolution state not stored",
        "decode",
        function(modeling_mamba2, "causal_conv1d_update", unwritten_convolution),
        ("backbone.layers.0.mixer",),
        "cat clone mul sum _to_copy convolution copy_ copy slice",
        START + 1,
    ),
    Patched(
        "Mamba2ForCausalLM",
        "recurrent state not stored",
        "decode",
        recurrent(torch.clone, 0),
        ("backbone.layers.0.mixer",),
        "clone mul add copy copy_",
        START + 1,
    ),
    Patched(
        "Mamba2ForCausalLM",
        "recurrent states exchanged",
        "decode",
        recurrent(lambda state: state.flip(0), 1),
        ("backbone.layers.1.mixer",),
        "flip mul add",
        START,
    ),
    Patched(
        "BambaForCausalLM",
        "recurrent state is lost",
        "decode",
        recurrent(torch.zeros_like, 0),
        ("model.layers.0.mamba",),
        "zeros_like mul add",
        START,
    ),
    Patched(
        "BambaForCausalLM",
        "first slot is lost",
        "decode",
        read(lambda keys, values: (emptied(keys, 1), emptied(values, 1)), 1, 6),
        ("model.layers.1.self_attn",),
        f"{_READS} zeros_like",
        6,
    ),
    Patched(
        "LlamaForCausalLM",
        "last sequence reads the first",
        "decode",
        read(lambda keys, values: (for_last(keys), values), 0, 4),
        (_ATTENTION,),
        _READS,
        4,
        2,
    ),
    Patched(
        "LlamaForCausalLM",
        "heads exchanged",
        "decode",
        function(modeling_llama, "eager_attention_forward", in_attention(key=lambda x: x.flip(1))),
        (_ATTENTION,),
        _READS,
        START,
    ),
    Patched(
        "LlamaForCausalLM",
        "chunk before the past",
        "chunked prefill",
        read(lambda keys, values: (keys.roll(CHUNK, 2), values), 0, CHUNK, CHUNK),
        (_ATTENTION,),
        f"{_READS} roll",
        CHUNK,
    ),
    Patched(
        "Qwen3ForCausalLM",
        "positions restart",
        "chunked prefill",
        forward("model.rotary_emb", restarted_positions),
        ("model.rotary_emb",),
        "sub _to_copy mul bmm cos",
        CHUNK,
    ),
    Patched(
        "Qwen2ForCausalLM",
        "padding is seen",
        "padding on the left",
        without_padding(modeling_qwen2, "create_causal_mask"),
        (_ATTENTION, "model"),
        _MASK,
        0,
        1,
    ),
    Patched(
        "Qwen3ForCausalLM",
        "padding is seen later",
        "decode with padding on the left",
        masks(modeling_qwen3, "create_causal_mask", show_padding),
        (_ATTENTION, "model"),
        f"{_MASK} fill fill_ index_put index_put_",
        6,
        1,
    ),
    Patched(
        "LlamaForCausalLM",
        "next slot",
        "static cache",
        stored(cache_utils.StaticLayer, 5),
        (_ATTENTION,),
        _READS,
        5,
    ),
    Patched(
        "Qwen2ForCausalLM",
        "cache not reset",
        "reused static cache",
        function(cache_utils.StaticLayer, "reset", kept_length),
        (_ATTENTION, "model", "model.rotary_emb"),
        f"{_READS} {_MASK} where _to_copy mul cos",
        0,
    ),
    Patched(
        "LlamaForCausalLM",
        "slot overwritten",
        "decode with attention sdpa",
        sdpa(in_attention(key=first_again)),
        (_ATTENTION, f"{_ATTENTION}.o_proj"),
        f"{_READS} transpose view _unsafe_view linear addmm",
        START,
    ),
    Patched(
        "T5ForConditionalGeneration",
        "relative positions too early",
        "decode",
        function(modeling_t5.T5Attention, "compute_bias", early_bias),
        ("decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
        f"embedding {_MASK} permute",
        START,
    ),
    Patched(
        "WhisperForConditionalGeneration",
        "position too early",
        "decode",
        forward("model.decoder.embed_positions", early_embedding),
        ("model.decoder.embed_positions", "model.decoder"),
        "sub index add",
        START,
    ),
)
"""Faults in models."""


def logits_of(model: Any, relation: str, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Call a model in some way, and return the logits of its tokens, in the shape [sequences, positions, words].

    With padding, each sequence has one token less than the one before; the logits of the others are NaN.
    """
    name = "decoder_input_ids" if "decoder_input_ids" in arguments else "input_ids"
    tokens = arguments[name]
    rows, length = tokens.shape
    encoder = {key: value for key, value in arguments.items() if key != name}
    with torch.no_grad():
        if encoder:
            encoder = {"encoder_outputs": model.get_encoder()(**encoder)}
        if relation == "one call":
            return torch.cat([_call(model, name, tokens[row : row + 1], _row(encoder, row))[0] for row in range(rows)])
        mask = torch.ones_like(tokens)
        if "padding on the left" in relation:
            mask = (torch.arange(length) >= torch.arange(rows)[:, None]).long()
            tokens = torch.stack(
                [torch.cat([tokens.new_zeros(row), tokens[row, : length - row]]) for row in range(rows)]
            )
        in_one_call = relation in ("batch", "padding on the left")
        cache = False if in_one_call else None
        if "static" in relation:
            cache = cache_utils.StaticCache(config=model.config, max_cache_len=length + 4)
        if "reused" in relation:
            _call(model, name, tokens.flip(1), encoder, cache=cache, mask=mask)
            cache.reset()
        size = length if in_one_call else CHUNK if "chunked" in relation else 1
        first = size if size > 1 else START
        logits, start = [], 0
        while start < length:
            end = min(start + (size if start else first), length)
            part, cache = _call(model, name, tokens[:, start:end], encoder, cache=cache, mask=mask[:, :end])
            logits.append(part)
            start = end
    found = torch.cat(logits, 1)
    moved = [torch.cat([found[row, row:], torch.full_like(found[row, :row], torch.nan)]) for row in range(rows)]
    return torch.stack(moved) if "padding" in relation else found


def _row(encoder: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {key: type(value)(last_hidden_state=value[0][row : row + 1]) for key, value in encoder.items()}


def _call(
    model: Any, name: str, tokens: torch.Tensor, encoder: Mapping[str, Any], *, cache: Any = False, mask: Any = None
) -> tuple[torch.Tensor, Any]:
    """Return the logits and the cache; False is none, None a new one."""
    parameters = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {name: tokens, **encoder, "use_cache": cache is not False}
    if cache:
        options[cache_argument(model) or ""] = cache
    if mask is not None and not encoder:
        options["attention_mask"] = mask
    if mask is not None and "position_ids" in parameters:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    result = model(**options)
    return result.logits, returned_cache(result, cache_argument(model))
