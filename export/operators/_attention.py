"""Operators of attention, and what rotates or windows its inputs."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from filch.steal._tf32 import Product

from ._operator import NodeCall, Operator, Tensor, UnsupportedError, by_name, of_torch

_MICROSOFT = "com.microsoft"
_RAW, _CAPPED, _BIASED, _WEIGHTS = range(4)  # what the fourth output of `Attention` has


def _attention(
    call: NodeCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute ONNX's: the result, all keys and values, and the scores of the stage `qk_matmul_output_mode`."""
    q, k, v = query, key, value
    if query.dim() == 3:
        counts = call["q_num_heads"], call["kv_num_heads"], call["kv_num_heads"]
        q, k, v = (_heads(item, count) for item, count in zip((query, key, value), counts, strict=True))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    scores = q @ _repeated(k, q).mT * (call.get("scale") or q.shape[-1] ** -0.5)
    cap = call.get("softcap")
    capped = cap * torch.tanh(scores / cap) if cap else scores
    bias = _bias(call, capped, mask, None if past_key is None else past_key.shape[2], lengths)
    biased = capped + bias
    is_masked = torch.isneginf(bias.amax(-1, keepdim=True))  # queries that see no key get zeros, not NaN
    weights = torch.where(is_masked, torch.zeros_like(biased), biased.softmax(-1))
    result = weights @ _repeated(v, q)
    shown = {_RAW: scores, _CAPPED: capped, _BIASED: biased, _WEIGHTS: weights}
    mode = call.get("qk_matmul_output_mode", _RAW)
    if mode == _RAW and call.version > 24:
        shown[_RAW] = capped if cap else scores
    return _joined(result) if query.dim() == 3 else result, k, v, shown[mode]


