"""A model and the arguments to call it with."""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from filch.export import Program, export
from filch.steal import Capture, phase, steal_forward

from ..common._errors import CompareError
from ._state import preserved_buffers


@dataclass(frozen=True)
class Subject:
    """A model and the arguments to call it with.

    Attributes:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        dynamic_shapes: the dynamic shapes to export it with; None for static shapes.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any = None

    @classmethod
    def of(cls, model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any = None) -> Self:
        """Return a subject; `args` may be a single tensor, and `kwargs` None."""
        if not isinstance(model, nn.Module):
            raise CompareError(f"the first argument is the model, a torch.nn.Module, not a {type(model).__name__}")
        return cls(model, (args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs or {}, dynamic_shapes)

    def run(self) -> None:
        """Call the model, without gradients.

        Raises:
            CompareError: it fails.
        """
        args, kwargs = copy.deepcopy((self.args, dict(self.kwargs)))  # a call may extend a cache among them
        try:
            with phase("running the model"), torch.no_grad():
                self.model(*args, **kwargs)
        except Exception as error:
            text = next(iter(str(error).splitlines()), "")
            name = type(self.model).__name__
            raise CompareError(f"{name} itself fails on these inputs: {type(error).__name__}: {text}") from error

    def steal(self, dump_file: str | os.PathLike[str] | None = None) -> Capture:
        """Call the model and capture the inputs and outputs of all its modules; its buffers are not changed."""
        steal = steal_forward(self.model, submodules=True, dump_file=dump_file, on_error="raise")
        with preserved_buffers(self.model.buffers()), steal as capture:
            self.run()
        return capture

    def export(self, *, onnx_only: bool = False) -> Program:
        """Export the model; also, unless `onnx_only`, one that ONNX can't express (see `export`)."""
        return export(self.model, self.args, self.kwargs, dynamic_shapes=self.dynamic_shapes, onnx_only=onnx_only)
