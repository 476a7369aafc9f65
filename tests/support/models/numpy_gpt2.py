"""GPT-2 written in NumPy, under names of its own, with faults to choose from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

HEADS, WIDTH, LAYERS = 4, 48, 3
# Each fault, with the first array that shows it.
FAULTS = {
    "eps": "b1/ln1", "norm order": "b1/mid", "swapped query and key": "b1/exp", "no scale": "b1/exp",
    "no mask": "b1/exp", "heads not merged": "b1/mid", "transposed weight": "b1/mid", "erf": "b1/act",
    "positions": "embed",
}  # fmt: skip
Arrays = dict[str, Any]


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    """Return a tiny model whose norms and biases have been trained, as far as one can tell."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=99, n_positions=32, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, attn_implementation="eager"
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3).add_(0.1 * torch.randn_like(parameter))
    return model


def tokens() -> torch.Tensor:
    """Return two sequences of tokens, without ties."""
    return torch.randint(0, 99, (2, 7), generator=torch.Generator().manual_seed(1))


def numpy_weights(model: nn.Module) -> Arrays:
    """Return the weights under names of its own, with the joined ones split."""
    own = {name.removeprefix("transformer."): tensor.numpy() for name, tensor in model.state_dict().items()}
    weights = {"wte": own["wte.weight"], "wpe": own["wpe.weight"], "g": own["ln_f.weight"], "b": own["ln_f.bias"]}
    for layer in range(LAYERS):
        names = {
            "g1": "ln_1.weight", "b1": "ln_1.bias", "g2": "ln_2.weight", "b2": "ln_2.bias",
            "o": "attn.c_proj.weight", "o_b": "attn.c_proj.bias", "up": "mlp.c_fc.weight", "up_b": "mlp.c_fc.bias",
            "down": "mlp.c_proj.weight", "down_b": "mlp.c_proj.bias",
        }  # fmt: skip
        weights |= {f"b{layer}/{name}": own[f"h.{layer}.{path}"] for name, path in names.items()}
        for index, name in enumerate("qkv"):
            part = slice(index * WIDTH, (index + 1) * WIDTH)
            weights[f"b{layer}/{name}_w"] = own[f"h.{layer}.attn.c_attn.weight"][:, part]
            weights[f"b{layer}/{name}_b"] = own[f"h.{layer}.attn.c_attn.bias"][part]
    return weights


def numpy_gpt2(weights: Arrays, ids: Any, dtype: Any = np.float64, fault: str | None = None, layer: int = 1) -> Arrays:
    """Return the named values of a run, in the order in which they are computed; the fault is in one layer."""
    weights = {name: array.astype(dtype) for name, array in weights.items()}
    count = ids.shape[1]
    positions = np.arange(count) + (fault == "positions")
    x = weights["wte"][ids] + weights["wpe"][positions]
    values = {"embed": x}
    for index in range(LAYERS):
        own = {name.partition("/")[2]: array for name, array in weights.items() if name.startswith(f"b{index}/")}
        of_layer = {}
        x = _block(x, own, of_layer, fault if index == layer else None)
        values |= {f"b{index}/{name}": array for name, array in of_layer.items()}
    values["final"] = _norm(x, weights["g"], weights["b"])
    values["logits"] = values["final"] @ weights["wte"].T
    return values


def _norm(x: Any, gain: Any, bias: Any, eps: float = 1e-5) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + x.dtype.type(eps)) * gain + bias


def _block(x: Any, own: Arrays, values: Arrays, fault: str | None) -> Any:
    batch, count, _ = x.shape
    kind = x.dtype.type
    normed = values["ln1"] = _norm(x, own["g1"], own["b1"], 1e-3 if fault == "eps" else 1e-5)
    order = "kqv" if fault == "swapped query and key" else "qkv"
    for name, weight in zip("qkv", order, strict=True):
        heads = (normed @ own[f"{weight}_w"] + own[f"{weight}_b"]).reshape(batch, count, HEADS, -1)
        values[name] = heads.transpose(0, 2, 1, 3)
    scores = values["q"] @ values["k"].transpose(0, 1, 3, 2)
    scores = scores * kind(1 if fault == "no scale" else (WIDTH // HEADS) ** -0.5)
    if fault != "no mask":
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -kind(np.inf))
    scores = values["exp"] = np.exp(scores - scores.max(-1, keepdims=True))  # GPT-2 has no such value
    values["probs"] = scores / scores.sum(-1, keepdims=True)
    context = values["context"] = values["probs"] @ values["v"]
    merged = context if fault == "heads not merged" else context.transpose(0, 2, 1, 3)
    weight = own["o"].T if fault == "transposed weight" else own["o"]
    residual = normed if fault == "norm order" else x
    x = values["mid"] = residual + merged.reshape(batch, count, WIDTH) @ weight + own["o_b"]
    values["ln2"] = _norm(x, own["g2"], own["b2"])
    hidden = values["hidden"] = values["ln2"] @ own["up"] + own["up_b"]
    if fault == "erf":
        values["act"] = nn.functional.gelu(torch.from_numpy(hidden)).numpy()
    else:
        inner = kind((2 / np.pi) ** 0.5) * (hidden + kind(0.044715) * hidden**3)
        values["act"] = kind(0.5) * hidden * (1 + np.tanh(inner))
    x = values["out"] = x + values["act"] @ own["down"] + own["down_b"]
    return x
