"""OPT as in TransformerLens: matrices by head, and gains and biases of norms folded into the weights that follow."""

import torch
from torch import Tensor, nn
from transformers import OPTConfig

from support.models.zoo import ENCODER, NO_CACHE, build

from ._port import EAGER, Pair, copy, padded, token_ids


class NormPre(nn.Module):
    """A layer norm without gain and bias."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        scale = (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return x / scale


class HeadedAttention(nn.Module):
    def __init__(self, config: OPTConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        heads, width = config.num_attention_heads, config.hidden_size
        size = width // heads
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.zeros(heads, width, size)) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(heads, size)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.zeros(heads, size, width)), nn.Parameter(torch.zeros(width))
        self.scale = float(size if bug == "scale" else size**0.5)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q = torch.einsum("bpd,hde->bphe", x, self.W_Q) + self.b_Q
        k = torch.einsum("bpd,hde->bphe", x, self.W_K) + self.b_K
        v = torch.einsum("bpd,hde->bphe", x, self.W_V) + self.b_V
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / self.scale
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        z = torch.einsum("bhqk,bkhe->bqhe", pattern, v)
        return torch.einsum("bqhe,hed->bqd", z, self.W_O) + self.b_O


class Perceptron(nn.Module):
    def __init__(self, config: OPTConfig):
        super().__init__()
        width, inner = config.hidden_size, config.ffn_dim
        self.W_in, self.b_in = nn.Parameter(torch.zeros(width, inner)), nn.Parameter(torch.zeros(inner))
        self.W_out, self.b_out = nn.Parameter(torch.zeros(inner, width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.W_in + self.b_in) @ self.W_out + self.b_out


class Block(nn.Module):
    def __init__(self, config: OPTConfig, bug: str | None):
        super().__init__()
        self.ln1, self.ln2 = NormPre(1e-5), NormPre(1e-3 if bug == "eps" else 1e-5)
        self.attn, self.mlp = HeadedAttention(config, bug), Perceptron(config)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x), hidden)
        return x + self.mlp(self.ln2(x))


class Opt(nn.Module):
    def __init__(self, config: OPTConfig, bug: str | None):
        super().__init__()
        width = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, width)
        # Without the first row, which is never read: row 0 belongs to padding.
        self.W_pos = nn.Parameter(torch.zeros(config.max_position_embeddings + 1, width))
        self.blocks = nn.ModuleList(Block(config, bug) for _ in range(config.num_hidden_layers))
        self.ln_final = NormPre(1e-5)
        self.W_U = nn.Parameter(torch.zeros(width, config.vocab_size))
        self.b_U = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.W_pos[mask.cumsum(1) * mask]
        future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        hidden = future | (mask == 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, hidden)
        return self.ln_final(x) @ self.W_U + self.b_U


def folded(norm: nn.Module, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weight [out, in] and the bias of a linear layer that follows a norm, with those of the norm."""
    weight, gain, shift = weight.double(), norm.weight.double(), norm.bias.double()
    moved = weight @ shift
    return weight * gain, moved if bias is None else bias + moved


def make(bug: str | None = None) -> Pair:
    a = build("OPTForCausalLM", ENCODER | NO_CACHE | EAGER | {"ffn_dim": 48})
    b = Opt(a.config, bug)
    own, heads = a.model.decoder, a.config.num_attention_heads
    copy(b.embed, own.embed_tokens)
    b.W_pos.data.copy_(own.embed_positions.weight[1:])
    weight, bias = folded(own.final_layer_norm, a.lm_head.weight)
    b.W_U.data.copy_(weight.T)
    b.b_U.data.copy_(bias)
    for layer, block in zip(own.layers, b.blocks, strict=True):
        for name in "qkv":
            source = layer.self_attn.get_submodule(f"{name}_proj")
            weight, bias = folded(layer.self_attn_layer_norm, source.weight, source.bias)
            block.attn.get_parameter(f"W_{name.upper()}").data.copy_(weight.unflatten(0, (heads, -1)).mT)
            block.attn.get_parameter(f"b_{name.upper()}").data.copy_(bias.unflatten(0, (heads, -1)))
        block.attn.W_O.data.copy_(layer.self_attn.out_proj.weight.T.unflatten(0, (heads, -1)))
        block.attn.b_O.data.copy_(layer.self_attn.out_proj.bias)
        weight, bias = folded(layer.final_layer_norm, layer.fc1.weight, layer.fc1.bias)
        block.mlp.W_in.data.copy_(weight.T)
        block.mlp.b_in.data.copy_(bias)
        block.mlp.W_out.data.copy_(layer.fc2.weight.T)
        block.mlp.b_out.data.copy_(layer.fc2.bias)
    return a, b, padded(token_ids()), padded(token_ids())
