"""Porting bugs that were written, with their truth, by someone who had not read how `align` finds them.

Each is planted in one place of a port of `models/ports`, in the first, a middle or the last of its layers: in a weight,
in a constant or in the code of one method. The truth has all places at which the bug may show first: if a weight has
rows of another order, say, the product with it or the first operation that reads the rows as if they were in order.

Seven places were added after the first run, which had named them rightly: the quotient in two lines of rotary angles,
names of second calls (`@1`) and of operators of PyTorch (`_unsafe_view`, `_native_multi_head_attention`), and the
activation after a bias that A adds later. `benchmarks/RESULTS.md` has the counts without and with them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..models.ports import PORTS, Bug
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
    exchanged,
    int8,
    named,
    rows,
    swapped_halves,
    taken,
    turned,
    weight,
)

UPDATE = "state = (step * rates).exp() * state + step * into[:, index, None] * x[:, index, :, None]"
OUTPUT = "results.append((state * out[:, index, None]).sum(-1))"


def untie(_: nn.Module, b: nn.Module) -> None:
    words: Tensor = b.get_parameter("words.weight")
    generator = torch.Generator().manual_seed(3)
    b.register_parameter("untied", nn.Parameter(words + 0.3 * torch.randn(words.shape, generator=generator)))
    code("", "forward", ("self.words.weight.T", "self.untied.T"))(_, b)


def no_padding_mask(_: nn.Module, b: nn.Module) -> None:
    layer = b.get_submodule("encoder.layers.1")
    attend = layer._sa_block  # noqa: SLF001
    layer._sa_block = lambda x, mask, _, **options: attend(x, mask, None, **options)  # noqa: SLF001


def unfolded(_: nn.Module, b: nn.Module) -> None:
    """Forget to fold a batch norm into the weight of a convolution."""
    own = _.get_submodule("resnet.encoder.stages.1.layers.0.layer.1")
    weight("blocks.1.second.weight", lambda _: own.get_parameter("convolution.weight"))(_, b)


def as_contiguous(_: nn.Module, b: nn.Module) -> None:
    """Split a projection that is interleaved by head as if query, key and value were one after the other."""
    fused = _.get_submodule("gpt_neox.layers.2.attention.query_key_value")
    for index, name in enumerate(("query", "key", "value")):
        for kind in ("weight", "bias"):
            part = fused.get_parameter(kind).chunk(3)[index]
            b.get_parameter(f"blocks.2.attention.{name}.{kind}").data.copy_(part)


BUGS: dict[str, PortingBug] = {
    **named(
        "llama",
        (
            "rows of the query permuted by head in layer 2",
            "order of rows",
            weight("blocks.2.attention.qkv.weight", turned(0, 64, 16)),
            [Bug("blocks.2.attention.qkv", "forward", PRODUCT), Bug("blocks.2.attention", "forward", ATTEND)],
        ),
        (
            "keys repeated in the wrong order in layer 0",
            "groups of heads",
            code("blocks.0.attention", "forward", ("y.repeat_interleave(repeats, 2)", "y.repeat(1, 1, repeats, 1)")),
            [Bug("blocks.0.attention", "forward", f"{ATTEND} repeat expand clone copy")],
        ),
        (
            "theta",
            "rotary constant",
            constant("", "theta", 500000.0),
            [Bug("", "forward", "pow mul reciprocal rpow outer polar cos sin div")],
        ),
        (
            "gain of another layer in layer 3",
            "weight of another layer",
            taken("blocks.3.norm1.gain", "blocks.2.norm1.gain"),
            [Bug("blocks.3.norm1", "forward", "mul")],
        ),
        (
            "keys one position late in layer 1",
            "position",
            code("blocks.1.attention", "forward", ("self.rotate(k, turns)", "self.rotate(k, turns.roll(1, 0))")),
            [Bug("blocks.1.attention", "rotate", "mul"), Bug("blocks.1.attention", "forward", "roll")],
        ),
        (
            "down in bfloat16 in layer 3",
            "precision of a weight",
            weight("blocks.3.mlp.down.weight", bfloat16),
            [Bug("blocks.3.mlp.down", "forward", PRODUCT)],
        ),
        (
            "residual after the norm in layer 2",
            "residual",
            code(
                "blocks.2.norm2",
                "forward",
                (
                    ".rsqrt() * self.gain, x",
                    ".rsqrt() * self.gain, x * (x * x).mean(-1, keepdim=True).add(self.eps).rsqrt()",
                ),
            ),
            [Bug("blocks.3.norm1", "forward", "add"), Bug("blocks.2.norm2", "forward", "mul rsqrt")],
        ),
    ),
    **named(
        "bert",
        (
            "no padding mask in layer 1",
            "mask",
            no_padding_mask,
            [
                Bug("encoder.layers.1.self_attn", "forward", ATTEND),
                Bug("encoder.layers.1.self_attn", "", "_native_multi_head_attention"),
            ],
        ),
        (
            "norm first in layer 2",
            "order of norm and branch",
            constant("encoder.layers.2", "norm_first", value=True),
            [
                Bug("encoder.layers.2.norm1", "forward", LAYER_NORM),
                Bug("encoder.layers.2.self_attn", "forward", PRODUCT),
                Bug("encoder.layers.2", "forward", "add"),
            ],
        ),
        (
            "positions start at 1",
            "position",
            code("embed", "forward", ("torch.arange(ids.shape[1])", "torch.arange(1, ids.shape[1] + 1)")),
            [Bug("embed.position", "forward", EMBED), Bug("embed", "forward", "arange add")],
        ),
        (
            "no bias in layer 3",
            "bias",
            weight("encoder.layers.3.linear1.bias", torch.zeros_like),
            [Bug("encoder.layers.3.linear1", "forward", PRODUCT)],
        ),
        (
            "output transposed in layer 0",
            "transposed weight",
            weight("encoder.layers.0.self_attn.out_proj.weight", lambda x: x.T),
            [Bug("encoder.layers.0.self_attn", "forward", PRODUCT)],
        ),
        (
            "biases of query and key exchanged in layer 2",
            "bias",
            weight("encoder.layers.2.self_attn.in_proj_bias", lambda x: torch.cat([x[64:128], x[:64], x[128:]])),
            [Bug("encoder.layers.2.self_attn", "forward", PRODUCT)],
        ),
        (
            "last token pooled",
            "pooling",
            code("", "forward", ("x[:, 0]", "x[:, -1]")),
            [Bug("pooler", "forward", PRODUCT), Bug("", "forward", "select")],
        ),
    ),
    **named(
        "gpt2",
        (
            "mask sees the next token in layer 3",
            "mask",
            code("blocks.3", "attend", (".triu(1)", ".triu(2)")),
            [Bug("blocks.3", "attend", "triu add _softmax")],
        ),
        (
            "softmax over queries in layer 1",
            "softmax",
            code("blocks.1", "attend", ("scores.softmax(-1)", "scores.softmax(-2)")),
            [Bug("blocks.1", "attend", "_softmax")],
        ),
        ("head not tied", "tied weights", untie, [Bug("", "forward", PRODUCT)]),
        (
            "bias of another layer in layer 2",
            "weight of another layer",
            taken("blocks.2.up.bias", "blocks.1.up.bias"),
            [Bug("blocks.2.up", "transform", PRODUCT)],
        ),
        (
            "one head of the key in layer 1",
            "order of rows",
            weight("blocks.1.k.weight", rows(32, 48, of=16)),
            [Bug("blocks.1.k", "attend", PRODUCT)],
        ),
        (
            "mask after the softmax in layer 0",
            "softmax",
            code(
                "blocks.0",
                "attend",
                ("scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)", "scores = scores"),
                ("(scores.softmax(-1) @ v)", "(scores.softmax(-1).tril() @ v)"),
            ),
            [Bug("blocks.0", "attend", "_softmax tril mul")],
        ),
        (
            "positions start at 1",
            "position",
            code("", "forward", ("self.positions[: ids.shape[1]]", "self.positions[1 : ids.shape[1] + 1]")),
            [Bug("", "forward", "add slice")],
        ),
    ),
    **named(
        "qwen2",
        (
            "pairs rather than halves rotated in layer 1",
            "rotary layout",
            code(
                "stack.1",
                "turn",
                ("x[..., : self.width // 2], x[..., self.width // 2 :]", "x[..., ::2], x[..., 1::2]"),
            ),
            [Bug("stack.1", "turn", "mul sub add cat slice")],
        ),
        (
            "up and gate exchanged in layer 3",
            "order of parts",
            weight("stack.3.expand.weight", swapped_halves),
            [Bug("stack.3.expand", "transform", PRODUCT), Bug("stack.3", "transform", "silu mul")],
        ),
        (
            "eps in layer 2",
            "eps",
            constant("stack.2.post", "eps", 1e-3),
            [Bug("stack.2.post", "forward", "add sqrt div")],
        ),
        (
            "norm subtracts the mean in layer 0",
            "formula of a norm",
            code(
                "stack.0.pre",
                "forward",
                ("x.pow(2).mean(-1, keepdim=True)", "x.var(-1, keepdim=True, correction=0)"),
            ),
            [Bug("stack.0.pre", "forward", "var add sqrt div")],
        ),
        (
            "down in int8 in layer 2",
            "precision of a weight",
            weight("stack.2.shrink.weight", int8),
            [Bug("stack.2.shrink", "transform", PRODUCT)],
        ),
        (
            "heads joined in the wrong order in layer 0",
            "groups of heads",
            code("stack.0", "attend", ("bgqij,bjgd->bigqd", "bgqij,bjgd->biqgd")),
            [Bug("stack.0", "attend", "bmm permute clone view _unsafe_view"), Bug("stack.0.out", "attend", PRODUCT)],
        ),
        (
            "mask too weak in layer 3",
            "mask",
            code("stack.3", "attend", ("masked_fill(hidden, -torch.inf)", "masked_fill(hidden, -1.0)")),
            [Bug("stack.3", "attend", "masked_fill where _softmax")],
        ),
    ),
    **named(
        "gpt_neox",
        (
            "query, key and value taken as contiguous in layer 2",
            "order of rows",
            as_contiguous,
            [Bug(f"blocks.2.attention.{name}", "forward", PRODUCT) for name in ("query", "key", "value")],
        ),
        (
            "relu for gelu in layer 2",
            "activation",
            code("blocks.2", "forward", ("else gelu(hidden)", "else hidden.relu()")),
            [Bug("blocks.2", "forward", "relu")],
        ),
        (
            "theta in layer 3",
            "rotary constant",
            constant("blocks.3.attention.rotary", "theta", 100.0),
            [Bug("blocks.3.attention.rotary", "forward", "pow div mul cos sin")],
        ),
        (
            "the last part of each head rotated in layer 0",
            "rotary layout",
            code(
                "blocks.0.attention.rotary",
                "forward",
                (
                    "turned, rest = x.split([self.size, x.shape[-1] - self.size], -1)",
                    "rest, turned = x.split([x.shape[-1] - self.size, self.size], -1)",
                ),
            ),
            [Bug(f"blocks.0.attention.rotary{call}", "forward", "mul sub add cat") for call in ("", "@1")],
        ),
        (
            "norms exchanged in layer 1",
            "weight of another layer",
            exchanged("blocks.1.norm_a", "blocks.1.norm_m"),
            [Bug("blocks.1.norm_a", "forward", LAYER_NORM), Bug("blocks.1.norm_m", "forward", LAYER_NORM)],
        ),
        (
            "residual after the norm in layer 0",
            "residual",
            code("blocks.0", "forward", ("return x + attended", "return normed + attended")),
            [Bug("blocks.0", "forward", "add")],
        ),
        ("eps of the last norm", "eps", constant("norm", "eps", 1e-3), [Bug("norm", "forward", LAYER_NORM)]),
    ),
    **named(
        "gemma",
        (
            "key and value exchanged in layer 2",
            "order of parts",
            weight("layers.2.attention.wkv.weight", swapped_halves),
            [
                Bug("layers.2.attention.wkv", "forward", PRODUCT),
                Bug("layers.2.attention", "rotate", "mul add roll"),
                Bug("layers.2.attention", "forward", ATTEND),
            ],
        ),
        (
            "1 of the gain forgotten in layer 3",
            "formula of a norm",
            weight("layers.3.norm_a.weight", lambda x: x - 1),
            [Bug("layers.3.norm_a", "forward", RMS_NORM)],
        ),
        (
            "sign of the angle in layer 1",
            "rotary layout",
            code("layers.1.attention", "forward", ("rotate(k, *turns)", "rotate(k, turns[0], -turns[1])")),
            [Bug("layers.1.attention", "forward", "neg"), Bug("layers.1.attention", "rotate", "mul add")],
        ),
        (
            "scale in layer 0",
            "scale of the scores",
            code("layers.0.attention", "forward", ("scale=1.0", "scale=0.5")),
            [Bug("layers.0.attention", "forward", ATTEND)],
        ),
        (
            "silu for gelu in layer 3",
            "activation",
            code(
                "layers.3",
                "forward",
                ("gelu(self.gate(y), approximate=self.approximation)", "torch.nn.functional.silu(self.gate(y))"),
            ),
            [Bug("layers.3", "forward", "silu")],
        ),
        (
            "embeddings of the token before",
            "embedding",
            weight("embed.weight", lambda x: x.roll(1, 0)),
            [Bug("embed", "forward", EMBED)],
        ),
        (
            "up reads what was not normalized in layer 1",
            "operand",
            code("layers.1", "forward", ("self.up(y)", "self.up(x)")),
            [Bug("layers.1.up", "forward", PRODUCT)],
        ),
    ),
    **named(
        "falcon",
        (
            "key not rotated in layer 3",
            "operand",
            code("blocks.3", "forward", ("self.rotate(k[:, None], cos, sin)", "k[:, None]")),
            [Bug("blocks.3", "forward", f"{ATTEND} mm")],
        ),
        (
            "scale in layer 1",
            "scale of the scores",
            code("blocks.1", "forward", ("/ self.size**0.5", "/ self.size")),
            [Bug("blocks.1", "forward", "div where _softmax")],
        ),
        (
            "branches joined in the wrong order in layer 0",
            "order of parts",
            code(
                "blocks.0",
                "forward",
                (
                    "torch.cat([mixed.transpose(1, 2).flatten(2), hidden], -1)",
                    "torch.cat([hidden, mixed.transpose(1, 2).flatten(2)], -1)",
                ),
            ),
            [Bug("blocks.0", "forward", "cat"), Bug("blocks.0.leave", "forward", PRODUCT)],
        ),
        (
            "hidden scores are 0 in layer 2",
            "mask",
            code("blocks.2", "forward", ("scores.where(mask, -torch.inf)", "scores.where(mask, 0.0)")),
            [Bug("blocks.2", "forward", "where _softmax")],
        ),
        (
            "key and value exchanged in layer 1",
            "order of parts",
            code("blocks.1", "forward", ("q, k, v, hidden", "q, v, k, hidden")),
            [Bug("blocks.1", "rotate", "neg cat mul add"), Bug("blocks.1", "forward", f"{ATTEND} split")],
        ),
        (
            "no last norm",
            "missing step",
            code("", "forward", ("self.norm(x) @", "x @")),
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "quick gelu in layer 3",
            "activation",
            code(
                "blocks.3",
                "forward",
                (
                    'gelu(hidden, approximate="tanh" if self.bug == "activation" else "none")',
                    "hidden * torch.sigmoid(1.702 * hidden)",
                ),
            ),
            [Bug("blocks.3", "forward", "sigmoid mul")],
        ),
    ),
    **named(
        "mistral",
        (
            "window one too wide in layer 2",
            "mask",
            code("layers.2", "attend", ("distance < window", "distance <= window")),
            [Bug("layers.2", "attend", "where _softmax le bitwise_and")],
        ),
        (
            "output transposed in layer 1",
            "transposed weight",
            weight("layers.1.mixed.weight", lambda x: x.T),
            [Bug("layers.1.mixed", "attend", PRODUCT)],
        ),
        (
            "sign in a rotation in layer 3",
            "rotary layout",
            code("layers.3", "rotate", ("second * cos + first * sin", "second * cos - first * sin")),
            [Bug("layers.3", "rotate", "sub add mul stack cat")],
        ),
        (
            "positions halved in layer 0",
            "rotary constant",
            code(
                "layers.0",
                "rotate",
                ("torch.outer(torch.arange(x.shape[1]),", "torch.outer(torch.arange(x.shape[1]) / 2,"),
            ),
            [Bug("layers.0", "rotate", "div mul outer cos sin")],
        ),
        (
            "product inside of the activation in layer 3",
            "activation",
            code("layers.3", "forward", ("silu(gate) * up", "silu(gate * up)")),
            [Bug("layers.3", "forward", "mul silu")],
        ),
        (
            "norm not divided by the width in layer 1",
            "formula of a norm",
            code(
                "layers.1",
                "norm",
                (
                    'rms_norm(x, x.shape[-1:], eps=1e-3 if self.bug == "eps" else self.eps)',
                    "x / x.norm(dim=-1, keepdim=True)",
                ),
            ),
            [Bug("layers.1", "norm", "linalg_vector_norm div")],
        ),
        (
            "queries grouped in the wrong order in layer 2",
            "groups of heads",
            code(
                "layers.2",
                "attend",
                (
                    ".unflatten(2, (k.shape[2], -1)), self.rotate(k)",
                    ".unflatten(2, (-1, k.shape[2])).transpose(2, 3), self.rotate(k)",
                ),
            ),
            [Bug("layers.2", "attend", f"{ATTEND} permute clone")],
        ),
    ),
    **named(
        "mixtral",
        (
            "experts exchanged in layer 1",
            "weight of another layer",
            exchanged("layers.1.mixture.experts.0", "layers.1.mixture.experts.1"),
            [
                *(
                    Bug(f"layers.1.mixture.experts.{index}.{name}", "forward", PRODUCT)
                    for index in range(2)
                    for name in ("w1", "w2", "w3")
                ),
                *(Bug(f"layers.1.mixture.experts.{index}", "forward", "silu mul") for index in range(2)),
                Bug("layers.1.mixture", "forward", "mul index_add index"),
            ],
        ),
        (
            "one expert for each token in layer 2",
            "routing",
            constant("layers.2.mixture", "count", 1),
            [Bug("layers.2.mixture", "forward", "topk _softmax mul index_add index")],
        ),
        (
            "experts not weighted in layer 0",
            "routing",
            code("layers.0.mixture", "forward", ("expert(rows[row]) * shares[row, column, None]", "expert(rows[row])")),
            [Bug("layers.0.mixture", "forward", "mul index_add")],
        ),
        (
            "output in bfloat16 in layer 3",
            "precision of a weight",
            weight("layers.3.wo.weight", bfloat16),
            [Bug("layers.3.wo", "attend", PRODUCT)],
        ),
        (
            "w1 and w3 of one expert exchanged in layer 2",
            "order of parts",
            exchanged("layers.2.mixture.experts.3.w1", "layers.2.mixture.experts.3.w3"),
            [
                *(Bug(f"layers.2.mixture.experts.3.{name}", "forward", PRODUCT) for name in ("w1", "w3")),
                Bug("layers.2.mixture.experts.3", "forward", "silu mul"),
            ],
        ),
        (
            "theta in layer 1",
            "rotary constant",
            constant("layers.1", "theta", 100.0),
            [Bug("layers.1", "rotate", "pow mul cos sin div")],
        ),
        (
            "no norm before the experts in layer 2",
            "missing step",
            code("layers.2", "forward", ("self.mixture(self.norm_m(x))", "self.mixture(x)")),
            [
                Bug("layers.2.mixture.gate", "forward", PRODUCT),
                Bug("layers.2.mixture", "forward", "index"),
                *(
                    Bug(f"layers.2.mixture.experts.{index}.{name}", "forward", PRODUCT)
                    for index in range(4)
                    for name in ("w1", "w3")
                ),
            ],
        ),
    ),
    **named(
        "t5",
        (
            "decoder sees the next token",
            "mask",
            code("decoder", "forward", (".triu(1)", ".triu(2)")),
            [
                Bug("decoder", "forward", "masked_fill where triu"),
                Bug("decoder.layers.0.attention", "forward", "add _softmax"),
            ],
        ),
        (
            "decoder attends to itself in layer 1",
            "operand",
            code("decoder.layers.1", "forward", ("other=encoded", "other=x")),
            [Bug("decoder.layers.1.cross.wkv", "forward", PRODUCT)],
        ),
        (
            "biases of positions in the wrong order",
            "embedding",
            weight("encoder.biases", lambda x: x.flip(1)),
            [Bug("encoder", "bias", "index")],
        ),
        (
            "output not scaled",
            "missing step",
            code("", "forward", ("x * x.shape[-1] ** -0.5 @", "x @")),
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "norms exchanged in layer 3",
            "weight of another layer",
            exchanged("decoder.layers.3.norms.1", "decoder.layers.3.norms.2"),
            [
                Bug("decoder.layers.3.norms.1", "forward", RMS_NORM),
                Bug("decoder.layers.3.norms.2", "forward", RMS_NORM),
            ],
        ),
        (
            "positions only in the first layers",
            "missing step",
            code(
                "encoder.layers.3",
                "forward",
                ("self.attention(self.norms[0](x), bias)", "self.attention(self.norms[0](x))"),
            ),
            [Bug("encoder.layers.3.attention", "forward", "_softmax")],
        ),
    ),
    **named(
        "whisper",
        (
            "edges of the convolution wrap around",
            "convolution",
            constant("encoder.first", "padding_mode", "circular"),
            [Bug("encoder.first", "forward", "convolution cat copy constant_pad_nd")],
        ),
        (
            "no activation after the convolutions",
            "missing step",
            code(
                "encoder",
                "forward",
                ("gelu(self.second(gelu(self.first(features))))", "self.second(gelu(self.first(features)))"),
            ),
            [Bug("encoder", "forward", "add")],
        ),
        (
            "causal in layer 1 of the encoder",
            "mask",
            constant("encoder.blocks.1.self_attention", "masked", value=True),
            [Bug("encoder.blocks.1.self_attention", "forward", "add _softmax")],
        ),
        (
            "decoder attends to itself in layer 2",
            "operand",
            code("blocks.2", "forward", ("self.cross(self.norm_cross(x), encoded)", "self.cross(self.norm_cross(x))")),
            [Bug("blocks.2.cross.key_value", "forward", PRODUCT)],
        ),
        (
            "no bias in layer 3",
            "bias",
            weight("blocks.3.self_attention.key_value.bias", torch.zeros_like),
            [Bug("blocks.3.self_attention.key_value", "forward", PRODUCT)],
        ),
        (
            "number of heads in layer 2 of the encoder",
            "groups of heads",
            constant("encoder.blocks.2.self_attention", "heads", 2),
            [Bug("encoder.blocks.2.self_attention", "forward", "bmm mul _softmax")],
        ),
        (
            "norm after the attention in layer 0 of the encoder",
            "order of norm and branch",
            code(
                "encoder.blocks.0",
                "forward",
                ("x = x + self.self_attention(self.norm_self(x))", "x = self.norm_self(x + self.self_attention(x))"),
            ),
            [
                Bug("encoder.blocks.0.self_attention.query", "forward", PRODUCT),
                Bug("encoder.blocks.0.self_attention.key_value", "forward", PRODUCT),
                Bug("encoder.blocks.0.norm_self", "forward", LAYER_NORM),
                Bug("encoder.blocks.0", "forward", "add"),
            ],
        ),
    ),
    **named(
        "vit",
        (
            "positions of the next patch",
            "position",
            weight("places", lambda x: x.roll(1, 0)),
            [Bug("", "forward", "add")],
        ),
        (
            "mean of all patches",
            "pooling",
            code("", "forward", ("x[:, 0]", "x.mean(1)")),
            [Bug("", "forward", "mean"), Bug("norm", "forward", LAYER_NORM)],
        ),
        (
            "number of heads in layer 1",
            "groups of heads",
            both(constant("blocks.1.heads", "num_heads", 2), constant("blocks.1.heads", "head_dim", 32)),
            [Bug("blocks.1.heads", "forward", f"{ATTEND} _native_multi_head_attention")],
        ),
        (
            "the first norm twice in layer 2",
            "operand",
            code("blocks.2", "forward", ("self.second(x)", "self.first(x)")),
            [
                Bug("blocks.2.first@1", "forward", LAYER_NORM),
                Bug("blocks.2.first", "forward", LAYER_NORM),
                Bug("blocks.2.up", "forward", PRODUCT),
            ],
        ),
        (
            "gelu by tanh in layer 3",
            "activation",
            code(
                "blocks.3",
                "forward",
                ("gelu(self.up(self.second(x)))", 'gelu(self.up(self.second(x)), approximate="tanh")'),
            ),
            [Bug("blocks.3", "forward", "gelu")],
        ),
        (
            "query and key exchanged in layer 0",
            "order of parts",
            weight("blocks.0.heads.in_proj_weight", lambda x: torch.cat([x[64:128], x[:64], x[128:]])),
            [Bug("blocks.0.heads", "forward", f"{ATTEND} {PRODUCT} _native_multi_head_attention")],
        ),
    ),
    **named(
        "clip",
        (
            "no mask in layer 1",
            "mask",
            code(
                "blocks.1",
                "attend",
                ("torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)", "torch.zeros(x.shape[1], x.shape[1])"),
            ),
            [Bug("blocks.1", "attend", "baddbmm _softmax zeros")],
        ),
        (
            "query, key and value side by side in layer 2",
            "order of parts",
            code(
                "blocks.2",
                "attend",
                ("unflatten(-1, (3, self.heads, -1))", "unflatten(-1, (self.heads, 3, -1))"),
                ("permute(2, 0, 3, 1, 4)", "permute(3, 0, 2, 1, 4)"),
            ),
            [Bug("blocks.2", "attend", "baddbmm bmm clone permute view")],
        ),
        (
            "scale in layer 0",
            "scale of the scores",
            code("blocks.0", "attend", ("alpha=q.shape[-1] ** -0.5", "alpha=x.shape[-1] ** -0.5")),
            [Bug("blocks.0", "attend", "baddbmm")],
        ),
        (
            "projection in bfloat16",
            "precision of a weight",
            weight("projection", bfloat16),
            [Bug("", "forward", PRODUCT)],
        ),
        (
            "eps in layer 3",
            "eps",
            constant("blocks.3.ln_2", "eps", 1e-3),
            [Bug("blocks.3.ln_2", "forward", LAYER_NORM)],
        ),
        (
            "first of the lowest tokens",
            "pooling",
            code("", "forward", ("ids.argmax(-1)", "ids.argmin(-1)")),
            [Bug("", "forward", "argmin index"), Bug("ln", "forward", LAYER_NORM)],
        ),
    ),
    **named(
        "resnet",
        (
            "batch norm not folded",
            "scale of a weight",
            unfolded,
            [Bug("blocks.1.second", "forward", "convolution")],
        ),
        (
            "stride in the second convolution",
            "convolution",
            both(constant("blocks.1.first", "stride", (1, 1)), constant("blocks.1.second", "stride", (2, 2))),
            [Bug("blocks.1.first", "forward", "convolution"), Bug("blocks.1.second", "forward", "convolution")],
        ),
        (
            "dilation",
            "convolution",
            both(constant("blocks.2.second", "dilation", (2, 2)), constant("blocks.2.second", "padding", (2, 2))),
            [Bug("blocks.2.second", "forward", "convolution")],
        ),
        (
            "edges reflected",
            "convolution",
            constant("stem", "padding_mode", "reflect"),
            [Bug("stem", "forward", "convolution reflection_pad2d")],
        ),
        (
            "pooling without padding",
            "pooling",
            code("", "forward", ("pool(x, 3, 2, 1)", "pool(x, 2, 2)")),
            [Bug("", "forward", "max_pool2d_with_indices")],
        ),
        (
            "kernel flipped",
            "transposed weight",
            weight("blocks.0.second.weight", lambda x: x.flip(2, 3)),
            [Bug("blocks.0.second", "forward", "convolution")],
        ),
    ),
    **named(
        "mamba",
        (
            "taps in the wrong order in layer 1",
            "convolution",
            weight("mixers.1.taps", lambda x: x.flip(0)),
            [Bug("mixers.1", "convolve", "mul add")],
        ),
        (
            "output before the update of the state in layer 2",
            "state",
            code(
                "mixers.2",
                "scan",
                (f"{UPDATE}\n            {OUTPUT}", f"{OUTPUT}\n            {UPDATE}"),
            ),
            [Bug("mixers.2", "scan", "mul sum stack")],
        ),
        (
            "first order of the decay in layer 0",
            "state",
            code("mixers.0", "scan", ("(step * rates).exp()", "(1 + step * rates)")),
            [Bug("mixers.0", "scan", "add mul")],
        ),
        (
            "input and output of the state exchanged in layer 3",
            "order of parts",
            exchanged("mixers.3.to_in", "mixers.3.to_out"),
            [
                Bug("mixers.3.to_in", "forward", PRODUCT),
                Bug("mixers.3.to_out", "forward", PRODUCT),
                Bug("mixers.3", "scan", "mul sum"),
            ],
        ),
        (
            "sigmoid for silu in layer 2",
            "activation",
            code("mixers.2", "forward", ("silu(gate)", "torch.sigmoid(gate)")),
            [Bug("mixers.2", "forward", "sigmoid mul")],
        ),
        (
            "bias of the steps in layer 0",
            "bias",
            weight("mixers.0.step.bias", torch.zeros_like),
            [Bug("mixers.0.step", "forward", PRODUCT), Bug("mixers.0", "forward", "softplus")],
        ),
    ),
}

PAIRED = ((0, 4), (2, 5)), ((0, 3),)  # bugs of different layers, of ports with many and with few
FEW = ("whisper", "vit", "clip", "resnet", "mamba")


def _pairs() -> tuple[tuple[str, str], ...]:
    names = {port: [name for name, bug in BUGS.items() if bug.port == port] for port in PORTS}
    places = ((port, pair) for port in PORTS for pair in PAIRED[port in FEW])
    return tuple((names[port][first], names[port][second]) for port, (first, second) in places)


PAIRS = _pairs()
