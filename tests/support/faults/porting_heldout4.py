"""A fourth set of porting bugs, by someone who had not read how `align` finds bugs, and never ran it on these.

Seven ports are new: texts in one row, weights stacked over layers, tables made at conversion, two recurrent models as
products of all pairs of tokens, and two of images. The other bugs are in the ports of the sets before, in other places.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from ..models.ports import Bug
from ..models.ports._port import token_ids
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
    int8,
    named,
    rows,
    swapped_halves,
    taken,
    turned,
    weight,
)

MOVED = "clone view _unsafe_view permute transpose"  # elements in another order
REPEATED = "repeat expand clone copy index_select repeat_interleave index"
MOMENTS = "pow mul mean add rsqrt sqrt div sub var var_mean"  # of a norm in steps
MIXED = f"{PRODUCT} mul sum"  # of weighted values
ROTATED = "mul sub add cat stack neg slice"
FIRST_TOKEN = int(token_ids()[0, 0])


def part(name: str, index: int, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the part of a parameter that belongs to a layer, an expert or a channel."""

    def changed(parameter: Tensor) -> Tensor:
        parameter[index] = change(parameter[index].clone())
        return parameter

    return weight(name, changed)


def from_a(name: str, of: Callable[[nn.Module], Tensor]) -> Plant:
    """Set a parameter to numbers of the model."""
    return lambda a, b: weight(name, lambda _: of(a))(a, b)


