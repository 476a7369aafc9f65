"""Ports for the fifth set of bugs that were held out."""

from .._port import Port
from . import dinov2, gpt_oss, granite, marian, nemotron, parakeet, qwen3_next, regnet, siglip

__all__ = ["FIFTH_PORTS"]

MODULES = dinov2, gpt_oss, granite, marian, nemotron, parakeet, qwen3_next, regnet, siglip
FIFTH_PORTS: dict[str, Port] = {module.__name__.rpartition(".")[2]: module.PORT for module in MODULES}
