"""Porting bugs in the ports of `models/ports/heldout`, written with their truth before the first run of `align`.

Neither the ports nor the bugs were used to make `align`. The truth has all places at which a bug may show first. The
port of Gemma 2 has no modules: there, the truth says in which layer of A the operation is, too.
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
    int8,
    named,
    taken,
    turned,
    weight,
)

CONVOLUTION = "convolution mm addmm"
ROTATE = "neg mul add sub cat stack"


def from_a(name: str, of: Callable[[nn.Module], Tensor]) -> Plant:
    """Set a parameter to numbers of the model, as if nobody had converted them."""
    return lambda a, b: weight(name, lambda _: of(a))(a, b)


def as_pairs(a: nn.Module, b: nn.Module) -> None:
    """Leave the rows of a query in the order in which pairs are rotated."""
    query = a.get_parameter("transformer.h.2.attn.q_proj.weight")
    weight("blocks.2.attention.qkv.weight", lambda x: torch.cat([query, x[len(query) :]]))(a, b)


def slow_angles(_: nn.Module, b: nn.Module) -> None:
    """Make the table of angles with another base."""
    angles = torch.outer(torch.arange(16.0), 1000.0 ** -torch.tensor([0.0, 0.5])).repeat(1, 2)
    b.get_buffer("cos").copy_(angles.cos())
    b.get_buffer("sin").copy_(angles.sin())


def unfolded_key(a: nn.Module, b: nn.Module) -> None:
    """Forget the gain of the norm in the weight of a key."""
    key = a.get_parameter("model.decoder.layers.1.self_attn.k_proj.weight")
    weight("blocks.1.attn.W_K", lambda x: key.unflatten(0, (len(x), -1)).mT)(a, b)


def heads_inside(parameter: Tensor) -> Tensor:
    """Take the rows of a weight [heads, size, width] as if they were ordered by place in a head first."""
    heads, size = parameter.shape[:2]
    return parameter.flatten(0, 1).unflatten(0, (size, heads)).transpose(0, 1)


def swapped(name: str, other: str) -> Plant:
    """Exchange two parameters."""

    def plant(_: nn.Module, b: nn.Module) -> None:
        first, second = b.get_parameter(name), b.get_parameter(other)
        kept = first.clone()
        first.data.copy_(second)
        second.data.copy_(kept)

    return plant


def part(name: str, index: int, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the part of a parameter that belongs to a layer or an expert."""

    def changed(parameter: Tensor) -> Tensor:
        parameter[index] = change(parameter[index].clone())
        return parameter

    return weight(name, changed)


def swapped_norms(_: nn.Module, b: nn.Module) -> None:
    """Exchange the norms after the attention and before the multilayer perceptron in one layer."""
    after, before = b.get_parameter("params.post_attention"), b.get_parameter("params.pre_ffw")
    kept = after[1].clone()
    after[1], before[1] = before[1].clone(), kept


def layers(module: str, function: str, operators: str) -> list[Bug]:
    """Return places in all four layers, for what they share."""
    return [Bug(module.replace("#", str(index)), function, operators) for index in range(4)]


def in_gemma2(layer: int, function: str, operators: str) -> Bug:
    return Bug("", function, operators, f"model.layers.{layer}.")


def in_block(layer: int, operators: str) -> Bug:
    """Return a place at the end of a layer: a sum, which belongs to the layer itself."""
    return Bug("", "block", operators, f"model.layers.{layer}")


