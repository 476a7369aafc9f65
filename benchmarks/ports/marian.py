"""Marian as functions of the weights of its own files: inputs first, the length first, and positions from a formula."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu
from transformers import MarianConfig

from support.models.zoo import POSITIONS, SEQ2SEQ, build

from ._port import EAGER, Pair, padded, token_ids

HIDDEN_SCORE = -99999999.0


class Marian(nn.Module):
    def __init__(self, config: MarianConfig, weights: dict[str, Tensor]):
        super().__init__()
        self.heads, self.depths = config.encoder_attention_heads, (config.encoder_layers, config.decoder_layers)
        self.eps = 1e-5
        self.weights = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in weights.items()})

    def affine(self, name: str, x: Tensor) -> Tensor:
        prefix, _, kind = name.rpartition("_")
        return x @ self.weights[f"{prefix}_W{kind}"] + self.weights[f"{prefix}_b{kind}"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale, bias = self.weights[f"{name}_ln_scale"], self.weights[f"{name}_ln_bias"]
        return layer_norm(x, x.shape[-1:], scale, bias, self.eps)

    def positions(self, length: int, width: int) -> Tensor:
        """Return the sines of all angles before their cosines, `[length, 1, width]`."""
        speeds = torch.exp(torch.arange(width // 2) * (-2 * math.log(10000.0) / width))
        angles = torch.arange(length)[:, None] * speeds
        return torch.cat([angles.sin(), angles.cos()], -1)[:, None]

    def embed(self, ids: Tensor) -> Tensor:
        """Return texts `[batch, length]` as `[length, batch, width]`."""
        words = self.weights["Wemb"][ids.T]
        return words * math.sqrt(words.shape[-1]) + self.positions(*words.shape[::2])

    def split(self, x: Tensor) -> Tensor:
        """Return the heads as a batch, `[batch * heads, length, size]`."""
        return x.reshape(x.shape[0], -1, x.shape[-1] // self.heads).transpose(0, 1)

    def attend(self, name: str, x: Tensor, other: Tensor, bias: Tensor) -> Tensor:
        q = self.split(self.affine(f"{name}_q", x))
        k, v = self.split(self.affine(f"{name}_k", other)), self.split(self.affine(f"{name}_v", other))
        scores = torch.baddbmm(bias, q, k.mT, alpha=1 / math.sqrt(q.shape[-1]))
        mixed = torch.bmm(scores.softmax(-1), v).transpose(0, 1).reshape(x.shape)
        return self.affine(f"{name}_o", mixed)

    def ffn(self, name: str, x: Tensor) -> Tensor:
        return self.affine(f"{name}_2", silu(self.affine(f"{name}_1", x)))

    def encoder_layer(self, index: int, x: Tensor, bias: Tensor) -> Tensor:
        name = f"encoder_l{index}"
        x = self.norm(f"{name}_self_Wo", x + self.attend(f"{name}_self", x, x, bias))
        return self.norm(f"{name}_ffn_ffn", x + self.ffn(f"{name}_ffn", x))

    def decoder_layer(self, index: int, x: Tensor, encoded: Tensor, biases: tuple[Tensor, Tensor]) -> Tensor:
        name = f"decoder_l{index}"
        x = self.norm(f"{name}_self_Wo", x + self.attend(f"{name}_self", x, x, biases[0]))
        x = self.norm(f"{name}_context_Wo", x + self.attend(f"{name}_context", x, encoded, biases[1]))
        return self.norm(f"{name}_ffn_ffn", x + self.ffn(f"{name}_ffn", x))

    def encode(self, ids: Tensor, bias: Tensor) -> Tensor:
        x = self.embed(ids)
        for index in range(1, self.depths[0] + 1):
            x = self.encoder_layer(index, x, bias)
        return x

    def decode(self, ids: Tensor, encoded: Tensor, bias: Tensor) -> Tensor:
        x = self.embed(ids)
        later = torch.ones(len(x), len(x)).triu(1) * HIDDEN_SCORE
        for index in range(1, self.depths[1] + 1):
            x = self.decoder_layer(index, x, encoded, (later, bias))
        return x

    def forward(self, ids: Tensor, mask: Tensor, decoder_ids: Tensor) -> Tensor:
        bias = ((1 - mask) * HIDDEN_SCORE).repeat_interleave(self.heads, 0)[:, None]
        x = self.decode(decoder_ids, self.encode(ids, bias), bias)
        return (x @ self.weights["Wemb"].T + self.weights["decoder_ff_logit_out_b"]).transpose(0, 1)


def attention_weights(name: str, own: nn.Module) -> dict[str, Tensor]:
    layers = {"q": own.q_proj, "k": own.k_proj, "v": own.v_proj, "o": own.out_proj}
    return {f"{name}_W{kind}": layer.weight.T for kind, layer in layers.items()} | {
        f"{name}_b{kind}": layer.bias for kind, layer in layers.items()
    }


def norm_weights(name: str, own: nn.Module) -> dict[str, Tensor]:
    return {f"{name}_ln_scale": own.weight, f"{name}_ln_bias": own.bias}


def weights_of(a: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a `MarianMTModel` as a file of Marian names them."""
    weights = {"Wemb": a.model.shared.weight, "decoder_ff_logit_out_b": a.final_logits_bias[0]}
    for side, own in (("encoder", a.model.encoder), ("decoder", a.model.decoder)):
        for index, layer in enumerate(own.layers, 1):
            name = f"{side}_l{index}"
            weights |= attention_weights(f"{name}_self", layer.self_attn)
            weights |= norm_weights(f"{name}_self_Wo", layer.self_attn_layer_norm)
            if side == "decoder":
                weights |= attention_weights(f"{name}_context", layer.encoder_attn)
                weights |= norm_weights(f"{name}_context_Wo", layer.encoder_attn_layer_norm)
            for kind, linear in (("1", layer.fc1), ("2", layer.fc2)):
                weights |= {f"{name}_ffn_W{kind}": linear.weight.T, f"{name}_ffn_b{kind}": linear.bias}
            weights |= norm_weights(f"{name}_ffn_ffn", layer.final_layer_norm)
    return weights


def make(_: str | None = None) -> Pair:
    a = build("MarianMTModel", SEQ2SEQ | POSITIONS | EAGER | {"scale_embedding": True, "activation_function": "swish"})
    a.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    for side in (a.model.encoder, a.model.decoder):  # `build` has changed the table
        side.embed_positions.weight.copy_(side.embed_positions.create_weight())
    b = Marian(a.config, weights_of(a))
    args = padded(token_ids(), token_ids(6, seed=2))
    return a, b, args, args
