"""Operators that the ONNX reference evaluator lacks, or can't compute for all attributes, by PyTorch.

Most are those that ONNX Runtime adds to ONNX, which its optimizer and model builders write. They are defined at
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

A function takes the inputs of a node by position, None for those that are left out, and its attributes by name. It
returns the outputs as far as they are defined, and raises an error for what it does not support.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

Tensor = torch.Tensor
Operator = Callable[..., Tensor | tuple[Tensor | None, ...]]


def evaluate_by_torch(node: ir.Node, inputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Compute the outputs of a node with one of these operators.

    Args:
        node: the node.
        inputs: the values that it reads, by name.

    Returns:
        the outputs by name; None if it is another operator. Empty if the operator is not supported with these inputs.
    """
    operator = _OPERATORS.get((node.domain, node.op_type))
    if operator is None:
        return None
    read = [inputs.get(value.name or "") if value is not None else None for value in node.inputs]
    try:
        results = operator(*read, **{name: item.value for name, item in node.attributes.items()})
    except Exception:  # noqa: BLE001  PyTorch raises all kinds for operands that don't fit
        return {}
    named = zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=False)
    return {value.name or "": result for value, result in named if value.name and result is not None}


def _fused_matmul(
    x: Tensor,
    y: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    operands = []
    for tensor, transposed, batch in ((x, transA, transBatchA), (y, transB, transBatchB)):
        moved = tensor.movedim(0, -2) if batch else tensor
        operands.append(moved.mT if transposed and moved.dim() > 1 else moved)
    return alpha * (operands[0] @ operands[1])


def _fused_gemm(
    x: Tensor,
    y: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    **parameters: float,
) -> Tensor:
    product = alpha * ((x.T if transA else x) @ (y.T if transB else y))
    result = product if bias is None else product + beta * bias
    names = [name for name in ("activation_alpha", "activation_beta", "activation_gamma") if name in parameters]
    return _activated(result, activation, [parameters[name] for name in names])


def _fused_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    group: int = 1,
    kernel_shape: Sequence[int] = (),  # noqa: ARG001  that of the weight
) -> Tensor:
    if auto_pad not in {"NOTSET", "VALID"}:
        raise ValueError(auto_pad)
    dims = x.dim() - 2
    starts, ends = pads[:dims], pads[dims:]
    padding = [size for pair in zip(reversed(starts), reversed(ends), strict=True) for size in pair]
    convolve: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[dims - 1]
    settings = {"stride": tuple(strides) or 1, "dilation": tuple(dilations) or 1, "groups": group}
    result: Tensor = convolve(functional.pad(x, padding), weight, bias, **settings)
    return _activated(result if addend is None else result + addend, activation, activation_params)


def _activated(x: Tensor, activation: str, parameters: Sequence[float]) -> Tensor:
    functions: Mapping[str, Callable[..., Tensor]] = {
        "": lambda x: x,
        "Relu": torch.relu,
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "LeakyRelu": lambda x, alpha=0.01: functional.leaky_relu(x, alpha),
        "Clip": torch.clamp,
        "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    }
    return functions[activation](x, *parameters)


def _gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return x.gather(axis, indices.long().remainder(x.shape[axis]))


def _gelu(x: Tensor, bias: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate=approximate)


def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.gelu(x if bias is None else x + bias, approximate="tanh")


def _quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


def _simplified_norm(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,  # noqa: ARG001  the precision of the sums
) -> tuple[Tensor, Tensor]:
    inverse = (x.square().mean([*range(axis % x.dim(), x.dim())], keepdim=True) + epsilon).rsqrt()
    return x * inverse * scale, inverse


def _skip_simplified_norm(
    x: Tensor, skip: Tensor, scale: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor, None, Tensor, Tensor]:
    total = x + skip if bias is None else x + skip + bias
    result, inverse = _simplified_norm(total, scale, epsilon=epsilon)
    return result, None, inverse, total


def _skip_norm(
    x: Tensor,
    skip: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = x + skip if bias is None else x + skip + bias
    mean = total.mean(-1, keepdim=True)
    inverse = ((total - mean).square().mean(-1, keepdim=True) + epsilon).rsqrt()
    result = (total - mean) * inverse * scale
    return result if shift is None else result + shift, mean, inverse, total


def _embed_norm(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor]:
    places = torch.arange(ids.shape[1]).expand(ids.shape) if position_ids is None else position_ids
    total = words[ids.long()] + positions[places.long()]
    if segments is not None and segment_table is not None:
        total = total + segment_table[segments.long()]
    result = functional.layer_norm(total, total.shape[-1:], scale, shift, epsilon)
    counts = torch.zeros(len(ids), dtype=torch.int32) if mask is None else mask.sum(-1, dtype=torch.int32)
    return result, None if mask_index_type else counts, total


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
    if scale != 1 or is_packed_batching:
        raise ValueError(scale)
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
    turned, rest = heads[..., : 2 * half], heads[..., 2 * half :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat([torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1)


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
    total, count = int(length), query.shape[1]
    past = total - count
    if smooth_softmax or (past and bool((last_indices != total - 1).any())):
        raise ValueError(last_indices)
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
            raise ValueError(mask.shape)
        mask = mask.reshape(len(mask), 1, -1, mask.shape[-1])
        scores = scores + torch.where(mask > 0, 0.0, mask_filter_value)
    if unidirectional:
        distance = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
        scores = scores + torch.where(distance < 0, mask_filter_value, 0.0)
    return _joined(scores.softmax(-1) @ v), k, v


def _attention(
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
    if past is not None:
        raise ValueError(past.shape)
    product = x @ weight if bias is None else x @ weight + bias
    sizes = [*qkv_hidden_sizes] or [product.shape[-1] // 3] * 3
    query, key, value = torch.split(product, sizes, -1)
    return _multi_head_attention(query, key, value, None, mask, scores_bias, **settings)[0]


def _heads(x: Tensor, count: int) -> Tensor:
    """Return a tensor of the shape [batch, length, heads * size] as [batch, heads, length, size]."""
    return x.reshape(*x.shape[:-1], count, -1).transpose(1, 2)


def _joined(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


_OPERATORS: Mapping[tuple[str, str], Operator] = {
    ("", "GatherElements"): _gather_elements,  # onnx 1.23's has at most 32 elements and no negative axis
    ("", "Gelu"): _gelu,  # onnx 1.23's fails at the attribute
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
    ("com.microsoft", "Attention"): _attention,
    ("com.microsoft", "BiasGelu"): _gelu,
    ("com.microsoft", "EmbedLayerNormalization"): _embed_norm,
    ("com.microsoft", "FastGelu"): _fast_gelu,
    ("com.microsoft", "FusedConv"): _fused_conv,
    ("com.microsoft", "FusedGemm"): _fused_gemm,
    ("com.microsoft", "FusedMatMul"): _fused_matmul,
    ("com.microsoft", "Gelu"): _gelu,
    ("com.microsoft", "GroupQueryAttention"): _grouped_attention,
    ("com.microsoft", "MultiHeadAttention"): _multi_head_attention,
    ("com.microsoft", "QuickGelu"): _quick_gelu,
    ("com.microsoft", "RotaryEmbedding"): _rotary_embedding,
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_simplified_norm,
}
