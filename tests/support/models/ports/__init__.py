"""Models of `transformers`, each with a re-implementation that has the same weights in another tree of modules."""

from . import (
    bert,
    clip,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    mamba,
    mistral,
    mixtral,
    qwen2,
    resnet,
    t5,
    vit,
    whisper,
)
from ._port import Bug, Port

__all__ = ["PORTS", "Bug", "Port"]

MODULES = bert, clip, falcon, gemma, gpt2, gpt_neox, llama, mamba, mistral, mixtral, qwen2, resnet, t5, vit, whisper
PORTS: dict[str, Port] = {module.__name__.rpartition(".")[2]: module.PORT for module in MODULES}