BUGS: dict[str, PortingBug] = {
    **named(
        "gptj",
        (
            "pairs rotated in layer 1",
            "rotary layout",
            code(
                "blocks.1.attention",
                "rope",
                (
                    "torch.cat([-x[..., half:], x[..., :half]], -1)",
                    "torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)",
                ),
            ),
            [Bug("blocks.1.attention", "rope", ROTATE)],
        ),
        (
            "rows of the query not reordered in layer 2",
            "order of rows",
            as_pairs,
            [Bug("blocks.2.attention.qkv", "forward", PRODUCT), Bug("blocks.2.attention", "rope", ROTATE)],
        ),
        (
            "sign of the angle of the key in layer 3",
            "rotary layout",
            code(
                "blocks.3.attention",
                "forward",
                ("self.rope(k[..., :n], cos, sin)", "self.rope(k[..., :n], cos, -sin)"),
            ),
            [Bug("blocks.3.attention", "forward", "neg"), Bug("blocks.3.attention", "rope", "mul add")],
        ),
        (
            "base of the table",
            "rotary constant",
            slow_angles,
            [Bug("", "forward", "slice"), *layers("blocks.#.attention", "rope", "mul add")],
        ),
        (
            "queries one position late in layer 2",
            "position",
            code(
                "blocks.2.attention",
                "forward",
                ("self.rope(q[..., :n], cos, sin)", "self.rope(q[..., :n], cos.roll(1, 0), sin.roll(1, 0))"),
            ),
            [Bug("blocks.2.attention", "forward", "roll"), Bug("blocks.2.attention", "rope", "mul add")],
        ),
        (
            "scale of the whole width in layer 1",
            "scale of the scores",
            code("blocks.1.attention", "forward", ("is_causal=True)", "is_causal=True, scale=x.shape[-1] ** -0.5)")),
            [Bug("blocks.1.attention", "forward", ATTEND)],
        ),
        (
            "residual of the norm in layer 2",
            "residual",
            code("blocks.2", "forward", ("+ x + self.mlp", "+ normed + self.mlp")),
            [Bug("blocks.2", "forward", "add")],
        ),
        (
            "branches one after the other in layer 0",
            "order of norm and branch",
            code(
                "blocks.0",
                "forward",
                (
                    "return self.attention(normed, cos, sin) + x + self.mlp(normed)",
                    "x = self.attention(normed, cos, sin) + x; return x + self.mlp(self.norm(x))",
                ),
            ),
            [
                Bug("blocks.0.norm@1", "forward", LAYER_NORM),
                Bug("blocks.0.norm", "forward", LAYER_NORM),
                Bug("blocks.0.mlp.fc", "forward", PRODUCT),
            ],
        ),
        (
            "no bias in layer 3",
            "bias",
            weight("blocks.3.mlp.fc.bias", torch.zeros_like),
            [Bug("blocks.3.mlp.fc", "forward", PRODUCT)],
        ),
        (
            "first weight in int8 in layer 1",
            "precision of a weight",
            weight("blocks.1.mlp.fc.weight", int8),
            [Bug("blocks.1.mlp.fc", "forward", PRODUCT)],
        ),
        (
            "gelu without tanh in layer 3",
            "activation",
            constant("blocks.3.mlp", "approximation", "none"),
            [Bug("blocks.3.mlp", "forward", "gelu")],
        ),
        (
            "heads of the value permuted in layer 0",
            "order of rows",
            weight("blocks.0.attention.qkv.weight", turned(128, 192, 16)),
            [
                Bug("blocks.0.attention.qkv", "forward", PRODUCT),
                Bug("blocks.0.attention", "forward", ATTEND),
                Bug("blocks.0.attention.proj", "forward", PRODUCT),
            ],
        ),
    ),
    **named(
        "opt",
        (
            "gain not folded into the key in layer 1",
            "scale of a weight",
            unfolded_key,
            [Bug("blocks.1.attn", "forward", PRODUCT)],
        ),
        (
            "bias of the norm not folded in layer 2",
            "bias",
            from_a("blocks.2.mlp.b_in", lambda a: a.get_parameter("model.decoder.layers.2.fc1.bias")),
            [Bug("blocks.2.mlp", "forward", PRODUCT)],
        ),
        (
            "positions one too low",
            "position",
            code("", "forward", ("mask.cumsum(1) * mask", "(mask.cumsum(1) - 1) * mask")),
            [Bug("", "forward", "sub mul index add")],
        ),
        (
            "table without the row of padding",
            "embedding",
            weight("W_pos", lambda x: x.roll(-1, 0)),
            [Bug("", "forward", "index add")],
        ),
        (
            "gelu for relu in layer 3",
            "activation",
            code("blocks.3.mlp", "forward", ("torch.relu(", "torch.nn.functional.gelu(")),
            [Bug("blocks.3.mlp", "forward", "gelu")],
        ),
        (
            "scale of the whole width in layer 0",
            "scale of the scores",
            constant("blocks.0.attn", "scale", 8.0),
            [Bug("blocks.0.attn", "forward", "div")],
        ),
        (
            "variance divided by one less in layer 2",
            "formula of a norm",
            code("blocks.2.ln2", "forward", ("x.pow(2).mean(-1, keepdim=True)", "x.var(-1, keepdim=True)")),
            [Bug("blocks.2.ln2", "forward", "var add sqrt div")],
        ),
        (
            "padding seen in layer 1",
            "mask",
            code("blocks.1.attn", "forward", ("masked_fill(hidden,", "masked_fill(hidden[:1],")),
            [Bug("blocks.1.attn", "forward", "masked_fill where _softmax")],
        ),
        (
            "eps of the last norm",
            "eps",
            constant("ln_final", "eps", 1e-3),
            [Bug("ln_final", "forward", "add sqrt div")],
        ),
        (
            "rows of the output by place in the head in layer 2",
            "order of rows",
            weight("blocks.2.attn.W_O", heads_inside),
            [Bug("blocks.2.attn", "forward", PRODUCT)],
        ),
        (
            "biases of key and value exchanged in layer 0",
            "bias",
            swapped("blocks.0.attn.b_K", "blocks.0.attn.b_V"),
            [Bug("blocks.0.attn", "forward", PRODUCT)],
        ),
        (
            "gain of the last norm not folded",
            "scale of a weight",
            from_a("W_U", lambda a: a.get_parameter("lm_head.weight").T),
            [Bug("", "forward", PRODUCT)],
        ),
    ),
    **named(
        "bloom",
        (
            "query, key and value by head in layer 1",
            "order of rows",
            both(
                *(
                    from_a(
                        f"blocks.1.attn.Wqkv.{name}",
                        lambda a, name=name: a.get_parameter(f"transformer.h.1.self_attention.query_key_value.{name}"),
                    )
                    for name in ("weight", "bias")
                )
            ),
            [Bug("blocks.1.attn.Wqkv", "forward", PRODUCT), Bug("blocks.1.attn", "forward", ATTEND)],
        ),
        (
            "slopes",
            "position bias",
            constant("", "steepest", 4),
            [
                Bug("", "slopes", "mul pow reciprocal div"),
                Bug("", "attention_bias", "mul masked_fill where"),
                *layers("blocks.#.attn", "forward", ATTEND),  # the bias of a right port is no value of A
            ],
        ),
        (
            "slopes in the reverse order of heads in layer 2",
            "position bias",
            code("blocks.2.attn", "forward", ("attn_mask=bias", "attn_mask=bias.flip(1)")),
            [Bug("blocks.2.attn", "forward", f"{ATTEND} flip")],
        ),
        (
            "positions scaled with the scores in layer 3",
            "scale of the scores",
            code("blocks.3.attn", "forward", ("attn_mask=bias", "attn_mask=bias * q.shape[-1] ** -0.5")),
            [Bug("blocks.3.attn", "forward", ATTEND)],
        ),
        (
            "mask sees the next token",
            "mask",
            code("", "attention_bias", (".tril()", ".tril(1)")),
            [
                Bug("", "attention_bias", "tril masked_fill where bitwise_not"),
                *layers("blocks.#.attn", "forward", ATTEND),
            ],
        ),
        (
            "eps of the embeddings",
            "eps",
            constant("emb_norm", "eps", 1e-3),
            [Bug("emb_norm", "forward", LAYER_NORM)],
        ),
        (
            "residual of the norm in layer 1",
            "residual",
            code(
                "blocks.1",
                "forward",
                ("x = x + self.attn(self.norm_1(x), bias)", "x = self.norm_1(x); x = x + self.attn(x, bias)"),
            ),
            [Bug("blocks.1", "forward", "add")],
        ),
        (
            "no bias of the output in layer 3",
            "bias",
            weight("blocks.3.attn.out_proj.bias", torch.zeros_like),
            [Bug("blocks.3.attn.out_proj", "forward", PRODUCT)],
        ),
        (
            "second weight in bfloat16 in layer 2",
            "precision of a weight",
            weight("blocks.2.ffn.down_proj.weight", bfloat16),
            [Bug("blocks.2.ffn.down_proj", "forward", PRODUCT)],
        ),
        (
            "quick gelu in layer 0",
            "activation",
            code(
                "blocks.0.ffn",
                "forward",
                (
                    "gelu(self.up_proj(x), approximate=self.approximation)",
                    "(lambda y: y * torch.sigmoid(1.702 * y))(self.up_proj(x))",
                ),
            ),
            [Bug("blocks.0.ffn", "forward", "sigmoid mul")],
        ),
        (
            "gain of another layer in layer 2",
            "weight of another layer",
            taken("blocks.2.norm_2.weight", "blocks.1.norm_2.weight"),
            [Bug("blocks.2.norm_2", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "qwen3_moe",
        (
            "gains of query and key exchanged in layer 1",
            "weight of another layer",
            swapped("layers.1.attention.q_gain", "layers.1.attention.k_gain"),
            [Bug("layers.1.attention", "normed", RMS_NORM)],
        ),
        (
            "norm of all heads of the query together in layer 2",
            "formula of a norm",
            code(
                "layers.2.attention",
                "normed",
                (
                    "rms_norm(q, (self.size,), self.q_gain, self.eps), rms_norm",
                    "q * (q * q).mean((1, 3), keepdim=True).add(self.eps).rsqrt() * self.q_gain, rms_norm",
                ),
            ),
            [Bug("layers.2.attention", "normed", "mean add rsqrt mul")],
        ),
        (
            "norms after the rotation in layer 3",
            "order of steps",
            code(
                "layers.3.attention",
                "forward",
                ("q, k = self.normed(q, k)", "q, k = self.rotate(q, turns), self.rotate(k, turns) "),
                ("q, k = self.rotate(q, turns), self.rotate(k, turns)\n", "q, k = self.normed(q, k)\n"),
            ),
            [Bug("layers.3.attention", "rotate", ROTATE), Bug("layers.3.attention", "normed", RMS_NORM)],
        ),
        (
            "pairs rotated in layer 0",
            "rotary layout",
            code(
                "layers.0.attention",
                "rotate",
                ("x.unflatten(-1, (2, -1)).unbind(-2)", "x.unflatten(-1, (-1, 2)).unbind(-1)"),
                ("real * sin + imaginary * cos], -2)", "real * sin + imaginary * cos], -1)"),
            ),
            [Bug("layers.0.attention", "rotate", ROTATE)],
        ),
        (
            "theta",
            "rotary constant",
            constant("", "theta", 1e6),
            [Bug("", "forward", "pow mul reciprocal div cos sin stack cat")],
        ),
        (
            "keys repeated in the wrong order in layer 2",
            "groups of heads",
            code(
                "layers.2.attention",
                "forward",
                (
                    "q, k, v, is_causal=True, enable_gqa=True",
                    "q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), is_causal=True",
                ),
            ),
            [Bug("layers.2.attention", "forward", f"{ATTEND} repeat expand clone copy")],
        ),
        (
            "shares not normalized in layer 3",
            "routing",
            constant("layers.3.ffn", "bug", "shares not normalized"),
            [Bug("layers.3.ffn", "shares", "scatter topk"), Bug("layers.3.ffn", "forward", "bmm mul sum")],
        ),
        (
            "three experts in layer 2",
            "routing",
            constant("layers.2.ffn", "count", 3),
            [Bug("layers.2.ffn", "shares", "topk sum div scatter"), Bug("layers.2.ffn", "forward", "bmm mul sum")],
        ),
        (
            "sigmoid for softmax in layer 1",
            "routing",
            code("layers.1.ffn", "shares", ("self.router(x).softmax(-1)", "self.router(x).sigmoid()")),
            [Bug("layers.1.ffn", "shares", "sigmoid topk sum div")],
        ),
        (
            "up and gate exchanged in layer 3",
            "order of parts",
            weight("layers.3.ffn.w_in", lambda x: x.roll(24, -1)),
            [Bug("layers.3.ffn", "forward", f"{PRODUCT} silu mul")],
        ),
        (
            "output of one expert that of another in layer 2",
            "weight of another layer",
            weight("layers.2.ffn.w_out", lambda x: x[[0, 2, 2, 3]]),
            [Bug("layers.2.ffn", "forward", f"{PRODUCT} mul sum")],
        ),
        (
            "output in bfloat16 in layer 0",
            "precision of a weight",
            weight("layers.0.attention.wo.weight", bfloat16),
            [Bug("layers.0.attention.wo", "forward", PRODUCT)],
        ),
        (
            "gate and up alternate in layer 0",
            "order of parts",
            code(
                "layers.0.ffn",
                "forward",
                ("self.w_in(x).chunk(2, -1)", "self.w_in(x).unflatten(-1, (-1, 2)).unbind(-1)"),
            ),
            [Bug("layers.0.ffn", "forward", "silu mul"), Bug("layers.0.ffn.w_in", "forward", PRODUCT)],
        ),
    ),
    **named(
        "roberta",
        (
            "positions start at 1",
            "position",
            code("", "places", ("* is_text + self.padding", "* is_text")),
            [Bug("place", "forward", EMBED), Bug("", "places", "mul"), Bug("", "forward", "add")],
        ),
        (
            "padding has positions",
            "position",
            code(
                "",
                "places",
                ("is_text.cumsum(1) * is_text", "torch.arange(1, ids.shape[1] + 1).expand_as(is_text)"),
            ),
            [Bug("place", "forward", EMBED), Bug("", "places", "arange add"), Bug("", "forward", "add")],
        ),
        (
            "no type of the tokens",
            "missing step",
            from_a("word.weight", lambda a: a.get_parameter("roberta.embeddings.word_embeddings.weight")),
            [Bug("word", "forward", EMBED), Bug("", "forward", "add")],
        ),
        (
            "bias not divided in layer 1",
            "scale of a weight",
            from_a(
                "layers.1.sa_norm.bias",
                lambda a: a.get_parameter("roberta.encoder.layer.1.attention.output.LayerNorm.bias"),
            ),
            [Bug("layers.1.sa_norm", "forward", "add mul")],
        ),
        (
            "softmax over queries in layer 2",
            "softmax",
            code("layers.2.attention", "forward", (".softmax(1)", ".softmax(3)")),
            [Bug("layers.2.attention", "forward", "_softmax")],
        ),
        (
            "scale of the whole width in layer 0",
            "scale of the scores",
            code("layers.0.attention", "forward", ("self.size**-0.5", "x.shape[1] ** -0.5")),
            [Bug("layers.0.attention", "forward", "mul")],
        ),
        (
            "no mask in layer 3",
            "mask",
            code("layers.3.attention", "forward", ("(score + mask).softmax", "score.softmax")),
            [Bug("layers.3.attention", "forward", "_softmax")],
        ),
        (
            "eps in layer 2",
            "eps",
            constant("layers.2.out_norm", "eps", 1e-3),
            [Bug("layers.2.out_norm", "forward", "add rsqrt mul")],
        ),
        (
            "gelu by tanh in the head",
            "activation",
            code("head", "forward", ("gelu(self.transform(x))", 'gelu(self.transform(x), approximate="tanh")')),
            [Bug("head", "forward", "gelu")],
        ),
        (
            "residual after the norm in layer 0",
            "order of norm and branch",
            code("layers.0", "forward", ("self.attention(x, mask) + x)", "self.attention(x, mask)) + x")),
            [Bug("layers.0.sa_norm", "forward", "mean sub mul add rsqrt"), Bug("layers.0", "forward", "add")],
        ),
        (
            "channels of the value alternate by head in layer 1",
            "groups of heads",
            code(
                "layers.1.attention", "forward", ("v.split(self.size, 1)", "v.unflatten(1, (self.size, -1)).unbind(2)")
            ),
            [Bug("layers.1.attention", "forward", "bmm mul sum cat")],
        ),
        (
            "variance divided by one less in layer 3",
            "formula of a norm",
            code(
                "layers.3.sa_norm",
                "forward",
                ("squares.mean(1, keepdim=True)", "squares.sum(1, keepdim=True) / (x.shape[1] - 1)"),
            ),
            [Bug("layers.3.sa_norm", "forward", "sum div add rsqrt mul")],
        ),
        (
            "heads of the key permuted in layer 2",
            "order of rows",
            weight("layers.2.attention.k_proj.weight", lambda x: x.roll(16, 0)),
            [Bug("layers.2.attention.k_proj", "forward", CONVOLUTION), Bug("layers.2.attention", "forward", "bmm mul")],
        ),
        (
            "query and key exchanged in layer 1",
            "order of parts",
            exchanged("layers.1.attention.q_proj", "layers.1.attention.k_proj"),
            [
                Bug("layers.1.attention.q_proj", "forward", CONVOLUTION),
                Bug("layers.1.attention.k_proj", "forward", CONVOLUTION),
                Bug("layers.1.attention", "forward", "bmm mul"),
            ],
        ),
    ),
    **named(
        "gemma2",
        (
            "scale of the head in layer 1",
            "scale of the scores",
            code(
                "",
                "attention",
                (
                    "self.config.query_pre_attn_scalar**-0.5",
                    "(16 if index == 1 else self.config.query_pre_attn_scalar) ** -0.5",
                ),
            ),
            [in_gemma2(1, "attention", "mul bmm")],
        ),
        (
            "cap of the scores in layer 2",
            "soft cap",
            code(
                "",
                "attention",
                (
                    "else self.config.attn_logit_softcapping",
                    "else 50.0 if index == 2 else self.config.attn_logit_softcapping",
                ),
            ),
            [in_gemma2(2, "attention", "div tanh mul")],
        ),
        (
            "logits not capped",
            "soft cap",
            code("", "forward", ("torch.tanh(logits / cap) * cap", "logits")),
            [Bug("", "forward", "mm bmm")],
        ),
        (
            "windows in the other layers",
            "mask",
            code("", "mask", ("index % 2 == 0", "index % 2 == 1")),
            [Bug("", "mask", "bitwise_and le gt sub"), Bug("", "attention", "where _softmax")],
        ),
        (
            "window one too wide in layer 2",
            "mask",
            code("", "mask", ("- self.config.sliding_window", "- self.config.sliding_window - int(index == 2)")),
            [Bug("", "mask", "bitwise_and gt sub"), in_gemma2(2, "attention", "where _softmax")],
        ),
        (
            "1 of the gain forgotten in layer 3",
            "formula of a norm",
            part("params.post_attention", 3, lambda x: x - 1),
            [in_gemma2(3, "norm", "add mul")],
        ),
        (
            "norms exchanged in layer 1",
            "weight of another layer",
            swapped_norms,
            [in_gemma2(1, "norm", "add mul")],
        ),
        (
            "gelu without tanh in layer 0",
            "activation",
            code("", "feed_forward", ('"none" if self.bug == "activation"', '"none" if index == 0')),
            [in_gemma2(0, "feed_forward", "gelu")],
        ),
        (
            "embeddings not scaled",
            "missing step",
            code("", "forward", ("[ids] * self.config.hidden_size**0.5", "[ids]")),
            [
                Bug("", "forward", "index"),
                in_gemma2(0, "norm", "pow mul mean add rsqrt"),
                in_block(0, "add"),
            ],
        ),
        (
            "key and value exchanged in layer 2",
            "order of parts",
            part("params.kv", 2, lambda x: x.flip(0)),
            [in_gemma2(2, "attention", "bmm"), in_gemma2(2, "rope", "mul sub add cat")],
        ),
        (
            "heads of the output permuted in layer 1",
            "order of rows",
            part("params.out", 1, lambda x: x.roll(1, 0)),
            [in_gemma2(1, "attention", "bmm")],
        ),
        (
            "angles of half the exponent",
            "rotary constant",
            code("", "rope", ("fraction = 2 * torch.arange", "fraction = torch.arange")),
            [Bug("", "rope", "div mul pow reciprocal sin cos")],
        ),
        (
            "queries grouped in the wrong order in layer 3",
            "groups of heads",
            code(
                "",
                "attention",
                (
                    "q = q.unflatten(2, (k.shape[2], -1))",
                    "q = q.unflatten(2, (-1, 2)).transpose(2, 3) if index == 3 else q.unflatten(2, (k.shape[2], -1))",
                ),
            ),
            [in_gemma2(3, "attention", "bmm mul permute clone view _unsafe_view")],
        ),
        (
            "last weight in bfloat16 in layer 3",
            "precision of a weight",
            part("params.linear", 3, bfloat16),
            [in_gemma2(3, "feed_forward", PRODUCT)],
        ),
        (
            "no norm after the perceptron in layer 0",
            "missing step",
            code(
                "",
                "block",
                (
                    'x + self.norm(y, self.params["post_ffw"][index])',
                    'x + (y if index == 0 else self.norm(y, self.params["post_ffw"][index]))',
                ),
            ),
            [in_block(0, "add")],
        ),
    ),
}

PAIRS: tuple[tuple[str, str], ...] = (
    ("gptj: pairs rotated in layer 1", "gptj: gelu without tanh in layer 3"),
    ("gptj: heads of the value permuted in layer 0", "gptj: residual of the norm in layer 2"),
    ("opt: gain not folded into the key in layer 1", "opt: variance divided by one less in layer 2"),
    ("opt: positions one too low", "opt: gelu for relu in layer 3"),
    ("bloom: query, key and value by head in layer 1", "bloom: second weight in bfloat16 in layer 2"),
    ("bloom: quick gelu in layer 0", "bloom: positions scaled with the scores in layer 3"),
    ("qwen3_moe: pairs rotated in layer 0", "qwen3_moe: three experts in layer 2"),
    ("qwen3_moe: gains of query and key exchanged in layer 1", "qwen3_moe: up and gate exchanged in layer 3"),
    ("roberta: bias not divided in layer 1", "roberta: no mask in layer 3"),
    ("roberta: padding has positions", "roberta: heads of the key permuted in layer 2"),
    ("gemma2: norms exchanged in layer 1", "gemma2: last weight in bfloat16 in layer 3"),
    ("gemma2: no norm after the perceptron in layer 0", "gemma2: cap of the scores in layer 2"),
)
