"""A sixth set of porting bugs, two or three in each port, by someone who had not read how `align` finds bugs.

They were written before `align` ran on any of them, in other places than those of the sets before.

Places that are right to name: where a weight is wrong, the operation that reads it; where a step is missing, is done
twice or at another time, the operation that makes the wrong result, or the first one that reads it where A has the
result without the step; where elements are in another order, what moves them and the first operation to which it
matters; where a value is rounded, what rounds it and what reads it; where a table or a mask is wrong, what makes it and
what reads it in each layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..models.ports import Bug
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
    turned,
    weight,
)

MOVED = "clone view _unsafe_view permute transpose select slice unbind split unsqueeze"  # elements in another order
MOMENTS = "pow mul mean add rsqrt sqrt div sub var var_mean"  # of a norm in steps
MIXED = f"{PRODUCT} baddbmm mul sum"  # of weighted values, or a product with a weight without a layer
ROTATED = "mul sub add cat stack neg slice addcmul"
SPEEDS = "pow reciprocal cos sin arange outer"  # of rotations
ROUNDED = "_to_copy"


def layers(module: str, function: str, operators: str, count: int = 4) -> list[Bug]:
    """Return places in all layers, for what they share."""
    return [Bug(module.replace("#", str(index)), function, operators) for index in range(count)]


def in_gemma2(layer: int, function: str, operators: str) -> Bug:
    """Return a place in a layer of A, as this port has no modules."""
    return Bug("", function, operators, f"model.layers.{layer}.")


def in_olmo2(layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.layers.{layer}")


def in_marian(side: str, layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.{side}.layers.{layer}")


def part(name: str, index: int, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the part of a parameter that belongs to a layer or a group."""

    def changed(parameter: Tensor) -> Tensor:
        parameter[index] = change(parameter[index].clone())
        return parameter

    return weight(name, changed)


def taken_rows(name: str, other: str, first: int, last: int) -> Plant:
    """Take rows of a parameter of another layer."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        b.get_parameter(name).data[first:last] = b.get_parameter(other).data[first:last]

    return plant


def swapped(name: str, other: str) -> Plant:
    """Exchange two parameters."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        first, second = b.get_parameter(name), b.get_parameter(other)
        kept = first.clone()
        first.data.copy_(second)
        second.data.copy_(kept)

    return plant


def swapped_parts(size: int) -> Callable[[Tensor], Tensor]:
    """Return a change that exchanges the first two parts of so many rows."""
    return lambda parameter: torch.cat([parameter[size : 2 * size], parameter[:size], parameter[2 * size :]])


def float16(parameter: Tensor) -> Tensor:
    return parameter.half().to(parameter.dtype)


def without(*index: int | slice) -> Callable[[Tensor], Tensor]:
    """Return a change that sets a part of a parameter to 0."""

    def change(parameter: Tensor) -> Tensor:
        parameter[index] = 0
        return parameter

    return change


def element(parameter: Tensor) -> Tensor:
    parameter[3, 5] += 1
    return parameter


def qwen2_base(_: nn.Module, b: nn.Module) -> None:
    """Make the tables of Qwen2 for a base that differs in its third digit."""
    cos, sin = b.get_buffer("cos"), b.get_buffer("sin")
    pairs = cos.shape[1]
    angles = torch.arange(len(cos))[:, None] * 10200.0 ** (-torch.arange(pairs) / pairs)
    cos.copy_(angles.cos())
    sin.copy_(angles.sin())


def rounded_cosines(_: nn.Module, b: nn.Module) -> None:
    cos = b.get_buffer("cos")
    cos.copy_(bfloat16(cos))


def relu_in_decoder(_: nn.Module, b: nn.Module) -> None:
    setattr(b.get_submodule("blocks.1.mlp"), "1", nn.ReLU())


