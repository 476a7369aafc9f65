"""Small language models of many families of transformers, with random weights, and what they are called with."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from _zoo import build
from torch import nn

TOKENS, WORDS, SEQUENCES = 20, 96, 3
_FILE = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))


def _whole(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the parts that it has."""
    parts = (_whole(_FILE["parts"][name]) for name in own.get("of", ()))
    return {key: value for part in (*parts, own) for key, value in part.items() if key != "of"}


MODELS, HYBRIDS, FURTHER, PLANTED = (
    {name: _whole(own) for name, own in _FILE[group].items()} for group in ("first", "hybrids", "further", "planted")
)
"""Configurations by the name of the model's class."""


def make(name: str) -> nn.Module:
    """Return a model by the name of its class."""
    return build(name, (MODELS | HYBRIDS | FURTHER)[name])


def arguments(name: str) -> dict[str, torch.Tensor]:
    """Return the arguments of a model: tokens, and the inputs of an encoder."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, WORDS, (SEQUENCES, TOKENS), generator=generator)
    if name.startswith("Whisper"):
        return {"input_features": torch.randn(SEQUENCES, 8, 30, generator=generator), "decoder_input_ids": tokens}
    if name.endswith("ForConditionalGeneration"):
        words = torch.randint(3, WORDS, (SEQUENCES, 9), generator=generator)
        return {"input_ids": words, "decoder_input_ids": tokens}
    return {"input_ids": tokens}