def second_half_as_first(parameter: Tensor) -> Tensor:
    return parameter[: len(parameter) // 2].repeat(2, *[1] * (parameter.ndim - 1))


def columns(first: int, last: int, by: int) -> Callable[[Tensor], Tensor]:
    """Return a change that rolls some of the columns."""

    def change(parameter: Tensor) -> Tensor:
        parameter[:, first:last] = parameter[:, first:last].roll(by, 1)
        return parameter

    return change


def keys_as_pairs(a: nn.Module, b: nn.Module) -> None:
    """Leave the columns of a key in the order in which pairs are rotated."""
    own = a.get_parameter("model.layers.2.self_attn.k_proj.weight")
    b.get_parameter("blocks.2.enter")[:, 64 : 64 + len(own)] = own.T


def gain_not_folded(a: nn.Module, b: nn.Module) -> None:
    own = a.get_parameter("backbone.layers.1.mixer.out_proj.weight")
    b.get_parameter("mixers.1.out.weight").copy_(own)


def small_eps_folded(a: nn.Module, b: nn.Module) -> None:
    """Fold a batch norm with the epsilon that PyTorch has as its default."""
    own = a.get_submodule("efficientnet.encoder.blocks.1.expansion")
    norm = own.get_submodule("expand_bn")
    factor = norm.get_parameter("weight") / (norm.get_buffer("running_var") + 1e-5).sqrt()
    kernel = own.get_parameter("expand_conv.weight")[..., 0, 0]
    b.get_parameter("blocks.1.expand.weight").copy_(kernel * factor[:, None])
    offset = norm.get_parameter("bias") - norm.get_buffer("running_mean") * factor
    b.get_parameter("blocks.1.expand.bias").copy_(offset)


def turned_back(_: nn.Module, b: nn.Module) -> None:
    b.get_buffer("turn").copy_(b.get_buffer("turn").T.clone())


def in_olmo2(layer: int, function: str, operators: str) -> Bug:
    """Return a place in a module of one of the layers, as this port has no modules."""
    return Bug("", function, operators, f"model.layers.{layer}.")


def at_olmo2(layer: int, operators: str) -> Bug:
    """Return a place at the end of a layer, which belongs to the layer itself."""
    return Bug("", "layer", operators, f"model.layers.{layer}")


def in_gemma2(layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.layers.{layer}.")


def layers(module: str, function: str, operators: str) -> list[Bug]:
    """Return places in all four layers, for what they share."""
    return [Bug(module.replace("#", str(index)), function, operators) for index in range(4)]


BUGS: dict[str, PortingBug] = {
    **named(
        "cohere",
        (
            "pairs rotated in layer 1",
            "rotary layout",
            code("blocks.1", "rotate", ("x.chunk(2, -1)", "x[..., ::2], x[..., 1::2]")),
            [Bug("blocks.1", "rotate", ROTATED)],
        ),
        (
            "columns of the key not reordered in layer 2",
            "order of columns",
            keys_as_pairs,
            [Bug("blocks.2", "forward", PRODUCT), Bug("blocks.2", "rotate", ROTATED)],
        ),
        (
            "texts see each other",
            "mask",
            code("", "seen", ("(texts[:, None] == texts) & (places", "(places")),
            [Bug("", "seen", "ge bitwise_and"), *layers("blocks.#", "attend", ATTEND)],
        ),
        (
            "keys one position late in layer 3",
            "position",
            code("blocks.3", "attend", ("self.rotate(k, *angles)", "self.rotate(k, *(y.roll(1, 0) for y in angles))")),
            [Bug("blocks.3", "rotate", ROTATED), Bug("blocks.3", "attend", "roll")],
        ),
        (
            "norm without the mean in layer 0",
            "formula of a norm",
            code("blocks.0", "normalize", ("layer_norm(x, ", "torch.nn.functional.rms_norm(x, ")),
            [Bug("blocks.0", "normalize", RMS_NORM)],
        ),
        (
            "gate and up exchanged in layer 3",
            "order of parts",
            code("blocks.3", "forward", ("*parts, gate, up =", "*parts, up, gate =")),
            [Bug("blocks.3", "forward", "silu mul")],
        ),
        (
            "logits scaled twice",
            "scale of a weight",
            weight("gain", lambda x: x * 0.25),
            [Bug("", "forward", f"{LAYER_NORM} {PRODUCT}")],
        ),
        (
            "residual of the norm in layer 1",
            "residual",
            code("blocks.1", "forward", ("return x + torch.cat", "return self.normalize(x) + torch.cat")),
            [Bug("blocks.1", "forward", "add")],
        ),
        (
            "heads of the output permuted in layer 1",
            "order of rows",
            weight("blocks.1.leave", turned(0, 64, 16)),
            [Bug("blocks.1", "forward", PRODUCT)],
        ),
        (
            "keys repeated in the wrong order in layer 0",
            "groups of heads",
            code(
                "blocks.0",
                "attend",
                (
                    "(q, k, v, attn_mask=seen, enable_gqa=True)",
                    "(q, *(y.repeat(1, self.heads // self.groups, 1, 1) for y in (k, v)), attn_mask=seen)",
                ),
            ),
            [Bug("blocks.0", "attend", f"{ATTEND} {REPEATED}")],
        ),
        (
            "entry in bfloat16 in layer 3",
            "precision of a weight",
            weight("blocks.3.enter", bfloat16),
            [Bug("blocks.3", "forward", PRODUCT)],
        ),
        (
            "scores divided by the size in layer 2",
            "scale of the scores",
            code("blocks.2", "attend", ("enable_gqa=True", "enable_gqa=True, scale=1 / self.size")),
            [Bug("blocks.2", "attend", ATTEND)],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("", "eps", 1e-3),
            [Bug("", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "olmo2",
        (
            "norm of each head of the query in layer 1",
            "formula of a norm",
            code(
                "",
                "attention",
                (
                    'self.norm(query, p["query_gain"])',
                    (
                        '(self.norm(query, p["query_gain"]) if index != 1 else query * p["query_gain"] * torch.rsqrt('
                        "query.square().mean(-1, keepdim=True) + self.eps))"
                    ),
                ),
            ),
            [in_olmo2(1, "attention", MOMENTS)],
        ),
        (
            "gain of the key of another layer in layer 2",
            "weight of another layer",
            weight("params.key_gain", lambda x: x[[0, 1, 1, 3]]),
            [in_olmo2(2, "norm", "mul")],
        ),
        (
            "rotated backwards",
            "rotary layout",
            turned_back,
            [Bug("", "rope", f"{PRODUCT} mul add")],
        ),
        (
            "key not rotated in layer 3",
            "operand",
            code(
                "",
                "attention",
                ("key = self.rope(key, cos, sin)", "key = key if index == 3 else self.rope(key, cos, sin)"),
            ),
            [in_olmo2(3, "attention", f"{PRODUCT} {REPEATED}")],
        ),
        (
            "keys repeated in the wrong order in layer 0",
            "groups of heads",
            code(
                "",
                "attention",
                (
                    "key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)",
                    "(y.repeat(1, 1, 2, 1) if index == 0 else y.repeat_interleave(repeats, 2) for y in (key, value))",
                ),
            ),
            [in_olmo2(0, "attention", f"{PRODUCT} {REPEATED}")],
        ),
        (
            "norm after the residual in layer 2",
            "order of norm and branch",
            code(
                "",
                "layer",
                (
                    'x + self.norm(self.mlp(index, x), self.params["mlp_gain"][index])',
                    (
                        '(self.norm(x + self.mlp(index, x), self.params["mlp_gain"][index]) if index == 2'
                        ' else x + self.norm(self.mlp(index, x), self.params["mlp_gain"][index]))'
                    ),
                ),
            ),
            [at_olmo2(2, "add"), at_olmo2(2, MOMENTS), Bug("", "norm", MOMENTS, "model.layers.2")],
        ),
        (
            "gate and up exchanged in layer 3",
            "order of parts",
            part("params.wi", 3, lambda x: x.flip(1)),
            [in_olmo2(3, "mlp", f"{PRODUCT} silu mul")],
        ),
        (
            "next token seen in layer 1",
            "mask",
            code(
                "",
                "attention",
                (
                    "mask = torch.arange(x.shape[1])[:, None]",
                    "mask = torch.arange(x.shape[1])[:, None] + int(index == 1)",
                ),
            ),
            [Bug("", "attention", "ge add"), in_olmo2(1, "attention", "where _softmax")],
        ),
        (
            "no scale in layer 2",
            "scale of the scores",
            code("", "attention", ("/ self.size**0.5", "/ (1.0 if index == 2 else self.size**0.5)")),
            [in_olmo2(2, "attention", f"div {PRODUCT}")],
        ),
        (
            "theta",
            "rotary constant",
            constant("", "theta", 1000.0),
            [Bug("", "forward", "pow div mul reciprocal cos sin")],
        ),
        (
            "one row twice in layer 0",
            "one row of a weight",
            part("params.wo", 0, rows(5, 6, of=4)),
            [in_olmo2(0, "mlp", PRODUCT)],
        ),
        (
            "gelu for silu in layer 1",
            "activation",
            code("", "mlp", ('if self.bug == "activation"', "if index == 1")),
            [in_olmo2(1, "mlp", "gelu")],
        ),
        (
            "eps of all norms",
            "eps",
            constant("", "eps", 1e-3),
            [Bug("", "norm", "add rsqrt mul")],
        ),
    ),
    **named(
        "deberta_v2",
        (
            "sign of the distance of keys in layer 1",
            "relative positions",
            code("layers.1.attention", "scores", ("self.far_key[distance]", "self.far_key[distance.T]")),
            [Bug("layers.1.attention", "scores", f"index {PRODUCT} mul sum permute")],
        ),
        (
            "queries of the distances not scaled in layer 2",
            "scale of a weight",
            weight("layers.2.attention.far_query", lambda x: x * math.sqrt(48)),
            [Bug("layers.2.attention", "scores", f"index {PRODUCT} mul sum")],
        ),
        (
            "large distances rounded down",
            "relative positions",
            code("", "bucket", ("math.ceil", "math.floor")),
            [Bug("", "distances", "lift_fresh"), *layers("layers.#.attention", "scores", f"index {PRODUCT} mul sum")],
        ),
        (
            "no mask in layer 3",
            "mask",
            code("layers.3.attention", "forward", (".masked_fill(~mask[:, None], HIDDEN_SCORE)", "")),
            [Bug("layers.3.attention", "forward", "_softmax")],
        ),
        (
            "padding is not 0",
            "missing step",
            code("", "forward", ("self.norm(self.words(ids)) * mask[..., None]", "self.norm(self.words(ids))")),
            [Bug("layers.0.attention.qkv", "forward", PRODUCT), Bug("layers.0", "forward", "add")],
        ),
        (
            "keys of the distances of another layer in layer 3",
            "weight of another layer",
            taken("layers.3.attention.far_key", "layers.2.attention.far_key"),
            [Bug("layers.3.attention", "scores", f"index {PRODUCT} mul sum")],
        ),
        (
            "norm before the residual in layer 0",
            "order of norm and branch",
            code("layers.0", "forward", ("self.after(x + self.attention(", "x + self.after(self.attention(")),
            [Bug("layers.0.after", "forward", LAYER_NORM), Bug("layers.0", "forward", "add")],
        ),
        (
            "gelu by tanh in the head",
            "activation",
            code("", "forward", ("gelu(self.transform(x))", 'gelu(self.transform(x), approximate="tanh")')),
            [Bug("", "forward", "gelu")],
        ),
        (
            "no bias of the words",
            "bias",
            weight("offset", torch.zeros_like),
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "bias of the key for the query in layer 1",
            "bias",
            weight("layers.1.attention.qkv.bias", rows(0, 64, of=64)),
            [
                Bug("layers.1.attention.qkv", "forward", PRODUCT),
                Bug("layers.1.attention", "scores", f"{PRODUCT} mul sum"),  # no value of A has scaled queries
            ],
        ),
        (
            "query, key and value by head in layer 2",
            "order of parts",
            code(
                "layers.2.attention",
                "forward",
                ("(3, self.heads, -1)).unbind(2)", "(self.heads, 3, -1)).unbind(3)"),
            ),
            [
                Bug("layers.2.attention", "scores", f"{PRODUCT} mul sum"),
                Bug("layers.2.attention", "forward", f"{PRODUCT} {MOVED} unbind"),
                Bug("layers.2.attention.qkv", "forward", PRODUCT),
            ],
        ),
        (
            "eps of the words",
            "eps",
            constant("norm", "eps", 1e-3),
            [Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "words of the next query in layer 0",
            "order of axes",
            code("layers.0.attention", "scores", ("bihd,bjhd->bhij", "bihd,bjhd->bhji")),
            [Bug("layers.0.attention", "scores", f"{PRODUCT} permute")],
        ),
    ),
    **named(
        "mamba2",
        (
            "taps backwards in layer 1",
            "convolution",
            weight("mixers.1.kernel", lambda x: x.flip(2)),
            [Bug("mixers.1", "convolve", "convolution")],
        ),
        (
            "convolution sees the next token in layer 0",
            "padding",
            code("mixers.0", "convolve", ("(self.kernel.shape[-1] - 1, 0)", "(self.kernel.shape[-1] - 2, 1)")),
            [Bug("mixers.0", "convolve", "constant_pad_nd convolution")],
        ),
        (
            "input and output of the state exchanged in layer 2",
            "order of parts",
            code("mixers.2", "forward", ("x, into, out =", "x, out, into =")),
            [Bug("mixers.2", "mix", f"{PRODUCT} mul"), Bug("mixers.2", "forward", MOVED)],
        ),
        (
            "relu for softplus in layer 3",
            "activation",
            code("mixers.3", "forward", ("softplus(self.dt(x))", "torch.relu(self.dt(x))")),
            [Bug("mixers.3", "forward", "relu")],
        ),
        (
            "no bias of the steps in layer 0",
            "bias",
            weight("mixers.0.dt.bias", torch.zeros_like),
            [Bug("mixers.0.dt", "forward", PRODUCT), Bug("mixers.0", "forward", "softplus")],
        ),
        (
            "gate after the norm in layer 2",
            "order of norm and branch",
            code("mixers.2", "forward", ("self.normalize(y * gate)", "self.normalize(y) * gate")),
            [Bug("mixers.2", "normalize", MOMENTS), Bug("mixers.2", "forward", "mul")],
        ),
        (
            "one decay too many in layer 1",
            "state",
            constant("mixers.1", "bug", "one decay too many"),
            [Bug("mixers.1", "decays", "add sub masked_fill where exp"), Bug("mixers.1", "mix", f"mul {PRODUCT}")],
        ),
        (
            "skips of other heads in layer 3",
            "order of heads",
            weight("mixers.3.skip", lambda x: x.roll(1, 0)),
            [Bug("mixers.3", "mix", f"diag_embed expand {PRODUCT}")],
        ),
        (
            "groups of heads alternate in layer 0",
            "groups of heads",
            code(
                "mixers.0",
                "mix",
                (
                    ".repeat_interleave(self.heads // self.groups, 1)",
                    ".repeat(1, self.heads // self.groups, 1, 1)",
                ),
            ),
            [Bug("mixers.0", "mix", f"{REPEATED} mul {PRODUCT}")],
        ),
        (
            "inputs not multiplied by the step in layer 2",
            "missing step",
            code("mixers.2", "mix", (" * steps.mT[:, :, None]", "")),
            [Bug("mixers.2", "mix", f"mul {PRODUCT}")],
        ),
        (
            "gain not folded in layer 1",
            "scale of a weight",
            gain_not_folded,
            [Bug("mixers.1.out", "forward", PRODUCT)],
        ),
        (
            "norm of another layer in layer 3",
            "weight of another layer",
            taken("norms.3.weight", "norms.2.weight"),
            [Bug("norms.3", "forward", RMS_NORM)],
        ),
        (
            "head tied",
            "tied weights",
            taken("head.weight", "embed.weight"),
            [Bug("head", "forward", PRODUCT)],
        ),
    ),
    **named(
        "efficientnet",
        (
            "stem padded on the other sides",
            "padding",
            code("", "stem", ("(0, 1, 0, 1)", "(1, 0, 1, 0)")),
            [Bug("", "stem", "constant_pad_nd convolution")],
        ),
        (
            "one more place before the image in block 3",
            "padding",
            code("blocks.3.depthwise", "forward", ("else half - 1", "else half")),
            [Bug("blocks.3.depthwise", "forward", "constant_pad_nd mul add")],
        ),
        (
            "rows and columns of the kernel exchanged in block 4",
            "transposed weight",
            weight("blocks.4.depthwise.taps", lambda x: x.transpose(0, 1)),
            [Bug("blocks.4.depthwise", "forward", "mul add")],
        ),
        (
            "eps of a folded norm in block 1",
            "eps",
            small_eps_folded,
            [Bug("blocks.1.expand", "forward", PRODUCT)],
        ),
        (
            "mean not folded in block 2",
            "folded bias",
            from_a(
                "blocks.2.project.bias",
                lambda a: a.get_parameter("efficientnet.encoder.blocks.2.projection.project_bn.bias"),
            ),
            [Bug("blocks.2.project", "forward", PRODUCT)],
        ),
        (
            "hard sigmoid in block 1",
            "activation",
            code(
                "blocks.1.squeeze",
                "forward",
                ("x * self.grow(hidden).sigmoid()", "x * torch.nn.functional.hardsigmoid(self.grow(hidden))"),
            ),
            [Bug("blocks.1.squeeze", "forward", "hardsigmoid add clamp div mul")],
        ),
        (
            "maximum of the places in block 4",
            "pooling",
            code("blocks.4.squeeze", "forward", ("x.mean(", "x.amax(")),
            [Bug("blocks.4.squeeze", "forward", "amax"), Bug("blocks.4.squeeze.shrink", "forward", PRODUCT)],
        ),
        (
            "no residual in block 2",
            "residual",
            constant("blocks.2", "is_residual", value=False),
            [Bug("blocks.3.expand", "forward", PRODUCT), Bug("blocks.2", "forward", "add")],
        ),
        (
            "activation of the projection in block 0",
            "extra step",
            code("blocks.0", "forward", ("else self.project(y)", "else silu(self.project(y))")),
            [Bug("blocks.0", "forward", "silu"), Bug("blocks.1.expand", "forward", PRODUCT)],
        ),
        (
            "blue, green, red",
            "order of channels",
            weight("kernel", lambda x: x.flip(2)),
            [Bug("", "stem", "convolution")],
        ),
        (
            "one row of the head twice",
            "one row of a weight",
            weight("head.weight", rows(2, 3, of=1)),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "squeeze of another block in block 4",
            "weight of another layer",
            taken("blocks.4.squeeze.grow.weight", "blocks.3.squeeze.grow.weight"),
            [Bug("blocks.4.squeeze.grow", "forward", PRODUCT)],
        ),
        (
            "squeezed before the activation in block 3",
            "order of steps",
            code(
                "blocks.3",
                "forward",
                ("self.squeeze(silu(self.depthwise(y)))", "silu(self.squeeze(self.depthwise(y)))"),
            ),
            [
                Bug("blocks.3.squeeze", "forward", "mean mul"),
                Bug("blocks.3.squeeze.shrink", "forward", PRODUCT),
                Bug("blocks.3", "forward", "silu"),
            ],
        ),
    ),
    **named(
        "segformer",
        (
            "eps of the first norm",
            "eps",
            constant("stages.0.norm_in", "eps", 1e-3),
            [Bug("stages.0.norm_in", "forward", "add sqrt div")],
        ),
        (
            "squares by columns in stage 0",
            "order of neighbors",
            code("stages.0.blocks.0.attention", "fewer", (".transpose(2, 3)", ".permute(0, 1, 3, 4, 2, 5)")),
            [
                Bug("stages.0.blocks.0.attention", "fewer", MOVED),
                Bug("stages.0.blocks.0.attention.reduce", "fewer", PRODUCT),
            ],
        ),
        (
            "key and value exchanged in the second block of stage 1",
            "order of parts",
            code("stages.1.blocks.1.attention", "forward", ("k, v = self", "v, k = self")),
            [
                Bug("stages.1.blocks.1.attention", "forward", ATTEND),
                Bug("stages.1.blocks.1.attention.key_value", "forward", PRODUCT),
            ],
        ),
        (
            "key and value by head in stage 2",
            "order of parts",
            code(
                "stages.2.blocks.0.attention",
                "forward",
                ("(2, self.heads, -1)).unbind(2)", "(self.heads, 2, -1)).unbind(3)"),
            ),
            [
                Bug("stages.2.blocks.0.attention", "forward", f"{ATTEND} {MOVED} unbind"),
                Bug("stages.2.blocks.0.attention.key_value", "forward", PRODUCT),
            ],
        ),
        (
            "no norm of fewer places in the first block of stage 1",
            "missing step",
            code(
                "stages.1.blocks.0.attention",
                "fewer",
                ("self.norm(self.reduce(squares.flatten(3)))", "self.reduce(squares.flatten(3))"),
            ),
            [Bug("stages.1.blocks.0.attention.key_value", "forward", PRODUCT)],
        ),
        (
            "variance divided by one less in stage 2",
            "formula of a norm",
            code("stages.2.blocks.0.between", "forward", ("correction=0", "correction=1")),
            [Bug("stages.2.blocks.0.between", "forward", MOMENTS)],
        ),
        (
            "rows and columns of the kernels exchanged in the second block of stage 1",
            "transposed weight",
            weight("stages.1.blocks.1.taps", lambda x: x.transpose(0, 1)),
            [Bug("stages.1.blocks.1", "spread", "convolution")],
        ),
        (
            "edges reflected in stage 0",
            "padding",
            code(
                "stages.0.blocks.0",
                "spread",
                (
                    "conv2d(x.permute(0, 3, 1, 2),",
                    "conv2d(torch.nn.functional.pad(x.permute(0, 3, 1, 2), [1] * 4, 'reflect'),",
                ),
                ("padding=1, ", ""),
            ),
            [Bug("stages.0.blocks.0", "spread", "convolution reflection_pad2d")],
        ),
        (
            "activation before the kernels in stage 0",
            "order of steps",
            code("stages.0.blocks.0", "forward", ("gelu(self.spread(self.up(", "self.spread(gelu(self.up(")),
            [Bug("stages.0.blocks.0", "forward", "gelu"), Bug("stages.0.blocks.0", "spread", "convolution")],
        ),
        (
            "mean not folded in the head",
            "folded bias",
            from_a("shift", lambda a: a.get_parameter("decode_head.batch_norm.bias")),
            [Bug("", "forward", "add")],
        ),
        (
            "nearest places for the head",
            "interpolation",
            code("", "enlarge", ('mode="bilinear", align_corners=self.bug == "corners"', 'mode="nearest"')),
            [Bug("", "enlarge", "upsample_nearest2d index _unsafe_index"), Bug("", "forward", "add")],
        ),
        (
            "corners in their places",
            "interpolation",
            constant("", "bug", "corners"),
            [
                Bug("", "enlarge", "upsample_bilinear2d mul add sub clamp index _unsafe_index"),
                Bug("", "forward", "add"),
            ],
        ),
        (
            "no activation in the head",
            "missing step",
            code("", "forward", ("relu(total)", "total")),
            [Bug("classifier", "forward", PRODUCT)],
        ),
        (
            "no padding of the patches of stage 2",
            "padding",
            constant("stages.2.patches", "padding", (0, 0)),
            [Bug("stages.2.patches", "forward", "convolution")],
        ),
        (
            "query of the first block in the second block of stage 1",
            "weight of another layer",
            taken("stages.1.blocks.1.attention.query.weight", "stages.1.blocks.0.attention.query.weight"),
            [Bug("stages.1.blocks.1.attention.query", "forward", PRODUCT)],
        ),
        (
            "scale of the whole width in the first block of stage 1",
            "scale of the scores",
            code("stages.1.blocks.0.attention", "forward", ("q.shape[-1] ** -0.5", "x.shape[-1] ** -0.5")),
            [Bug("stages.1.blocks.0.attention", "forward", "mul _softmax")],
        ),
    ),
    **named(
        "rwkv",
        (
            "no bonus in layer 1",
            "state",
            weight("blocks.1.time.bonus", torch.zeros_like),
            [Bug("blocks.1.time", "shares", "add where"), Bug("blocks.1.time", "forward", MIXED)],
        ),
        (
            "one decay too many in layer 2",
            "state",
            constant("blocks.2.time", "bug", "age"),
            [Bug("blocks.2.time", "shares", "sub mul where"), Bug("blocks.2.time", "forward", MIXED)],
        ),
        (
            "logarithm of the decay in layer 3",
            "scale of a weight",
            from_a("blocks.3.time.decay", lambda a: a.get_parameter("rwkv.blocks.3.attention.time_decay")),
            [Bug("blocks.3.time", "shares", "mul sub where"), Bug("blocks.3.time", "forward", MIXED)],
        ),
        (
            "shares of the other token in layer 2",
            "order of columns",
            weight("blocks.2.time.kvr.weight", lambda x: x.roll(64, 1)),
            [Bug("blocks.2.time.kvr", "forward", PRODUCT)],
        ),
        (
            "last token before the first one in layer 1",
            "padding",
            code("blocks.1.channels", "forward", ("with_last(x)", "torch.cat([x, x.roll(1, 0)], -1)")),
            [Bug("blocks.1.channels", "forward", "roll cat"), Bug("blocks.1.channels.kr", "forward", PRODUCT)],
        ),
        (
            "no sigmoid in layer 0",
            "missing step",
            code("blocks.0.channels", "forward", ("* r.sigmoid()", "* r")),
            [Bug("blocks.0.channels", "forward", "mul")],
        ),
        (
            "not squared in layer 3",
            "missing step",
            constant("blocks.3.channels", "bug", "not squared"),
            [Bug("blocks.3.channels.value", "forward", PRODUCT), Bug("blocks.3.channels", "forward", "relu")],
        ),
        (
            "softmax over later tokens in layer 2",
            "softmax",
            code("blocks.2.time", "shares", (".softmax(1)", ".softmax(0)")),
            [Bug("blocks.2.time", "shares", "_softmax"), Bug("blocks.2.time", "forward", MIXED)],
        ),
        (
            "value and receptance exchanged in layer 3",
            "order of parts",
            code("blocks.3.time", "forward", ("k, v, r =", "k, r, v =")),
            [Bug("blocks.3.time", "forward", f"{MIXED} sigmoid")],
        ),
        (
            "words not normalized",
            "missing step",
            from_a("words.weight", lambda a: a.get_parameter("rwkv.embeddings.weight")),
            [Bug("words", "forward", EMBED)],
        ),
        (
            "norms exchanged in layer 1",
            "weight of another layer",
            both(weight("blocks.1.gains", lambda x: x.flip(0)), weight("blocks.1.shifts", lambda x: x.flip(0))),
            [Bug("blocks.1", "normalize", LAYER_NORM)],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("norm", "eps", 1e-3),
            [Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "residual of the norm in layer 0",
            "residual",
            code(
                "blocks.0",
                "forward",
                ("x = x + self.time(self.normalize(0, x))", "x = self.normalize(0, x); x = x + self.time(x)"),
            ),
            [Bug("blocks.0", "forward", "add")],
        ),
    ),
    **named(
        "llama",
        (
            "angles backwards in layer 2",
            "position",
            code("blocks.2.attention", "rotate", ("pairs * turns[:, None]", "pairs * turns[:, None].conj()")),
            [Bug("blocks.2.attention", "rotate", "mul _conj view_as_real")],
        ),
        (
            "one row of the gate twice in layer 0",
            "one row of a weight",
            weight("blocks.0.mlp.gate_up.weight", rows(40, 41, of=41)),
            [Bug("blocks.0.mlp.gate_up", "forward", PRODUCT)],
        ),
        (
            "no last residual",
            "residual",
            code("", "forward", ("self.norm(x, residual)[0]", "self.norm(x, None)[0]")),
            [Bug("norm", "forward", "mul mean add rsqrt")],
        ),
    ),
    **named(
        "bert",
        (
            "relu for gelu in layer 1",
            "activation",
            both(
                constant("encoder.layers.1", "activation", torch.relu),
                constant("encoder.layers.1", "activation_relu_or_gelu", 1),  # of the path without gradients
            ),
            [Bug("encoder.layers.1", "forward", "relu"), Bug("encoder.layers.1", "", "relu")],
        ),
        (
            "one word for another",
            "one row of a weight",
            weight("embed.word.weight", rows(FIRST_TOKEN, FIRST_TOKEN + 1, of=2)),
            [Bug("embed.word", "forward", EMBED)],
        ),
    ),
    **named(
        "gpt2",
        (
            "scores divided by the number of the layer in layer 2",
            "scale of the scores",
            code("blocks.2", "attend", ("q * self.width**-0.5", "q * (self.width**-0.5 / 3)")),
            [Bug("blocks.2", "attend", f"mul {PRODUCT} _softmax")],
        ),
        (
            "quick gelu in layer 0",
            "activation",
            code(
                "blocks.0",
                "transform",
                (
                    'gelu(self.up(x), approximate="none" if self.bug == "activation" else "tanh")',
                    "(y := self.up(x)) * torch.sigmoid(1.702 * y)",
                ),
            ),
            [Bug("blocks.0", "transform", "sigmoid mul")],
        ),
    ),
    **named(
        "qwen2",
        (
            "no bias in layer 3",
            "bias",
            weight("stack.3.packed.bias", torch.zeros_like),
            [Bug("stack.3.packed", "attend", PRODUCT)],
        ),
        (
            "columns one place late in layer 1",
            "order of columns",
            weight("stack.1.shrink.weight", lambda x: x.roll(1, 1)),
            [Bug("stack.1.shrink", "transform", PRODUCT)],
        ),
    ),
    **named(
        "gpt_neox",
        (
            "bias of the query for the value in layer 1",
            "bias",
            taken("blocks.1.attention.value.bias", "blocks.1.attention.query.bias"),
            [Bug("blocks.1.attention.value", "forward", PRODUCT)],
        ),
        (
            "first norm for both branches in layer 3",
            "operand",
            code("blocks.3", "forward", ("normed = self.norm_m(", "normed = self.norm_a(")),
            [
                Bug("blocks.3.norm_a@1", "forward", LAYER_NORM),
                Bug("blocks.3.norm_a", "forward", LAYER_NORM),
                Bug("blocks.3.up", "forward", PRODUCT),
            ],
        ),
        (
            "up in int8 in layer 0",
            "precision of a weight",
            weight("blocks.0.up.weight", int8),
            [Bug("blocks.0.up", "forward", PRODUCT)],
        ),
    ),
    **named(
        "gemma",
        (
            "activation of the other product in layer 2",
            "operand",
            code(
                "layers.2",
                "forward",
                (
                    "gelu(self.gate(y), approximate=self.approximation) * self.up(y)",
                    "self.gate(y) * gelu(self.up(y), approximate=self.approximation)",
                ),
            ),
            [Bug("layers.2", "forward", "gelu mul")],
        ),
        (
            "words not scaled",
            "scale of a weight",
            weight("embed.weight", lambda x: x / 8),
            [Bug("embed", "forward", EMBED)],
        ),
    ),
    **named(
        "falcon",
        (
            "first query for the key in layer 1",
            "order of rows",
            weight("blocks.1.enter.weight", rows(64, 80, of=0)),
            [Bug("blocks.1.enter", "forward", PRODUCT)],
        ),
        (
            "scores of the next key in layer 2",
            "mask",
            code("blocks.2", "forward", (".tril(1 if", ".tril(2 if"), ("else 0)", "else 1)")),
            [Bug("blocks.2", "forward", "tril where _softmax")],
        ),
    ),
    **named(
        "mistral",
        (
            "no norm before the second branch in layer 2",
            "missing step",
            code("layers.2", "forward", ("self.gate_up(self.norm(x))", "self.gate_up(x)")),
            [Bug("layers.2.gate_up", "forward", PRODUCT)],
        ),
        (
            "softmax over queries in layer 0",
            "softmax",
            code("layers.0", "attend", ("softmax(scores, -1)", "softmax(scores, -2)")),
            [Bug("layers.0", "attend", "_softmax")],
        ),
    ),
    **named(
        "mixtral",
        (
            "shares not normalized in layer 1",
            "routing",
            constant("layers.1.mixture", "bug", "shares not normalized"),
            [Bug("layers.1.mixture", "forward", "_softmax topk mul index_add index")],
        ),
        (
            "heads of the key exchanged in layer 2",
            "order of heads",
            weight("layers.2.wk.weight", swapped_halves),
            [
                Bug("layers.2.wk", "attend", PRODUCT),
                Bug("layers.2", "rotate", ROTATED),
                Bug("layers.2", "attend", ATTEND),
            ],
        ),
    ),
    **named(
        "t5",
        (
            "scores divided by the size in layer 2 of the decoder",
            "scale of the scores",
            constant("decoder.layers.2.cross", "bug", "scaled scores"),
            [Bug("decoder.layers.2.cross", "forward", "div _softmax")],
        ),
        (
            "gelu for relu in layer 1",
            "activation",
            constant("encoder.layers.1", "activation", gelu),
            [Bug("encoder.layers.1", "forward", "gelu")],
        ),
        (
            "biases of other heads",
            "order of heads",
            weight("decoder.biases", lambda x: x.roll(1, 0)),
            [Bug("decoder", "bias", "index"), Bug("decoder", "forward", "masked_fill where")],
        ),
    ),
    **named(
        "whisper",
        (
            "positions of the encoder backwards",
            "position",
            weight("encoder.positions", lambda x: x.flip(0)),
            [Bug("encoder", "forward", "add")],
        ),
        (
            "norms exchanged in layer 3",
            "weight of another layer",
            exchanged("blocks.3.norm_cross", "blocks.3.norm_mlp"),
            [Bug("blocks.3.norm_cross", "forward", LAYER_NORM), Bug("blocks.3.norm_mlp", "forward", LAYER_NORM)],
        ),
        (
            "keys for values in layer 1",
            "order of parts",
            weight("blocks.1.cross.key_value.weight", second_half_as_first),
            [Bug("blocks.1.cross.key_value", "forward", PRODUCT)],
        ),
    ),
    **named(
        "vit",
        (
            "patches by columns",
            "order of pixels",
            weight("patches.linear.weight", lambda x: x.unflatten(1, (8, 8, 3)).transpose(1, 2).flatten(1)),
            [Bug("patches.linear", "forward", PRODUCT)],
        ),
        (
            "no bias in layer 2",
            "bias",
            weight("blocks.2.down.bias", torch.zeros_like),
            [Bug("blocks.2.down", "forward", PRODUCT)],
        ),
    ),
    **named(
        "clip",
        (
            "heads not transposed in layer 3",
            "order of axes",
            constant("blocks.3", "bug", "heads not transposed"),
            [Bug("blocks.3", "attend", MOVED), Bug("blocks.3.proj", "attend", PRODUCT)],
        ),
        (
            "weight in bfloat16 in layer 0",
            "precision of a weight",
            weight("blocks.0.c_fc.weight", bfloat16),
            [Bug("blocks.0.c_fc", "forward", PRODUCT)],
        ),
    ),
    **named(
        "resnet",
        (
            "activation before the sum in block 2",
            "order of steps",
            constant("blocks.2", "bug", "activation before the sum"),
            [Bug("blocks.2", "forward", "relu add")],
        ),
        (
            "maximum of the places",
            "pooling",
            code("", "forward", (".mean((2, 3))", ".amax((2, 3))")),
            [Bug("", "forward", "amax"), Bug("head", "forward", PRODUCT)],
        ),
    ),
    **named(
        "mamba",
        (
            "gate without its activation in layer 0",
            "missing step",
            code("mixers.0", "forward", ("y * silu(gate)", "y * gate")),
            [Bug("mixers.0", "forward", "mul")],
        ),
        (
            "no bias of the convolution in layer 2",
            "bias",
            weight("mixers.2.offset", torch.zeros_like),
            [Bug("mixers.2", "convolve", "add"), Bug("mixers.2", "forward", "silu")],
        ),
    ),
    **named(
        "gptj",
        (
            "no bias of the head",
            "bias",
            weight("head.bias", torch.zeros_like),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "heads of the output in layer 1",
            "order of columns",
            weight("blocks.1.attention.proj.weight", lambda x: x.roll(16, 1)),
            [Bug("blocks.1.attention.proj", "forward", PRODUCT)],
        ),
    ),
    **named(
        "opt",
        (
            "residual of the norm in layer 0",
            "residual",
            code(
                "blocks.0",
                "forward",
                ("x = x + self.attn(self.ln1(x), hidden)", "x = self.ln1(x); x = x + self.attn(x, hidden)"),
            ),
            [Bug("blocks.0", "forward", "add")],
        ),
        (
            "bias of another layer in layer 3",
            "weight of another layer",
            taken("blocks.3.attn.b_O", "blocks.2.attn.b_O"),
            [Bug("blocks.3.attn", "forward", "add")],
        ),
    ),
    **named(
        "bloom",
        (
            "heads of the value permuted in layer 0",
            "order of rows",
            both(
                weight("blocks.0.attn.Wqkv.weight", turned(128, 192, 16)),
                weight("blocks.0.attn.Wqkv.bias", turned(128, 192, 16)),
            ),
            [
                Bug("blocks.0.attn.Wqkv", "forward", PRODUCT),
                Bug("blocks.0.attn", "forward", ATTEND),
                Bug("blocks.0.attn.out_proj", "forward", PRODUCT),
            ],
        ),
        (
            "no last norm",
            "missing step",
            code("", "forward", ("self.norm_f(x)", "x")),
            [Bug("", "forward", PRODUCT)],
        ),
    ),
    **named(
        "qwen3_moe",
        (
            "eps of queries and keys in layer 2",
            "eps",
            constant("layers.2.attention", "eps", 1e-2),
            [Bug("layers.2.attention", "normed", RMS_NORM)],
        ),
        (
            "output of one expert in int8 in layer 1",
            "precision of a weight",
            part("layers.1.ffn.w_out", 1, int8),
            [Bug("layers.1.ffn", "forward", f"{PRODUCT} mul sum")],
        ),
    ),
    **named(
        "roberta",
        (
            "mask too weak",
            "mask",
            code("", "forward", ("* -1e4", "* -1.0")),
            [Bug("", "forward", "mul"), *layers("layers.#.attention", "forward", "add _softmax")],
        ),
        (
            "heads joined backwards in layer 3",
            "order of heads",
            code("layers.3.attention", "forward", ("torch.cat(mixed, 1)", "torch.cat(mixed[::-1], 1)")),
            [
                Bug("layers.3.attention", "forward", "cat"),
                Bug("layers.3.attention.out_proj", "forward", f"convolution {PRODUCT}"),
            ],
        ),
    ),
    **named(
        "gemma2",
        (
            "cap of the logits",
            "soft cap",
            code("", "forward", ("cap = self.config.final_logit_softcapping", "cap = 30.0")),
            [Bug("", "forward", "div tanh mul")],
        ),
        (
            "gate and up exchanged in layer 2",
            "order of parts",
            part("params.gating", 2, lambda x: x.flip(0)),
            [in_gemma2(2, "feed_forward", f"{PRODUCT} gelu mul")],
        ),
        (
            "one column of the output in layer 0",
            "one row of a weight",
            part("params.linear", 0, lambda x: rows(3, 4, of=7)(x.T.clone()).T),
            [in_gemma2(0, "feed_forward", PRODUCT)],
        ),
    ),
    **named(
        "albert",
        (
            "eps",
            "eps",
            constant("", "eps", 1e-3),
            [Bug("", "normalize", LAYER_NORM)],
        ),
        (
            "biases of the other group",
            "weight of another layer",
            taken("weights.up1_b", "weights.up0_b"),
            [Bug("", "apply_linear", PRODUCT)],
        ),
    ),
    **named(
        "bart",
        (
            "no bias in layer 1 of the decoder",
            "bias",
            weight("decoder.layers.1.mlp.0.bias", torch.zeros_like),
            [Bug("decoder.layers.1.mlp.0", "decode", PRODUCT)],
        ),
        (
            "no second residual in layer 3 of the encoder",
            "residual",
            code("encoder.layers.3", "encode", ("self.norm_m(x + self.mlp[1]", "self.norm_m(self.mlp[1]")),
            [Bug("encoder.layers.3.norm_m", "encode", LAYER_NORM)],
        ),
    ),
    **named(
        "convnext",
        (
            "no norm of the head",
            "missing step",
            code("", "forward", ("self.head(self.norm(x.mean((1, 2))))", "self.head(x.mean((1, 2)))")),
            [Bug("head", "forward", PRODUCT)],
        ),
        (
            "one kernel twice in stage 1",
            "one row of a weight",
            weight("stages.1.1.taps", lambda x: rows(5, 6, of=6)(x.permute(2, 0, 1).clone()).permute(1, 2, 0)),
            [Bug("stages.1.1", "mix", "convolution")],
        ),
    ),
    **named(
        "deepseek_v3",
        (
            "halves rotated in layer 0",
            "rotary layout",
            constant("layers.0.attention", "bug", "rotary layout"),
            [Bug("layers.0.attention", "rotate", ROTATED)],
        ),
        (
            "eps of the latent values in layer 1",
            "eps",
            constant("layers.1.attention.norm_kv", "eps", 1e-2),
            [Bug("layers.1.attention.norm_kv", "forward", RMS_NORM)],
        ),
    ),
    **named(
        "swin",
        (
            "no norm of the merging layer",
            "missing step",
            code(
                "layers.2",
                "forward",
                (
                    "self.linear(self.norm(parts.permute(order).flatten(3)))",
                    "self.linear(parts.permute(order).flatten(3))",
                ),
            ),
            [Bug("layers.2.linear", "forward", PRODUCT)],
        ),
        (
            "biases of other heads in layer 4",
            "order of heads",
            weight("layers.4.attention.table", lambda x: x.roll(1, 0)),
            [Bug("layers.4.attention", "bias", "index"), Bug("layers.4.attention", "forward", ATTEND)],
        ),
    ),
    **named(
        "wav2vec2",
        (
            "eps of the instance norm",
            "eps",
            constant("features", "eps", 1e-2),
            [Bug("features", "forward", "native_batch_norm _native_batch_norm_legit")],
        ),
        (
            "no norm before the projection",
            "missing step",
            code(
                "",
                "forward",
                ("self.project(self.norm_in(self.features(sound)))", "self.project(self.features(sound))"),
            ),
            [Bug("project", "forward", PRODUCT)],
        ),
    ),
}

PAIRS: tuple[tuple[str, str], ...] = tuple(
    (f"{port}: {first}", f"{port}: {second}")  # bugs of different layers
    for port, first, second in (
        ("cohere", "norm without the mean in layer 0", "scores divided by the size in layer 2"),
        ("cohere", "pairs rotated in layer 1", "gate and up exchanged in layer 3"),
        ("cohere", "keys repeated in the wrong order in layer 0", "eps of the last norm"),
        ("olmo2", "one row twice in layer 0", "no scale in layer 2"),
        ("olmo2", "norm of each head of the query in layer 1", "gate and up exchanged in layer 3"),
        ("olmo2", "gelu for silu in layer 1", "key not rotated in layer 3"),
        ("deberta_v2", "norm before the residual in layer 0", "queries of the distances not scaled in layer 2"),
        ("deberta_v2", "sign of the distance of keys in layer 1", "no mask in layer 3"),
        ("deberta_v2", "eps of the words", "gelu by tanh in the head"),
        ("mamba2", "groups of heads alternate in layer 0", "gate after the norm in layer 2"),
        ("mamba2", "taps backwards in layer 1", "skips of other heads in layer 3"),
        ("mamba2", "gain not folded in layer 1", "head tied"),
        ("efficientnet", "activation of the projection in block 0", "one more place before the image in block 3"),
        ("efficientnet", "eps of a folded norm in block 1", "squeeze of another block in block 4"),
        ("efficientnet", "blue, green, red", "mean not folded in block 2"),
        ("segformer", "squares by columns in stage 0", "key and value by head in stage 2"),
        ("segformer", "activation before the kernels in stage 0", "no padding of the patches of stage 2"),
        ("segformer", "no norm of fewer places in the first block of stage 1", "nearest places for the head"),
        ("rwkv", "no sigmoid in layer 0", "softmax over later tokens in layer 2"),
        ("rwkv", "no bonus in layer 1", "value and receptance exchanged in layer 3"),
        ("llama", "one row of the gate twice in layer 0", "angles backwards in layer 2"),
        ("gpt_neox", "up in int8 in layer 0", "first norm for both branches in layer 3"),
        ("mistral", "softmax over queries in layer 0", "no norm before the second branch in layer 2"),
        ("whisper", "positions of the encoder backwards", "norms exchanged in layer 3"),
        ("gemma2", "one column of the output in layer 0", "gate and up exchanged in layer 2"),
        ("t5", "gelu for relu in layer 1", "scores divided by the size in layer 2 of the decoder"),
    )
)
