"""Nodes, values and call frames: the parts of a `Graph`, and what text is made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol

from ._finding import Finding

Dim = int | str | None  # a number, the name of a symbolic dimension, or not known


@dataclass(frozen=True)
class Value:
    """What a node makes, or what the graph is given.

    Attributes:
        name: unique in its graph.
        dtype: as numpy and torch write it (`"float32"`); None if not known.
        shape: its dimensions; None if not known.
        content: the numbers of a constant with eight elements at most, as nested lists of Python numbers, or the number
            of one without dimensions; None for all else.
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
    """A call that an operation runs in: a module's, or a function's.

    Attributes:
        path: the module's path in the model (`"decoder.norm_1"`), `""` for the model itself; what else tells the call
            from others, where it is no module's (`"grad"`, `"train.py:12"`).
        type: the module's class (`"torch.nn.modules.linear.Linear"`); `""` if not known.
        source: `file:line` of the call; None if not known.
    """

    path: str
    type: str = ""
    source: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path, or all of it for a line of a file."""
        last = self.path.rpartition(".")[2]
        return self.path if ":" in last else last


def shared_calls(stacks: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """The calls, outermost first, that are around all of some operations, of which there is one at least."""
    levels = takewhile(lambda level: len({frame.path for frame in level}) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in levels)


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: unique in its graph.
        op: the operator (`"MatMul"`), with its domain in front where it is not ONNX's own
            (`"com.microsoft::FusedConv"`).
        inputs: names of the values it reads; `""` for an optional one that is left out.
        outputs: names of the values it makes; `""` likewise.
        attributes: by name, as plain Python values; tensors and subgraphs as short text.
        captured: names of outer values that its subgraphs read.
        module: path of the module whose call it belongs to, with `@1` after a second call; None if not known.
        source: `file:line` of the model's code; None if not known.
        target: the original operation that it is (part of) the translation of; None if not known.
        code: `file:line` of the code that a compiler generated for it; None where there is none.
        stack: the calls that it runs in, outermost first; empty if not known.
        origins: the names of the nodes that it computes, in the graph that its own was made of.
        gradient_of: the name of the node whose derivative it is part of, in its own graph or in the one it was made of;
            None if it is no part of a backward pass, or adds gradients up.
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
    def reads(self) -> tuple[str, ...]:
        """All values that it depends on."""
        read = (*self.inputs, *self.captured)
        return read if all(read) else tuple(filter(None, read))


class GraphFields(Protocol):
    """The fields of a `Graph` that its text shows."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def constants(self) -> tuple[str, ...]: ...
    @property
    def nodes(self) -> tuple[Node, ...]: ...
    @property
    def values(self) -> Mapping[str, Value]: ...
    @property
    def functions(self) -> Mapping[str, "GraphFields"]: ...
    @property
    def source_graph(self) -> "GraphFields | None": ...
    @property
    def findings(self) -> Mapping[str, tuple[Finding, ...]]: ...
    @property
    def remarks(self) -> tuple[str, ...]: ...
