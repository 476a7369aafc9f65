"""A third set of porting bugs, by someone who had not read how `align` finds bugs, and never ran it on these.

Six ports are new, most of them not of language models. The other bugs are in the ports that `porting_heldout` has, in
other places.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..models.ports import Bug
from .porting import (
    ATTEND,
    LAYER_NORM,
    PRODUCT,
    RMS_NORM,
    Plant,
    PortingBug,
    bfloat16,
    both,
    code,
    constant,
    exchanged,
    int8,
    rows,
    swapped_halves,
    taken,
    weight,
)

NATIVE = "_native_multi_head_attention"
MASKED = f"{ATTEND} masked_fill"
MOVED = "clone view _unsafe_view permute transpose"  # elements in another order


def swapped(name: str, other: str) -> Plant:
    """Exchange two parameters."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        first, second = b.get_parameter(name), b.get_parameter(other)
        kept = first.clone()
        first.data.copy_(second)
        second.data.copy_(kept)

    return plant


def blocks(*order: int) -> Callable[[Tensor], Tensor]:
    """Return a change of the order of blocks of equal size along the last dimension."""

    def change(parameter: Tensor) -> Tensor:
        return torch.cat([parameter.chunk(len(order), -1)[index] for index in order], -1)

    return change


def float16(parameter: Tensor) -> Tensor:
    return parameter.half().to(parameter.dtype)


def float8(parameter: Tensor) -> Tensor:
    return parameter.to(torch.float8_e4m3fn).to(parameter.dtype)


