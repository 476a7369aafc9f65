"""What a case of the museum declares: a bug that others reported, a model in which it shows, and a control.

A case is one file. It has a constant `BUG`, and in a model of PyTorch the comment `# wrong` at the end of the line
that a right answer names. Each case runs in a process of its own.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import numpy as np
import onnx
from torch import nn

MARK = "# wrong"
Call = tuple[Callable[..., Any], tuple[Any, ...]]  # a function, and the arguments to call it with
Feed = Mapping[str, np.ndarray[Any, Any]]
TorchKind = Literal[
    "decomposition",
    "pattern",
    "lowering",
    "generated code",
    "scheduling and memory",
    "mutation and aliases",
    "guards",
    "dynamic shapes",
    "backward",
    "autocast",
    "random",
]
OnnxKind = Literal["fusion", "layout", "folding", "kernel", "NaN", "integers", "quantized"]
ToolKind = Literal["exporter", "onnxscript", "onnx.reference", "onnxoptimizer", "OpenVINO"]


@dataclass(frozen=True)
class TorchBug:
    """A bug of torch.compile.

    Attributes:
        issue: where it was reported, such as `pytorch/pytorch#113167`.
        kind: what of the compiler is wrong.
        make: returns a model of several layers with the trigger inside, and its arguments.
        smallest: returns the trigger alone, a function or module, and its arguments.
        operators: a regular expression that the operator which a right answer names matches.
        near: one for operators that read or compute what the wrong one does: a neighbor.
        prepare: changes settings that the bug needs, also for the control.
        introduce: undoes what fixed the bug, by `rewrite`; None if the installed version has it.
        repair: makes a bug right that is present, for the control.
        harmless: returns a model and arguments in which the bug does not show, for the control of a bug that is present
            and has no `repair`.
        backward: whether gradients are wrong, and results right.
        switch: a regular expression for the transformation that causes it; None if none can be switched off.
        again: returns further arguments for a second call of the same model; for bugs that show in it.
    """

    issue: str
    kind: TorchKind
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    smallest: Callable[[], Call]
    operators: str
    near: str = "(?!)"
    prepare: Callable[[], None] = lambda: None
    introduce: Callable[[], None] | None = None
    repair: Callable[[], None] | None = None
    harmless: Callable[[], tuple[nn.Module, tuple[Any, ...]]] | None = None
    backward: bool = False
    switch: str | None = None
    again: Callable[[], tuple[Any, ...]] | None = None

    @property
    def present(self) -> bool:
        """Whether the installed version has the bug."""
        return self.introduce is None


@dataclass(frozen=True)
class OnnxBug:
    """A bug of ONNX Runtime: of its optimizers or kernels on the CPU.

    Attributes:
        issue: where it was reported, such as `microsoft/onnxruntime#24737`.
        kind: what is wrong.
        wrong: a version of the package onnxruntime that has it.
        right: a version that does not have it; None if none is known.
        make: returns a model of several nodes, with a name for each.
        inputs: returns its inputs.
        expected: returns its outputs, computed in float64 by NumPy or PyTorch.
        nodes: the names of the nodes that a right answer names.
        near: those of neighbors.
        optimizers: the optimizers that cause it, as ONNX Runtime calls them; empty for a kernel.
        control: returns a model and inputs in which the wrong version is right; None if `right` is the control.
    """

    issue: str
    kind: OnnxKind
    wrong: str
    right: str | None
    make: Callable[[], onnx.ModelProto]
    inputs: Callable[[], Feed]
    expected: Callable[[Feed], list[np.ndarray[Any, Any]]]
    nodes: frozenset[str]
    near: frozenset[str] = frozenset()
    optimizers: frozenset[str] = frozenset()
    control: Callable[[], tuple[onnx.ModelProto, Feed]] | None = None


@dataclass(frozen=True)
class ToolBug:
    """A bug of a tool that writes, changes or evaluates ONNX models.

    Attributes:
        issue: where it was reported.
        kind: which tool is wrong.
        make: returns what the tool is given: a model of PyTorch and its arguments, or an ONNX model and its inputs.
        harmless: returns what the tool handles right, for the control.
        distance: returns how far the tool's result is from a trusted one, relative to the largest number; not by Filch.
        operators: a regular expression for the nodes or operators that a right answer names.
        near: one for neighbors.
        apply: returns the ONNX model that the tool makes of what it is given; None for what evaluates models.
        needs: packages with versions that are installed for the case, such as `onnxoptimizer==0.4.2`.
    """

    issue: str
    kind: ToolKind
    make: Callable[[], tuple[Any, Any]]
    harmless: Callable[[], tuple[Any, Any]]
    distance: Callable[[Any, Any], float]
    operators: str
    near: str = "(?!)"
    apply: Callable[[Any, Any], onnx.ModelProto] | None = None
    needs: tuple[str, ...] = ()


def rewrite(function: Any, *changes: tuple[str, str]) -> None:
    """Replace texts in the source of an installed function, for all who hold the function.

    Args:
        function: a function or method of Python, which may be decorated.
        *changes: each text of its source, and what takes its place.

    Raises:
        LookupError: a text is not in the source: another version is installed.
    """
    found: FunctionType = inspect.unwrap(getattr(function, "__func__", function))
    lines = textwrap.dedent(inspect.getsource(found)).splitlines(keepends=True)
    start = next(index for index, line in enumerate(lines) if line.startswith("def "))  # after decorators
    source = "".join(lines[start:])
    for old, new in changes:
        if old not in source:
            raise LookupError(f"{found.__qualname__} has no {old!r}: another version is installed")
        source = source.replace(old, new)
    free = found.__code__.co_freevars
    if free:  # the code object needs the same variables of an enclosing function
        variables = "".join(f"    {name} = None\n" for name in free)
        source = f"def _enclosing():\n{variables}{textwrap.indent(source, '    ')}    return {found.__name__}\n"
    scope = dict(found.__globals__)
    exec(compile(source, inspect.getsourcefile(found) or "", "exec"), scope)  # noqa: S102  what the case declares
    made = scope["_enclosing"]() if free else scope[found.__name__]
    found.__code__ = made.__code__