BUGS: dict[str, PortingBug] = {
    **named(
        "llama",
        (
            "heads not transposed in layer 1",
            "order of heads",
            code(
                "blocks.1.attention",
                "forward",
                ("is_causal=True).transpose(1, 2).flatten(2)", "is_causal=True).reshape(x.shape)"),
            ),
            [
                Bug("blocks.1.attention", "forward", f"{MOVED} reshape"),
                Bug("blocks.1.attention.o", "forward", PRODUCT),
            ],
        ),
        (
            "half of each head rotated in layer 3",
            "rotary dimension",
            code(
                "blocks.3.attention",
                "rotate",
                (
                    "pairs * turns[:, None]",
                    "torch.cat([pairs[..., :4] * turns[:, None, :4], pairs[..., 4:]], -1)",
                ),
            ),
            [Bug("blocks.3.attention", "rotate", f"{ROTATED} {MOVED} view_as_real view_as_complex")],
        ),
        (
            "last norm rounded to bfloat16",
            "precision of a step",
            code(
                "",
                "forward",
                ("self.norm(x, residual)[0])", "self.norm(x, residual)[0].bfloat16().to(x.dtype))"),
            ),
            [Bug("", "forward", ROUNDED), Bug("head", "forward", PRODUCT)],
        ),
    ),
    **named(
        "bert",
        (
            "eps of the second norm in layer 1",
            "eps",
            constant("encoder.layers.1.norm2", "eps", 1e-3),
            [Bug("encoder.layers.1.norm2", "forward", LAYER_NORM)],
        ),
        (
            "sum of the embeddings rounded to bfloat16",
            "precision of a step",
            code("embed", "forward", ("self.norm(x)", "self.norm(x.bfloat16().to(x.dtype))")),
            [Bug("embed", "forward", ROUNDED), Bug("embed.norm", "forward", LAYER_NORM)],
        ),
        (
            "first bias of another layer in layer 2",
            "bias of another layer",
            taken("encoder.layers.2.linear1.bias", "encoder.layers.1.linear1.bias"),
            [Bug("encoder.layers.2.linear1", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gpt2",
        (
            "last norm twice",
            "step done twice",
            code("", "forward", ("self.last(x)", "self.last(self.last(x))")),
            [
                Bug("last@1", "forward", LAYER_NORM),
                Bug("last", "forward", LAYER_NORM),
                Bug("", "forward", PRODUCT),
            ],
        ),
        (
            "one column of a weight is 0 in layer 2",
            "column of a weight",
            weight("blocks.2.down.weight", without(slice(None), 5)),
            [Bug("blocks.2.down", "transform", PRODUCT)],
        ),
        (
            "query and key exchanged in layer 0",
            "order of parts",
            exchanged("blocks.0.q", "blocks.0.k"),
            [
                Bug("blocks.0.q", "attend", PRODUCT),
                Bug("blocks.0.k", "attend", PRODUCT),
                Bug("blocks.0", "attend", ATTEND),
            ],
        ),
    ),
    **named(
        "qwen2",
        (
            "gain of the last norm in bfloat16",
            "precision of a weight",
            weight("scale.weight", bfloat16),
            [Bug("scale", "forward", MOMENTS)],
        ),
        (
            "third digit of the base of the tables",
            "rotary constant",
            qwen2_base,
            [Bug("", "forward", "slice"), *layers("stack.#", "turn", f"{ROTATED} {MOVED}")],
        ),
        (
            "second residual from the start of layer 3",
            "residual",
            code(
                "stack.3",
                "forward",
                ("x = x + self.attend", "y = x + self.attend"),
                ("self.transform(self.post(x))", "self.transform(self.post(y))"),
            ),
            [Bug("stack.3", "forward", "add")],
        ),
    ),
    **named(
        "gemma",
        (
            "no last norm",
            "missing norm",
            code("", "forward", ("self.head(self.norm(x))", "self.head(x)")),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "output of another layer in layer 2",
            "weight of another layer",
            taken("layers.2.attention.wo.weight", "layers.1.attention.wo.weight"),
            [Bug("layers.2.attention.wo", "forward", PRODUCT)],
        ),
        (
            "down in float16 in layer 1",
            "precision of a weight",
            weight("layers.1.down.weight", float16),
            [Bug("layers.1.down", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gpt_neox",
        (
            "words in float16",
            "precision of a weight",
            weight("wte.weight", float16),
            [Bug("wte", "forward", EMBED)],
        ),
        (
            "no bias of the output in layer 2",
            "bias",
            weight("blocks.2.attention.output.bias", torch.zeros_like),
            [Bug("blocks.2.attention.output", "forward", PRODUCT)],
        ),
        (
            "scores not scaled in layer 1",
            "scale of the scores",
            code("blocks.1.attention", "forward", ("is_causal=True", "is_causal=True, scale=1.0")),
            [Bug("blocks.1.attention", "forward", ATTEND)],
        ),
    ),
    **named(
        "falcon",
        (
            "residual of the norm in layer 2",
            "residual",
            code("blocks.2", "forward", ("self.enter(self.norm(x))", "self.enter(x := self.norm(x))")),
            [Bug("blocks.2", "forward", "add")],
        ),
        (
            "one row of the value twice in layer 3",
            "row of a weight",
            weight("blocks.3.enter.weight", rows(90, 91, 89)),
            [Bug("blocks.3.enter", "forward", PRODUCT)],
        ),
    ),
    **named(
        "mistral",
        (
            "values rounded to bfloat16 in layer 1",
            "precision of a step",
            code("layers.1", "attend", ("softmax(scores, -1), v)", "softmax(scores, -1), v.bfloat16().to(x.dtype))")),
            [Bug("layers.1", "attend", f"{ROUNDED} {MIXED}")],
        ),
        (
            "third digit of the base in layer 2",
            "rotary constant",
            constant("layers.2", "theta", 10200.0),
            [Bug("layers.2", "rotate", f"{ROTATED} {SPEEDS}")],
        ),
        (
            "no last norm",
            "missing norm",
            code("", "forward", ("self.head(rms_norm(x, x.shape[-1:], eps=self.eps))", "self.head(x)")),
            [Bug("head", "forward", PRODUCT)],
        ),
    ),
    **named(
        "mixtral",
        (
            "gain of the other norm in layer 3",
            "gain of another norm",
            taken("layers.3.norm_m.weight", "layers.3.norm_a.weight"),
            [Bug("layers.3.norm_m", "forward", RMS_NORM)],
        ),
        (
            "keys rounded to bfloat16 in layer 0",
            "precision of a step",
            code("layers.0", "attend", ("self.rotate(k)", "self.rotate(k).bfloat16().to(x.dtype)")),
            [Bug("layers.0", "attend", f"{ROUNDED} {MIXED}")],
        ),
        (
            "next token seen in layer 1",
            "mask",
            code("layers.1", "attend", (".triu(1)", ".triu(2)")),
            [Bug("layers.1", "attend", "triu add _softmax")],
        ),
    ),
    **named(
        "mamba",
        (
            "state rounded to bfloat16 in layer 1",
            "precision of a step",
            code("mixers.1", "scan", (".exp() * state +", ".exp() * state.bfloat16().to(x.dtype) +")),
            [Bug("mixers.1", "scan", f"{ROUNDED} mul add")],
        ),
        (
            "input not multiplied by the step in layer 3",
            "missing step",
            code("mixers.3", "scan", ("step * into[:, index, None]", "into[:, index, None]")),
            [Bug("mixers.3", "scan", "mul add sum stack")],
        ),
        (
            "norms of two layers exchanged",
            "norms exchanged",
            exchanged("norms.0", "norms.1"),
            [Bug("norms.0", "forward", RMS_NORM), Bug("norms.1", "forward", RMS_NORM)],
        ),
    ),
    **named(
        "t5",
        (
            "softmax over queries in layer 2 of the encoder",
            "axis",
            code("encoder.layers.2.attention", "forward", ("scores.softmax(-1)", "scores.softmax(-2)")),
            [Bug("encoder.layers.2.attention", "forward", ATTEND)],
        ),
        (
            "output of the cross attention transposed in layer 1",
            "transposed weight",
            weight("decoder.layers.1.cross.wo.weight", lambda x: x.T),
            [Bug("decoder.layers.1.cross.wo", "forward", PRODUCT)],
        ),
        (
            "heads of the value permuted in layer 0 of the encoder",
            "order of heads",
            weight("encoder.layers.0.attention.wkv.weight", turned(64, 128, 16)),
            [
                Bug("encoder.layers.0.attention.wkv", "forward", PRODUCT),
                Bug("encoder.layers.0.attention", "forward", ATTEND),
            ],
        ),
    ),
    **named(
        "vit",
        (
            "no bias of the head",
            "bias",
            weight("head.bias", torch.zeros_like),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "gain of the first norm for the second in layer 1",
            "gain of another norm",
            taken("blocks.1.second.weight", "blocks.1.first.weight"),
            [Bug("blocks.1.second", "forward", LAYER_NORM)],
        ),
        (
            "pixels scaled once more",
            "scale of the input",
            code("patches", "forward", ("pixels.unflatten(3", "(2 * pixels - 1).unflatten(3")),
            [Bug("patches", "forward", "mul sub rsub"), Bug("patches.linear", "forward", PRODUCT)],
        ),
    ),
    **named(
        "clip",
        (
            "residual of the norm in layer 1",
            "residual",
            code(
                "blocks.1",
                "forward",
                ("x = x + self.attend(self.ln_1(x))", "x = (y := self.ln_1(x)) + self.attend(y)"),
            ),
            [Bug("blocks.1", "forward", "add")],
        ),
        (
            "one number of a weight in layer 2",
            "element of a weight",
            weight("blocks.2.c_fc.weight", element),
            [Bug("blocks.2.c_fc", "forward", PRODUCT)],
        ),
    ),
    **named(
        "whisper",
        (
            "no bias of the second convolution",
            "bias",
            weight("encoder.second.bias", torch.zeros_like),
            [Bug("encoder.second", "forward", "convolution")],
        ),
        (
            "sound normalized in layer 2",
            "step too many",
            code(
                "blocks.2", "forward", ("self.norm_cross(x), encoded", "self.norm_cross(x), self.norm_cross(encoded)")
            ),
            [
                Bug("blocks.2.norm_cross@1", "forward", LAYER_NORM),
                Bug("blocks.2.norm_cross", "forward", LAYER_NORM),
                Bug("blocks.2.cross.key_value", "forward", PRODUCT),
            ],
        ),
        (
            "relu for gelu in layer 1 of the decoder",
            "activation",
            relu_in_decoder,
            [Bug("blocks.1.mlp.1", "forward", "relu")],
        ),
    ),
    **named(
        "resnet",
        (
            "no bias of the skip in block 1",
            "bias",
            weight("blocks.1.skip.bias", torch.zeros_like),
            [Bug("blocks.1.skip", "forward", "convolution")],
        ),
        (
            "first kernels in bfloat16 in block 2",
            "precision of a weight",
            weight("blocks.2.first.weight", bfloat16),
            [Bug("blocks.2.first", "forward", "convolution")],
        ),
    ),
    **named(
        "albert",
        (
            "positions start at 1",
            "position",
            code("", "embed", ("[: ids.shape[1]]", "[1 : ids.shape[1] + 1]")),
            [Bug("", "embed", "add slice"), Bug("", "normalize", LAYER_NORM)],
        ),
        (
            "gain of the other norm in group 1",
            "gain of another norm",
            taken("weights.norm_a1_w", "weights.norm_m1_w"),
            [Bug("", "normalize", LAYER_NORM)],
        ),
        (
            "no bias of the words",
            "bias",
            weight("weights.bias", torch.zeros_like),
            [Bug("", "predict", PRODUCT)],
        ),
    ),
    **named(
        "bart",
        (
            "norms exchanged in layer 2 of the encoder",
            "norms exchanged",
            exchanged("encoder.layers.2.norm_a", "encoder.layers.2.norm_m"),
            [
                Bug("encoder.layers.2.norm_a", "encode", LAYER_NORM),
                Bug("encoder.layers.2.norm_m", "encode", LAYER_NORM),
            ],
        ),
        (
            "words of the output in bfloat16",
            "precision of a weight",
            code("", "forward", ("x @ self.words.weight.T", "x @ self.words.weight.bfloat16().to(x.dtype).T")),
            [Bug("", "forward", f"{ROUNDED} {PRODUCT}")],
        ),
    ),
    **named(
        "bloom",
        (
            "words normalized twice",
            "step done twice",
            code("", "forward", ("self.emb_norm(x)", "self.emb_norm(self.emb_norm(x))")),
            [
                Bug("emb_norm@1", "forward", LAYER_NORM),
                Bug("emb_norm", "forward", LAYER_NORM),
                Bug("blocks.0.norm_1", "forward", LAYER_NORM),
                Bug("blocks.0", "forward", "add"),
            ],
        ),
        (
            "query of another layer in layer 2",
            "weight of another layer",
            taken_rows("blocks.2.attn.Wqkv.weight", "blocks.1.attn.Wqkv.weight", 0, 64),
            [Bug("blocks.2.attn.Wqkv", "forward", PRODUCT)],
        ),
    ),
    **named(
        "cohere",
        (
            "gain of layer 3 for the last one",
            "gain of another norm",
            taken("gain", "blocks.3.gain"),
            [Bug("", "forward", f"{LAYER_NORM} {PRODUCT}")],
        ),
        (
            "sign in a rotation in layer 0",
            "rotary sign",
            code("blocks.0", "rotate", ("first * cos - second * sin", "first * cos + second * sin")),
            [Bug("blocks.0", "rotate", ROTATED)],
        ),
    ),
    **named(
        "convnext",
        (
            "eps of the norm of the stem",
            "eps",
            constant("stem_norm", "eps", 1e-2),
            [Bug("stem_norm", "forward", LAYER_NORM)],
        ),
        (
            "kernels one row too low in stage 2",
            "position",
            weight("stages.2.0.taps", lambda x: x.roll(1, 0)),
            [Bug("stages.2.0", "mix", "convolution")],
        ),
        (
            "blue, green, red",
            "order of channels",
            code("", "forward", ("pixels.permute(0, 2, 3, 1)", "pixels.flip(1).permute(0, 2, 3, 1)")),
            [
                Bug("", "forward", f"flip {MOVED}"),
                Bug("stem", "forward", MOVED),
                Bug("stem.linear", "forward", PRODUCT),
            ],
        ),
    ),
    **named(
        "deberta_v2",
        (
            "second residual from the start of layer 2",
            "residual",
            code(
                "layers.2",
                "forward",
                ("x = self.after(x", "y, x = x, self.after(x"),
                ("self.last(x + self.down", "self.last(y + self.down"),
            ),
            [Bug("layers.2", "forward", "add"), Bug("layers.2.last", "forward", LAYER_NORM)],
        ),
        (
            "words of the head in float16",
            "precision of a weight",
            code(
                "", "forward", ("self.words.weight, self.offset", "self.words.weight.half().to(x.dtype), self.offset")
            ),
            [Bug("", "forward", f"{ROUNDED} {PRODUCT}")],
        ),
    ),
    **named(
        "deepseek_v3",
        (
            "keys of other heads in layer 2",
            "order of heads",
            weight("layers.2.attention.keys", lambda x: x.roll(1, 0)),
            [Bug("layers.2.attention", "forward", MIXED)],
        ),
        (
            "sign in a rotation in layer 0",
            "rotary sign",
            code("layers.0.attention", "rotate", ("real * sin + imaginary * cos", "imaginary * cos - real * sin")),
            [Bug("layers.0.attention", "rotate", ROTATED)],
        ),
        (
            "third digit of the factor in layer 1",
            "constant",
            constant("layers.1.mlp", "factor", 2.48),
            [Bug("layers.1.mlp", "route", "mul"), Bug("layers.1.mlp", "forward", "mul")],
        ),
    ),
    **named(
        "efficientnet",
        (
            "relu after the kernels in block 3",
            "activation",
            code("blocks.3", "forward", ("silu(self.depthwise(y))", "self.depthwise(y).relu()")),
            [Bug("blocks.3", "forward", "relu")],
        ),
        (
            "no bias of the top",
            "bias",
            weight("top.bias", torch.zeros_like),
            [Bug("top", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gemma2",
        (
            "words of the head in bfloat16",
            "precision of a weight",
            code("", "forward", ('self.params["embedding"].T', 'self.params["embedding"].bfloat16().to(x.dtype).T')),
            [Bug("", "forward", f"{ROUNDED} {PRODUCT}")],
        ),
        (
            "gain before the perceptron of another layer in layer 1",
            "gain of another norm",
            lambda _, b: part("params.pre_ffw", 1, lambda _: b.get_parameter("params.pre_ffw")[0])(_, b),
            [in_gemma2(1, "norm", "mul add")],
        ),
    ),
    **named(
        "gptj",
        (
            "heads of the key permuted in layer 3",
            "order of heads",
            weight("blocks.3.attention.qkv.weight", turned(64, 128, 16)),
            [Bug("blocks.3.attention.qkv", "forward", PRODUCT), Bug("blocks.3.attention", "forward", ATTEND)],
        ),
        (
            "bias of another layer in layer 0",
            "bias of another layer",
            taken("blocks.0.mlp.fc.bias", "blocks.1.mlp.fc.bias"),
            [Bug("blocks.0.mlp.fc", "forward", PRODUCT)],
        ),
        (
            "cosines in bfloat16",
            "precision of a table",
            rounded_cosines,
            [Bug("", "forward", "slice"), *layers("blocks.#.attention", "rope", "mul add")],
        ),
    ),
    **named(
        "mamba2",
        (
            "gate rounded to bfloat16 in layer 0",
            "precision of a step",
            code("mixers.0", "forward", ("y * gate", "y * gate.bfloat16().to(y.dtype)")),
            [Bug("mixers.0", "forward", f"{ROUNDED} mul silu")],
        ),
        (
            "decay of another layer in layer 2",
            "weight of another layer",
            taken("mixers.2.decay", "mixers.1.decay"),
            [Bug("mixers.2", "decays", "mul cumsum sub masked_fill exp")],
        ),
        (
            "no skip in layer 1",
            "missing step",
            code(
                "mixers.1",
                "mix",
                ("pairs = pairs + torch.diag_embed(self.skip", "pairs = pairs + torch.diag_embed(0 * self.skip"),
            ),
            [Bug("mixers.1", "mix", f"add diag_embed {MIXED}")],
        ),
    ),
    **named(
        "olmo2",
        (
            "one row of a weight is 0 in layer 1",
            "row of a weight",
            part("params.wo", 1, without(7)),
            [in_olmo2(1, "mlp", PRODUCT)],
        ),
        (
            "words in bfloat16",
            "precision of a weight",
            weight("words", bfloat16),
            [Bug("", "forward", "index embedding")],
        ),
    ),
    **named(
        "opt",
        (
            "words multiplied",
            "scale of the embedding",
            code("", "forward", ("self.embed(ids) +", "self.embed(ids) * 8 +")),
            [Bug("", "forward", "mul add")],
        ),
        (
            "no norm before the perceptron in layer 3",
            "missing norm",
            code("blocks.3", "forward", ("self.mlp(self.ln2(x))", "self.mlp(x)")),
            [Bug("blocks.3.mlp", "forward", PRODUCT)],
        ),
        (
            "next token seen",
            "mask",
            code("", "forward", (".triu(1)", ".triu(2)")),
            [
                Bug("", "forward", "triu bitwise_or"),
                *layers("blocks.#.attn", "forward", "masked_fill _softmax"),
            ],
        ),
    ),
    **named(
        "qwen3_moe",
        (
            "gate and up in bfloat16 in layer 0",
            "precision of a weight",
            weight("layers.0.ffn.w_in.weight", bfloat16),
            [Bug("layers.0.ffn.w_in", "forward", PRODUCT)],
        ),
        (
            "no norm before the experts in layer 1",
            "missing norm",
            code("layers.1", "forward", ("self.ffn(self.norm2(x))", "self.ffn(x)")),
            [Bug("layers.1.ffn", "forward", f"{MIXED} {MOVED}"), Bug("layers.1.ffn.router", "shares", PRODUCT)],
        ),
    ),
    **named(
        "roberta",
        (
            "no bias of the first norm in layer 1",
            "bias",
            weight("layers.1.sa_norm.bias", torch.zeros_like),
            [Bug("layers.1.sa_norm", "forward", "add mul")],
        ),
        (
            "residual twice in layer 2",
            "residual",
            code("layers.2", "forward", ("self.attention(x, mask) + x", "self.attention(x, mask) + 2 * x")),
            [Bug("layers.2", "forward", "add mul")],
        ),
    ),
    **named(
        "rwkv",
        (
            "bonus of another layer in layer 0",
            "weight of another layer",
            taken("blocks.0.time.bonus", "blocks.2.time.bonus"),
            [Bug("blocks.0.time", "shares", "add where")],
        ),
        (
            "tanh for sigmoid in layer 1",
            "activation",
            code("blocks.1.channels", "forward", ("r.sigmoid()", "r.tanh()")),
            [Bug("blocks.1.channels", "forward", "tanh")],
        ),
    ),
    **named(
        "segformer",
        (
            "norms of stage 2 exchanged",
            "norms exchanged",
            exchanged("stages.2.norm_in", "stages.2.norm_out"),
            [Bug("stages.2.norm_in", "forward", "mul add"), Bug("stages.2.norm_out", "forward", "mul add")],
        ),
        (
            "residual of the norm in stage 0",
            "residual",
            code(
                "stages.0.blocks.0",
                "forward",
                ("x = x + self.attention(self.before(x))", "x = (y := self.before(x)) + self.attention(y)"),
            ),
            [Bug("stages.0.blocks.0", "forward", "add")],
        ),
        (
            "gelu for relu in the head",
            "activation",
            code("", "forward", ("relu(total)", "gelu(total)")),
            [Bug("", "forward", "gelu")],
        ),
    ),
    **named(
        "swin",
        (
            "second weight in bfloat16 in layer 1",
            "precision of a weight",
            weight("layers.1.down.weight", bfloat16),
            [Bug("layers.1.down", "forward", PRODUCT)],
        ),
        (
            "gelu by tanh in layer 3",
            "activation",
            code("layers.3", "forward", ("self.between(x))))", "self.between(x)), approximate='tanh'))")),
            [Bug("layers.3", "forward", "gelu")],
        ),
    ),
    **named(
        "wav2vec2",
        (
            "no bias of the positions",
            "bias",
            weight("positions.offset", torch.zeros_like),
            [Bug("positions", "forward", "convolution")],
        ),
        (
            "norms exchanged in layer 3",
            "norms exchanged",
            exchanged("layers.3.norm", "layers.3.last_norm"),
            [Bug("layers.3.norm", "forward", LAYER_NORM), Bug("layers.3.last_norm", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "gpt_oss",
        (
            "no bias of the router in layer 1",
            "bias",
            weight("layers.1.experts.router.bias", torch.zeros_like),
            [Bug("layers.1.experts.router", "route", PRODUCT)],
        ),
        (
            "window one too small in layer 0",
            "window",
            code("layers.0.attention", "seen", ("distance < self.window", "distance < self.window - 1")),
            [
                Bug("layers.0.attention", "seen", "lt bitwise_and"),
                Bug("layers.0.attention", "attend", "masked_fill bitwise_not logsumexp amax sub exp sum log add"),
            ],
        ),
        (
            "queries of the groups in turns in layer 3",
            "groups of heads",
            code(
                "layers.3.attention",
                "forward",
                (".unflatten(2, (self.groups, -1))", ".unflatten(2, (-1, self.groups)).transpose(2, 3)"),
            ),
            [
                Bug("layers.3.attention", "forward", MOVED),
                Bug("layers.3.attention", "attend", f"{MIXED} {MOVED}"),
            ],
        ),
    ),
    **named(
        "nemotron",
        (
            "eps of the last norm",
            "eps",
            constant("norm", "eps", 1e-2),
            [Bug("norm", "forward", MOMENTS)],
        ),
        (
            "no second bias in layer 1",
            "bias",
            weight("layers.1.mlp.wo_bias", torch.zeros_like),
            [Bug("layers.1.mlp", "forward", PRODUCT)],
        ),
    ),
    **named(
        "granite",
        (
            "third digit of the multiplier in layer 3",
            "constant",
            constant("layers.3", "multiplier", 0.223),
            [Bug("layers.3", "forward", "add")],
        ),
        (
            "values of the next group in layer 1",
            "order of heads",
            code("layers.1", "attend", ("parts[..., -1, :]", "parts.roll(1, 2)[..., -1, :]")),
            [Bug("layers.1", "attend", f"{ATTEND} {MOVED} roll index_select")],
        ),
        (
            "gate and up exchanged in layer 0",
            "gate and up",
            code("layers.0", "feed", ("gate, up = self", "up, gate = self")),
            [Bug("layers.0", "feed", f"silu mul {MOVED}")],
        ),
    ),
    **named(
        "dinov2",
        (
            "no last norm",
            "missing norm",
            code("", "forward", ("x = self.norm(x)", "x = x")),
            [Bug("", "forward", f"cat mean {MOVED}"), Bug("head", "forward", PRODUCT)],
        ),
        (
            "query and key exchanged in layer 3",
            "order of parts",
            both(
                weight("blocks.3.attn.qkv.weight", swapped_parts(64)),
                weight("blocks.3.attn.qkv.bias", swapped_parts(64)),
            ),
            [Bug("blocks.3.attn.qkv", "forward", PRODUCT), Bug("blocks.3.attn", "forward", f"{ATTEND} {MOVED}")],
        ),
        (
            "scale of the perceptron squared in layer 0",
            "layer scale",
            weight("blocks.0.gamma", torch.square),
            [Bug("blocks.0", "forward", "mul")],
        ),
    ),
    **named(
        "marian",
        (
            "eps of all norms",
            "eps",
            constant("", "eps", 1e-3),
            [Bug("", "norm", LAYER_NORM)],
        ),
        (
            "heads of the value permuted in layer 2 of the decoder",
            "order of heads",
            weight("weights.decoder_l3_self_Wv", lambda x: x.roll(16, 1)),
            [in_marian("decoder", 2, "affine", PRODUCT), in_marian("decoder", 2, "attend", f"{ATTEND} {MOVED}")],
        ),
    ),
    **named(
        "regnet",
        (
            "hard sigmoid in block 0",
            "activation",
            code("blocks.0.shares", "forward", ("torch.sigmoid(", "nn.functional.hardsigmoid(")),
            [Bug("blocks.0.shares", "forward", "hardsigmoid")],
        ),
        (
            "one row of the kernels twice in block 2",
            "row of a weight",
            part("blocks.2.mix.kernel", 1, rows(5, 6, 4)),
            [Bug("blocks.2.mix", "forward", MIXED)],
        ),
        (
            "maximum of the places",
            "pooling",
            code("", "forward", (".mean((1, 2))", ".amax((1, 2))")),
            [Bug("", "forward", "amax")],
        ),
    ),
    **named(
        "siglip",
        (
            "no bias of the logits",
            "bias",
            weight("shift", torch.zeros_like),
            [Bug("", "forward", "add")],
        ),
        (
            "eps of the second norm in layer 1 of the texts",
            "eps",
            constant("text.blocks.1.norm_m", "eps", 1e-3),
            [Bug("text.blocks.1.norm_m", "forward", LAYER_NORM)],
        ),
        (
            "probe in bfloat16",
            "precision of a weight",
            weight("pool.probe", bfloat16),
            [Bug("pool.attention", "forward", MIXED), Bug("pool", "forward", "expand")],
        ),
    ),
    **named(
        "qwen3_next",
        (
            "taps backwards in layer 0",
            "order of taps",
            weight("layers.0.mixer.taps", lambda x: x.flip(0)),
            [Bug("layers.0.mixer", "convolve", "mul add")],
        ),
        (
            "gains of query and key exchanged in layer 1",
            "gain of another norm",
            swapped("layers.1.mixer.q_gain", "layers.1.mixer.k_gain"),
            [Bug("layers.1.mixer", "normed", RMS_NORM)],
        ),
        (
            "state read before its update in layer 2",
            "order of steps",
            code(
                "layers.2.mixer",
                "scan",
                (
                    "state = state + k[:, index, :, :, None] * change[:, :, None]",
                    "old, state = state, state + k[:, index, :, :, None] * change[:, :, None]",
                ),
                ("state, q[:, index]", "old, q[:, index]"),
            ),
            [Bug("layers.2.mixer", "scan", f"{MIXED} {MOVED} stack")],
        ),
    ),
    **named(
        "parakeet",
        (
            "silu for relu at the entry",
            "activation",
            code("subsampling", "forward", ("relu(self.point(", "silu(self.point(")),
            [Bug("subsampling", "forward", "silu")],
        ),
        (
            "bias of the distances of another layer in layer 1",
            "bias of another layer",
            taken("blocks.1.attention.place", "blocks.3.attention.place"),
            [Bug("blocks.1.attention", "scores", f"add {MIXED}")],
        ),
        (
            "half not in the bias in layer 0",
            "scale of a weight",
            weight("blocks.0.before.down.bias", lambda x: 2 * x),
            [Bug("blocks.0.before.down", "forward", PRODUCT)],
        ),
    ),
}

PAIRS: tuple[tuple[str, str], ...] = tuple(
    (f"{port}: {first}", f"{port}: {second}")  # bugs of different layers
    for port, first, second in (
        ("llama", "heads not transposed in layer 1", "last norm rounded to bfloat16"),
        ("bert", "eps of the second norm in layer 1", "first bias of another layer in layer 2"),
        ("gpt2", "query and key exchanged in layer 0", "one column of a weight is 0 in layer 2"),
        ("gpt_neox", "scores not scaled in layer 1", "no bias of the output in layer 2"),
        ("falcon", "one row of the value twice in layer 3", "residual of the norm in layer 2"),
        ("mistral", "values rounded to bfloat16 in layer 1", "third digit of the base in layer 2"),
        ("mixtral", "next token seen in layer 1", "gain of the other norm in layer 3"),
        ("t5", "softmax over queries in layer 2 of the encoder", "output of the cross attention transposed in layer 1"),
        ("vit", "gain of the first norm for the second in layer 1", "no bias of the head"),
        ("clip", "residual of the norm in layer 1", "one number of a weight in layer 2"),
        ("whisper", "no bias of the second convolution", "relu for gelu in layer 1 of the decoder"),
        ("bart", "norms exchanged in layer 2 of the encoder", "words of the output in bfloat16"),
        ("cohere", "sign in a rotation in layer 0", "gain of layer 3 for the last one"),
        ("convnext", "eps of the norm of the stem", "kernels one row too low in stage 2"),
        ("deepseek_v3", "third digit of the factor in layer 1", "keys of other heads in layer 2"),
        ("gptj", "bias of another layer in layer 0", "heads of the key permuted in layer 3"),
        ("mamba2", "no skip in layer 1", "decay of another layer in layer 2"),
        ("opt", "words multiplied", "no norm before the perceptron in layer 3"),
        ("roberta", "no bias of the first norm in layer 1", "residual twice in layer 2"),
        ("rwkv", "bonus of another layer in layer 0", "tanh for sigmoid in layer 1"),
        ("gpt_oss", "window one too small in layer 0", "queries of the groups in turns in layer 3"),
        ("granite", "values of the next group in layer 1", "third digit of the multiplier in layer 3"),
        ("qwen3_next", "taps backwards in layer 0", "gains of query and key exchanged in layer 1"),
        ("parakeet", "half not in the bias in layer 0", "bias of the distances of another layer in layer 1"),
    )
)
