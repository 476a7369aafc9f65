"""Nodes, values and call frames: the parts of a `Graph`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ..operators._operator import Operator
from ..operators._registry import operator_of

Dim = int | str | None  # a number, the name of a symbolic dimension, or not known


@dataclass(frozen=True)
class Value:
    """An input, a weight or a node's result.

    Attributes:
        name: unique in its graph.
        dtype: as NumPy and torch write it (`"float32"`); None if not known.
        shape: its dimensions; None if not known.
        content: the elements of a constant with at most eight, as nested lists of Python numbers, or a number for a
            scalar; None for any other value.
    """

    name: str
    dtype: str | None = None
    shape: tuple[Dim, ...] | None = None
    content: Any = field(default=None, compare=False)  # NaN is equal to nothing, itself included

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype or '?'}[{dims}]"


@dataclass(frozen=True)
class Frame:
    """A module call or function call that an operation runs in.

    Attributes:
        path: the module's path in the model (`"decoder.norm_1"`), `""` for the model itself. For a call that is not a
            module's, a text that identifies it (`"grad"`, `"train.py:12"`).
        type: the module's class (`"torch.nn.modules.linear.Linear"`); `""` if not known.
        source: `file:line` of the call; None if not known.
    """

    path: str
    type: str = ""
    source: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path, or all of it for a source line."""
        last = self.path.rpartition(".")[2]
        return self.path if ":" in last else last


def shared_calls(stacks: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the calls, outermost first, that all of these stacks share; there must be at least one stack."""
    levels = takewhile(lambda level: len({frame.path for frame in level}) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in levels)


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: unique in its graph.
        op: the operator (`"MatMul"`), with its domain if that is not ONNX's own (`"com.microsoft::FusedConv"`).
        inputs: names of the values that it reads; `""` for an omitted optional input.
        outputs: names of the values that it computes; `""` for an omitted optional output.
        attributes: by name, as plain Python values; tensors and subgraphs as short text.
        captured: names of outer values that its subgraphs read.
        module: path of the module whose call it belongs to, with `@1` after a second call; None if not known.
        source: `file:line` of the model's code; None if not known.
        target: the torch operation that it was translated from; None if not known.
        code: `file:line` of the code that a compiler generated for it; None if there is none.
        stack: the calls that it runs in, outermost first; empty if not known.
        origins: the names of the nodes of `Graph.source_graph` that it computes.
        gradient_of: the name of the forward node whose gradient it computes, in its own graph or in
            `Graph.source_graph`; None for a forward node, and for a node that sums gradients.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    module: str | None = None
    source: str | None = None
    target: str | None = None
    code: str | None = None
    stack: tuple[Frame, ...] = ()
    origins: tuple[str, ...] = ()
    gradient_of: str | None = None

    @property
    def operator(self) -> Operator:
        """What is known of the operator; nothing but the name if it is not a known one."""
        return operator_of(self.op)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of all values that it reads, those of its subgraphs included."""
        read = (*self.inputs, *self.captured)
        return read if all(read) else tuple(filter(None, read))  # without omitted inputs


def split_call(name: str) -> tuple[str, int]:
    """Return the path and the number of the call in the name of a module's call: `layers.0@1` is the second one.

    A name without a number is the first call, 0. The name of a module may contain `@`, too. So are names of values:
    `weight@1` is the weight after a step.
    """
    path, at, count = name.rpartition("@")
    return (path, int(count)) if at and count.isascii() and count.isdigit() else (name, 0)
