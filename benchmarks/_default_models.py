"""Models of the sizes of published checkpoints, with fresh weights or with weights as after training.

The sizes are those of ResNet-50, GPT-2, BERT-base, ViT-B/16, T5-small, Whisper-base, Mamba2-130M, Qwen2-0.5B, and a
Llama with 1.0 billion parameters. A Mixtral with 0.07 billion parameters selects two of eight experts for each token.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TAIL = 4.0  # degrees of freedom of Student's t-distribution: a weight in 10,000 is further than 13 deviations from 0
OUTLIERS, OUTLIER_GAIN = 0.005, 20.0  # share of the norm gains and of the input channels, and their factor
BATCH_NORM_GAIN = 0.3  # typical after training; with gains of 1, the sums of residual blocks overflow in float16
LOGIT_GAIN = 4.0  # factor of the last layer, so that softmax and argmax see large logits
TOKENS = 32
# An image of 224 by 224 pixels; the features of 30 seconds of sound.
FEATURES = {"picture": {"pixel_values": (1, 3, 224, 224)}, "speech": {"input_features": (1, 80, 3000)}, "": {}}
_FILE = Path(__file__).with_name("default_models.toml")


@dataclass(frozen=True)
class DefaultModel:
    """A model of transformers.

    Attributes:
        name: the class.
        settings: those of its configuration that are not the default.
        features: the input that is no text: `picture`, `speech` or none.
        text: the number of words of each input of tokens.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    features: str = ""
    text: dict[str, int] = field(default_factory=dict)

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
        inputs = {name: torch.randn(shape) for name, shape in FEATURES[self.features].items()}
        inputs |= {name: torch.randint(0, words, (1, TOKENS)) for name, words in self.text.items()}
        return model.to(dtype), {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


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
MODELS = {name: DefaultModel(**fields) for name, fields in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}
