"""Models of the tests' zoo, exported, with a capture of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import _measure  # noqa: F401  makes `support` importable
import torch
from torch.utils._pytree import tree_map_only

from filch.export import Program, export
from filch.steal import Capture, ModuleInfo, steal_forward
from filch.steal.values._arguments import argument_tensors
from support.models.zoo import MODELS, ZOO, build

__all__ = ["MODELS", "ZOO", "CapturedModel", "build", "load_model"]


@dataclass(frozen=True)
class CapturedModel:
    """A model of the zoo.

    Attributes:
        program: the exported program.
        capture: the inputs and outputs of all modules in one call.
        inputs: the program's inputs in that call, by name.
    """

    program: Program
    capture: Capture
    inputs: Mapping[str, torch.Tensor]


def load_model(name: str, dtype: torch.dtype = torch.float32) -> CapturedModel:
    """Export a model of the zoo in a dtype, and record one call of it."""
    model, *arguments = ZOO[name]()
    model = model.to(dtype)
    args, kwargs = tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, arguments)
    program = export(model, args, kwargs)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    tensors = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    return CapturedModel(program, capture, {value: tensors[path] for value, path in program.inputs.items()})
