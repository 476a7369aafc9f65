"""Tiny frozen Hugging Face models with random weights, and the inputs that people call them with."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.exporters.exporter_dynamo import register_pytree_node

from filch.compare import tiny_llm
from filch.export import Program, cache_argument, export

__all__ = ["HARD", "MODELS", "UNKEPT", "ZOO", "build", "exported"]

RESNET18 = Path(__file__).resolve().parents[3] / "examples" / "resnet18_correctness.py"

Settings = dict[str, Any]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Recipe = tuple[str, Settings, Callable[[], Inputs]]
Factory = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]

BATCH, LENGTH, SEEN, VOCABULARY, PAD = 2, 10, 4, 96, 0
HIDDEN, HEADS, KEY_HEADS, HEAD_DIM, LAYERS, IMAGE = 32, 4, 2, 8, 2, 32


# With noise of full size DETR's attention is all but an argmax, which multiplies float32's rounding by a hundred, and
# ResNet's shortcuts add up to numbers so large that rounding is over 1e-5 of the small ones among them.
NOISE = {"DetrForObjectDetection": 0.25, "ResNetForImageClassification": 0.5}


def build(model: str, settings: Settings, *, seed: int = 0) -> nn.Module:
    """Return `transformers.<model>`, frozen and in eval mode, with settings of its configuration class."""
    model_class = getattr(transformers, model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        built: nn.Module = model_class(model_class.config_class(**settings))
        # Fresh weights hold zeros and ones (biases, norms, statistics): a bias or a norm left out would not show.
        for parameter in built.parameters():
            size = NOISE.get(model, 1.0) * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
            parameter.add_(size * torch.randn_like(parameter))
        for name, buffer in built.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.1)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    # With trainable position biases (T5, Swin), torch 2.13 can't decompose the attention it exported and fails with
    # 'Cannot view a tensor with shape … and strides …'.
    return built.eval().requires_grad_(requires_grad=False)


def _make(model: str, settings: Settings, inputs: Callable[[], Inputs]) -> tuple[nn.Module, tuple[Any, ...], Settings]:
    built = build(model, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        args, kwargs = inputs()
    return built, args, kwargs


def _ids(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def _text() -> Inputs:
    """Return two texts, the second one padded on the right."""
    ids, mask = _ids(), torch.ones(BATCH, LENGTH, dtype=torch.int64)
    ids[1, -3:], mask[1, -3:] = PAD, 0
    return (), {"input_ids": ids, "attention_mask": mask}


def _ids_only() -> Inputs:
    return (), {"input_ids": _ids()}


def _text_to_text() -> Inputs:
    args, kwargs = _text()
    return args, kwargs | {"decoder_input_ids": _ids(6)}


def _text_for_cache() -> Inputs:
    register_pytree_node(transformers.DynamicCache)
    args, kwargs = _text()
    return args, kwargs | {"use_cache": True}


def _text_after_cache() -> Inputs:
    """Return the end of two texts, with a cache of the keys and values of their start, extended in place."""
    args, kwargs = _text_for_cache()
    keys_and_values = torch.randn(LAYERS, 2, BATCH, KEY_HEADS, SEEN, HEAD_DIM)
    cache = transformers.DynamicCache([(keys, values) for keys, values in keys_and_values])
    return args, kwargs | {
        "input_ids": kwargs["input_ids"][:, SEEN:],
        cache_argument(transformers.LlamaForCausalLM): cache,
    }


def _pixels() -> Tensor:
    return torch.randn(BATCH, 3, IMAGE, IMAGE)


def _image() -> Inputs:
    return (), {"pixel_values": _pixels()}


def _masked_image() -> Inputs:
    """Return two images, the second one padded on the right."""
    mask = torch.ones(BATCH, IMAGE, IMAGE, dtype=torch.int64)
    mask[1, :, -8:] = 0
    return (), {"pixel_values": _pixels(), "pixel_mask": mask}


def _text_and_image() -> Inputs:
    args, kwargs = _text()
    return args, kwargs | {"pixel_values": _pixels()}


def _spectrogram() -> Inputs:
    return (), {"input_features": torch.randn(BATCH, 8, 2 * LENGTH), "decoder_input_ids": _ids(6)}


TEXT: Settings = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
STACK: Settings = {
    "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
}  # fmt: skip
POSITIONS: Settings = {"max_position_embeddings": 32}
ENCODER: Settings = TEXT | STACK | POSITIONS
NO_CACHE: Settings = {"use_cache": False}
# GPT-2 and BLOOM have names of their own, as has DistilBERT.
GPT: Settings = TEXT | NO_CACHE | {"n_layer": LAYERS, "n_head": HEADS, "hidden_size": HIDDEN}
DISTILLED: Settings = TEXT | POSITIONS | {"dim": HIDDEN, "hidden_dim": 48, "n_layers": LAYERS, "n_heads": HEADS}
CACHED: Settings = ENCODER | {"num_key_value_heads": KEY_HEADS, "head_dim": HEAD_DIM}
DECODER: Settings = CACHED | NO_CACHE
EXPERTS: Settings = DECODER | {
    "num_local_experts": 4,
    # The default, a grouped product, has no ONNX translation; 'eager' loops over the experts that were hit.
    "experts_implementation": "batched_mm",
}
PER_SIDE = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 48}
SIDES: Settings = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in PER_SIDE.items()}
SEQ2SEQ: Settings = TEXT | NO_CACHE | SIDES | {"d_model": HIDDEN, "decoder_start_token_id": 2}
SIZES_OF_T5: Settings = {"d_model": HIDDEN, "d_kv": HEAD_DIM, "d_ff": 48, "num_layers": LAYERS, "num_heads": HEADS}
T5: Settings = TEXT | NO_CACHE | SIZES_OF_T5 | {"decoder_start_token_id": PAD}
STATE_SPACE: Settings = TEXT | NO_CACHE | {"hidden_size": HIDDEN, "state_size": 8, "num_hidden_layers": LAYERS}
PATCHES: Settings = {"image_size": IMAGE, "patch_size": 8}
VISION: Settings = STACK | PATCHES
WINDOWS: Settings = PATCHES | {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 2}
PYRAMID: Settings = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
# With the usual range, 0.02, the signal dies on its way and the output is the same for all images.
MOBILE: Settings = {"image_size": IMAGE, "depth_multiplier": 0.25, "initializer_range": 0.1}
RESNET: Settings = PYRAMID | {"embedding_size": 8}
DETECTOR: Settings = SEQ2SEQ | {
    "num_queries": 5,
    "use_timm_backbone": False,
    # Two stages leave 4 by 4 places, of which the mask hides some.
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [16, 24],
        "depths": [1, 1],
        "out_features": ["stage2"],
    },
}
WHISPER: Settings = SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": LENGTH}
WAV2VEC2: Settings = TEXT | STACK | {"conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3]}
TOWERS: Settings = {"text_config": ENCODER, "vision_config": VISION}

RECIPES: dict[str, Recipe] = {
    # Decoders
    "llama": ("LlamaForCausalLM", DECODER, _text),
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": 4}, _text),
    "mixtral": ("MixtralForCausalLM", EXPERTS, _text),
    "qwen2": ("Qwen2ForCausalLM", DECODER, _text),
    "qwen3": ("Qwen3ForCausalLM", DECODER, _ids_only),
    "phi3": ("Phi3ForCausalLM", DECODER, _text),
    "gemma": ("GemmaForCausalLM", DECODER, _text),
    "gemma2": ("Gemma2ForCausalLM", DECODER | {"sliding_window": 4}, _text),
    "gpt2": ("GPT2LMHeadModel", GPT, _text),
    "gpt_neox": ("GPTNeoXForCausalLM", ENCODER | NO_CACHE, lambda: ((_ids(),), {})),
    "opt": ("OPTForCausalLM", ENCODER | NO_CACHE | {"ffn_dim": 48, "word_embed_proj_dim": 16}, _text),
    "bloom": ("BloomForCausalLM", GPT, _text),
    "mamba": ("MambaForCausalLM", STATE_SPACE, _ids_only),
    "mamba2": ("Mamba2ForCausalLM", STATE_SPACE | {"num_heads": 8, "head_dim": 8, "chunk_size": 4}, _ids_only),
    # Encoders
    "bert": ("BertModel", ENCODER, _text),
    "roberta": ("RobertaForMaskedLM", ENCODER, _text),
    "distilbert": ("DistilBertModel", DISTILLED, _text),
    "electra": ("ElectraForTokenClassification", ENCODER | {"embedding_size": 16}, _text),
    "deberta_v2": ("DebertaV2Model", ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, _text),
    "albert": ("AlbertModel", ENCODER | {"embedding_size": 16}, _text),
    # Encoder-decoders
    "t5": ("T5ForConditionalGeneration", T5, _text_to_text),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ | POSITIONS, _text_to_text),
    "whisper": ("WhisperForConditionalGeneration", WHISPER, _spectrogram),
    # Vision
    "vit": ("ViTForImageClassification", VISION, _image),
    "dinov2": ("Dinov2Model", VISION, _image),
    "swin": ("SwinModel", WINDOWS, _image),
    "convnext": ("ConvNextModel", PYRAMID | {"layer_scale_init_value": 1.0}, _image),
    "resnet": ("ResNetForImageClassification", RESNET, lambda: ((_pixels(),), {})),
    "mobilenet_v2": ("MobileNetV2Model", MOBILE, _image),
    "segformer": ("SegformerForSemanticSegmentation", PYRAMID | {"num_attention_heads": [1, 2, 2, 4]}, _image),
    "yolos": ("YolosForObjectDetection", VISION | {"image_size": [IMAGE, IMAGE], "num_detection_tokens": 5}, _image),
    # Sound, and text with images
    "wav2vec2": ("Wav2Vec2ForCTC", WAV2VEC2, lambda: ((), {"input_values": torch.randn(BATCH, 400)})),
    "clip": ("CLIPModel", TOWERS | {"projection_dim": 16}, _text_and_image),
    "siglip": ("SiglipModel", TOWERS, _text_and_image),
}
HARD_RECIPES: dict[str, Recipe] = {
    "llama_cache": ("LlamaForCausalLM", CACHED, _text_for_cache),
    "llama_past": ("LlamaForCausalLM", CACHED, _text_after_cache),
    "detr": ("DetrForObjectDetection", DETECTOR, _masked_image),
}


def _resnet18() -> tuple[nn.Module, tuple[Tensor], dict[str, Tensor]]:
    """Return the model of the example, and a small image."""
    model, _ = runpy.run_path(str(RESNET18))["resnet18"]()
    return model, (torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)),), {}


ZOO: dict[str, Factory] = {name: partial(_make, *recipe) for name, recipe in RECIPES.items()}
HARD: dict[str, Factory] = {name: partial(_make, *recipe) for name, recipe in HARD_RECIPES.items()}
MODELS: dict[str, Factory] = {"tiny LLM": lambda: (*tiny_llm(), {}), "ResNet-18": _resnet18} | ZOO | HARD
# The modules (a pattern of whole names) whose call signatures `torch.export` can't preserve. A preserved call rebuilds
# its arguments, so a cache handed in is a copy and what the module stores there is lost without an error (outputs are
# missing or short); a device or dtype among the arguments is refused. With these modules left out, the models export.
UNKEPT: dict[str, str] = {
    "llama_cache": r"model|model\.layers\.\d+(\.self_attn)?",
    "llama_past": r"model|model\.layers\.\d+(\.self_attn)?",
    "detr": r"model\.position_embedding",
}


@cache
def exported(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], Program]:
    """Return a model, what it is called with, and its program, which all tests share and none changes."""
    model, args, kwargs = MODELS[name]()
    return model, args, kwargs, export(model, args, kwargs)
