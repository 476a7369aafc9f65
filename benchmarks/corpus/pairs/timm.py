"""ViT, ConvNeXt and Swin of timm."""

from torch import Tensor, nn

from support.models.zoo import build

from ._pair import EAGER, Pair, State, image, joined, renamed

PACKAGES = ("timm", "torchvision")
ATTENTION = ("q_proj", "k_proj", "v_proj")
DEPTHS, DIMS = (1, 1, 2, 1), (8, 16, 24, 32)


def _vit() -> nn.Module:
    settings = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    sizes = {"image_size": 32, "patch_size": 8, "num_labels": 5, "layer_norm_eps": 1e-6}
    return build("ViTForImageClassification", settings | sizes | EAGER)


def _timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_classes": 5}
    return VisionTransformer(**sizes, depth=4, num_heads=4, mlp_ratio=2)


def _vit_weights(state: State) -> dict[str, Tensor]:
    return renamed(
        joined(state, r".*\.#\.(weight|bias)", ATTENTION, "qkv"),
        (r"^vit\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        (r"^vit\.embeddings\.position_embeddings", "pos_embed"),
        (r"^vit\.embeddings\.", ""),
        (r"^vit\.layers", "blocks"),
        (r"attention\.qkv", "attn.qkv"),
        (r"attention\.o_proj", "attn.proj"),
        (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"),
        (r"^vit\.layernorm", "norm"),
        (r"^classifier", "head"),
    )


def _convnext() -> nn.Module:
    settings = {"hidden_sizes": [*DIMS], "depths": [*DEPTHS], "num_labels": 5, "layer_norm_eps": 1e-6}
    return build("ConvNextForImageClassification", settings)


def _timm_convnext() -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=DEPTHS, dims=DIMS, num_classes=5)


def _convnext_weights(state: State) -> dict[str, Tensor]:
    return renamed(
        state,
        (r"^convnext\.embeddings\.patch_embeddings", "stem.0"),
        (r"^convnext\.embeddings\.layernorm", "stem.1"),
        (r"^convnext\.encoder\.", ""),
        (r"downsampling_layer", "downsample"),
        (r"\.layers\.", ".blocks."),
        (r"layer_scale_parameter", "gamma"),
        (r"dwconv", "conv_dw"),
        (r"blocks\.(\d+)\.layernorm", r"blocks.\1.norm"),
        (r"pwconv", "mlp.fc"),
        (r"^convnext\.layernorm", "head.norm"),
        (r"^classifier", "head.fc"),
    )


def _swin() -> nn.Module:
    settings = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    return build("SwinForImageClassification", settings | {"window_size": 4, "mlp_ratio": 2.0, "num_labels": 5} | EAGER)


def _timm_swin() -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
    return SwinTransformer(**sizes, window_size=4, mlp_ratio=2.0)


def _swin_weights(state: State) -> dict[str, Tensor]:
    return renamed(
        joined(state, r".*\.#\.(weight|bias)", ATTENTION, "qkv"),
        (r"^swin\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        (r"^swin\.embeddings\.norm", "patch_embed.norm"),
        (r"^swin\.encoder\.", ""),
        (r"layers\.0\.downsample", "layers.1.downsample"),
        (r"attention\.qkv", "attn.qkv"),
        (r"attention\.o_proj", "attn.proj"),
        (r"attention\.relative_position_bias\.", "attn."),
        (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"),
        (r"relative_position_index", None),
        (r"^swin\.layernorm", "norm"),
        (r"^classifier", "head.fc"),
    )


def _pair(size: int, *functions: object) -> Pair:
    return Pair(*functions, lambda: ((image(size),), (image(size),)), PACKAGES)  # type: ignore[arg-type]


PAIRS = {
    "timm_vit": _pair(32, _vit, _timm_vit, _vit_weights),
    "timm_convnext": _pair(64, _convnext, _timm_convnext, _convnext_weights),
    "timm_swin": _pair(32, _swin, _timm_swin, _swin_weights),
}