def _bias(call: NodeCall, scores: Tensor, mask: Tensor | None, past: int | None, lengths: Tensor | None) -> Tensor:
    """Return what is added to scores: the mask, and minus infinity at hidden keys.

    `past` is the number of keys before the query, if these are an input; `lengths` how many keys each example has.
    """
    rows, columns = scores.shape[-2:]
    if mask is None:
        bias = scores.new_zeros(1, 1, rows, columns)
    else:
        bias = torch.where(mask, 0.0, -math.inf).to(scores.dtype) if mask.dtype == torch.bool else mask
        missing = columns - bias.shape[-1]  # keys that a short mask does not reach are hidden
        bias = torch.cat([bias, bias.new_full((*bias.shape[:-1], missing), -math.inf)], -1) if missing > 0 else bias
    first = torch.tensor(past or 0) if past is not None or lengths is None else lengths.reshape(-1, 1, 1, 1) - rows
    ahead = torch.arange(columns) - (torch.arange(rows)[:, None] + first)  # of the query's place
    hidden = ahead > 0 if call["is_causal"] else torch.zeros_like(ahead, dtype=torch.bool)
    left, right = call.get("left_window_size", -1), call.get("right_window_size", -1)
    hidden = hidden | (-ahead > left) if left >= 0 else hidden
    hidden = hidden | (ahead > right) if right >= 0 else hidden
    if lengths is not None:
        hidden = hidden | (torch.arange(columns) >= lengths.reshape(-1, 1, 1, 1))
    return (
        bias.masked_fill(hidden, -math.inf)
        if bias.shape[-2:] == hidden.shape[-2:]
        else (bias + torch.where(hidden, -math.inf, 0.0))
    )


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Repeat the heads of keys or values, so that each query head has its own."""
    count = query.shape[1] // x.shape[1]
    return x if count == 1 else x.repeat_interleave(count, 1)


def _rotary(call: NodeCall, x: Tensor, cosines: Tensor, sines: Tensor, places: Tensor | None = None) -> Tensor:
    """Compute ONNX's RotaryEmbedding; without `places`, the tables have a row for each token."""
    heads = _heads(x, call["num_heads"]) if x.dim() == 3 else x
    tables = (item if places is None else item[places.long()] for item in (cosines, sines))
    size = call.get("rotary_embedding_dim") or heads.shape[-1]
    cosines, sines = (item[..., : size // 2].unsqueeze(1) for item in tables)
    rotated = _turned(heads, cosines, sines, interleaved=bool(call["interleaved"]))
    return _joined(rotated) if x.dim() == 3 else rotated


def _turned(heads: Tensor, cosines: Tensor, sines: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first numbers of each head; `cosines` and `sines` have half of them in the last dimension."""
    half = cosines.shape[-1]
    turned, rest = heads[..., : 2 * half], heads[..., 2 * half :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat([torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1)


def _linear_attention(
    call: NodeCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results, and the last state: a matrix from keys to values for each head."""
    count, shared = call["q_num_heads"], call["kv_num_heads"]
    q, k, v = _heads(query, count), _heads(key, shared), _heads(value, shared)
    rates = None if decay is None else _heads(decay, shared).exp()  # a decay is the logarithm of a factor
    steps = None if beta is None else _heads(beta, beta.shape[-1])
    state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if past is None else past
    results = []
    for at in range(q.shape[2]):
        state = state if rates is None else state * rates[:, :, at, :, None]
        added = v[:, :, at] if steps is None else steps[:, :, at] * (v[:, :, at] - (k[:, :, at, None] @ state)[:, :, 0])
        state = state + k[:, :, at, :, None] * added[:, :, None]
        results.append(q[:, :, at, None] @ _repeated(state, q))
    scale = call.get("scale") or q.shape[-1] ** -0.5
    return _joined(scale * torch.cat(results, 2)), state


def _flex_attention(call: NodeCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention whose scores and weights graphs among the attributes change."""
    scores = query @ _repeated(key, query).mT * (call.get("scale") or query.shape[-1] ** -0.5)
    changed = call.run(call["score_mod"], [scores])[0] if call.get("score_mod") is not None else scores
    weights = changed.softmax(-1)
    weights = call.run(call["prob_mod"], [weights])[0] if call.get("prob_mod") is not None else weights
    return weights @ _repeated(value, query)


def _rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cosines: Tensor,
    sines: Tensor,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Tensor:
    """Compute Microsoft's RotaryEmbedding."""
    if scale != 1 or is_packed_batching:
        raise UnsupportedError(f"the scale {scale}, or packed batches")
    size = x.shape[-1] // num_heads if num_heads and x.dim() == 3 else rotary_embedding_dim or 2 * cosines.shape[-1]
    heads = x if x.dim() == 4 else _heads(x, x.shape[-1] // size)
    places = position_ids.long()
    places = places + torch.arange(heads.shape[2]) if places.numel() == 1 else places
    rotated = _rotated(heads, cosines[places], sines[places], interleaved=bool(interleaved))
    return rotated if x.dim() == 4 else _joined(rotated)


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first numbers of each head; `cosines` and `sines` have the shape [*, length, half of them]."""
    half = cosines.shape[-1]
    cosines, sines = (table.reshape(-1, 1, heads.shape[2], half) for table in (cosines, sines))
    return _turned(heads, cosines, sines, interleaved=interleaved)


def _grouped_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    last_indices: Tensor,
    length: Tensor,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    position_ids: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
    smooth_softmax: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Microsoft's: the result, and the keys and values of all tokens; `length` counts these."""
    total, count = int(length), query.shape[1]
    past = total - count
    if smooth_softmax or (past and bool((last_indices != total - 1).any())):
        raise UnsupportedError("a smooth softmax, or sequences of different lengths after earlier tokens")
    if key is None or value is None:  # joined with the query
        size = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = torch.split(query, [num_heads * size, kv_num_heads * size, kv_num_heads * size], -1)
    q, k, v = _heads(query, num_heads), _heads(key, kv_num_heads), _heads(value, kv_num_heads)
    places = torch.arange(past, total)
    if do_rotary and cosines is not None and sines is not None:
        at = places[None] if position_ids is None else position_ids.long()
        q, k = (_rotated(item, cosines[at], sines[at], interleaved=bool(rotary_interleaved)) for item in (q, k))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key[:, :, :past], k], 2), torch.cat([past_value[:, :, :past], v], 2)
    distance = places[:, None] - torch.arange(total)
    hidden = (distance < 0) | ((distance >= local_window_size) if local_window_size > 0 else distance < 0)
    repeats = num_heads // kv_num_heads
    scores = q @ k.repeat_interleave(repeats, 1).mT * (scale or q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias[..., :total]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return _joined(weights @ v.repeat_interleave(repeats, 1)), k, v


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scores_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute Microsoft's: the result, and the keys and values of all tokens."""
    if bias is not None:
        sizes = [query.shape[-1], query.shape[-1], len(bias) - 2 * query.shape[-1]]
        query, key, value = (
            item + part if item.dim() == 3 else item + part.reshape(1, num_heads, 1, -1)
            for item, part in zip((query, key, value), torch.split(bias, sizes), strict=True)
        )
    q, k, v = (item if item.dim() == 4 else _heads(item, num_heads) for item in (query, key, value))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    scores = scores if scores_bias is None else scores + scores_bias
    if mask is not None:
        if mask.dim() == 1 or mask.shape[-1] != k.shape[2]:
            raise UnsupportedError(f"a mask of the shape {list(mask.shape)}")
        mask = mask.reshape(len(mask), 1, -1, mask.shape[-1])
        scores = scores + torch.where(mask > 0, 0.0, mask_filter_value)
    if unidirectional:
        distance = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
        scores = scores + torch.where(distance < 0, mask_filter_value, 0.0)
    return _joined(scores.softmax(-1) @ v), k, v


def _packed_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    scores_bias: Tensor | None = None,
    *,
    qkv_hidden_sizes: Sequence[int] = (),
    **settings: Any,
) -> Tensor:
    """Compute Microsoft's Attention, one product of which gives the query, the key and the value."""
    if past is not None:
        raise UnsupportedError("earlier tokens in one tensor")
    product = x @ weight if bias is None else x @ weight + bias
    sizes = [*qkv_hidden_sizes] or [product.shape[-1] // 3] * 3
    query, key, value = torch.split(product, sizes, -1)
    return _multi_head_attention(query, key, value, None, mask, scores_bias, **settings)[0]


def _heads(x: Tensor, count: int) -> Tensor:
    """Return a tensor of the shape [batch, length, heads * size] as [batch, heads, length, size]."""
    return x.reshape(*x.shape[:-1], count, -1).transpose(1, 2)


def _joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)  # the reverse of `_heads`


def _keys(_: object, shapes: Sequence[tuple[int, ...]]) -> float:
    """Return the length of the longer sum of attention: over the numbers of a key, or over the keys."""
    return max(shapes[0][-1], shapes[1][-2])


OPERATORS = (
    Operator(
        "Attention",
        _attention,
        torch="scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math",
        terms=_keys,
        product=Product.MATMUL,
    ),
    Operator("FlexAttention", _flex_attention, "ai.onnx.preview", torch="flex_attention"),
    Operator("LinearAttention", _linear_attention),
    Operator("RotaryEmbedding", _rotary),
    Operator("Attention", by_name(_packed_attention), _MICROSOFT, product=Product.MATMUL),
    Operator("GroupQueryAttention", by_name(_grouped_attention), _MICROSOFT, product=Product.MATMUL),
    Operator("MultiHeadAttention", by_name(_multi_head_attention), _MICROSOFT, product=Product.MATMUL),
    Operator("RotaryEmbedding", by_name(_rotary_embedding), _MICROSOFT),
    of_torch("_scaled_dot_product_flash_attention_for_cpu_backward", terms=_keys),
)
