"""The text tower of CLIP with its activation written out, and one norm for the end of each text."""

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig

from support.models.zoo import ENCODER, build

from ._port import EAGER, Pair, copy, copy_parts, token_ids


class Block(nn.Module):
    def __init__(self, config: CLIPTextConfig, bug: str | None):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.bug, self.heads = bug, config.num_attention_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, config.layer_norm_eps), nn.LayerNorm(width, config.layer_norm_eps)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def attend(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = torch.baddbmm(
            torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1),
            q.flatten(0, 1),
            k.flatten(0, 1).mT,
            alpha=q.shape[-1] ** -0.5,
        )
        mixed = (scores.softmax(-1) @ v.flatten(0, 1)).unflatten(0, (-1, self.heads))
        order = (0, 1, 2, 3) if self.bug == "heads not transposed" else (0, 2, 1, 3)
        return self.proj(mixed.permute(order).reshape(x.shape))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        y = self.c_fc(self.ln_2(x))
        y = y * torch.sigmoid((1.0 if self.bug == "activation" else 1.702) * y)
        return x + self.c_proj(y)


class Text(nn.Module):
    def __init__(self, config: CLIPTextConfig, bug: str | None):
        super().__init__()
        self.bug = bug
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Parameter(torch.zeros(config.max_position_embeddings, config.hidden_size))
        self.blocks = nn.Sequential(*(Block(config, bug) for _ in range(config.num_hidden_layers)))
        self.ln = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.projection = nn.Parameter(torch.zeros(config.hidden_size, config.projection_dim))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks(self.token(ids) + self.position[: ids.shape[1]])
        last = torch.full((len(x),), -1) if self.bug == "last token" else ids.argmax(-1)
        return self.ln(x[torch.arange(len(x)), last]) @ self.projection


def make(bug: str | None = None) -> Pair:
    a = build("CLIPTextModelWithProjection", ENCODER | EAGER | {"projection_dim": 16})
    a.register_forward_hook(lambda _, __, output: output.text_embeds)  # the port has norms of the used rows alone
    b = Text(a.config, bug)
    own = a.text_model
    copy(b.token, own.embeddings.token_embedding)
    copy(b.ln, own.final_layer_norm)
    b.position.data.copy_(own.embeddings.position_embedding.weight)
    b.projection.data.copy_(a.text_projection.weight.T)
    for layer, block in zip(own.encoder.layers, b.blocks, strict=True):
        attention = layer.self_attn
        copy_parts(block, layer, ln_1="layer_norm1", ln_2="layer_norm2")
        copy(block.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy(block.proj, attention.out_proj)
        copy_parts(block, layer.mlp, c_fc="fc1", c_proj="fc2")
    return a, b, (token_ids(),), (token_ids(),)
