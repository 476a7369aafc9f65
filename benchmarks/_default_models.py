"""Models of the sizes of published checkpoints, with fresh weights or with weights as after training.

The sizes are those of ResNet-50, GPT-2, BERT-base, ViT-B/16, T5-small, Whisper-base, Mamba2-130M, Qwen2-0.5B, and a
Llama with 1.0 billion parameters. A Mixtral with 0.07 billion parameters selects two of eight experts for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TAIL = 4.0  # degrees of freedom of Student's t-distribution: a weight in 10,000 is further than 13 deviations from 0
OUTLIERS, OUTLIER_GAIN = 0.005, 20.0  # share of the norm gains and of the input channels, and their factor
BATCH_NORM_GAIN = 0.3  # typical after training; with gains of 1, the sums of residual blocks overflow in float16
LOGIT_GAIN = 4.0  # factor of the last layer, so that softmax and argmax see large logits
TOKENS = 32


@dataclass(frozen=True)
class DefaultModel:
    """A model of transformers.

    Attributes:
        name: the class.
        settings: those of its configuration that are not the default.
        inputs: returns the keyword arguments of a call.
    """

    name: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]]

    def make(self, weights: str, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the model in eval mode and the inputs of a call; the weights are one of `WEIGHTS`."""
        import transformers  # takes seconds, and the list of models does not need it

        torch.manual_seed(0)
        model_class = getattr(transformers, self.name)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # so that a large model is never in memory in float32 too
        try:
            model: nn.Module = model_class(model_class.config_class(**self.settings)).eval()
        finally:
            torch.set_default_dtype(before)
        WEIGHTS[weights](model)
        inputs = self.inputs()
        return model.to(dtype), {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def text(words: int, *names: str) -> Callable[[], dict[str, Tensor]]:
    """Return a function that draws tokens for each of the inputs."""
    return lambda: {name: torch.randint(0, words, (1, TOKENS)) for name in names}


def picture() -> dict[str, Tensor]:
    """Draw an image of 224 by 224 pixels."""
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


def speech() -> dict[str, Tensor]:
    """Draw the features of 30 seconds of sound, and tokens."""
    return {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.randint(0, 50000, (1, TOKENS))}


def trained_like(model: nn.Module) -> None:
    """Draw weights with heavy tails, outlier channels, a few large norm gains and large logits.

    The spread of each weight stays that of its initialization. Statistics of BatchNorm get means and variances like
    those of data.
    """
    student = torch.distributions.StudentT(torch.tensor(TAIL))
    scale = (1 - 2 / TAIL) ** 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                deviation = float(parameter.std())
                noise = student.sample(parameter.shape).mul_(deviation * scale)
                outliers = torch.rand(parameter.shape[1]) < OUTLIERS
                noise[:, outliers] *= OUTLIER_GAIN**0.5
                parameter.copy_(noise)
            elif name.endswith("weight"):
                gains = torch.randn(parameter.shape).mul_(0.2).exp_()
                gains[torch.rand(parameter.shape) < OUTLIERS] *= OUTLIER_GAIN
                parameter.copy_(gains)
            elif name.endswith("bias"):
                parameter.copy_(student.sample(parameter.shape).mul_(0.05))
        _train_batch_norms(model)
        head = getattr(model, "get_output_embeddings", lambda: None)()
        if isinstance(head, nn.Module) and isinstance(head.weight, Tensor):
            head.weight.mul_(LOGIT_GAIN)


def _train_batch_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            mean, variance = module.running_mean, module.running_var
            assert mean is not None
            assert variance is not None
            mean.copy_(torch.randn(mean.shape).mul_(0.1))
            variance.copy_(torch.randn(variance.shape).mul_(0.5).exp_())
            module.weight.mul_(BATCH_NORM_GAIN)


WEIGHTS: dict[str, Callable[[nn.Module], object]] = {"fresh": lambda _model: None, "trained-like": trained_like}
_QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
_MAMBA2 = {"hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "n_groups": 1, "vocab_size": 50288}
_LLAMA = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
_MIXTRAL = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
_MIXTRAL |= {"num_key_value_heads": 4, "vocab_size": 8000}
_WHISPER = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "use_cache": False}
_WHISPER |= {
    f"{side}_{part}": count
    for side in ("encoder", "decoder")
    for part, count in (("layers", 6), ("attention_heads", 8))
}
MODELS = {
    "resnet50": DefaultModel("ResNetForImageClassification", {}, picture),
    "gpt2": DefaultModel("GPT2LMHeadModel", {"use_cache": False}, text(50000, "input_ids")),
    "bert": DefaultModel("BertModel", {}, text(30000, "input_ids")),
    "vit": DefaultModel("ViTModel", {}, picture),
    "t5": DefaultModel(
        "T5ForConditionalGeneration", {"use_cache": False}, text(32000, "input_ids", "decoder_input_ids")
    ),
    "whisper": DefaultModel(
        "WhisperForConditionalGeneration",
        _WHISPER,
        speech,
    ),
    "mamba2": DefaultModel("Mamba2ForCausalLM", {**_MAMBA2, "use_cache": False}, text(50000, "input_ids")),
    "qwen2": DefaultModel(
        "Qwen2ForCausalLM",
        {**_QWEN2, "num_key_value_heads": 2, "tie_word_embeddings": True, "use_cache": False},
        text(150000, "input_ids"),
    ),
    "mixtral": DefaultModel(  # torch.onnx translates only this implementation of the experts
        "MixtralForCausalLM",
        {**_MIXTRAL, "experts_implementation": "batched_mm", "use_cache": False},
        text(8000, "input_ids"),
    ),
    "llama": DefaultModel(
        "LlamaForCausalLM", {**_LLAMA, "num_key_value_heads": 8, "use_cache": False}, text(32000, "input_ids")
    ),
}
