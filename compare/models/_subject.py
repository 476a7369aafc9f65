"""A model, and what it is called with."""

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from filch.export import Program, export
from filch.steal import Capture, steal_forward

from ..common._errors import CompareError


@dataclass(frozen=True)
class Subject:
    """A model, and what it is called with.

    Attributes:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        dynamic_shapes: with which it is exported; None for static ones.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any = None

    @classmethod
    def of(cls, model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any = None) -> Self:
        """With one tensor for `args`, if that is all, and None for no `kwargs`."""
        if not isinstance(model, nn.Module):
            raise CompareError(f"the model comes first: a torch.nn.Module, not a {type(model).__name__}")
        return cls(model, (args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs or {}, dynamic_shapes)

    def run(self) -> None:
        """Call the model, without gradients.

        Raises:
            CompareError: it fails.
        """
        args, kwargs = copy.deepcopy((self.args, dict(self.kwargs)))  # a call may extend a cache that it is given
        try:
            with torch.no_grad():
                self.model(*args, **kwargs)
        except Exception as error:
            text = next(iter(str(error).splitlines()), "")
            name = type(self.model).__name__
            raise CompareError(f"{name} itself fails on these inputs: {type(error).__name__}: {text}") from error

    def steal(self, dump_file: str | os.PathLike[str] | None = None) -> Capture:
        """Call the model, and take what all its modules take and give."""
        with steal_forward(self.model, submodules=True, dump_file=dump_file, on_error="raise") as capture:
            self.run()
        return capture

    def export(self) -> Program:
        """Export the model."""
        return export(self.model, self.args, self.kwargs, dynamic_shapes=self.dynamic_shapes)
