"""A seventh set of porting bugs, made for pairs, by someone who had not read how `align` finds bugs.

They were written before `align` ran on any of them, in other places than those of the sets before. Most pairs have one
bug that changes much and one that changes little, in either order; some are in adjacent layers or in one layer.

Places that are right to name: where a weight is wrong, the operation that reads it; where a step is missing, is done
twice or at another time, the operation that makes the wrong result, or the first one that reads it where A has the
result without the step; where elements are in another order, what moves them and the first operation to which it
matters; where a value is rounded, what rounds it and what reads it; where a table or a mask is wrong, what makes it and
what reads it in each layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..models.ports import Bug
from .porting import (
    ATTEND,
    EMBED,
    LAYER_NORM,
    PRODUCT,
    RMS_NORM,
    PortingBug,
    bfloat16,
    both,
    code,
    constant,
    named,
    rows,
    taken,
    turned,
    weight,
)
from .porting_heldout6 import (
    MIXED,
    MOMENTS,
    MOVED,
    ROTATED,
    ROUNDED,
    in_gemma2,
    in_marian,
    in_olmo2,
    part,
)


def two_heads(parameter: Tensor) -> Tensor:
    """Exchange the first two heads of 16 rows."""
    return torch.cat([parameter[16:32], parameter[:16], parameter[32:]])


def values_of_first_group(parameter: Tensor) -> Tensor:
    """Give the last 16 columns of the values, from 96 to 128, the weights of the first ones."""
    parameter[:, 112:128] = parameter[:, 96:112].clone()
    return parameter


def gain_of_mlp(_: nn.Module, b: nn.Module) -> None:
    b.get_parameter("params.attention_gain").data[1] = b.get_parameter("params.mlp_gain").data[1]


BUGS: dict[str, PortingBug] = {
    **named(
        "llama",
        (
            "words of the next row",
            "row of a weight",
            weight("tokens.weight", lambda x: x.roll(1, 0)),
            [Bug("tokens", "forward", EMBED)],
        ),
        (
            "eps of the second norm in layer 1",
            "eps",
            constant("blocks.1.norm2", "eps", 1e-3),
            [Bug("blocks.1.norm2", "forward", MOMENTS)],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("norm", "eps", 1e-3),
            [Bug("norm", "forward", MOMENTS)],
        ),
    ),
    **named(
        "bert",
        (
            "positions backwards",
            "position",
            code("embed", "forward", ("torch.arange(ids.shape[1])", "torch.arange(ids.shape[1]).flip(0)")),
            [Bug("embed", "forward", "flip arange add"), Bug("embed.position", "forward", EMBED)],
        ),
        (
            "columns of the second weight one place late in layer 3",
            "column of a weight",
            weight("encoder.layers.3.linear2.weight", lambda x: x.roll(1, 1)),
            [Bug("encoder.layers.3.linear2", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gpt2",
        (
            "positions added twice",
            "step done twice",
            code("", "forward", ("self.positions[:", "2 * self.positions[:")),
            [Bug("", "forward", "mul add")],
        ),
        (
            "bias of the value for the output in layer 1",
            "bias of another layer",
            taken("blocks.1.o.bias", "blocks.1.v.bias"),
            [Bug("blocks.1.o", "attend", PRODUCT)],
        ),
        (
            "bias of the value for the query in layer 3",
            "bias of another layer",
            taken("blocks.3.q.bias", "blocks.3.v.bias"),
            [Bug("blocks.3.q", "attend", PRODUCT)],
        ),
    ),
    **named(
        "qwen2",
        (
            "heads of the query exchanged in layer 0",
            "order of heads",
            both(weight("stack.0.packed.weight", two_heads), weight("stack.0.packed.bias", two_heads)),
            [
                Bug("stack.0.packed", "attend", PRODUCT),
                Bug("stack.0", "attend", f"{ATTEND} {MOVED}"),
                Bug("stack.0", "turn", f"{ROTATED} {MOVED}"),
            ],
        ),
        (
            "activation twice in layer 1",
            "step done twice",
            code("stack.1", "transform", ("up * silu(gate)", "up * silu(silu(gate))")),
            [Bug("stack.1", "transform", "silu mul")],
        ),
    ),
    **named(
        "gemma",
        (
            "values of the other group in layer 1",
            "order of heads",
            weight("layers.1.attention.wkv.weight", turned(32, 64, 16)),
            [Bug("layers.1.attention.wkv", "forward", PRODUCT), Bug("layers.1.attention", "forward", ATTEND)],
        ),
        (
            "gelu without tanh in layer 1",
            "activation",
            constant("layers.1", "approximation", "none"),
            [Bug("layers.1", "forward", "gelu")],
        ),
        (
            "heads of the output permuted in layer 2",
            "order of heads",
            weight("layers.2.attention.wo.weight", lambda x: x.roll(16, 1)),
            [Bug("layers.2.attention.wo", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gpt_neox",
        (
            "bias of the other norm in layer 0",
            "bias of another layer",
            taken("blocks.0.norm_a.bias", "blocks.0.norm_m.bias"),
            [Bug("blocks.0.norm_a", "forward", LAYER_NORM)],
        ),
        (
            "head in bfloat16",
            "precision of a weight",
            weight("head.weight", bfloat16),
            [Bug("head", "forward", PRODUCT)],
        ),
    ),
    **named(
        "falcon",
        (
            "gelu by tanh in layer 1",
            "activation",
            constant("blocks.1", "bug", "activation"),
            [Bug("blocks.1", "forward", "gelu")],
        ),
        (
            "head tied to the next row",
            "tied head",
            code("", "forward", ("self.embed.weight.T", "self.embed.weight.roll(1, 0).T")),
            [Bug("", "forward", f"roll {PRODUCT}")],
        ),
    ),
    **named(
        "mistral",
        (
            "values one position late in layer 0",
            "position",
            code("layers.0", "attend", ("softmax(scores, -1), v)", "softmax(scores, -1), v.roll(1, 1))")),
            [Bug("layers.0", "attend", f"roll {MIXED} {MOVED}")],
        ),
        (
            "one row of down twice in layer 3",
            "row of a weight",
            weight("layers.3.down.weight", rows(5, 6, 4)),
            [Bug("layers.3.down", "forward", PRODUCT)],
        ),
    ),
    **named(
        "mixtral",
        (
            "shares of the two experts exchanged in layer 0",
            "routing",
            code("layers.0.mixture", "forward", ("shares = best.softmax(-1)", "shares = best.softmax(-1).flip(-1)")),
            [Bug("layers.0.mixture", "forward", "flip index mul")],
        ),
        (
            "key in bfloat16 in layer 1",
            "precision of a weight",
            weight("layers.1.wk.weight", bfloat16),
            [Bug("layers.1.wk", "attend", PRODUCT)],
        ),
    ),
    **named(
        "mamba",
        (
            "convolution one token late in layer 0",
            "padding",
            code("mixers.0", "convolve", ("(0, 0, before, size - before)", "(0, 0, before + 1, size - before)")),
            [Bug("mixers.0", "convolve", "constant_pad_nd slice mul add")],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("norms.4", "eps", 1e-2),
            [Bug("norms.4", "forward", RMS_NORM)],
        ),
    ),
    **named(
        "t5",
        (
            "biases of the encoder in the decoder",
            "weight of another layer",
            taken("decoder.biases", "encoder.biases"),
            [Bug("decoder", "bias", "index")],
        ),
        (
            "no activation in layer 3 of the decoder",
            "missing step",
            code("decoder.layers.3", "forward", ("self.activation(self.up(", "(self.up(")),
            [Bug("decoder.layers.3.down", "forward", PRODUCT)],
        ),
    ),
    **named(
        "vit",
        (
            "no bias of the patches",
            "bias",
            weight("patches.linear.bias", torch.zeros_like),
            [Bug("patches.linear", "forward", PRODUCT)],
        ),
        (
            "second residual of the norm in layer 2",
            "residual",
            code(
                "blocks.2",
                "forward",
                (
                    "x + self.down(gelu(self.up(self.second(x))))",
                    "(y := self.second(x)) + self.down(gelu(self.up(y)))",
                ),
            ),
            [Bug("blocks.2", "forward", "add")],
        ),
        (
            "first residual of the norm in layer 3",
            "residual",
            code("blocks.3", "forward", ("x = x + self.heads(", "x = normed + self.heads(")),
            [Bug("blocks.3", "forward", "add")],
        ),
    ),
    **named(
        "clip",
        (
            "next token seen in layer 0",
            "mask",
            code("blocks.0", "attend", (".triu(1)", ".triu(2)")),
            [Bug("blocks.0", "attend", "triu baddbmm _softmax")],
        ),
        (
            "gain of the first norm for the second in layer 1",
            "gain of another norm",
            taken("blocks.1.ln_2.weight", "blocks.1.ln_1.weight"),
            [Bug("blocks.1.ln_2", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "whisper",
        (
            "no norm before the attention in layer 1 of the encoder",
            "missing norm",
            code("encoder.blocks.1", "forward", ("self.self_attention(self.norm_self(x))", "self.self_attention(x)")),
            [
                Bug("encoder.blocks.1.self_attention.query", "forward", PRODUCT),
                Bug("encoder.blocks.1.self_attention.key_value", "forward", PRODUCT),
            ],
        ),
        (
            "bias of the output of another cross attention in layer 2",
            "bias of another layer",
            taken("blocks.2.cross.out.bias", "blocks.0.cross.out.bias"),
            [Bug("blocks.2.cross.out", "forward", PRODUCT)],
        ),
    ),
    **named(
        "resnet",
        (
            "no bias of the stem",
            "bias",
            weight("stem.bias", torch.zeros_like),
            [Bug("stem", "forward", "convolution")],
        ),
        (
            "rows and columns of the second kernels exchanged in block 1",
            "transposed weight",
            weight("blocks.1.second.weight", lambda x: x.transpose(2, 3)),
            [Bug("blocks.1.second", "forward", "convolution")],
        ),
    ),
    **named(
        "gptj",
        (
            "gain of another layer in layer 0",
            "gain of another norm",
            taken("blocks.0.norm.weight", "blocks.1.norm.weight"),
            [Bug("blocks.0.norm", "forward", LAYER_NORM)],
        ),
        (
            "columns of the second weight in another order in layer 1",
            "column of a weight",
            weight("blocks.1.mlp.proj.weight", lambda x: x.roll(32, 1)),
            [Bug("blocks.1.mlp.proj", "forward", PRODUCT)],
        ),
    ),
    **named(
        "opt",
        (
            "positions in bfloat16",
            "precision of a weight",
            weight("W_pos", bfloat16),
            [Bug("", "forward", "index add")],
        ),
        (
            "no second bias in layer 2",
            "bias",
            weight("blocks.2.mlp.b_out", torch.zeros_like),
            [Bug("blocks.2.mlp", "forward", PRODUCT)],
        ),
    ),
    **named(
        "bloom",
        (
            "first norm twice in layer 0",
            "step done twice",
            code("blocks.0", "forward", ("self.norm_1(x)", "self.norm_1(self.norm_1(x))")),
            [
                Bug("blocks.0.norm_1@1", "forward", LAYER_NORM),
                Bug("blocks.0.norm_1", "forward", LAYER_NORM),
                Bug("blocks.0.attn.Wqkv", "forward", PRODUCT),
            ],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("norm_f", "eps", 1e-3),
            [Bug("norm_f", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "qwen3_moe",
        (
            "sign in a rotation in layer 0",
            "rotary sign",
            code("layers.0.attention", "rotate", ("real * cos - imaginary * sin", "real * cos + imaginary * sin")),
            [Bug("layers.0.attention", "rotate", ROTATED)],
        ),
        (
            "softmax of the best probabilities in layer 2",
            "routing",
            code("layers.2.ffn", "shares", ("best / best.sum(-1, keepdim=True)", "best.softmax(-1)")),
            [Bug("layers.2.ffn", "shares", "_softmax scatter")],
        ),
    ),
    **named(
        "roberta",
        (
            "words multiplied",
            "scale of the embedding",
            code("", "forward", ("self.word(ids) +", "8 * self.word(ids) +")),
            [Bug("", "forward", "mul add")],
        ),
        (
            "no bias of the norm of the head",
            "bias",
            weight("head.norm.bias", torch.zeros_like),
            [Bug("head.norm", "forward", "add mul")],
        ),
    ),
    **named(
        "gemma2",
        (
            "window one too small in layer 0",
            "mask",
            code("", "mask", ("- self.config.sliding_window", "- self.config.sliding_window + int(index == 0)")),
            [Bug("", "mask", "bitwise_and gt sub add"), in_gemma2(0, "attention", "where _softmax")],
        ),
        (
            "1 of the last gain forgotten",
            "formula of a norm",
            weight("params.final", lambda x: x - 1),
            [Bug("", "norm", "add mul", "model.norm")],
        ),
    ),
    **named(
        "rwkv",
        (
            "decay of another layer in layer 0",
            "weight of another layer",
            taken("blocks.0.time.decay", "blocks.3.time.decay"),
            [Bug("blocks.0.time", "shares", "mul sub where")],
        ),
        (
            "no bias of the second norm in layer 3",
            "bias",
            part("blocks.3.shifts", 1, torch.zeros_like),
            [Bug("blocks.3", "normalize", LAYER_NORM)],
        ),
    ),
    **named(
        "convnext",
        (
            "stem in bfloat16",
            "precision of a weight",
            weight("stem.linear.weight", bfloat16),
            [Bug("stem.linear", "forward", PRODUCT)],
        ),
        (
            "rows of the first weight one place late in stage 1",
            "row of a weight",
            weight("stages.1.0.expand.weight", lambda x: x.roll(1, 0)),
            [Bug("stages.1.0.expand", "forward", PRODUCT)],
        ),
    ),
    **named(
        "swin",
        (
            "no norm of the stem",
            "missing norm",
            code(
                "",
                "forward",
                ("self.stem_norm(self.stem(pixels).permute(0, 2, 3, 1))", "self.stem(pixels).permute(0, 2, 3, 1)"),
            ),
            [Bug("layers.0.before", "forward", LAYER_NORM), Bug("layers.0", "forward", "add")],
        ),
        (
            "eps of the first norm in layer 3",
            "eps",
            constant("layers.3.before", "eps", 1e-2),
            [Bug("layers.3.before", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "wav2vec2",
        (
            "gelu by tanh after the frames",
            "activation",
            code("features", "forward", ("eps=self.eps))", "eps=self.eps), approximate='tanh')")),
            [Bug("features", "forward", "gelu")],
        ),
        (
            "heads of the value permuted in layer 1",
            "order of heads",
            both(
                weight("layers.1.attention.qkv.weight", turned(128, 192, 16)),
                weight("layers.1.attention.qkv.bias", turned(128, 192, 16)),
            ),
            [
                Bug("layers.1.attention.qkv", "forward", PRODUCT),
                Bug("layers.1.attention", "forward", f"{ATTEND} {MOVED}"),
            ],
        ),
    ),
    **named(
        "albert",
        (
            "second weight of the other group in group 0",
            "weight of another layer",
            taken("weights.down0_w", "weights.down1_w"),
            [Bug("", "apply_linear", PRODUCT)],
        ),
        (
            "words of the head in bfloat16",
            "precision of a weight",
            code("", "predict", ('self.weights["words"].T', 'self.weights["words"].bfloat16().to(x.dtype).T')),
            [Bug("", "predict", f"{ROUNDED} {PRODUCT}")],
        ),
    ),
    **named(
        "mamba2",
        (
            "no bias of the convolution in layer 0",
            "bias",
            weight("mixers.0.offset", torch.zeros_like),
            [Bug("mixers.0", "convolve", "convolution")],
        ),
        (
            "gain of layer 3 for the last one",
            "gain of another norm",
            taken("norm.weight", "norms.3.weight"),
            [Bug("norm", "forward", RMS_NORM)],
        ),
    ),
    **named(
        "olmo2",
        (
            "no norm of the key in layer 0",
            "missing norm",
            code(
                "",
                "attention",
                ('self.norm(key, p["key_gain"])', 'key if index == 0 else self.norm(key, p["key_gain"])'),
            ),
            [in_olmo2(0, "rope", f"{ROTATED} {MIXED}")],
        ),
        (
            "gain of the other norm after the attention in layer 1",
            "gain of another norm",
            gain_of_mlp,
            [in_olmo2(1, "norm", "mul")],
        ),
    ),
    **named(
        "deberta_v2",
        (
            "no norm of the words",
            "missing norm",
            code("", "forward", ("self.norm(self.words(ids))", "self.words(ids)")),
            [Bug("", "forward", "mul")],
        ),
        (
            "eps of the norm of the head",
            "eps",
            constant("head_norm", "eps", 1e-3),
            [Bug("head_norm", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "gpt_oss",
        (
            "rotated backwards in layer 0",
            "rotary sign",
            code("layers.0.attention", "rotate", ("* turns[:, None]", "* turns.conj()[:, None]")),
            [Bug("layers.0.attention", "rotate", f"_conj _conj_physical conj complex real imag {ROTATED} {MOVED}")],
        ),
        (
            "up not clamped in layer 2",
            "missing step",
            code("layers.2.experts", "activate", ("up.clamp(-self.limit, self.limit)", "up")),
            [Bug("layers.2.experts", "activate", "add mul")],
        ),
    ),
    **named(
        "nemotron",
        (
            "values of the first group for both in layer 0",
            "groups of heads",
            code("layers.0.attention", "forward", ("v[:, :, group]", "v[:, :, 0]")),
            [Bug("layers.0.attention", "forward", MOVED), Bug("layers.0.attention", "attend", f"{MIXED} {MOVED}")],
        ),
        (
            "no bias of the second norm in layer 0",
            "bias",
            weight("layers.0.pre_mlp.bias", torch.zeros_like),
            [Bug("layers.0.pre_mlp", "forward", "add")],
        ),
    ),
    **named(
        "granite",
        (
            "columns of the words one place late",
            "column of a weight",
            weight("embed.weight", lambda x: x.roll(1, 1)),
            [Bug("embed", "forward", EMBED)],
        ),
        (
            "eps in layer 3",
            "eps",
            constant("layers.3", "eps", 1e-2),
            [Bug("layers.3", "norm", RMS_NORM)],
        ),
    ),
    **named(
        "dinov2",
        (
            "positions by columns",
            "position",
            weight("places", lambda x: x.transpose(0, 1)),
            [Bug("", "embed", "add")],
        ),
        (
            "no bias of the last product in layer 2",
            "bias",
            weight("blocks.2.mlp.w3.bias", torch.zeros_like),
            [Bug("blocks.2.mlp.w3", "forward", PRODUCT)],
        ),
    ),
    **named(
        "marian",
        (
            "positions start at 1",
            "position",
            code(
                "",
                "embed",
                ("self.positions(*words.shape[::2])", "self.positions(words.shape[0] + 1, words.shape[2])[1:]"),
            ),
            [Bug("", "embed", "slice add")],
        ),
        (
            "no second bias in layer 3 of the decoder",
            "bias",
            weight("weights.decoder_l4_ffn_b2", torch.zeros_like),
            [in_marian("decoder", 3, "affine", PRODUCT)],
        ),
    ),
    **named(
        "siglip",
        (
            "no bias of the value in layer 0 of the images",
            "bias",
            part("image.blocks.0.attention.offsets", 2, torch.zeros_like),
            [Bug("image.blocks.0.attention", "forward", "add")],
        ),
        (
            "no norm before the perceptron in layer 0 of the images",
            "missing norm",
            code("image.blocks.0", "forward", ("self.mlp(self.norm_m(x))", "self.mlp(x)")),
            [Bug("image.blocks.0.mlp.up", "forward", PRODUCT)],
        ),
    ),
    **named(
        "qwen3_next",
        (
            "rate of another layer in layer 0",
            "weight of another layer",
            taken("layers.0.mixer.rate", "layers.2.mixer.rate"),
            [Bug("layers.0.mixer", "forward", "neg mul exp")],
        ),
        (
            "gate and up of the shared expert exchanged in layer 0",
            "gate and up",
            code("layers.0.experts", "shared", ("gate, up = self", "up, gate = self")),
            [Bug("layers.0.experts", "shared", f"silu mul {MOVED}")],
        ),
    ),
    **named(
        "parakeet",
        (
            "no activation of the first convolution",
            "missing step",
            code("subsampling", "forward", ("relu(self.convolve(x[..., None]", "(self.convolve(x[..., None]")),
            [Bug("subsampling", "convolve", f"convolution {MOVED}")],
        ),
        (
            "gate by tanh in layer 3",
            "activation",
            code("blocks.3.convolution", "forward", ("gate.sigmoid()", "gate.tanh()")),
            [Bug("blocks.3.convolution", "forward", "tanh")],
        ),
    ),
    **named(
        "deepseek_v3",
        (
            "keys rotated one position late in layer 1",
            "position",
            code(
                "layers.1.attention",
                "forward",
                ("self.rotate(key, turns)", "self.rotate(key, turns.roll(1, 0))"),
            ),
            [Bug("layers.1.attention", "forward", "roll"), Bug("layers.1.attention", "rotate", f"{ROTATED} {MOVED}")],
        ),
        (
            "columns of the router one place late in layer 2",
            "routing",
            weight("layers.2.mlp.router.weight", lambda x: x.roll(1, 1)),
            [Bug("layers.2.mlp.router", "route", PRODUCT)],
        ),
    ),
    **named(
        "cohere",
        (
            "values of the first group for both in layer 0",
            "groups of heads",
            weight("blocks.0.enter", values_of_first_group),
            [Bug("blocks.0", "forward", PRODUCT)],
        ),
        (
            "words of the head in bfloat16",
            "precision of a weight",
            code("", "forward", ("@ self.words.T", "@ self.words.bfloat16().to(x.dtype).T")),
            [Bug("", "forward", f"{ROUNDED} {PRODUCT}")],
        ),
    ),
    **named(
        "bart",
        (
            "no norm of the words of the encoder",
            "missing norm",
            code("encoder", "forward", ("self.norm(x + self.places[: x.shape[1]])", "x + self.places[: x.shape[1]]")),
            [
                Bug("encoder.layers.0.attention", "encode", f"{PRODUCT} _native_multi_head_attention"),
                Bug("encoder.layers.0", "encode", "add"),
            ],
        ),
        (
            "no bias of the norm after the cross attention in layer 3",
            "bias",
            weight("decoder.layers.3.norm_c.bias", torch.zeros_like),
            [Bug("decoder.layers.3.norm_c", "decode", LAYER_NORM)],
        ),
    ),
    **named(
        "efficientnet",
        (
            "gelu for silu in the stem",
            "activation",
            code("", "stem", ("silu(x)", "nn.functional.gelu(x)")),
            [Bug("", "stem", "gelu")],
        ),
        (
            "no bias of the kernel in block 2",
            "bias",
            weight("blocks.2.depthwise.offset", torch.zeros_like),
            [Bug("blocks.2.depthwise", "forward", "add")],
        ),
    ),
    **named(
        "segformer",
        (
            "no bias of the patches of stage 0",
            "bias",
            weight("stages.0.patches.bias", torch.zeros_like),
            [Bug("stages.0.patches", "forward", "convolution")],
        ),
        (
            "second residual twice in stage 2",
            "residual",
            code("stages.2.blocks.0", "forward", ("return x + self.down(y)", "return 2 * x + self.down(y)")),
            [Bug("stages.2.blocks.0", "forward", "mul add")],
        ),
    ),
    **named(
        "regnet",
        (
            "shares of the channel before in block 0",
            "row of a weight",
            weight("blocks.0.shares.grow.weight", lambda x: x.roll(1, 0)),
            [Bug("blocks.0.shares.grow", "forward", PRODUCT)],
        ),
        (
            "gain of the first norm for the third in block 2",
            "gain of another norm",
            taken("blocks.2.norm3.factor", "blocks.2.norm1.factor"),
            [Bug("blocks.2.norm3", "forward", "mul add")],
        ),
    ),
}

PAIRS: tuple[tuple[str, str], ...] = tuple(
    (f"{port}: {first}", f"{port}: {second}")
    for port, first, second in (
        # An early bug that changes much, and a late one that changes little.
        ("llama", "words of the next row", "eps of the last norm"),
        ("bert", "positions backwards", "columns of the second weight one place late in layer 3"),
        ("gpt2", "positions added twice", "bias of the value for the query in layer 3"),
        ("mistral", "values one position late in layer 0", "one row of down twice in layer 3"),
        ("mamba", "convolution one token late in layer 0", "eps of the last norm"),
        ("whisper", "no norm before the attention in layer 1 of the encoder",
         "bias of the output of another cross attention in layer 2"),
        ("bloom", "first norm twice in layer 0", "eps of the last norm"),
        ("qwen3_moe", "sign in a rotation in layer 0", "softmax of the best probabilities in layer 2"),
        ("roberta", "words multiplied", "no bias of the norm of the head"),
        ("swin", "no norm of the stem", "eps of the first norm in layer 3"),
        ("albert", "second weight of the other group in group 0", "words of the head in bfloat16"),
        ("deberta_v2", "no norm of the words", "eps of the norm of the head"),
        ("gpt_oss", "rotated backwards in layer 0", "up not clamped in layer 2"),
        ("granite", "columns of the words one place late", "eps in layer 3"),
        ("dinov2", "positions by columns", "no bias of the last product in layer 2"),
        ("marian", "positions start at 1", "no second bias in layer 3 of the decoder"),
        ("cohere", "values of the first group for both in layer 0", "words of the head in bfloat16"),
        ("bart", "no norm of the words of the encoder", "no bias of the norm after the cross attention in layer 3"),
        ("t5", "biases of the encoder in the decoder", "no activation in layer 3 of the decoder"),
        # An early one that changes little, and a late one that changes as much or more.
        ("gpt_neox", "bias of the other norm in layer 0", "head in bfloat16"),
        ("falcon", "gelu by tanh in layer 1", "head tied to the next row"),
        ("vit", "no bias of the patches", "second residual of the norm in layer 2"),
        ("resnet", "no bias of the stem", "rows and columns of the second kernels exchanged in block 1"),
        ("opt", "positions in bfloat16", "no second bias in layer 2"),
        ("gemma2", "window one too small in layer 0", "1 of the last gain forgotten"),
        ("rwkv", "decay of another layer in layer 0", "no bias of the second norm in layer 3"),
        ("convnext", "stem in bfloat16", "rows of the first weight one place late in stage 1"),
        ("wav2vec2", "gelu by tanh after the frames", "heads of the value permuted in layer 1"),
        ("mamba2", "no bias of the convolution in layer 0", "gain of layer 3 for the last one"),
        ("parakeet", "no activation of the first convolution", "gate by tanh in layer 3"),
        ("efficientnet", "gelu for silu in the stem", "no bias of the kernel in block 2"),
        ("segformer", "no bias of the patches of stage 0", "second residual twice in stage 2"),
        ("regnet", "shares of the channel before in block 0", "gain of the first norm for the third in block 2"),
        # Adjacent layers.
        ("qwen2", "heads of the query exchanged in layer 0", "activation twice in layer 1"),
        ("mixtral", "shares of the two experts exchanged in layer 0", "key in bfloat16 in layer 1"),
        ("clip", "next token seen in layer 0", "gain of the first norm for the second in layer 1"),
        ("gptj", "gain of another layer in layer 0", "columns of the second weight in another order in layer 1"),
        ("olmo2", "no norm of the key in layer 0", "gain of the other norm after the attention in layer 1"),
        ("deepseek_v3", "keys rotated one position late in layer 1", "columns of the router one place late in layer 2"),
        # One kind twice.
        ("llama", "eps of the second norm in layer 1", "eps of the last norm"),
        ("gpt2", "bias of the value for the output in layer 1", "bias of the value for the query in layer 3"),
        ("gemma", "values of the other group in layer 1", "heads of the output permuted in layer 2"),
        ("vit", "second residual of the norm in layer 2", "first residual of the norm in layer 3"),
        # Both branches of one layer.
        ("gemma", "values of the other group in layer 1", "gelu without tanh in layer 1"),
        ("nemotron", "values of the first group for both in layer 0", "no bias of the second norm in layer 0"),
        ("siglip", "no bias of the value in layer 0 of the images",
         "no norm before the perceptron in layer 0 of the images"),
        ("qwen3_next", "rate of another layer in layer 0", "gate and up of the shared expert exchanged in layer 0"),
    )
)  # fmt: skip
