"""A fifth set of porting bugs, by someone who had not read how `align` finds bugs, and never ran it on these.

Nine ports are new: sinks and clamped experts, kernels by head, multipliers in weights, positions of a smaller image,
weights of another framework's files, groups of channels, two towers, a delta rule, and a Conformer. The other bugs are
in all ports of the sets before, in other places.

Places that are right to name: where a weight is wrong, the operation that reads it; where a step is missing, is done
twice or at another time, the operation that makes the wrong result, or the first one that reads it where A has the
result without the step; where elements are in another order, what moves them and the first operation to which it
matters; where a table or a mask is wrong, what makes it and what reads it in each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..models.ports import Bug
from ..models.ports.heldout5.nemotron import table_of
from .porting import (
    ATTEND,
    EMBED,
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
    named,
    rows,
    taken,
    weight,
)

MOVED = "clone view _unsafe_view permute transpose select slice unbind split unsqueeze"  # elements in another order
REPEATED = "repeat expand clone copy index_select repeat_interleave index"
MOMENTS = "pow mul mean add rsqrt sqrt div sub var var_mean"  # of a norm in steps
MIXED = f"{PRODUCT} baddbmm mul sum"  # of weighted values, or a product with a weight without a layer
ROTATED = "mul sub add cat stack neg slice addcmul"
HIDDEN = "masked_fill where scalar_tensor"
TOTAL = "logsumexp amax sub exp sum log add"
NATIVE = "_native_multi_head_attention"


def part(name: str, index: int, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the part of a parameter that belongs to a layer, an expert or a head."""

    def changed(parameter: Tensor) -> Tensor:
        parameter[index] = change(parameter[index].clone())
        return parameter

    return weight(name, changed)


def from_a(name: str, of: Callable[[nn.Module], Tensor]) -> Plant:
    """Set a parameter to numbers of the model."""
    return lambda a, b: weight(name, lambda _: of(a))(a, b)


