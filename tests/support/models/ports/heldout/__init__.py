"""Ports for bugs that were held out: of other families and in other styles than those that `align` was made with."""

from .._port import Port
from . import (
    albert,
    bart,
    bloom,
    cohere,
    convnext,
    deberta_v2,
    deepseek_v3,
    efficientnet,
    gemma2,
    gptj,
    mamba2,
    olmo2,
    opt,
    qwen3_moe,
    roberta,
    rwkv,
    segformer,
    swin,
    wav2vec2,
)

__all__ = ["HELD_OUT_PORTS"]

MODULES = (
    *(gptj, opt, bloom, qwen3_moe, roberta, gemma2, albert, bart, convnext, deepseek_v3, swin, wav2vec2),
    *(cohere, deberta_v2, efficientnet, mamba2, olmo2, rwkv, segformer),
)
HELD_OUT_PORTS: dict[str, Port] = {module.__name__.rpartition(".")[2]: module.PORT for module in MODULES}
