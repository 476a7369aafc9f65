"""Segment Anything of segment-anything."""

from typing import Any

import torch
from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Calling, Pair, State, image, renamed


def _original() -> nn.Module:
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 64, "hidden_size": 32}
    picture = {"image_size": 64, "patch_size": 8}
    vision = layers | picture | {"output_channels": 32, "window_size": 4, "global_attn_indexes": [1]}
    settings = {
        "vision_config": vision | {"num_pos_feats": 16},
        "prompt_encoder_config": picture | {"hidden_size": 32},
        "mask_decoder_config": layers | {"iou_head_hidden_dim": 32, "layer_norm_eps": 1e-5},
    }

    def call(model: nn.Module, pixels: Tensor, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = model(pixel_values=pixels, input_points=points[:, None], input_labels=labels[:, None])
        return found.pred_masks[:, 0], found.iou_scores[:, 0]

    return Calling(build("SamModel", settings | EAGER), call)


def _port() -> nn.Module:
    from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer

    sizes: dict[str, Any] = {"img_size": 64, "patch_size": 8, "embed_dim": 32, "out_chans": 32}
    norm: dict[str, Any] = {"norm_layer": lambda width: nn.LayerNorm(width, eps=1e-6)}
    attention: dict[str, Any] = {"use_rel_pos": True, "window_size": 4, "global_attn_indexes": (1,)}
    encoder = ImageEncoderViT(**sizes, **norm, **attention, depth=2, num_heads=4, mlp_ratio=2.0)
    prompts = PromptEncoder(embed_dim=32, image_embedding_size=(8, 8), input_image_size=(64, 64), mask_in_chans=16)
    transformer = TwoWayTransformer(depth=2, embedding_dim=32, num_heads=4, mlp_dim=64)
    decoder = MaskDecoder(transformer_dim=32, transformer=transformer, iou_head_hidden_dim=32)

    def call(model: Any, pixels: Tensor, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        sparse, dense = model.prompt_encoder((points, labels), None, None)
        places = model.prompt_encoder.get_dense_pe()
        found: tuple[Tensor, Tensor] = model.mask_decoder(
            image_embeddings=model.image_encoder(pixels),
            image_pe=places,
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=True,
        )
        return found

    return Calling(Sam(encoder, prompts, decoder), call)


def _weights(state: State) -> dict[str, Tensor]:
    return renamed(
        state,
        (r"model\.shared_image_embedding.*", None),
        (r"vision_encoder\.layers", "image_encoder.blocks"),
        (r"vision_encoder\.", "image_encoder."),
        (r"patch_embed\.projection", "patch_embed.proj"),
        (r"(blocks\.\d+)\.layer_norm(\d)", r"\1.norm\2"),
        (r"neck\.conv1", "neck.0"),
        (r"neck\.layer_norm1", "neck.1"),
        (r"neck\.conv2", "neck.2"),
        (r"neck\.layer_norm2", "neck.3"),
        (r"shared_embedding\.positional_embedding", "pe_layer.positional_encoding_gaussian_matrix"),
        (r"\.point_embed\.", ".point_embeddings."),
        (r"mask_embed\.conv1", "mask_downscaling.0"),
        (r"mask_embed\.layer_norm1", "mask_downscaling.1"),
        (r"mask_embed\.conv2", "mask_downscaling.3"),
        (r"mask_embed\.layer_norm2", "mask_downscaling.4"),
        (r"mask_embed\.conv3", "mask_downscaling.6"),
        (r"(transformer\.layers\.\d+)\.layer_norm(\d)", r"\1.norm\2"),
        (r"layer_norm_final_attn", "norm_final_attn"),
        (r"upscale_conv1", "output_upscaling.0"),
        (r"upscale_layer_norm", "output_upscaling.1"),
        (r"upscale_conv2", "output_upscaling.3"),
        (r"\.layers\.0\.(weight|bias)$", r".layers.1.\1"),
        (r"proj_in\.", "layers.0."),
        (r"proj_out\.", "layers.2."),
    )


def _inputs() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    points, labels = torch.tensor([[[12.0, 30.0], [51.0, 9.0]]]), torch.tensor([[1, 0]])
    return (image(64, 1), points, labels), (image(64, 1), points, labels)


PAIRS = {"segment_anything": Pair(_original, _port, _weights, _inputs, ("segment-anything", "torchvision"))}
