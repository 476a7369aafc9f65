"""`OnnxOriginal`: an ONNX program as the source of its own values in float64."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from filch.export import ExportError, Original, Program
from filch.export.evaluation._unpredictable import Unpredictable


class OnnxOriginal(Original):
    """An ONNX program that no PyTorch program is known for.

    In float64 its graph is evaluated node by node, as the inside of an operation's translation is in other comparisons.

    Args:
        model: the ONNX model, which is not changed.
        dtypes: those of its values, by name, which a file need not declare.
    """

    def __init__(self, model: ir.Model, dtypes: Mapping[str, torch.dtype] = MappingProxyType({})) -> None:
        super().__init__(self._load_nothing, "")
        self._model, self._dtypes = model, dtypes

    @property
    def program(self) -> ExportedProgram:
        """The exported PyTorch program, which there is none of.

        Raises:
            ExportError: always.
        """
        return self._load_nothing()[0]

    @property
    def nodes(self) -> Sequence[fx.Node]:
        """The operations of the PyTorch program: none."""
        return ()

    @property
    def model(self) -> ir.Model:
        """The ONNX model."""
        return self._model

    @cached_property
    def types(self) -> Mapping[str, torch.dtype]:
        """The dtypes of the values by name: those that the graph declares, and the given ones."""
        return {**super().types, **self._dtypes}

    @cached_property
    def unpredictable(self) -> Unpredictable:
        """The values that may differ between two runs."""
        return Program(self._model).unpredictable

    def changed(self, change: Callable[[ir.Model], ir.Model]) -> Original:  # noqa: ARG002  it was made for the program
        """Return the program itself: a change of the program to judge does not concern the reference."""
        return self

    @staticmethod
    def _load_nothing() -> tuple[ExportedProgram, ir.Model]:
        """Raise the error of a reference that is needed as a PyTorch program."""
        raise ExportError("the reference is an ONNX program: backends that run PyTorch programs can't be used with it")