def third_zero(parameter: Tensor) -> Tensor:
    """Return a bias of queries, keys and values without that of the values."""
    return torch.cat([parameter[: 2 * len(parameter) // 3], torch.zeros(len(parameter) // 3)])


def exchanged_rows(first: int, second: int, size: int) -> Callable[[Tensor], Tensor]:
    """Return a change that exchanges two ranges of rows."""

    def change(parameter: Tensor) -> Tensor:
        kept = parameter[first : first + size].clone()
        parameter[first : first + size] = parameter[second : second + size].clone()
        parameter[second : second + size] = kept
        return parameter

    return change


def rounded_angles(_: nn.Module, b: nn.Module) -> None:
    for name in ("cos", "sin"):
        b.get_buffer(name).copy_(bfloat16(b.get_buffer(name)))


def values_not_folded(a: nn.Module, b: nn.Module) -> None:
    """Forget the gain of a norm in the rows of the values."""
    own = a.get_parameter("model.layers.1.self_attn.v_proj.weight")
    b.get_parameter("layers.1.qkv.weight")[-len(own) :] = own


def scaled_twice(a: nn.Module, b: nn.Module) -> None:
    scale = a.get_parameter("convnext.encoder.stages.2.layers.0.layer_scale_parameter")
    b.get_parameter("stages.2.0.shrink.weight").mul_(scale[:, None])


def bias_not_scaled(a: nn.Module, b: nn.Module) -> None:
    own = a.get_parameter("convnext.encoder.stages.1.layers.0.pwconv2.bias")
    b.get_parameter("stages.1.0.shrink.bias").copy_(own)


def mean_not_folded(a: nn.Module, b: nn.Module) -> None:
    """Fold a batch norm without its mean."""
    own = a.get_parameter("resnet.encoder.stages.0.layers.0.layer.0.normalization.bias")
    b.get_parameter("blocks.0.first.bias").copy_(own)


def normalized_by_channel(a: nn.Module, b: nn.Module) -> None:
    """Fold a weight norm over the dimension that PyTorch has as its default."""
    name = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight"
    size, direction = a.get_parameter(f"{name}.original0"), a.get_parameter(f"{name}.original1")
    b.get_parameter("positions.kernel").copy_(direction / direction.norm(dim=(1, 2), keepdim=True) * size)


def values_first(a: nn.Module, b: nn.Module) -> None:
    """Take the expansion of each head as that of its values and then that of its keys."""
    keys, values = b.get_parameter("layers.1.attention.keys"), b.get_parameter("layers.1.attention.values")
    heads = a.get_parameter("model.layers.1.self_attn.kv_b_proj.weight").unflatten(0, (len(keys), -1))
    values.copy_(heads[:, : values.shape[-1]].mT)
    keys.copy_(heads[:, values.shape[-1] :])


def _bugs(port: str, *items: tuple[str, str, Plant, list[Bug]]) -> dict[str, PortingBug]:
    return {f"{port}: {name}": PortingBug(port, kind, plant, tuple(places)) for name, kind, plant, places in items}


def _heads(module: str, function: str, operators: str) -> list[Bug]:
    """Return places in a `torch.nn.MultiheadAttention`, which may be one operation."""
    return [Bug(module, function, f"{operators} {NATIVE}"), Bug(module, "", NATIVE)]


BUGS: dict[str, PortingBug] = {
    **_bugs(
        "convnext",
        (
            "rows and columns of the kernels exchanged in the last block of stage 1",
            "transposed weight",
            weight("stages.1.1.taps", lambda x: x.transpose(0, 1)),
            [Bug("stages.1.1", "mix", "convolution")],
        ),
        (
            "edges repeated in the first block of stage 1",
            "padding",
            code(
                "stages.1.0",
                "mix",
                (
                    "conv2d(x.permute(0, 3, 1, 2),",
                    "conv2d(torch.nn.functional.pad(x.permute(0, 3, 1, 2), [3] * 4, 'replicate'),",
                ),
                ("padding=3, ", ""),
            ),
            [Bug("stages.1.0", "mix", "convolution replication_pad2d")],
        ),
        (
            "no bias of the kernels in stage 0",
            "bias",
            weight("stages.0.0.offset", torch.zeros_like),
            [Bug("stages.0.0", "mix", "convolution")],
        ),
        (
            "layer scale folded twice in stage 2",
            "scale of a weight",
            scaled_twice,
            [Bug("stages.2.0.shrink", "forward", PRODUCT)],
        ),
        (
            "layer scale not folded into the bias in stage 1",
            "folded bias",
            bias_not_scaled,
            [Bug("stages.1.0.shrink", "forward", PRODUCT)],
        ),
        (
            "eps of the norm before the first step",
            "eps",
            constant("norms.0", "eps", 1e-3),
            [Bug("norms.0", "forward", LAYER_NORM)],
        ),
        (
            "patches by columns",
            "order of pixels",
            weight("stem.linear.weight", lambda x: x.unflatten(1, (4, 4, 3)).transpose(1, 2).flatten(1)),
            [Bug("stem.linear", "forward", PRODUCT)],
        ),
        (
            "neighbors of the last step by columns",
            "order of neighbors",
            code(
                "steps.1", "forward", ("parts.transpose(2, 3).flatten(3)", "parts.permute(0, 1, 3, 4, 2, 5).flatten(3)")
            ),
            [Bug("steps.1.linear", "forward", PRODUCT), Bug("steps.1", "forward", MOVED)],
        ),
        (
            "no norm before the last step",
            "missing step",
            code("", "forward", ("step(norm(x))", "step(x if norm is self.norms[-1] else norm(x))")),
            [Bug("steps.1.linear", "forward", PRODUCT), Bug("steps.1", "forward", MOVED)],
        ),
        (
            "layer of another block in stage 1",
            "weight of another layer",
            taken("stages.1.1.expand.weight", "stages.1.0.expand.weight"),
            [Bug("stages.1.1.expand", "forward", PRODUCT)],
        ),
        (
            "quick gelu in stage 0",
            "activation",
            code(
                "stages.0.0",
                "forward",
                (
                    "gelu(self.expand(y), approximate=self.approximation)",
                    "(z := self.expand(y)) * torch.sigmoid(1.702 * z)",
                ),
            ),
            [Bug("stages.0.0", "forward", "sigmoid mul")],
        ),
        (
            "residual after the norm in stage 2",
            "residual",
            code("stages.2.0", "forward", ("x + self.shrink", "y + self.shrink")),
            [Bug("stages.2.0", "forward", "add")],
        ),
        (
            "image transposed after the kernels in stage 0",
            "order of axes",
            code("stages.0.0", "mix", ("y.permute(0, 2, 3, 1)", "y.permute(0, 3, 2, 1)")),
            [
                Bug("stages.0.0", "forward", "add"),
                Bug("stages.0.0", "mix", "permute"),
                Bug("stages.0.0.norm", "forward", LAYER_NORM),
            ],
        ),
        (
            "maximum of the places",
            "pooling",
            code("", "forward", ("x.mean((1, 2))", "x.amax((1, 2))")),
            [Bug("", "forward", "amax"), Bug("norm", "forward", LAYER_NORM)],
        ),
    ),
    **_bugs(
        "swin",
        (
            "rows and columns of the biases exchanged in layer 3",
            "relative positions",
            weight("layers.3.attention.table", lambda x: x.mT),
            [Bug("layers.3.attention", "bias", "index"), Bug("layers.3.attention", "forward", ATTEND)],
        ),
        (
            "sign of the distance of rows in layer 0",
            "relative positions",
            code("layers.0.attention", "bias", ("rows[:, None] - rows +", "rows - rows[:, None] +")),
            [Bug("layers.0.attention", "bias", "sub add index"), Bug("layers.0.attention", "forward", ATTEND)],
        ),
        (
            "shift not undone in layer 1",
            "window shift",
            code("layers.1", "attend", ("height, width).roll((self.shift, self.shift), (1, 2))", "height, width)")),
            [Bug("layers.1", "forward", "add"), Bug("layers.1", "join", MOVED), Bug("layers.1", "attend", "roll")],
        ),
        (
            "shift to the other side in layer 4",
            "window shift",
            code(
                "layers.4",
                "attend",
                ("width).roll((self.shift, self.shift), (1, 2))", "width).roll((-self.shift, -self.shift), (1, 2))"),
                ("x.roll((-self.shift, -self.shift), (1, 2))", "x.roll((self.shift, self.shift), (1, 2))"),
            ),
            [
                Bug("layers.4.attention", "forward", ATTEND),
                Bug("layers.4", "attend", "roll"),
                Bug("layers.4", "cut", MOVED),
                Bug("layers.4.attention.qkv", "forward", PRODUCT),
            ],
        ),
        (
            "mask too weak in layer 1",
            "mask",
            code("layers.1", "mask", ("-100.0", "-1.0")),
            [Bug("layers.1", "mask", "where scalar_tensor"), Bug("layers.1.attention", "forward", f"{ATTEND} repeat")],
        ),
        (
            "regions of the mask in layer 4",
            "mask",
            code("layers.4", "region", ("length - self.shift)", "length - self.shift - 1)")),
            [
                Bug("layers.4", "region", "ge add _to_copy"),
                Bug("layers.4", "mask", "mul add eq where"),
                Bug("layers.4", "cut", MOVED),
                Bug("layers.4.attention", "forward", f"{ATTEND} repeat"),
            ],
        ),
        (
            "inputs of the merging layer by rows",
            "order of neighbors",
            weight("layers.2.linear.weight", blocks(0, 2, 1, 3)),
            [Bug("layers.2.linear", "forward", PRODUCT)],
        ),
        (
            "gains of the merging norm by rows",
            "order of neighbors",
            weight("layers.2.norm.weight", blocks(0, 2, 1, 3)),
            [Bug("layers.2.norm", "forward", LAYER_NORM)],
        ),
        (
            "scale of the whole width in layer 0",
            "scale of the scores",
            code("layers.0.attention", "forward", ("attn_mask=", "scale=x.shape[-1] ** -0.5, attn_mask=")),
            [Bug("layers.0.attention", "forward", ATTEND)],
        ),
        (
            "windows by columns in layer 3",
            "order of axes",
            code("layers.3", "cut", ("parts.transpose(2, 3)", "parts.permute(0, 1, 3, 4, 2, 5)")),
            [
                Bug("layers.3.attention", "forward", ATTEND),
                Bug("layers.3", "cut", MOVED),
                Bug("layers.3.attention.qkv", "forward", PRODUCT),
                Bug("layers.3", "forward", "add"),
            ],
        ),
        (
            "bias of the key for the query in layer 4",
            "bias",
            weight("layers.4.attention.qkv.bias", rows(0, 64, of=64)),
            [Bug("layers.4.attention.qkv", "forward", PRODUCT)],
        ),
        (
            "mean before the norm",
            "pooling",
            code("", "forward", ("self.norm(x).mean((1, 2))", "self.norm(x.mean((1, 2)))")),
            [Bug("", "forward", "mean"), Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "stem in bfloat16",
            "precision of a weight",
            weight("stem.weight", bfloat16),
            [Bug("stem", "forward", "convolution")],
        ),
        (
            "norms exchanged in layer 0",
            "weight of another layer",
            exchanged("layers.0.before", "layers.0.between"),
            [Bug("layers.0.before", "forward", LAYER_NORM), Bug("layers.0.between", "forward", LAYER_NORM)],
        ),
    ),
    **_bugs(
        "wav2vec2",
        (
            "weight norm over each channel",
            "scale of a weight",
            normalized_by_channel,
            [Bug("positions", "forward", "convolution")],
        ),
        (
            "one more place after the positions",
            "padding",
            code(
                "positions",
                "forward",
                ("(self.size // 2, self.size // 2 - 1)", "(self.size // 2 - 1, self.size // 2)"),
            ),
            [Bug("positions", "forward", "constant_pad_nd convolution"), Bug("", "forward", "add")],
        ),
        (
            "groups of the positions in another order",
            "convolution",
            weight("positions.kernel", lambda x: x.roll(len(x) // 4, 0)),
            [Bug("positions", "forward", "convolution")],
        ),
        (
            "no activation of the positions",
            "missing step",
            code(
                "positions",
                "forward",
                (
                    "gelu(conv1d(padded, self.kernel, self.offset, groups=self.groups))",
                    "conv1d(padded, self.kernel, self.offset, groups=self.groups)",
                ),
            ),
            [Bug("", "forward", "add"), Bug("positions", "forward", "permute")],
        ),
        (
            "statistics of the whole batch",
            "formula of a norm",
            code(
                "features",
                "forward",
                (
                    "instance_norm(x, weight=self.gain, bias=self.offset, eps=self.eps)",
                    "torch.nn.functional.batch_norm(x, None, None, self.gain, self.offset, True, 0.0, self.eps)",
                ),
            ),
            [Bug("features", "forward", "native_batch_norm _native_batch_norm_legit repeat view")],
        ),
        (
            "frames backwards",
            "convolution",
            weight("features.frames", lambda x: x.flip(0)),
            [Bug("features", "forward", PRODUCT)],
        ),
        (
            "taps backwards in the last convolution",
            "convolution",
            weight("features.convolutions.1.weight", lambda x: x.flip(2)),
            [Bug("features.convolutions.1", "forward", "convolution")],
        ),
        (
            "scaled twice in layer 2",
            "scale of the scores",
            code("layers.2.attention", "forward", ("torch.bmm(q, k.mT)", "(torch.bmm(q, k.mT) * size**-0.5)")),
            [Bug("layers.2.attention", "forward", "mul _softmax")],
        ),
        (
            "heads of both texts joined in layer 1",
            "groups of heads",
            code(
                "layers.1.attention",
                "forward",
                (
                    ".transpose(0, 1).reshape(length, batch, width)",
                    ".transpose(0, 1).unflatten(1, (self.heads, batch)).transpose(1, 2).reshape(length, batch, width)",
                ),
            ),
            [Bug("layers.1.attention", "forward", MOVED), Bug("layers.1.attention.out", "forward", PRODUCT)],
        ),
        (
            "norm first in layer 3",
            "order of norm and branch",
            code("layers.3", "forward", ("self.norm(x + self.attention(x))", "x + self.attention(self.norm(x))")),
            [
                Bug("layers.3.norm", "forward", LAYER_NORM),
                Bug("layers.3.attention.qkv", "forward", PRODUCT),
                Bug("layers.3", "forward", "add"),
            ],
        ),
        (
            "residual before the norm in layer 0",
            "residual",
            code(
                "layers.0",
                "forward",
                ("x = self.norm(x + self.attention(x))", "x = self.norm(y := x + self.attention(x))"),
                ("self.last_norm(x + ", "self.last_norm(y + "),
            ),
            [Bug("layers.0", "forward", "add")],
        ),
        (
            "gain of the next layer in layer 1",
            "weight of another layer",
            taken("layers.1.last_norm.weight", "layers.2.last_norm.weight"),
            [Bug("layers.1.last_norm", "forward", LAYER_NORM)],
        ),
        (
            "gelu by tanh in layer 2",
            "activation",
            code("layers.2", "forward", ("gelu(self.up(x))", 'gelu(self.up(x), approximate="tanh")')),
            [Bug("layers.2", "forward", "gelu")],
        ),
        (
            "letters in int8",
            "precision of a weight",
            weight("letters.weight", int8),
            [Bug("letters", "forward", PRODUCT)],
        ),
    ),
    **_bugs(
        "bart",
        (
            "padding seen by the decoder in layer 2",
            "mask",
            code("decoder.layers.2", "decode", ("encoded, key_padding_mask=padding", "encoded")),
            _heads("decoder.layers.2.cross", "decode", MASKED),
        ),
        (
            "decoder sees the next token in layer 0",
            "mask",
            code("decoder.layers.0", "decode", (".triu(1)", ".triu(2)")),
            [*_heads("decoder.layers.0.attention", "decode", MASKED), Bug("decoder.layers.0", "decode", "triu")],
        ),
        (
            "decoder sees all tokens in layer 3",
            "mask",
            code("decoder.layers.3", "decode", ("attn_mask=later, ", "")),
            _heads("decoder.layers.3.attention", "decode", MASKED),
        ),
        (
            "no norm after the cross attention in layer 1",
            "missing step",
            code("decoder.layers.1", "decode", ("self.norm_c(x + mixed)", "x + mixed")),
            [Bug("decoder.layers.1.mlp.0", "decode", PRODUCT), Bug("decoder.layers.1", "decode", "add")],
        ),
        (
            "positions of the decoder one too far",
            "position",
            weight("decoder.places", lambda x: x.roll(-1, 0)),
            [Bug("decoder", "forward", "add slice")],
        ),
        (
            "first norms of both sides exchanged",
            "weight of another layer",
            exchanged("encoder.norm", "decoder.norm"),
            [Bug("encoder.norm", "forward", LAYER_NORM), Bug("decoder.norm", "forward", LAYER_NORM)],
        ),
        (
            "words of the decoder not scaled",
            "missing step",
            code("", "forward", ("self.words(decoder_ids) * self.scale", "self.words(decoder_ids)")),
            [Bug("decoder", "forward", "add")],
        ),
        ("no bias of the words", "bias", weight("offset", torch.zeros_like), [Bug("", "forward", "add mm")]),
        (
            "no bias of the values in layer 2 of the encoder",
            "bias",
            weight("encoder.layers.2.attention.in_proj_bias", third_zero),
            _heads("encoder.layers.2.attention", "encode", PRODUCT),
        ),
        (
            "key and value exchanged in layer 0",
            "order of parts",
            both(
                weight("decoder.layers.0.cross.in_proj_weight", exchanged_rows(64, 128, 64)),
                weight("decoder.layers.0.cross.in_proj_bias", exchanged_rows(64, 128, 64)),
            ),
            _heads("decoder.layers.0.cross", "decode", f"{ATTEND} {PRODUCT}"),
        ),
        (
            "eps in layer 2",
            "eps",
            constant("decoder.layers.2.norm_c", "eps", 1e-3),
            [Bug("decoder.layers.2.norm_c", "decode", LAYER_NORM)],
        ),
        (
            "cross attention of another layer in layer 3",
            "weight of another layer",
            taken("decoder.layers.3.cross.in_proj_weight", "decoder.layers.2.cross.in_proj_weight"),
            _heads("decoder.layers.3.cross", "decode", PRODUCT),
        ),
        (
            "relu for gelu in layer 0 of the encoder",
            "activation",
            code("encoder.layers.0", "encode", ("gelu(", "torch.relu(")),
            [Bug("encoder.layers.0", "encode", "relu")],
        ),
        (
            "scaled words for the output",
            "tied weights",
            code("", "forward", ("x @ self.words.weight.T", "x @ (self.words.weight.T * self.scale)")),
            [Bug("", "forward", f"mul {PRODUCT}")],
        ),
        (
            "number of heads in layer 1",
            "groups of heads",
            both(
                constant("decoder.layers.1.attention", "num_heads", 8),
                constant("decoder.layers.1.attention", "head_dim", 8),
            ),
            _heads("decoder.layers.1.attention", "decode", ATTEND),
        ),
    ),
    **_bugs(
        "deepseek_v3",
        (
            "scale of the plain part in layer 2",
            "scale of the scores",
            constant("layers.2.attention", "scale", 0.25),
            [Bug("layers.2.attention", "forward", "mul masked_fill where _softmax")],
        ),
        (
            "theta",
            "rotary constant",
            constant("", "theta", 1000.0),
            [Bug("", "turns", "pow reciprocal mul cos sin stack")],
        ),
        (
            "key not rotated in layer 1",
            "operand",
            code("layers.1.attention", "forward", ("self.rotate(key, turns))", "key)")),
            [Bug("layers.1.attention", "forward", ATTEND)],
        ),
        (
            "values not normalized in layer 3",
            "operand",
            code(
                "layers.3.attention",
                "forward",
                ("latent = self.norm_kv(latent)", "latent, raw = self.norm_kv(latent), latent"),
                ("shares, latent)", "shares, raw)"),
            ),
            [Bug("layers.3.attention", "forward", PRODUCT)],
        ),
        (
            "values before keys in layer 1",
            "order of parts",
            values_first,
            [Bug("layers.1.attention", "forward", f"{PRODUCT} {ATTEND}")],
        ),
        (
            "eps of the queries in layer 2",
            "eps",
            constant("layers.2.attention.norm_q", "eps", 1e-3),
            [Bug("layers.2.attention.norm_q", "forward", RMS_NORM)],
        ),
        (
            "shares with the preference in layer 1",
            "routing",
            code("layers.1.mlp", "route", ("scores.gather", "wanted.gather")),
            [Bug("layers.1.mlp", "route", "gather scatter sum div mul")],
        ),
        (
            "groups by their best expert in layer 2",
            "routing",
            code("layers.2.mlp", "route", ("grouped.topk(2).values.sum(-1)", "grouped.amax(-1)")),
            [Bug("layers.2.mlp", "route", "amax topk scatter gather sum div bitwise_not masked_fill where")],
        ),
        (
            "shares not normalized in layer 3",
            "routing",
            code("layers.3.mlp", "route", ("shares / shares.sum(-1, keepdim=True) *", "shares *")),
            [Bug("layers.3.mlp", "route", "mul")],
        ),
        (
            "shares not scaled in layer 1",
            "routing",
            constant("layers.1.mlp", "factor", 1.0),
            [Bug("layers.1.mlp", "route", "mul"), Bug("layers.1.mlp", "forward", "mul bmm")],
        ),
        (
            "no shared expert in layer 2",
            "missing step",
            code("layers.2.mlp", "forward", (" + self.shared(x)", "")),
            [Bug("layers.2", "forward", "add")],
        ),
        (
            "gate and up of the experts exchanged in layer 3",
            "order of parts",
            swapped("layers.3.mlp.gate", "layers.3.mlp.up"),
            [Bug("layers.3.mlp", "forward", f"silu mul {PRODUCT}")],
        ),
        (
            "output of the next expert in layer 2",
            "weight of another layer",
            weight("layers.2.mlp.down", lambda x: x.roll(1, 0)),
            [Bug("layers.2.mlp", "forward", "bmm mm")],
        ),
        (
            "entry in bfloat16 in layer 0",
            "precision of a weight",
            weight("layers.0.attention.shrink.weight", bfloat16),
            [Bug("layers.0.attention.shrink", "forward", PRODUCT)],
        ),
        (
            "heads of the output in layer 3",
            "order of rows",
            weight("layers.3.attention.out", lambda x: x.roll(1, 0)),
            [Bug("layers.3.attention", "forward", PRODUCT)],
        ),
        (
            "softmax for sigmoid in layer 1",
            "activation",
            code("layers.1.mlp", "route", (".sigmoid()", ".softmax(-1)")),
            [Bug("layers.1.mlp", "route", "_softmax")],
        ),
        (
            "two experts in layer 3",
            "routing",
            constant("layers.3.mlp", "chosen", 2),
            [Bug("layers.3.mlp", "route", "topk gather scatter sum div mul")],
        ),
        (
            "gate and up exchanged in layer 0",
            "order of parts",
            weight("layers.0.mlp.both.weight", swapped_halves),
            [Bug("layers.0.mlp.both", "forward", PRODUCT), Bug("layers.0.mlp", "forward", "silu mul")],
        ),
    ),
    **_bugs(
        "albert",
        (
            "groups alternate",
            "shared layers",
            constant("", "plan", [0, 1, 0, 1]),
            [Bug("", "attend", f"{PRODUCT} {ATTEND}")],
        ),
        (
            "one layer too few",
            "shared layers",
            constant("", "plan", [0, 0, 1]),
            [Bug("", "apply_linear", PRODUCT)],
        ),
        (
            "kind of the second text",
            "embedding",
            code("", "embed", ('self.weights["kinds"][0]', 'self.weights["kinds"][1]')),
            [Bug("", "embed", "add select")],
        ),
        (
            "bias of the key for the query in group 1",
            "bias",
            taken("weights.q1_b", "weights.k1_b"),
            [Bug("", "attend", "add")],
        ),
        (
            "hidden scores are 0",
            "mask",
            code("", "attend", ("-torch.inf", "0.0")),
            [Bug("", "attend", "masked_fill where amax sub exp sum div")],
        ),
        (
            "heads of the output in group 0",
            "order of rows",
            weight("weights.o0_w", lambda x: x.flip(0)),
            [Bug("", "attend", PRODUCT)],
        ),
        (
            "constant of gelu",
            "activation",
            code("", "activate", ("0.044715", "0.044")),
            [Bug("", "activate", "mul add tanh")],
        ),
        (
            "norm of the head before its activation",
            "order of norm and branch",
            code(
                "",
                "predict",
                (
                    'self.normalize("head_norm", self.activate(self.apply_linear("head", x)))',
                    'self.activate(self.normalize("head_norm", self.apply_linear("head", x)))',
                ),
            ),
            [Bug("", "normalize", LAYER_NORM), Bug("", "activate", "mul add pow tanh"), Bug("", "predict", PRODUCT)],
        ),
        (
            "scale of the whole width",
            "scale of the scores",
            code("", "attend", ("math.sqrt(q.shape[-1])", "math.sqrt(x.shape[-1])")),
            [Bug("", "attend", "div masked_fill where")],
        ),
    ),
    **_bugs(
        "llama",
        (
            "key and value exchanged in layer 3",
            "order of parts",
            weight("blocks.3.attention.qkv.weight", exchanged_rows(64, 96, 32)),
            [
                Bug("blocks.3.attention.qkv", "forward", PRODUCT),
                Bug("blocks.3.attention", "rotate", "mul view_as_complex clone"),
                Bug("blocks.3.attention", "forward", ATTEND),
            ],
        ),
        (
            "no residual in layer 1",
            "residual",
            code("blocks.1.norm2", "forward", ("x if residual is None else x + residual", "x")),
            [Bug("blocks.1.norm2", "forward", "mul mean add rsqrt"), Bug("blocks.2.norm1", "forward", "add")],
        ),
        ("head in float16", "precision of a weight", weight("head.weight", float16), [Bug("head", "forward", PRODUCT)]),
    ),
    **_bugs(
        "bert",
        (
            "kind of the second text",
            "embedding",
            code("embed", "forward", ("self.kind.weight[0]", "self.kind.weight[1]")),
            [Bug("embed", "forward", "add select")],
        ),
        (
            "norms exchanged in layer 3",
            "weight of another layer",
            exchanged("encoder.layers.3.norm1", "encoder.layers.3.norm2"),
            [
                Bug("encoder.layers.3.norm1", "forward", LAYER_NORM),
                Bug("encoder.layers.3.norm2", "forward", LAYER_NORM),
            ],
        ),
        (
            "sigmoid for tanh",
            "activation",
            code("", "forward", (".tanh()", ".sigmoid()")),
            [Bug("", "forward", "sigmoid")],
        ),
    ),
    **_bugs(
        "gpt2",
        (
            "key scaled, too, in layer 2",
            "scale of the scores",
            code("blocks.2", "attend", ("* self.width**-0.5, k)", "* self.width**-0.5, k * self.width**-0.5)")),
            [Bug("blocks.2", "attend", "mul bmm add _softmax")],
        ),
        (
            "eps in layer 0",
            "eps",
            constant("blocks.0.between", "eps", 1e-3),
            [Bug("blocks.0.between", "forward", LAYER_NORM)],
        ),
        (
            "columns one place late in layer 3",
            "order of columns",
            weight("blocks.3.down.weight", lambda x: x.roll(1, 1)),
            [Bug("blocks.3.down", "transform", PRODUCT)],
        ),
        (
            "residual twice in layer 1",
            "residual",
            code("blocks.1", "forward", ("x + self.transform", "x + x + self.transform")),
            [Bug("blocks.1", "forward", "add")],
        ),
    ),
    **_bugs(
        "qwen2",
        (
            "biases of other heads in layer 2",
            "bias",
            weight("stack.2.packed.bias", lambda x: x.roll(16, 0)),
            [Bug("stack.2.packed", "attend", PRODUCT)],
        ),
        (
            "keys rotated backwards in layer 0",
            "position",
            code(
                "stack.0",
                "attend",
                (
                    "self.turn(k, cos[:, None], sin[:, None])",
                    "self.turn(k, cos.flip(0)[:, None], sin.flip(0)[:, None])",
                ),
            ),
            [Bug("stack.0", "turn", "mul sub add"), Bug("stack.0", "attend", "flip")],
        ),
        (
            "angles in bfloat16",
            "precision of a table",
            rounded_angles,
            [*(Bug(f"stack.{index}", "turn", "mul sub add") for index in range(4)), Bug("", "forward", "slice")],
        ),
    ),
    **_bugs(
        "gpt_neox",
        (
            "sign in a rotation in layer 1",
            "rotary layout",
            code(
                "blocks.1.attention.rotary", "forward", ("real * cos - imaginary * sin", "real * cos + imaginary * sin")
            ),
            [Bug(f"blocks.1.attention.rotary{call}", "forward", "add mul cat") for call in ("", "@1")],
        ),
        (
            "angles of whole heads in layer 2",
            "rotary constant",
            code("blocks.2.attention.rotary", "forward", ("/ self.size", "/ x.shape[-1]")),
            [
                Bug(f"blocks.2.attention.rotary{call}", "forward", "div pow mul cos sin reciprocal")
                for call in ("", "@1")
            ],
        ),
        (
            "no mask in layer 3",
            "mask",
            code("blocks.3.attention", "forward", (", is_causal=True", "")),
            [Bug("blocks.3.attention", "forward", ATTEND)],
        ),
    ),
    **_bugs(
        "gemma",
        (
            "queries not scaled in layer 3",
            "scale of a weight",
            weight("layers.3.attention.wq.weight", lambda x: 4 * x),
            [
                Bug("layers.3.attention.wq", "forward", PRODUCT),
                Bug("layers.3.attention", "rotate", "mul add roll"),
                Bug("layers.3.attention", "forward", ATTEND),
            ],
        ),
        (
            "gate and up exchanged in layer 0",
            "order of parts",
            exchanged("layers.0.gate", "layers.0.up"),
            [
                *(Bug(f"layers.0.{name}", "forward", PRODUCT) for name in ("gate", "up")),
                Bug("layers.0", "forward", "gelu mul"),
            ],
        ),
        (
            "angles side by side",
            "rotary layout",
            code(
                "",
                "turns",
                ("torch.cat([angles, angles], -1).cos()", "torch.stack([angles, angles], -1).flatten(-2).cos()"),
            ),
            [
                Bug("", "turns", "stack cat view _unsafe_view cos"),
                *(Bug(f"layers.{index}.attention", "rotate", "mul add") for index in range(4)),
            ],
        ),
    ),
    **_bugs(
        "falcon",
        (
            "heads not transposed in layer 2",
            "groups of heads",
            code("blocks.2", "forward", ("mixed.transpose(1, 2).flatten(2)", "mixed.reshape(x.shape)")),
            [Bug("blocks.2", "forward", "cat view _unsafe_view clone"), Bug("blocks.2.leave", "forward", PRODUCT)],
        ),
        (
            "exponents doubled",
            "rotary constant",
            code("", "forward", ("self.theta**-exponents", "self.theta ** (-2 * exponents)")),
            [Bug("", "forward", "mul pow outer cos sin repeat")],
        ),
        (
            "eps in layer 3",
            "eps",
            constant("blocks.3.norm", "eps", 1e-3),
            [Bug("blocks.3.norm", "forward", LAYER_NORM)],
        ),
    ),
    **_bugs(
        "mistral",
        (
            "gain not folded into the values in layer 1",
            "scale of a weight",
            values_not_folded,
            [Bug("layers.1.qkv", "attend", PRODUCT)],
        ),
        (
            "down in float8 in layer 2",
            "precision of a weight",
            weight("layers.2.down.weight", float8),
            [Bug("layers.2.down", "forward", PRODUCT)],
        ),
        (
            "gate and up exchanged in layer 0",
            "order of parts",
            code("layers.0", "forward", ("gate, up = self", "up, gate = self")),
            [Bug("layers.0", "forward", "silu mul")],
        ),
    ),
    **_bugs(
        "mixtral",
        (
            "activation of the other product in layer 3",
            "operand",
            code(
                "layers.3.mixture.experts.1",
                "forward",
                ("self.activation(self.w1(x)) * self.w3(x)", "self.w1(x) * self.activation(self.w3(x))"),
            ),
            [Bug("layers.3.mixture.experts.1", "forward", "silu mul")],
        ),
        (
            "rows of the router in layer 0",
            "routing",
            weight("layers.0.mixture.gate.weight", lambda x: x.flip(0)),
            [
                Bug("layers.0.mixture.gate", "forward", PRODUCT),
                Bug("layers.0.mixture", "forward", "topk eq nonzero index mul index_add"),
                *(
                    Bug(f"layers.0.mixture.experts.{index}.{name}", "forward", PRODUCT)
                    for index in range(4)
                    for name in ("w1", "w3")
                ),
            ],
        ),
        (
            "no scale in layer 2",
            "scale of the scores",
            code("layers.2", "attend", (" / self.width**0.5", "")),
            [Bug("layers.2", "attend", "add _softmax")],
        ),
    ),
    **_bugs(
        "t5",
        (
            "sign of the distance",
            "relative positions",
            code("encoder", "bias", ("self.bucket(key - query)", "self.bucket(query - key)")),
            [
                Bug("encoder", "bias", "index lift_fresh"),
                *(Bug(f"encoder.layers.{index}.attention", "forward", "add _softmax") for index in range(4)),
            ],
        ),
        (
            "no last norm of the encoder",
            "missing step",
            code("encoder", "forward", ("return self.norm(x)", "return x")),
            [Bug(f"decoder.layers.{index}.cross.wkv", "forward", PRODUCT) for index in range(4)],
        ),
        (
            "eps in layer 2",
            "eps",
            constant("decoder.layers.2.norms.1", "eps", 1e-2),
            [Bug("decoder.layers.2.norms.1", "forward", RMS_NORM)],
        ),
        (
            "key and value exchanged in layer 1",
            "order of parts",
            weight("decoder.layers.1.cross.wkv.weight", swapped_halves),
            [
                Bug("decoder.layers.1.cross.wkv", "forward", PRODUCT),
                Bug("decoder.layers.1.cross", "forward", ATTEND),
            ],
        ),
    ),
    **_bugs(
        "whisper",
        (
            "positions of the decoder one too far",
            "position",
            weight("positions", lambda x: x.roll(-1, 0)),
            [Bug("", "forward", "add slice")],
        ),
        (
            "queries and keys scaled twice in layer 1",
            "scale of the scores",
            code("blocks.1.self_attention", "forward", ("** -0.25", "** -0.5")),
            [Bug("blocks.1.self_attention", "forward", "mul bmm add _softmax")],
        ),
        (
            "taps backwards",
            "convolution",
            weight("encoder.second.weight", lambda x: x.flip(2)),
            [Bug("encoder.second", "forward", "convolution")],
        ),
        (
            "no last norm of the encoder",
            "missing step",
            code(
                "encoder",
                "forward",
                ("self.norm(self.blocks(x + self.positions))", "self.blocks(x + self.positions)"),
            ),
            [Bug(f"blocks.{index}.cross.key_value", "forward", PRODUCT) for index in range(4)],
        ),
    ),
    **_bugs(
        "vit",
        (
            "class token last",
            "order of parts",
            code(
                "",
                "forward",
                ("torch.cat([token, patches], 1) + self.places", "torch.cat([patches, token], 1) + self.places"),
            ),
            [Bug("", "forward", "cat add")],
        ),
        (
            "no bias of the values in layer 3",
            "bias",
            weight("blocks.3.heads.in_proj_bias", third_zero),
            _heads("blocks.3.heads", "forward", PRODUCT),
        ),
        (
            "blue, green, red",
            "order of channels",
            weight("patches.linear.weight", lambda x: x.unflatten(1, (-1, 3)).flip(2).flatten(1)),
            [Bug("patches.linear", "forward", PRODUCT)],
        ),
    ),
    **_bugs(
        "clip",
        (
            "positions backwards",
            "position",
            weight("position", lambda x: x.flip(0)),
            [Bug("", "forward", "add slice")],
        ),
        (
            "constant of gelu in layer 2",
            "activation",
            code("blocks.2", "forward", ("else 1.702", "else 1.7")),
            [Bug("blocks.2", "forward", "mul sigmoid")],
        ),
        (
            "no last norm",
            "missing step",
            code("", "forward", ("self.ln(x[torch.arange(len(x)), last])", "x[torch.arange(len(x)), last]")),
            [Bug("", "forward", PRODUCT)],
        ),
    ),
    **_bugs(
        "resnet",
        (
            "mean not folded",
            "folded bias",
            mean_not_folded,
            [Bug("blocks.0.first", "forward", "convolution")],
        ),
        (
            "no activation between the convolutions",
            "missing step",
            code("blocks.2", "forward", ("self.second(relu(self.first(x)))", "self.second(self.first(x))")),
            [Bug("blocks.2.second", "forward", "convolution")],
        ),
        (
            "blue, green, red",
            "order of channels",
            weight("stem.weight", lambda x: x.flip(1)),
            [Bug("stem", "forward", "convolution")],
        ),
    ),
    **_bugs(
        "mamba",
        (
            "input and gate exchanged in layer 2",
            "order of parts",
            exchanged("mixers.2.to_x", "mixers.2.to_gate"),
            [
                Bug("mixers.2.to_x", "forward", PRODUCT),
                Bug("mixers.2.to_gate", "forward", PRODUCT),
                Bug("mixers.2", "convolve", "constant_pad_nd mul add"),
                Bug("mixers.2", "forward", "silu mul"),
            ],
        ),
        (
            "skip before the convolution in layer 1",
            "operand",
            code(
                "mixers.1",
                "forward",
                ("x = silu(self.convolve(x))", "raw, x = x, silu(self.convolve(x))"),
                ("self.skip * x", "self.skip * raw"),
            ),
            [Bug("mixers.1", "forward", "mul")],
        ),
        (
            "softplus of the decay in layer 3",
            "state",
            code(
                "mixers.3",
                "scan",
                ("-self.log_decay.exp()", "-torch.nn.functional.softplus(self.log_decay)"),
            ),
            [Bug("mixers.3", "scan", "softplus neg mul exp")],
        ),
        (
            "last norm of a layer",
            "weight of another layer",
            taken("norms.4.weight", "norms.3.weight"),
            [Bug("norms.4", "forward", RMS_NORM)],
        ),
    ),
}

PAIRS: tuple[tuple[str, str], ...] = tuple(
    (f"{port}: {first}", f"{port}: {second}")  # bugs of different layers
    for port, first, second in (
        ("convnext", "no bias of the kernels in stage 0", "layer scale folded twice in stage 2"),
        (
            "convnext",
            "rows and columns of the kernels exchanged in the last block of stage 1",
            "maximum of the places",
        ),
        ("convnext", "patches by columns", "layer of another block in stage 1"),
        ("swin", "sign of the distance of rows in layer 0", "regions of the mask in layer 4"),
        ("swin", "mask too weak in layer 1", "windows by columns in layer 3"),
        ("swin", "stem in bfloat16", "inputs of the merging layer by rows"),
        ("wav2vec2", "frames backwards", "scaled twice in layer 2"),
        ("wav2vec2", "one more place after the positions", "norm first in layer 3"),
        ("bart", "relu for gelu in layer 0 of the encoder", "padding seen by the decoder in layer 2"),
        ("wav2vec2", "statistics of the whole batch", "letters in int8"),
        ("bart", "positions of the decoder one too far", "no norm after the cross attention in layer 1"),
        ("deepseek_v3", "entry in bfloat16 in layer 0", "scale of the plain part in layer 2"),
        ("bart", "decoder sees the next token in layer 0", "decoder sees all tokens in layer 3"),
        ("deepseek_v3", "key not rotated in layer 1", "shares not normalized in layer 3"),
        ("deepseek_v3", "gate and up exchanged in layer 0", "no shared expert in layer 2"),
        ("deepseek_v3", "values before keys in layer 1", "two experts in layer 3"),
        ("albert", "kind of the second text", "bias of the key for the query in group 1"),
        ("albert", "heads of the output in group 0", "norm of the head before its activation"),
        ("llama", "no residual in layer 1", "key and value exchanged in layer 3"),
        ("gpt2", "eps in layer 0", "columns one place late in layer 3"),
        ("qwen2", "keys rotated backwards in layer 0", "biases of other heads in layer 2"),
        ("gpt_neox", "sign in a rotation in layer 1", "no mask in layer 3"),
        ("gemma", "gate and up exchanged in layer 0", "queries not scaled in layer 3"),
        ("mistral", "gain not folded into the values in layer 1", "down in float8 in layer 2"),
        ("mixtral", "rows of the router in layer 0", "activation of the other product in layer 3"),
        ("t5", "sign of the distance", "key and value exchanged in layer 1"),
        ("whisper", "taps backwards", "queries and keys scaled twice in layer 1"),
        ("mamba", "skip before the convolution in layer 1", "softplus of the decay in layer 3"),
        ("vit", "blue, green, red", "no bias of the values in layer 3"),
        ("clip", "positions backwards", "constant of gelu in layer 2"),
    )
)
