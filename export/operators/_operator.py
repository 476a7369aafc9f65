"""`Operator`: an entry of the registry of ONNX operators."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import onnx_ir as ir
import torch

Tensor = torch.Tensor
Compute = Callable[..., Any]  # takes a `NodeCall` and the inputs by position, None for those that are left out


class UnsupportedError(ValueError):
    """An operator, or one of its options, can't be computed in float64."""


@dataclass(frozen=True)
class NodeCall:
    """How a node calls its operator.

    Attributes:
        version: the version of the operator's set.
        attributes: the values of the attributes by name, those that are left out with their defaults. Decimal numbers
            are those of float32, because ONNX stores them in it. Tensors are torch's.
        outputs: the number of outputs.
        dtypes: the declared dtypes of the inputs; None for those that are not known. The tensors are float64.
        ties: by axis, 1 or -1: which way a nearest `Resize` rounds coordinates that are so near to the point where it
            would choose the next number that kernels, which compute in float32, may choose either.
        run: evaluates a graph among the attributes: takes the graph and its inputs, and returns its outputs.
    """

    version: int
    attributes: Mapping[str, Any]
    outputs: int = 1
    dtypes: tuple[ir.DataType | None, ...] = ()
    ties: Mapping[int, int] = field(default_factory=dict)
    run: Callable[[ir.Graph, Sequence[Any]], Sequence[Any]] = field(default_factory=lambda: lambda *_: (), repr=False)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises:
            UnsupportedError: the node does not have it, and it has no default.
        """
        if name not in self.attributes:
            raise UnsupportedError(f"the attribute {name!r} is missing")
        return self.attributes[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; `default` if the node does not have it, and it has no default."""
        return self.attributes.get(name, default)

    def dtype(self, index: int) -> ir.DataType | None:
        """Return the declared dtype of an input."""
        return self.dtypes[index] if index < len(self.dtypes) else None


@dataclass(frozen=True)
class Operator:
    """What Filch knows of one operator.

    Attributes:
        name: its name.
        compute: computes the outputs in float64 (integers exactly): a tensor, a list of tensors for a sequence, None
            for an optional without an element, or a tuple of these. A mapping has one function for each version of the
            operator's set that changed the meaning of the same inputs and attributes.
        domain: the domain of its set.
        settings: the positions of floating-point inputs that are settings, such as scales, not numbers: as little a
            change as rounding makes may give outputs of another shape.
        added: returns the size of what kernels add to get the output, if that may be far larger than the output, by the
            first input: a sigmoid is 1/2 plus a quotient, also where it is nearly 0. Rounding is relative to it.
    """

    name: str
    compute: Compute | Mapping[int, Compute]
    domain: str = ""
    settings: frozenset[int] = frozenset()
    added: Callable[[Tensor], Tensor] | None = None

    def evaluate(self, call: NodeCall, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the outputs.

        Args:
            call: the version and the attributes.
            inputs: by position: float64 tensors, integers, lists of these; None for inputs that are left out.

        Returns:
            the outputs by position, as far as they are defined. They may share the memory of inputs.

        Raises:
            UnsupportedError: the version or an attribute is not supported.
            RuntimeError, IndexError, ValueError, TypeError: the inputs do not fit, or are not supported.
        """
        result = self._form(call.version)(call, *inputs)
        return result if isinstance(result, tuple) else (result,)

    def _form(self, version: int) -> Compute:
        if not isinstance(self.compute, Mapping):
            return self.compute
        known = [since for since in self.compute if since <= version]
        if not known:
            raise UnsupportedError(f"version {version} of {self.name}")
        return self.compute[max(known)]


def plain(function: Callable[..., Any]) -> Compute:
    """Return a `Compute` for a function of the inputs alone."""
    return lambda _, *inputs: function(*inputs)


def variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Compute:
    """Return a `Compute` that combines any number of inputs."""
    return lambda _, *inputs: reduce(function, inputs)


def by_name(function: Callable[..., Any]) -> Compute:
    """Return a `Compute` for a function that takes the attributes by name."""
    return lambda call, *inputs: function(*inputs, **call.attributes)


def integers(values: Tensor | Sequence[int]) -> list[int]:
    """Return the numbers of a tensor or an attribute as Python integers."""
    return [int(item) for item in (values.reshape(-1).tolist() if isinstance(values, Tensor) else values)]


def number(value: Any) -> Any:
    """Return the one number of a tensor or an attribute."""
    return value.reshape(-1)[0].item() if isinstance(value, Tensor) else value


def along(x: Tensor, axis: int, values: Tensor) -> Tensor:
    """Return a vector with dimensions of size 1, such that its elements belong to the indices of an axis of `x`."""
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


def flat_from(x: Tensor, axis: int) -> Tensor:
    """Return a tensor as a matrix, whose columns are the dimensions from `axis` on."""
    axis += x.dim() if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
