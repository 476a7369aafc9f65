"""Models of `transformers`, each with a re-implementation that has the same weights in another tree of modules.

`FIRST_PORTS` were used to make `align`. Those in `HELD_OUT_PORTS` were not: they are of other families and in other
styles. The nine of `FIFTH_PORTS` came with the fifth set of bugs.
"""

from importlib import import_module

from ._port import Bug, Port, read_port

__all__ = ["FIFTH_PORTS", "FIRST_PORTS", "HELD_OUT_PORTS", "PORTS", "Bug", "Port"]


def _ports(names: str) -> dict[str, Port]:
    return {name: read_port(name, import_module(f"{__name__}.{name}").make) for name in names.split()}


FIRST_PORTS = _ports("bert clip falcon gemma gpt2 gpt_neox llama mamba mistral mixtral qwen2 resnet t5 vit whisper")
HELD_OUT_PORTS = _ports(
    "gptj opt bloom qwen3_moe roberta gemma2 albert bart convnext deepseek_v3 swin wav2vec2 "
    "cohere deberta_v2 efficientnet mamba2 olmo2 rwkv segformer"
)
FIFTH_PORTS = _ports("dinov2 gpt_oss granite marian nemotron parakeet qwen3_next regnet siglip")
PORTS = FIRST_PORTS | HELD_OUT_PORTS | FIFTH_PORTS
