"""`Operator`: an entry of the registry of operators."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import reduce
from typing import Any, Literal

import onnx_ir as ir
import torch

from filch.steal._tf32 import Product

Tensor = torch.Tensor
Compute = Callable[..., Any]  # takes a `NodeCall` and the inputs by position, None for those that are left out
# From the attributes of a node and the shapes of its inputs and first output to the length of its sums.
Terms = Callable[[Mapping[str, Any], Sequence[tuple[int, ...]]], float]
Movement = Literal["", "copy", "cast", "reshape", "permute", "expand", "part", "combine"]
Rounding = Literal["", "addition", "relative", "exponential"]


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
class Decision:
    """How an operator decides, so that rounding may change the result by more than a rounding error.

    Attributes:
        kind: `selection` (of indices of numbers along a dimension), `comparison` (of two numbers), `conversion` (to an
            integer towards 0), `buckets` (between sorted boundaries), `jump` (to integers) or `sign`.
        offset: of a `jump`: it returns the integer n up to, or from, `n + offset` on.
        axis: of a `selection`: the attribute or positional argument of a PyTorch function that has the dimension.
        default: of a `selection`: the dimension if that is left out; None for all of them.
        output: of a `selection`: the position of the indices among the results.
        largest: of a `selection` of one index: whether it is that of the largest number; None for several indices.
        boundaries: of `buckets`: the position of the boundaries among the inputs.
    """

    kind: Literal["selection", "comparison", "conversion", "buckets", "jump", "sign"]
    offset: float = 0.0
    axis: str = "axis"
    default: int | None = -1
    output: int = 0
    largest: bool | None = None
    boundaries: int = 1


@dataclass(frozen=True)
class Operator:
    """What Filch knows of one operator of ONNX, of a runtime or of PyTorch.

    Attributes:
        name: its name; of PyTorch, without the overload and the underscore of one that works in place.
        compute: computes the outputs in float64 (integers exactly): a tensor, a list of tensors for a sequence, None
            for an optional without an element, or a tuple of these. A mapping has one function for each version of the
            operator's set that changed the meaning of the same inputs and attributes. None for an operator whose values
            have no float64 counterpart, or that PyTorch itself computes in float64.
        domain: the domain of its set.
        torch: the names of the functions, methods and ATen operators of PyTorch that compute the same, in one text.
        family: a name that all operators have that compute the same from the same operands, up to their settings.
        movement: how the results have numbers of the inputs unchanged: `copy`, `cast` (to another dtype), `reshape` (in
            the same order), `permute`, `expand` (repeated along dimensions of size 1) and `part` are those of one
            input, `combine` those of several inputs, indexed ones, or constants; `""` if it computes numbers.
        source: the position of the input that it moves.
        dtype_attribute: the attribute that has the dtype of its results.
        resizes: whether it returns its first input if the output has the shape and dtype of that.
        chooses: whether the results are some of the numbers that it reads, which ones depends on the numbers.
        routing: `order` if it returns the order or the places of numbers, `gather` or `scatter` if it moves numbers
            from or to such places; as for tokens that are routed to experts.
        reads_shape: whether it reads the shape of its input alone.
        splits: whether its results are parts of its first input, so that in PyTorch they share memory.
        jumps: whether the results are constant but for jumps.
        decision: how it decides; None if it does not, or if it is not known how.
        rounding: what rounding errors are relative to: the results of an `addition`, which rounds each element
            separately, and those of all other operators are relative to what is added; those that are `relative`
            have the relative error of their inputs; `exponential` ones that times the input's magnitude.
        terms: returns the length of the sums; None if there are none. Shapes that are not known are ().
        sequential: returns the length of the sums that a kernel may add one by one; None for products, which add in
            blocks.
        product: the kind of product, whose factors a GPU may round to TF32.
        weight: the position of the weight that it is called with in a layer of a model.
        commutes: whether its inputs may be exchanged.
        variadic: whether it takes any number of inputs, and returns a single one unchanged.
        exponent: the position of an exponent: with noise in a whole number, a power of a negative number would be NaN.
        neutral: the second operand with which it returns the first one.
        resamples: whether it computes each result from one channel, and returns a constant for a constant.
        activation: whether it is a function of each number that runtimes fuse into the product before it.
        random: whether it draws random numbers.
        uninitialized: whether it returns uninitialized memory.
        reads_sequence: whether it takes a tensor from a sequence or an optional.
        returns_sequence: whether it returns a sequence of tensors.
        quantization: `quantize` and `dequantize` convert to and from integers with a scale, `integers` computes with
            them, `weight` reads a weight that is stored in a few bits.
        settings: the positions of floating-point inputs that are settings, such as scales, not numbers: as little a
            change as rounding makes may give outputs of another shape.
        added: returns the size of what kernels add to get the output, if that may be far larger than the output, by the
            first input: a sigmoid is 1/2 plus a quotient, also where it is nearly 0. Rounding is relative to it.
        cancelled: of PyTorch: returns the size of the numbers that cancel in the kernel, by its arguments.
    """

    name: str
    compute: Compute | Mapping[int, Compute] | None = None
    domain: str = ""
    _: KW_ONLY
    torch: str = ""
    family: str = ""
    movement: Movement = ""
    source: int = 0
    dtype_attribute: str = ""
    resizes: bool = False
    chooses: bool = False
    routing: Literal["", "order", "gather", "scatter"] = ""
    reads_shape: bool = False
    splits: bool = False
    jumps: bool = False
    decision: Decision | None = None
    rounding: Rounding = ""
    terms: Terms | None = None
    sequential: Terms | None = None
    product: Product | None = None
    weight: int | None = None
    commutes: bool = False
    variadic: bool = False
    exponent: int | None = None
    neutral: int | None = None
    resamples: bool = False
    activation: bool = False
    random: bool = False
    uninitialized: bool = False
    reads_sequence: bool = False
    returns_sequence: bool = False
    quantization: Literal["", "quantize", "dequantize", "integers", "weight"] = ""
    settings: frozenset[int] = frozenset()
    added: Callable[[Tensor], Tensor] | None = None
    cancelled: Callable[..., Tensor] | None = None

    @property
    def kind(self) -> str:
        """A name that all operators have that compute the same (see `family`)."""
        return self.family or self.name.lower()

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies by a matrix or a kernel, as linear layers do; a kernel of size 1 is a matrix."""
        return self.family in ("convolution", "matmul")

    @property
    def rearranges(self) -> bool:
        """Whether the results have the numbers of one input, or a part of them, in any order."""
        return self.movement not in ("", "combine")

    @property
    def keeps(self) -> bool:
        """Whether it returns its first input, the one that it moves, if the output has the shape and dtype of that."""
        return self.resizes or (self.movement in ("copy", "cast", "reshape") and not self.source)

    @property
    def is_exact(self) -> bool:
        """Whether it rounds nothing but to another dtype: it moves or chooses numbers."""
        return bool(self.movement) or self.chooses

    @property
    def adds(self) -> bool:
        """Whether it adds numbers; an operator of which nothing is known does."""
        return self.rounding in ("", "addition") and not self.is_exact

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
        """Return the function of the newest version up to this one."""
        if self.compute is None:
            raise UnsupportedError(f"{self.name} has no values in float64")
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


def of_torch(names: str, **traits: Any) -> Operator:
    """Return an entry for operators of PyTorch alone, or for those that differ from ONNX's (see `Operator.torch`)."""
    return Operator("", torch=names, **traits)


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