def swapped(name: str, other: str) -> Plant:
    """Exchange two parameters."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        first, second = b.get_parameter(name), b.get_parameter(other)
        kept = first.clone()
        first.data.copy_(second)
        second.data.copy_(kept)

    return plant


def layers(module: str, function: str, operators: str, count: int = 4) -> list[Bug]:
    """Return places in all layers, for what they share."""
    return [Bug(module.replace("#", str(index)), function, operators) for index in range(count)]


def in_marian(side: str, layer: int, function: str, operators: str) -> Bug:
    """Return a place in a module of a layer of A, as this port has no modules."""
    return Bug("", function, operators, f"model.{side}.layers.{layer}")


def in_olmo2(layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.layers.{layer}")


def in_gemma2(layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.layers.{layer}.")


def experts_as_in_the_file(a: nn.Module, b: nn.Module) -> None:
    """Leave the columns of gate and up in turns."""
    own = a.get_submodule("model.layers.0.mlp.experts")
    b.get_parameter("layers.0.experts.w_in").copy_(own.get_parameter("gate_up_proj"))
    b.get_parameter("layers.0.experts.b_in").copy_(own.get_parameter("gate_up_proj_bias")[:, None])


def other_base(_: nn.Module, b: nn.Module) -> None:
    """Make the table for a base that differs in its third digit."""
    table = b.get_buffer("table")
    table.copy_(table_of({"rope_theta": 10200.0}, *table.shape))


def head_tied(_: nn.Module, b: nn.Module) -> None:
    b.get_parameter("logits").copy_(b.get_parameter("embedding").T)


def grid_of(a: nn.Module) -> Tensor:
    """Return the positions of all patches of the larger images of DINOv2, `[1, width, rows, columns]`."""
    positions = a.get_parameter("dinov2.embeddings.position_embeddings")[0, 1:]
    side = math.isqrt(len(positions))
    return positions.view(side, side, -1).permute(2, 0, 1)[None]


def scale_not_folded(a: nn.Module, b: nn.Module) -> None:
    own = a.get_submodule("dinov2.encoder.layer.1.attention.o_proj")
    b.get_submodule("blocks.1.attn.proj").load_state_dict(own.state_dict())


def norm_with(eps: float, power: float) -> Plant:
    """Fold a batch norm of RegNet with another epsilon, or with the variance to another power than a half."""

    def plant(a: nn.Module, b: nn.Module) -> None:
        own = a.get_submodule("regnet.encoder.stages.1.layers.1.layer.1.normalization")
        factor = own.get_parameter("weight") / (own.get_buffer("running_var") + eps) ** power
        target = b.get_submodule("blocks.2.norm2")
        target.get_parameter("factor").copy_(factor)
        target.get_parameter("offset").copy_(own.get_parameter("bias") - own.get_buffer("running_mean") * factor)

    return plant


def batch_norm_not_folded(a: nn.Module, b: nn.Module) -> None:
    own = a.get_submodule("layers.3.conv.depthwise_conv")
    b.get_parameter("blocks.3.convolution.kernel").copy_(own.get_parameter("weight"))
    b.get_parameter("blocks.3.convolution.offset").copy_(own.get_parameter("bias"))


def by_channel(a: nn.Module) -> Tensor:
    """Return the layer after the convolutions of Parakeet, scaled, but with its columns as in A."""
    own = a.get_parameter("subsampling.linear.weight")
    return own * len(own) ** 0.5


def swap_gains(b: nn.Module, layer: int) -> None:
    """Exchange the gains of the norms after the two branches of a layer of Gemma 2."""
    first, second = b.get_parameter("params.post_attention"), b.get_parameter("params.post_ffw")
    kept = first[layer].clone()
    first[layer] = second[layer]
    second[layer] = kept


def zero_columns(first: int) -> Callable[[Tensor], Tensor]:
    def change(parameter: Tensor) -> Tensor:
        parameter[:, first:] = 0
        return parameter

    return change


NEW: dict[str, PortingBug] = {
    **named(
        "gpt_oss",
        (
            "no sinks in layer 1",
            "attention sinks",
            code(
                "layers.1.attention",
                "attend",
                ('"bgqij,bjgd,bgqi->bigqd", shares, v, left', '"bgqij,bjgd->bigqd", shares, v'),
            ),
            [Bug("layers.1.attention", "attend", MIXED), Bug("layers.1.attention.out", "forward", PRODUCT)],
        ),
        (
            "sinks of other heads in layer 2",
            "order of heads",
            weight("layers.2.attention.sinks", lambda x: x.roll(1, 1)),
            [Bug("layers.2.attention", "attend", f"sub sigmoid {MIXED}")],
        ),
        (
            "sinks added in layer 3",
            "attention sinks",
            code("layers.3.attention", "attend", ("total - self.sinks", "total + self.sinks")),
            [Bug("layers.3.attention", "attend", f"add sigmoid {MIXED}")],
        ),
        (
            "window one too wide in layer 2",
            "mask",
            code("layers.2.attention", "seen", ("distance < self.window", "distance <= self.window")),
            [
                Bug("layers.2.attention", "seen", "le bitwise_and"),
                Bug("layers.2.attention", "attend", f"{HIDDEN} {TOTAL} bitwise_not"),
            ],
        ),
        (
            "YaRN without its scale",
            "rotary constant",
            code("", "turns", ('0.1 * math.log(self.rope["factor"]) + 1', "1.0")),
            [
                Bug("", "turns", "polar full_like mul cos sin"),
                *layers("layers.#.attention", "rotate", f"{ROTATED} complex"),
            ],
        ),
        (
            "gate not clamped in layer 0",
            "clamp",
            code("layers.0.experts", "activate", ("gate.clamp(max=self.limit)", "gate")),
            [Bug("layers.0.experts", "activate", "mul sigmoid")],
        ),
        (
            "1 not added in layer 1",
            "missing step",
            code("layers.1.experts", "activate", ("(up + 1)", "up")),
            [Bug("layers.1.experts", "activate", "mul")],
        ),
        (
            "slope of the gate in layer 2",
            "activation",
            constant("layers.2.experts", "alpha", 1.0),
            [Bug("layers.2.experts", "activate", "mul sigmoid")],
        ),
        (
            "gate and up in turns in layer 0",
            "order of columns",
            experts_as_in_the_file,
            [
                Bug("layers.0.experts", "forward", f"{MIXED} {MOVED}"),
                Bug("layers.0.experts", "activate", "clamp mul sigmoid"),
            ],
        ),
        (
            "biases of the outputs of other experts in layer 3",
            "bias",
            weight("layers.3.experts.b_out", lambda x: x.roll(1, 0)),
            [Bug("layers.3.experts", "forward", MIXED)],
        ),
        (
            "softmax of all experts in layer 2",
            "routing",
            code(
                "layers.2.experts",
                "route",
                ("logits.topk(", "logits.softmax(-1).topk("),
                ("best.softmax(-1)", "best"),
            ),
            [
                Bug("layers.2.experts", "route", "_softmax topk scatter"),
                Bug("layers.2.experts", "forward", "mul"),
            ],
        ),
    ),
    **named(
        "nemotron",
        (
            "1 of the gain forgotten in layer 1",
            "scale of a weight",
            weight("layers.1.pre_attention.scale", lambda x: x - 1),
            [Bug("layers.1.pre_attention", "forward", MOMENTS)],
        ),
        (
            "variance is the mean of the squares in layer 2",
            "formula of a norm",
            code("layers.2.pre_mlp", "forward", ("squares - mean.square() + self.eps", "squares + self.eps")),
            [Bug("layers.2.pre_mlp", "forward", MOMENTS)],
        ),
        (
            "relu not squared in layer 0",
            "activation",
            code(
                "layers.0.mlp",
                "forward",
                ("torch.relu(x @ self.wi + self.wi_bias) ** 2", "torch.relu(x @ self.wi + self.wi_bias)"),
            ),
            [Bug("layers.0.mlp", "forward", f"relu {PRODUCT}")],
        ),
        (
            "squares before the relu in layer 3",
            "order of steps",
            code(
                "layers.3.mlp",
                "forward",
                ("torch.relu(x @ self.wi + self.wi_bias) ** 2", "torch.relu((x @ self.wi + self.wi_bias) ** 2)"),
            ),
            [Bug("layers.3.mlp", "forward", f"pow relu {PRODUCT}")],
        ),
        (
            "pairs turned in layer 1",
            "rotary layout",
            code(
                "layers.1.attention",
                "rotate",
                ("x[..., :turned].chunk(2, -1)", "x[..., :turned].unflatten(-1, (-1, 2)).unbind(-1)"),
            ),
            [Bug("layers.1.attention", "rotate", f"{ROTATED} {MOVED}")],
        ),
        (
            "third digit of the base of the table",
            "rotary constant",
            other_base,
            layers("layers.#.attention", "rotate", f"{ROTATED} {MOVED}"),
        ),
        (
            "scores divided by the size of the turned part in layer 2",
            "scale of the scores",
            code("layers.2.attention", "attend", ("/ self.size**0.5", "/ (self.size // 2) ** 0.5")),
            [Bug("layers.2.attention", "attend", f"div where _softmax {PRODUCT}")],
        ),
        (
            "queries of the groups in turns in layer 0",
            "groups of heads",
            code(
                "layers.0.attention",
                "forward",
                ("q.chunk(self.groups, 2)", "q.unflatten(2, (-1, self.groups)).unbind(3)"),
            ),
            [
                Bug("layers.0.attention", "attend", f"div {MIXED} {MOVED}"),
                Bug("layers.0.attention", "forward", f"{MOVED} cat"),
            ],
        ),
        (
            "groups joined backwards in layer 3",
            "order of heads",
            code("layers.3.attention", "forward", ("torch.cat(mixed, 2)", "torch.cat(mixed[::-1], 2)")),
            [Bug("layers.3.attention", "forward", f"cat {MIXED} {MOVED}")],
        ),
        (
            "tokens do not see themselves",
            "mask",
            code("", "forward", ("dtype=torch.bool))", "dtype=torch.bool), -1)")),
            [Bug("", "forward", "tril"), *layers("layers.#.attention", "attend", f"{HIDDEN} _softmax")],
        ),
        (
            "head tied",
            "tied weights",
            head_tied,
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "shares in bfloat16 in layer 2",
            "precision of a step",
            code(
                "layers.2.attention",
                "attend",
                (
                    "torch.where(mask, logits, HIDDEN_SCORE).softmax(-1)",
                    "torch.where(mask, logits, HIDDEN_SCORE).bfloat16().softmax(-1).to(q.dtype)",
                ),
            ),
            [Bug("layers.2.attention", "attend", "_to_copy _softmax")],
        ),
    ),
    **named(
        "granite",
        (
            "embeddings not multiplied",
            "embedding",
            weight("embed.weight", lambda x: x / 12),
            [
                Bug("embed", "forward", EMBED),
                Bug("layers.0", "norm", RMS_NORM),
                Bug("layers.0", "forward", "add"),
            ],
        ),
        (
            "second branch not multiplied in layer 1",
            "scale of a branch",
            code(
                "layers.1",
                "forward",
                ("self.feed(self.norm(1, x)), alpha=self.multiplier", "self.feed(self.norm(1, x))"),
            ),
            [Bug("layers.1", "forward", "add")],
        ),
        (
            "scores divided by the root of the size in layer 2",
            "scale of the scores",
            constant("layers.2", "scale", None),
            [Bug("layers.2", "attend", ATTEND)],
        ),
        (
            "logits not divided",
            "scale of a weight",
            weight("head.weight", lambda x: x * 8),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "gate and up one after the other in layer 3",
            "order of parts",
            code("layers.3", "feed", (".unflatten(-1, (-1, 2)).unbind(-1)", ".chunk(2, -1)")),
            [Bug("layers.3", "feed", f"silu mul {MOVED}"), Bug("layers.3.gate_up", "feed", PRODUCT)],
        ),
        (
            "query, key and value one after the other in layer 0",
            "order of parts",
            code(
                "layers.0",
                "attend",
                ("(self.groups, -1, self.size)", "(-1, self.size)"),
                (
                    "parts[..., :-2, :], parts[..., -2, :], parts[..., -1, :]",
                    "parts[..., :-4, :].unflatten(2, (self.groups, -1)), parts[..., -4:-2, :], parts[..., -2:, :]",
                ),
            ),
            [
                Bug("layers.0", "attend", f"{ATTEND} {MOVED}"),
                Bug("layers.0", "rotate", f"{ROTATED} roll"),
                Bug("layers.0.packed", "attend", PRODUCT),
            ],
        ),
        (
            "gains exchanged in layer 2",
            "weight of another layer",
            weight("layers.2.gains", lambda x: x.flip(0)),
            [Bug("layers.2", "norm", RMS_NORM)],
        ),
        (
            "residual of the norm in layer 0",
            "residual",
            code(
                "layers.0",
                "forward",
                (
                    "x = torch.add(x, self.attend(self.norm(0, x), cos, sin)",
                    "x = self.norm(0, x); x = torch.add(x, self.attend(x, cos, sin)",
                ),
            ),
            [Bug("layers.0", "forward", "add")],
        ),
        (
            "output transposed in layer 3",
            "transposed weight",
            weight("layers.3.merge.weight", lambda x: x.T),
            [Bug("layers.3.merge", "attend", PRODUCT)],
        ),
        (
            "later tokens seen in layer 2",
            "mask",
            code("layers.2", "attend", ("is_causal=True", "is_causal=False")),
            [Bug("layers.2", "attend", ATTEND)],
        ),
    ),
    **named(
        "dinov2",
        (
            "positions interpolated linearly",
            "interpolation",
            from_a("places", lambda a: interpolate(grid_of(a), (4, 4), mode="bilinear")[0].permute(1, 2, 0)),
            [Bug("", "embed", "add")],
        ),
        (
            "positions cut out",
            "position",
            from_a("places", lambda a: grid_of(a)[0, :, :4, :4].permute(1, 2, 0)),
            [Bug("", "embed", "add")],
        ),
        (
            "token without its position",
            "position",
            from_a("token", lambda a: a.get_parameter("dinov2.embeddings.cls_token")[0, 0]),
            [Bug("", "embed", "cat expand")],
        ),
        (
            "scale of the attention not folded in layer 1",
            "layer scale",
            scale_not_folded,
            [Bug("blocks.1.attn.proj", "forward", PRODUCT), Bug("blocks.1", "forward", "add")],
        ),
        (
            "scale of the other branch in layer 2",
            "layer scale",
            from_a("blocks.2.gamma", lambda a: a.get_parameter("dinov2.encoder.layer.2.layer_scale1.lambda1")),
            [Bug("blocks.2", "forward", "mul")],
        ),
        (
            "scale not folded into the bias in layer 0",
            "folded bias",
            from_a(
                "blocks.0.attn.proj.bias", lambda a: a.get_parameter("dinov2.encoder.layer.0.attention.o_proj.bias")
            ),
            [Bug("blocks.0.attn.proj", "forward", PRODUCT)],
        ),
        (
            "mean of the token and the patches",
            "pooling",
            code("", "forward", ("x[:, 1:].mean(1)", "x.mean(1)")),
            [Bug("", "forward", "mean cat"), Bug("head", "forward", PRODUCT)],
        ),
        (
            "eps of the second norm in layer 2",
            "eps",
            constant("blocks.2.norm2", "eps", 1e-3),
            [Bug("blocks.2.norm2", "forward", LAYER_NORM)],
        ),
        (
            "gelu for silu in layer 1",
            "activation",
            code("blocks.1.mlp", "forward", ("silu(x1)", "nn.functional.gelu(x1)")),
            [Bug("blocks.1.mlp", "forward", "gelu")],
        ),
    ),
    **named(
        "marian",
        (
            "exponents of the positions up to 1",
            "position",
            code(
                "",
                "positions",
                ("(-2 * math.log(10000.0) / width)", "(-math.log(10000.0) / (width // 2 - 1))"),
            ),
            [Bug("", "positions", "exp mul sin cos cat"), Bug("", "embed", "add")],
        ),
        (
            "sines and cosines in turns",
            "position",
            code(
                "",
                "positions",
                (
                    "torch.cat([angles.sin(), angles.cos()], -1)",
                    "torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)",
                ),
            ),
            [Bug("", "positions", f"cat stack {MOVED}"), Bug("", "embed", "add")],
        ),
        (
            "words not multiplied",
            "embedding",
            code("", "embed", ("words * math.sqrt(words.shape[-1]) +", "words +")),
            [Bug("", "embed", "add")],
        ),
        (
            "norm before the residual in layer 2 of the encoder",
            "order of norm and branch",
            code(
                "",
                "encoder_layer",
                (
                    'x = self.norm(f"{name}_self_Wo", x + self.attend(f"{name}_self", x, x, bias))',
                    (
                        'y = self.attend(f"{name}_self", x, x, bias); x = x + self.norm(f"{name}_self_Wo", y)'
                        ' if index == 3 else self.norm(f"{name}_self_Wo", x + y)'
                    ),
                ),
            ),
            [
                in_marian("encoder", 2, "norm", LAYER_NORM),
                in_marian("encoder", 2, "encoder_layer", "add"),
            ],
        ),
        (
            "relu for silu in layer 1 of the decoder",
            "activation",
            code("", "ffn", ("silu(self", '(torch.relu if name == "decoder_l2_ffn" else silu)(self')),
            [in_marian("decoder", 1, "ffn", "relu")],
        ),
        (
            "key and value of the text exchanged in layer 2 of the decoder",
            "order of parts",
            both(
                swapped("weights.decoder_l3_context_Wk", "weights.decoder_l3_context_Wv"),
                swapped("weights.decoder_l3_context_bk", "weights.decoder_l3_context_bv"),
            ),
            [in_marian("decoder", 2, "affine", PRODUCT), in_marian("decoder", 2, "attend", ATTEND)],
        ),
        (
            "no bias of the words",
            "bias",
            weight("weights.decoder_ff_logit_out_b", torch.zeros_like),
            [Bug("", "forward", "add")],
        ),
        (
            "decoder sees padding",
            "mask",
            code("", "decode", ("(later, bias)", "(later, bias * 0)")),
            [
                Bug("", "decode", "mul"),
                *(in_marian("decoder", layer, "attend", f"{ATTEND} baddbmm") for layer in range(4)),
            ],
        ),
        (
            "masks of the texts in turns",
            "mask",
            code("", "forward", (".repeat_interleave(self.heads, 0)", ".repeat(self.heads, 1)")),
            [
                Bug("", "forward", REPEATED),
                *(
                    in_marian(side, layer, "attend", f"{ATTEND} baddbmm")
                    for side in ("encoder", "decoder")
                    for layer in range(4)
                ),
            ],
        ),
        (
            "output transposed in layer 0 of the encoder",
            "transposed weight",
            weight("weights.encoder_l1_self_Wo", lambda x: x.T),
            [in_marian("encoder", 0, "affine", PRODUCT)],
        ),
        (
            "scale of the whole width in layer 1 of the encoder",
            "scale of the scores",
            code(
                "",
                "attend",
                ("1 / math.sqrt(q.shape[-1])", '1 / math.sqrt((x if name == "encoder_l2_self" else q).shape[-1])'),
            ),
            [in_marian("encoder", 1, "attend", f"{ATTEND} baddbmm")],
        ),
        (
            "norms exchanged in layer 3 of the decoder",
            "weight of another layer",
            both(
                swapped("weights.decoder_l4_self_Wo_ln_scale", "weights.decoder_l4_context_Wo_ln_scale"),
                swapped("weights.decoder_l4_self_Wo_ln_bias", "weights.decoder_l4_context_Wo_ln_bias"),
            ),
            [in_marian("decoder", 3, "norm", LAYER_NORM)],
        ),
    ),
    **named(
        "regnet",
        (
            "channels of the groups in turns in block 1",
            "convolution",
            code(
                "blocks.1.mix",
                "forward",
                (".unflatten(3, (self.groups, -1))", ".unflatten(3, (-1, self.groups)).transpose(3, 4)"),
            ),
            [Bug("blocks.1.mix", "forward", f"{MIXED} {MOVED}")],
        ),
        (
            "rows and columns of the kernel exchanged in block 0",
            "transposed weight",
            weight("blocks.0.mix.kernel", lambda x: x.unflatten(1, (-1, 3, 3)).transpose(2, 3).flatten(1, 3)),
            [Bug("blocks.0.mix", "forward", MIXED)],
        ),
        (
            "padded after the image in block 1",
            "padding",
            code("blocks.1.mix", "around", ("(0, 0, 1, 1, 1, 1)", "(0, 0, 0, 2, 0, 2)")),
            [
                Bug("blocks.1.mix", "around", "constant_pad_nd unfold"),
                Bug("blocks.1.mix", "forward", f"{MIXED} {MOVED}"),
            ],
        ),
        (
            "skip of the places between in block 1",
            "stride",
            code(
                "blocks.1",
                "skipped",
                (
                    "x[:, :: self.stride, :: self.stride]",
                    "x[:, self.stride - 1 :: self.stride, self.stride - 1 :: self.stride]",
                ),
            ),
            [Bug("blocks.1", "skipped", MOVED), Bug("blocks.1.skip", "skipped", PRODUCT)],
        ),
        (
            "no norm of the skip in block 0",
            "missing step",
            code(
                "blocks.0",
                "skipped",
                (
                    "self.skip_norm(self.skip(x[:, :: self.stride, :: self.stride]))",
                    "self.skip(x[:, :: self.stride, :: self.stride])",
                ),
            ),
            [Bug("blocks.0", "forward", "add")],
        ),
        (
            "shares after the last product in block 2",
            "order of steps",
            code(
                "blocks.2",
                "forward",
                ("self.norm3(self.leave(self.shares(y)))", "self.norm3(self.shares(self.leave(y)))"),
            ),
            [
                Bug("blocks.2.leave", "forward", PRODUCT),
                Bug("blocks.2.shares", "forward", "mean mul"),
                Bug("blocks.2.norm3", "forward", "mul"),
            ],
        ),
        (
            "eps of the second norm in block 2",
            "eps",
            norm_with(1e-3, 0.5),
            [Bug("blocks.2.norm2", "forward", "mul add")],
        ),
        (
            "root of the variance forgotten in block 2",
            "formula of a norm",
            norm_with(1e-5, 1.0),
            [Bug("blocks.2.norm2", "forward", "mul add")],
        ),
        (
            "no last activation in block 1",
            "missing step",
            code("blocks.1", "forward", ("relu(y + self.skipped(x))", "y + self.skipped(x)")),
            [
                Bug("blocks.1", "forward", "add"),
                Bug("blocks.2.enter", "forward", PRODUCT),
                Bug("blocks.2", "forward", "add"),
            ],
        ),
        (
            "mean not folded in the first norm",
            "folded bias",
            from_a("stem_norm.offset", lambda a: a.get_parameter("regnet.embedder.embedder.normalization.bias")),
            [Bug("stem_norm", "forward", "add")],
        ),
    ),
    **named(
        "siglip",
        (
            "first token of the texts",
            "pooling",
            code("", "embed_text", ("[:, -1]", "[:, 0]")),
            [Bug("", "embed_text", MOVED), Bug("text_out", "embed_text", PRODUCT)],
        ),
        (
            "gelu without tanh in layer 1 of the texts",
            "activation",
            code("text.blocks.1.mlp", "forward", ('approximate="tanh"', 'approximate="none"')),
            [Bug("text.blocks.1.mlp", "forward", "gelu")],
        ),
        (
            "residual of the norm in the pool",
            "residual",
            code(
                "pool",
                "forward",
                ("(y + self.mlp(self.norm(y)))", "((z := self.norm(y)) + self.mlp(z))"),
            ),
            [Bug("pool", "forward", "add")],
        ),
        (
            "logarithm of the temperature",
            "scale of a weight",
            from_a("temperature", lambda a: a.get_parameter("logit_scale")),
            [Bug("", "forward", "mul")],
        ),
        (
            "texts not of unit length",
            "missing step",
            code("", "forward", ("self.unit(self.embed_text(ids))", "self.embed_text(ids)")),
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "later tokens hidden in layer 0 of the texts",
            "mask",
            code(
                "text.blocks.0.attention",
                "forward",
                (
                    "k).softmax(-1)",
                    "k).add(torch.full((x.shape[1],) * 2, -torch.inf).triu(1)).softmax(-1)",
                ),
            ),
            [Bug("text.blocks.0.attention", "forward", "add triu full _softmax")],
        ),
        (
            "positions of the patches by columns",
            "position",
            weight("image.places", lambda x: x.unflatten(0, (4, 4)).transpose(0, 1).flatten(0, 1)),
            [Bug("image", "forward", "add")],
        ),
        (
            "patches by columns",
            "order of pixels",
            code("", "embed_image", ("x.flatten(2).mT", "x.mT.flatten(2).mT")),
            [Bug("", "embed_image", MOVED), Bug("image", "forward", "add")],
        ),
        (
            "bias of the query for the value in layer 2 of the images",
            "bias",
            weight("image.blocks.2.attention.offsets", rows(2, 3, of=0)),
            [Bug("image.blocks.2.attention", "forward", "add")],
        ),
        (
            "heads of the output of the pool",
            "order of heads",
            weight("pool.attention.out", lambda x: x.roll(1, 0)),
            [Bug("pool.attention", "forward", f"{MIXED} {MOVED}")],
        ),
        (
            "scale of the whole width in the pool",
            "scale of the scores",
            code("pool.attention", "forward", ("q.shape[-1] ** -0.5", "x.shape[-1] ** -0.5")),
            [Bug("pool.attention", "forward", f"_softmax {MIXED}")],
        ),
    ),
    **named(
        "qwen3_next",
        (
            "queries not scaled in layer 0",
            "scale of the scores",
            code("layers.0.mixer", "forward", ("q * self.size**-0.5", "q")),
            [
                Bug("layers.0.mixer", "scan", f"{MIXED} {MOVED}"),
                Bug("layers.0.mixer", "forward", f"mul {REPEATED}"),
            ],
        ),
        (
            "keys not of unit length in layer 2",
            "missing step",
            code(
                "layers.2.mixer",
                "forward",
                ("(self.unit(part).repeat", "((self.unit(part) if part is q else part).repeat"),
            ),
            [
                Bug("layers.2.mixer", "forward", f"{REPEATED} {MOVED}"),
                Bug("layers.2.mixer", "scan", f"{MIXED} {MOVED}"),
            ],
        ),
        (
            "held before the decay in layer 0",
            "state",
            code(
                "layers.0.mixer",
                "scan",
                (
                    "state = state * kept[:, index, :, None, None]",
                    "before, state = state, state * kept[:, index, :, None, None]",
                ),
                ("state, k[:, index])", "before, k[:, index])"),
            ),
            [Bug("layers.0.mixer", "scan", f"sub {MIXED} {MOVED}")],
        ),
        (
            "what is held not subtracted in layer 2",
            "state",
            code("layers.2.mixer", "scan", ("(v[:, index] - held)", "v[:, index]")),
            [Bug("layers.2.mixer", "scan", f"sub {MIXED} {MOVED}")],
        ),
        (
            "strength without its sigmoid in layer 2",
            "missing step",
            code("layers.2.mixer", "forward", ("self.strength(x).sigmoid()", "self.strength(x)")),
            [Bug("layers.2.mixer", "scan", f"{MIXED} {MOVED}"), Bug("layers.2.mixer", "forward", MOVED)],
        ),
        (
            "logarithm of the rate in layer 0",
            "scale of a weight",
            weight("layers.0.mixer.rate", torch.log),
            [Bug("layers.0.mixer", "forward", "neg mul exp")],
        ),
        (
            "gate before the norm in layer 2",
            "order of norm and branch",
            code("layers.2.mixer", "forward", ("self.normalize(y) * silu(gate)", "self.normalize(y * silu(gate))")),
            [Bug("layers.2.mixer", "normalize", MOMENTS), Bug("layers.2.mixer", "forward", "mul")],
        ),
        (
            "keys of the groups in turns in layer 2",
            "groups of heads",
            code(
                "layers.2.mixer",
                "forward",
                (
                    ".repeat_interleave(self.heads // part.shape[2], 2)",
                    ".repeat(1, 1, self.heads // part.shape[2], 1)",
                ),
            ),
            [
                Bug("layers.2.mixer", "forward", f"{REPEATED} {MOVED} mul"),
                Bug("layers.2.mixer", "scan", f"{MIXED} {MOVED}"),
            ],
        ),
        (
            "attention without its gate in layer 1",
            "missing step",
            code("layers.1.mixer", "forward", ("(mixed * gate.sigmoid()).flatten(2)", "mixed.flatten(2)")),
            [Bug("layers.1.mixer.leave", "forward", PRODUCT), Bug("layers.1.mixer", "forward", MOVED)],
        ),
        (
            "query and gate exchanged in layer 3",
            "order of parts",
            code("layers.3.mixer", "forward", ("q, gate, k, v =", "gate, q, k, v =")),
            [
                Bug("layers.3.mixer", "normed", RMS_NORM),
                Bug("layers.3.mixer", "forward", f"sigmoid mul {MOVED}"),
                Bug("layers.3.mixer.enter", "forward", PRODUCT),
            ],
        ),
        (
            "shared expert without its gate in layer 3",
            "missing step",
            code("layers.3.experts", "shared", (" * (rows @ self.shared_gate).sigmoid()[:, None]", "")),
            [Bug("layers.3.experts", "forward", "add")],
        ),
        (
            "shares not normalized in layer 1",
            "routing",
            code("layers.1.experts", "route", ("shares / shares.sum(-1, keepdim=True)", "shares")),
            [Bug("layers.1.experts", "route", "_softmax topk"), Bug("layers.1.experts", "forward", f"mul {MOVED}")],
        ),
    ),
    **named(
        "parakeet",
        (
            "whole first perceptron added in layer 1",
            "scale of a branch",
            both(
                weight("blocks.1.before.down.weight", lambda x: x * 2),
                weight("blocks.1.before.down.bias", lambda x: x * 2),
            ),
            [Bug("blocks.1.before.down", "forward", PRODUCT), Bug("blocks.1.before", "forward", "add")],
        ),
        (
            "highest distance first",
            "relative positions",
            code("", "waves", ("torch.arange(1 - length, length)", "torch.arange(length - 1, -length, -1)")),
            [
                Bug("", "waves", f"arange mul sin cos stack {MOVED}"),
                *layers("blocks.#.attention.far", "scores", PRODUCT),
                *layers("blocks.#.attention", "scores", f"index {MIXED} {MOVED}"),
            ],
        ),
        (
            "bias of the words for the distances in layer 2",
            "operand",
            code("blocks.2.attention", "scores", ("q + self.place", "q + self.content")),
            [Bug("blocks.2.attention", "scores", f"{MIXED} {MOVED}")],
        ),
        (
            "no bias of the words in layer 0",
            "bias",
            code("blocks.0.attention", "scores", ("q + self.content", "q")),
            [Bug("blocks.0.attention", "scores", f"{MIXED} {MOVED}")],
        ),
        (
            "scores of the distances not scaled in layer 3",
            "scale of the scores",
            code(
                "blocks.3.attention",
                "scores",
                (
                    'return (words + torch.einsum("bihd,ijhd->bhij", q + self.place, far)) * q.shape[-1] ** -0.5',
                    'return words * q.shape[-1] ** -0.5 + torch.einsum("bihd,ijhd->bhij", q + self.place, far)',
                ),
            ),
            [Bug("blocks.3.attention", "scores", MIXED)],
        ),
        (
            "value and gate exchanged in layer 1",
            "order of parts",
            code("blocks.1.convolution", "forward", ("value, gate =", "gate, value =")),
            [Bug("blocks.1.convolution", "forward", "sigmoid mul")],
        ),
        (
            "kernel backwards in layer 2",
            "convolution",
            weight("blocks.2.convolution.kernel", lambda x: x.flip(2)),
            [Bug("blocks.2.convolution", "forward", "convolution")],
        ),
        (
            "convolution of earlier frames only in layer 0",
            "padding",
            code(
                "blocks.0.convolution",
                "forward",
                ("conv1d(y.mT, self", "conv1d(nn.functional.pad(y.mT, (self.kernel.shape[-1] - 1, 0)), self"),
                (" padding=self.kernel.shape[-1] // 2,", ""),
            ),
            [Bug("blocks.0.convolution", "forward", "constant_pad_nd convolution")],
        ),
        (
            "batch norm not folded in layer 3",
            "missing step",
            batch_norm_not_folded,
            [Bug("blocks.3.convolution", "forward", "convolution silu")],
        ),
        (
            "columns of the entry by channel",
            "order of columns",
            from_a("subsampling.leave.weight", by_channel),
            [Bug("subsampling.leave", "forward", PRODUCT), Bug("subsampling", "forward", MOVED)],
        ),
        (
            "frames and bins of the first kernel exchanged",
            "transposed weight",
            weight("subsampling.first", lambda x: x.transpose(0, 1)),
            [Bug("subsampling", "convolve", "convolution")],
        ),
        (
            "entry not scaled",
            "embedding",
            both(
                weight("subsampling.leave.weight", lambda x: x / 8),
                weight("subsampling.leave.bias", lambda x: x / 8),
            ),
            [
                Bug("subsampling.leave", "forward", PRODUCT),
                Bug("blocks.0.before.norm", "forward", LAYER_NORM),
                Bug("blocks.0.before", "forward", "add"),
            ],
        ),
        (
            "last norm before the second perceptron in layer 1",
            "order of norm and branch",
            code("blocks.1", "forward", ("self.norm(self.after(x))", "self.after(self.norm(x))")),
            [
                Bug("blocks.1.norm", "forward", LAYER_NORM),
                Bug("blocks.1.after.norm", "forward", LAYER_NORM),
                Bug("blocks.1.after", "forward", "add"),
            ],
        ),
    ),
}

OLD: dict[str, PortingBug] = {
    **named(
        "llama",
        (
            "1 added to the gain in layer 2",
            "extra step",
            code("blocks.2.norm1", "forward", ("* self.gain, x", "* (1 + self.gain), x")),
            [Bug("blocks.2.norm1", "forward", "add mul")],
        ),
        (
            "values rotated in layer 3",
            "extra step",
            code(
                "blocks.3.attention",
                "forward",
                (
                    "q, k = self.rotate(q, turns), self.rotate(k, turns)",
                    "q, k, v = (self.rotate(part, turns) for part in (q, k, v))",
                ),
            ),
            [
                Bug("blocks.3.attention", "rotate", f"{MOVED} mul view_as_complex view_as_real"),
                Bug("blocks.3.attention", "forward", f"{ATTEND} {REPEATED} {MOVED}"),
            ],
        ),
    ),
    **named(
        "bert",
        (
            "words multiplied",
            "extra step",
            code("embed", "forward", ("self.word(ids) +", "self.word(ids) * 8.0 +")),
            [Bug("embed", "forward", "mul add")],
        ),
        (
            "no bias of the pooler",
            "bias",
            weight("pooler.bias", torch.zeros_like),
            [Bug("pooler", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gpt2",
        (
            "no residual of the attention in layer 3",
            "residual",
            code("blocks.3", "forward", ("x = x + self.attend(self.before(x))", "x = self.attend(self.before(x))")),
            [Bug("blocks.3.between", "forward", LAYER_NORM), Bug("blocks.3", "forward", "add")],
        ),
        (
            "positions in bfloat16",
            "precision of a table",
            weight("positions", bfloat16),
            [Bug("", "forward", "add")],
        ),
    ),
    **named(
        "qwen2",
        (
            "scores divided by the size in layer 1",
            "scale of the scores",
            code("stack.1", "attend", ("scores / self.width**0.5", "scores / self.width")),
            [Bug("stack.1", "attend", f"div {HIDDEN} _softmax")],
        ),
        (
            "gain of the first norm for the second in layer 2",
            "weight of another layer",
            taken("stack.2.post.weight", "stack.2.pre.weight"),
            [Bug("stack.2.post", "forward", "mul")],
        ),
        (
            "mask transposed in layer 0",
            "mask",
            code(
                "stack.0",
                "attend",
                (
                    "scores = scores.masked_fill(hidden, -torch.inf)",
                    "scores = scores.masked_fill(hidden.T, -torch.inf)",
                ),
            ),
            [Bug("stack.0", "attend", f"{HIDDEN} _softmax {MOVED}")],
        ),
    ),
    **named(
        "gpt_neox",
        (
            "no bias of the first product in layer 2",
            "bias",
            weight("blocks.2.up.bias", torch.zeros_like),
            [Bug("blocks.2.up", "forward", PRODUCT)],
        ),
        (
            "residual of the norm in layer 1",
            "residual",
            code("blocks.1", "forward", ("return x + attended", "return normed + attended")),
            [Bug("blocks.1", "forward", "add")],
        ),
        (
            "cosines and sines in bfloat16 in layer 2",
            "precision of a step",
            code(
                "blocks.2.attention.rotary",
                "forward",
                ("angles.cos(), angles.sin()", "(y.bfloat16().to(x.dtype) for y in (angles.cos(), angles.sin()))"),
            ),
            [Bug("blocks.2.attention.rotary", "forward", f"_to_copy {ROTATED}")],
        ),
    ),
    **named(
        "gemma",
        (
            "eps of the first norm in layer 1",
            "eps",
            constant("layers.1.norm_a", "eps", 1e-3),
            [Bug("layers.1.norm_a", "forward", RMS_NORM)],
        ),
        (
            "key of the first group for both in layer 2",
            "groups of heads",
            weight("layers.2.attention.wkv.weight", rows(16, 32, of=0)),
            [Bug("layers.2.attention.wkv", "forward", PRODUCT)],
        ),
    ),
    **named(
        "falcon",
        (
            "no bias of the last norm",
            "bias",
            weight("norm.bias", torch.zeros_like),
            [Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "output of another layer in layer 2",
            "weight of another layer",
            taken("blocks.2.leave.weight", "blocks.1.leave.weight"),
            [Bug("blocks.2.leave", "forward", PRODUCT)],
        ),
    ),
    **named(
        "mistral",
        (
            "window one too small in layer 1",
            "mask",
            code("layers.1", "attend", ("(distance < window)", "(distance < window - 1)")),
            [Bug("layers.1", "attend", f"lt bitwise_and {HIDDEN} _softmax")],
        ),
        (
            "gelu for silu in layer 3",
            "activation",
            code("layers.3", "forward", ("silu(gate)", "torch.nn.functional.gelu(gate)")),
            [Bug("layers.3", "forward", "gelu")],
        ),
    ),
    **named(
        "mixtral",
        (
            "no residual of the experts in layer 3",
            "residual",
            code("layers.3", "forward", ("return x + self.mixture", "return self.mixture")),
            [Bug("norm", "forward", RMS_NORM), Bug("layers.3", "forward", "add")],
        ),
        (
            "relu for silu in one expert of layer 0",
            "activation",
            constant("layers.0.mixture.experts.1", "activation", torch.relu),
            [Bug("layers.0.mixture.experts.1", "forward", "relu")],
        ),
    ),
    **named(
        "t5",
        (
            "a quarter of the distances is exact",
            "relative positions",
            code("encoder", "bucket", ("exact = count // 2", "exact = count // 4")),
            [
                Bug("encoder", "bias", "index lift_fresh _to_copy"),
                *layers("encoder.layers.#.attention", "forward", "add"),
            ],
        ),
        (
            "norm of another layer before the text in layer 2",
            "weight of another layer",
            taken("decoder.layers.2.norms.1.weight", "decoder.layers.1.norms.1.weight"),
            [Bug("decoder.layers.2.norms.1", "forward", RMS_NORM)],
        ),
    ),
    **named(
        "whisper",
        (
            "highest bin first",
            "order of channels",
            weight("encoder.first.weight", lambda x: x.flip(1)),
            [Bug("encoder.first", "forward", "convolution")],
        ),
        (
            "no bias of the values of the sound in layer 2",
            "bias",
            weight("blocks.2.cross.key_value.bias", torch.zeros_like),
            [Bug("blocks.2.cross.key_value", "forward", PRODUCT)],
        ),
    ),
    **named(
        "vit",
        (
            "eps of the last norm",
            "eps",
            constant("norm", "eps", 1e-3),
            [Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "positions by columns",
            "position",
            weight(
                "places",
                lambda x: torch.cat([x[:1], x[1:].unflatten(0, (4, 4)).transpose(0, 1).flatten(0, 1)]),
            ),
            [Bug("", "forward", "add")],
        ),
    ),
    **named(
        "clip",
        (
            "no positions",
            "missing step",
            code("", "forward", ("self.token(ids) + self.position[: ids.shape[1]]", "self.token(ids)")),
            [Bug("blocks.0.ln_1", "forward", LAYER_NORM), Bug("blocks.0", "forward", "add")],
        ),
        (
            "bias of another layer in layer 3",
            "weight of another layer",
            taken("blocks.3.c_proj.bias", "blocks.2.c_proj.bias"),
            [Bug("blocks.3.c_proj", "forward", PRODUCT)],
        ),
    ),
    **named(
        "resnet",
        (
            "no last activation in block 1",
            "missing step",
            code("blocks.1", "forward", ("else relu(y + skipped)", "else y + skipped")),
            [
                Bug("blocks.1", "forward", "add"),
                Bug("blocks.2.first", "forward", "convolution"),
                Bug("blocks.2", "forward", "add"),
            ],
        ),
        (
            "one kernel of the stem twice",
            "one row of a weight",
            weight("stem.weight", rows(2, 3, of=5)),
            [Bug("stem", "forward", "convolution")],
        ),
    ),
    **named(
        "mamba",
        (
            "steps of another layer in layer 3",
            "weight of another layer",
            taken("mixers.3.to_step.weight", "mixers.2.to_step.weight"),
            [Bug("mixers.3.to_step", "forward", PRODUCT)],
        ),
        (
            "skip of the gate in layer 1",
            "operand",
            code("mixers.1", "forward", ("self.skip * x", "self.skip * gate")),
            [Bug("mixers.1", "forward", "mul")],
        ),
    ),
    **named(
        "gptj",
        (
            "eps of the last norm",
            "eps",
            constant("last", "eps", 1e-3),
            [Bug("last", "forward", LAYER_NORM)],
        ),
        (
            "no norm before the second branch in layer 1",
            "missing step",
            code("blocks.1", "forward", ("self.mlp(normed)", "self.mlp(x)")),
            [Bug("blocks.1.mlp.fc", "forward", PRODUCT)],
        ),
    ),
    **named(
        "opt",
        (
            "no bias of the query in layer 2",
            "bias",
            weight("blocks.2.attn.b_Q", torch.zeros_like),
            [Bug("blocks.2.attn", "forward", PRODUCT)],
        ),
        (
            "output in bfloat16 in layer 0",
            "precision of a weight",
            weight("blocks.0.attn.W_O", bfloat16),
            [Bug("blocks.0.attn", "forward", MIXED)],
        ),
    ),
    **named(
        "bloom",
        (
            "scores not scaled in layer 1",
            "scale of the scores",
            code("blocks.1.attn", "forward", ("attn_mask=bias", "attn_mask=bias, scale=1.0")),
            [Bug("blocks.1.attn", "forward", ATTEND)],
        ),
        (
            "norms exchanged in layer 3",
            "weight of another layer",
            exchanged("blocks.3.norm_1", "blocks.3.norm_2"),
            [Bug("blocks.3.norm_1", "forward", LAYER_NORM), Bug("blocks.3.norm_2", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "qwen3_moe",
        (
            "activation of the other product in layer 2",
            "operand",
            code("layers.2.ffn", "forward", ("silu(gate) * up", "gate * silu(up)")),
            [Bug("layers.2.ffn", "forward", "silu mul")],
        ),
        (
            "router of another layer in layer 3",
            "weight of another layer",
            taken("layers.3.ffn.router.weight", "layers.2.ffn.router.weight"),
            [Bug("layers.3.ffn.router", "shares", PRODUCT)],
        ),
        (
            "shares of the probabilities of all tokens in layer 1",
            "softmax",
            code("layers.1.ffn", "shares", (".softmax(-1)", ".softmax(1)")),
            [Bug("layers.1.ffn", "shares", "_softmax")],
        ),
    ),
    **named(
        "roberta",
        (
            "no activation in the head",
            "missing step",
            code("head", "forward", ("gelu(self.transform(x))", "self.transform(x)")),
            [Bug("head.norm", "forward", MOMENTS)],
        ),
        (
            "no bias of the output in layer 3",
            "bias",
            weight("layers.3.attention.out_proj.bias", torch.zeros_like),
            [Bug("layers.3.attention.out_proj", "forward", f"convolution {PRODUCT}")],
        ),
    ),
    **named(
        "gemma2",
        (
            "norms after the branches exchanged in layer 2",
            "weight of another layer",
            lambda _, b: swap_gains(b, 2),
            [in_gemma2(2, "norm", "mul add")],
        ),
        (
            "keys of the groups exchanged in layer 3",
            "order of heads",
            part("params.kv", 3, lambda x: torch.stack([x[0].flip(0), x[1]])),
            [in_gemma2(3, "attention", MIXED)],
        ),
    ),
    **named(
        "albert",
        (
            "no bias of the wider words",
            "bias",
            weight("weights.widen_b", torch.zeros_like),
            [Bug("", "apply_linear", PRODUCT)],
        ),
        (
            "no residual of the attention",
            "residual",
            code("", "layer", ("x + self.attend(group, x, mask)", "self.attend(group, x, mask)")),
            [Bug("", "normalize", LAYER_NORM), Bug("", "layer", "add")],
        ),
    ),
    **named(
        "bart",
        (
            "positions of both sides exchanged",
            "position",
            swapped("encoder.places", "decoder.places"),
            [Bug("encoder", "forward", "add"), Bug("decoder", "forward", "add")],
        ),
        (
            "norm before the residual in layer 1 of the decoder",
            "order of norm and branch",
            code(
                "decoder.layers.1",
                "decode",
                ("self.norm_a(x + self.attention(", "x + self.norm_a(self.attention("),
            ),
            [
                Bug("decoder.layers.1.norm_a", "decode", LAYER_NORM),
                Bug("decoder.layers.1", "decode", "add"),
            ],
        ),
    ),
    **named(
        "convnext",
        (
            "no norm of the stem",
            "missing step",
            code(
                "",
                "forward",
                ("self.stem_norm(self.stem(pixels.permute(0, 2, 3, 1)))", "self.stem(pixels.permute(0, 2, 3, 1))"),
            ),
            [Bug("stages.0.0", "mix", f"convolution {MOVED}"), Bug("stages.0.0", "forward", "add")],
        ),
        (
            "bias of another block in stage 1",
            "weight of another layer",
            taken("stages.1.1.shrink.bias", "stages.1.0.shrink.bias"),
            [Bug("stages.1.1.shrink", "forward", PRODUCT)],
        ),
    ),
    **named(
        "deepseek_v3",
        (
            "shared expert scaled in layer 2",
            "scale of a branch",
            code("layers.2.mlp", "forward", ("+ self.shared(x)", "+ self.shared(x) * self.factor")),
            [Bug("layers.2.mlp", "forward", "mul add")],
        ),
        (
            "queries not normalized in layer 3",
            "missing step",
            code("layers.3.attention", "forward", ("self.queries(self.norm_q(q))", "self.queries(q)")),
            [Bug("layers.3.attention.queries", "forward", PRODUCT)],
        ),
        (
            "preference subtracted in layer 1",
            "routing",
            code("layers.1.mlp", "route", ("scores + self.preference", "scores - self.preference")),
            [Bug("layers.1.mlp", "route", "sub topk scatter gather masked_fill")],
        ),
    ),
    **named(
        "swin",
        (
            "no biases of positions in layer 0",
            "relative positions",
            code("layers.0.attention", "forward", ("bias = self.bias()", "bias = torch.zeros_like(self.bias())")),
            [Bug("layers.0.attention", "forward", f"{ATTEND} zeros_like expand")],
        ),
        (
            "first norm for both branches in layer 3",
            "operand",
            code("layers.3", "forward", ("self.up(self.between(x))", "self.up(self.before(x))")),
            [
                Bug("layers.3.before@1", "forward", LAYER_NORM),
                Bug("layers.3.before", "forward", LAYER_NORM),
                Bug("layers.3.up", "forward", PRODUCT),
            ],
        ),
    ),
    **named(
        "wav2vec2",
        (
            "positions after the norm",
            "order of norm and branch",
            code("", "forward", ("self.norm(x + self.positions(x))", "self.norm(x) + self.positions(x)")),
            [Bug("norm", "forward", LAYER_NORM), Bug("", "forward", "add")],
        ),
        (
            "scores not scaled in layer 1",
            "scale of the scores",
            code("layers.1.attention", "forward", (' * (width if self.bug == "scale" else size) ** -0.5', "")),
            [Bug("layers.1.attention", "forward", "mul bmm _softmax clone view transpose")],
        ),
    ),
    **named(
        "cohere",
        (
            "branches joined in the wrong order in layer 2",
            "order of parts",
            code(
                "blocks.2",
                "forward",
                (
                    "[self.attend((*parts,), angles, seen), hidden]",
                    "[hidden, self.attend((*parts,), angles, seen)]",
                ),
            ),
            [Bug("blocks.2", "forward", f"cat {PRODUCT}")],
        ),
        (
            "next token seen",
            "mask",
            code("", "seen", ("places[:, None] >= places", "places[:, None] >= places - 1")),
            [Bug("", "seen", "ge sub bitwise_and"), *layers("blocks.#", "attend", ATTEND)],
        ),
    ),
    **named(
        "olmo2",
        (
            "norm before the attention in layer 1",
            "order of norm and branch",
            code(
                "",
                "layer",
                (
                    'self.norm(self.attention(index, x, cos, sin), self.params["attention_gain"][index])',
                    (
                        '(self.attention(index, self.norm(x, self.params["attention_gain"][index]), cos, sin)'
                        " if index == 1 else self.norm(self.attention(index, x, cos, sin),"
                        ' self.params["attention_gain"][index]))'
                    ),
                ),
            ),
            [
                in_olmo2(1, "norm", MOMENTS),
                in_olmo2(1, "attention", MIXED),
                in_olmo2(1, "layer", "add"),
                in_olmo2(0, "norm", MOMENTS),  # of the output of layer 0
            ],
        ),
        (
            "values of the groups exchanged in layer 0",
            "order of heads",
            part("params.value", 0, lambda x: x.flip(1)),
            [in_olmo2(0, "attention", MIXED)],
        ),
    ),
    **named(
        "deberta_v2",
        (
            "no bias of the first product in layer 2",
            "bias",
            weight("layers.2.up.bias", torch.zeros_like),
            [Bug("layers.2.up", "forward", PRODUCT)],
        ),
        (
            "distances one too low",
            "relative positions",
            code("", "bucket", ("self.buckets + (", "self.buckets - 1 + (")),
            [Bug("", "distances", "lift_fresh"), *layers("layers.#.attention", "scores", f"index {MIXED}")],
        ),
    ),
    **named(
        "mamba2",
        (
            "one group of the norm in layer 2",
            "formula of a norm",
            constant("mixers.2", "bug", "one group"),
            [Bug("mixers.2", "normalize", f"{MOMENTS} {MOVED}")],
        ),
        (
            "steps of other heads in layer 1",
            "order of heads",
            weight("mixers.1.dt.weight", lambda x: x.roll(1, 0)),
            [Bug("mixers.1.dt", "forward", PRODUCT)],
        ),
    ),
    **named(
        "efficientnet",
        (
            "no last activation",
            "missing step",
            code(
                "",
                "forward",
                ("x = silu(self.top(self.blocks(self.stem(pixels))))", "x = self.top(self.blocks(self.stem(pixels)))"),
            ),
            [Bug("", "forward", "mean"), Bug("head", "forward", PRODUCT)],
        ),
        (
            "no bias of the squeeze in block 2",
            "bias",
            weight("blocks.2.squeeze.shrink.bias", torch.zeros_like),
            [Bug("blocks.2.squeeze.shrink", "forward", PRODUCT)],
        ),
    ),
    **named(
        "segformer",
        (
            "no bias of the kernels in the second block of stage 1",
            "bias",
            weight("stages.1.blocks.1.offset", torch.zeros_like),
            [Bug("stages.1.blocks.1", "spread", "convolution")],
        ),
        (
            "no last norm of stage 1",
            "missing step",
            code(
                "stages.1", "forward", ("self.norm_out(self.blocks(self.norm_in(x)))", "self.blocks(self.norm_in(x))")
            ),
            [Bug("heads.1", "forward", PRODUCT), Bug("stages.2.patches", "forward", "convolution")],
        ),
    ),
    **named(
        "rwkv",
        (
            "squares before the clamp in layer 2",
            "order of steps",
            code("blocks.2.channels", "forward", ("k.clamp(min=0) ** 2", "(k**2).clamp(min=0)")),
            [
                Bug("blocks.2.channels", "forward", "pow clamp clamp_min"),
                Bug("blocks.2.channels.value", "forward", PRODUCT),
            ],
        ),
        (
            "nothing of the last token in layer 3",
            "order of columns",
            weight("blocks.3.channels.kr.weight", zero_columns(64)),
            [Bug("blocks.3.channels.kr", "forward", PRODUCT)],
        ),
    ),
}

BUGS: dict[str, PortingBug] = NEW | OLD

PAIRS: tuple[tuple[str, str], ...] = tuple(
    (f"{port}: {first}", f"{port}: {second}")  # bugs of different layers
    for port, first, second in (
        ("gpt_oss", "gate not clamped in layer 0", "window one too wide in layer 2"),
        ("gpt_oss", "no sinks in layer 1", "biases of the outputs of other experts in layer 3"),
        ("nemotron", "queries of the groups in turns in layer 0", "variance is the mean of the squares in layer 2"),
        ("nemotron", "1 of the gain forgotten in layer 1", "squares before the relu in layer 3"),
        ("granite", "residual of the norm in layer 0", "later tokens seen in layer 2"),
        ("granite", "second branch not multiplied in layer 1", "output transposed in layer 3"),
        ("dinov2", "positions cut out", "scale of the other branch in layer 2"),
        ("dinov2", "gelu for silu in layer 1", "mean of the token and the patches"),
        ("marian", "scale of the whole width in layer 1 of the encoder", "relu for silu in layer 1 of the decoder"),
        ("marian", "words not multiplied", "no bias of the words"),
        ("regnet", "no norm of the skip in block 0", "eps of the second norm in block 2"),
        ("regnet", "mean not folded in the first norm", "skip of the places between in block 1"),
        ("siglip", "gelu without tanh in layer 1 of the texts", "heads of the output of the pool"),
        ("siglip", "patches by columns", "first token of the texts"),
        ("qwen3_next", "held before the decay in layer 0", "shared expert without its gate in layer 3"),
        ("qwen3_next", "shares not normalized in layer 1", "gate before the norm in layer 2"),
        ("parakeet", "value and gate exchanged in layer 1", "scores of the distances not scaled in layer 3"),
        ("parakeet", "no bias of the words in layer 0", "kernel backwards in layer 2"),
        ("gpt_neox", "residual of the norm in layer 1", "cosines and sines in bfloat16 in layer 2"),
        ("qwen3_moe", "shares of the probabilities of all tokens in layer 1", "router of another layer in layer 3"),
        ("deepseek_v3", "preference subtracted in layer 1", "queries not normalized in layer 3"),
        ("convnext", "no norm of the stem", "bias of another block in stage 1"),
        ("swin", "no biases of positions in layer 0", "first norm for both branches in layer 3"),
        ("mamba2", "steps of other heads in layer 1", "one group of the norm in layer 2"),
        ("clip", "no positions", "bias of another layer in layer 3"),
        ("bart", "positions of both sides exchanged", "norm before the residual in layer 1 of the decoder"),
        ("olmo2", "values of the groups exchanged in layer 0", "norm before the attention in layer 1"),
    )
)
