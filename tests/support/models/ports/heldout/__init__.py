"""Ports for bugs that were held out: of other families and in other styles than those that `align` was made with."""

from .._port import Port
from . import albert, bart, bloom, convnext, deepseek_v3, gemma2, gptj, opt, qwen3_moe, roberta, swin, wav2vec2

__all__ = ["HELD_OUT_PORTS"]

MODULES = gptj, opt, bloom, qwen3_moe, roberta, gemma2, albert, bart, convnext, deepseek_v3, swin, wav2vec2
HELD_OUT_PORTS: dict[str, Port] = {module.__name__.rpartition(".")[2]: module.PORT for module in MODULES}
