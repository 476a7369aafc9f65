"""Published implementations of the same models: `PAIRS` by name.

The original (A) is of `transformers`, the other one (B) of another package. Packages are imported when a model is made.
"""

from importlib import import_module

from ._pair import Pair

__all__ = ["PAIRS", "Pair"]

_FILES = ("esm", "litgpt", "mambapy", "open_clip", "segment_anything", "timm", "torchtune", "torchvision")
PAIRS: dict[str, Pair] = {}
for _name in _FILES:
    PAIRS |= import_module(f"{__name__}.{_name}").PAIRS
