"""CLIP of OpenCLIP."""

from typing import Any

import torch
from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Calling, Pair, State, image, joined, renamed

LAYERS: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "projection_dim": 24,
}  # fmt: skip
END = 95  # of a text: the largest token


def _original() -> nn.Module:
    # With 2, as in the first published checkpoints, a text ends at its largest token, as it does in OpenCLIP.
    text = LAYERS | {"vocab_size": END + 1, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    vision = LAYERS | {"image_size": 32, "patch_size": 8}
    built = build("CLIPModel", {"text_config": text, "vision_config": vision, "projection_dim": 24} | EAGER)

    def call(model: nn.Module, pixels: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        found = model(input_ids=tokens, pixel_values=pixels)
        return found.logits_per_image, found.logits_per_text

    return Calling(built, call)


def _port() -> nn.Module:
    from open_clip import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=3, width=32, head_width=8, mlp_ratio=2.0, patch_size=8, image_size=32)
    text = CLIPTextCfg(context_length=16, vocab_size=END + 1, width=32, heads=4, layers=3, mlp_ratio=2.0)
    return Calling(CLIP(24, vision, text, quick_gelu=True), lambda model, *args: model.get_logits(*args))


def _weights(state: State) -> dict[str, Tensor]:
    found = renamed(
        joined(state, r".*\.#\.(weight|bias)", ("q_proj", "k_proj", "v_proj"), "in_proj"),
        (r"in_proj\.(weight|bias)", r"in_proj_\1"),
        (r"position_ids", None),
        (r"vision_model\.embeddings\.class_embedding", "visual.class_embedding"),
        (r"vision_model\.embeddings\.position_embedding\.weight", "visual.positional_embedding"),
        (r"vision_model\.embeddings\.patch_embedding", "visual.conv1"),
        (r"vision_model\.pre_layrnorm", "visual.ln_pre"),
        (r"vision_model\.post_layernorm", "visual.ln_post"),
        (r"vision_model\.encoder\.layers", "visual.transformer.resblocks"),
        (r"text_model\.encoder\.layers", "transformer.resblocks"),
        (r"text_model\.embeddings\.token_embedding", "token_embedding"),
        (r"text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
        (r"text_model\.final_layer_norm", "ln_final"),
        (r"self_attn", "attn"),
        (r"layer_norm(\d)", r"ln_\1"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"visual_projection\.weight", "visual.proj"),
        (r"text_projection\.weight", "text_projection"),
    )
    return found | {name: found[name].T for name in ("model.visual.proj", "model.text_projection")}


def _inputs() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    tokens = torch.randint(3, END, (2, 16), generator=torch.Generator().manual_seed(1))
    tokens[0, 9], tokens[1, 13] = END, END
    return (image(32), tokens), (image(32), tokens)


PAIRS = {"open_clip": Pair(_original, _port, _weights, _inputs, ("open-clip-torch", "torchvision"))}
