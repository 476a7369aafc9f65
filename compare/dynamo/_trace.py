"""Trace a frame that torch.compile has compiled once more, for the call that is running."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CellType, FrameType
from typing import Any

import torch
from torch import fx

from filch.steal.private import _torch

from ..common._errors import reason_of

_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _TracedError(Exception):
    """Stops Dynamo when it has a graph."""


@dataclass(frozen=True)
class Trace:
    """The graph of a call, with the sizes of its inputs as constants.

    Attributes:
        module: the graph.
        inputs: its inputs, which are tensors of the call.
    """

    module: fx.GraphModule
    inputs: Sequence[Any]


def trace_of_caller() -> Trace | str:
    """Return the graph that Dynamo makes of the frame whose compiled graph is being called, or why it makes none.

    A compiled frame first calls its graph, and then has the side effects that Dynamo has recorded: until then, its
    arguments are those of the call. Dynamo runs no code of the frame while it traces it.
    """
    found: list[Trace] = []

    def stop(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(Trace(module, tuple(inputs)))
        raise _TracedError

    try:
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame.f_code not in _torch.orig_code_map:
            frame = frame.f_back
        if frame is None:
            return "no frame calls it that torch.compile has compiled"
        _trace(frame, stop)
    except Exception as error:  # noqa: BLE001  Dynamo raises errors of all types; `_TracedError` within one of them
        return found[0] if found else reason_of(error)
    return found[0] if found else "there is nothing to compile in it"


def _trace(frame: FrameType, compiler: Callable[..., Any]) -> None:
    """Trace a frame with the sizes of its arguments as constants, and pass the graph to a compiler, which raises."""
    code, values, scope = _torch.orig_code_map[frame.f_code], frame.f_locals, frame.f_globals
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    known = {name: values[name] for name in (*code.co_varnames[:count], *code.co_freevars)}
    closure: Any = tuple(CellType(values[name]) for name in code.co_freevars)
    globals_before = {*scope}
    try:
        with (
            _torch.dynamo_config.patch(assume_static_by_default=True, automatic_dynamic_shapes=False),
            _torch.get_metrics_context(),
            _torch.compile_context(_torch.CompileContext(_torch.get_compile_id({}))),
        ):
            run = _torch.preserve_global_state(_torch.compile_frame)
            run(code, scope, known, frame.f_builtins, closure, compiler, False, set(), frame_state={})  # noqa: FBT003
    finally:
        for name in scope.keys() - globals_before:  # Dynamo's, for code that it does not finish
            del scope[name]


def is_same_code(module: fx.GraphModule, other: fx.GraphModule) -> bool:
    """Return whether two graphs from Dynamo do the same operations in the same order, whatever their sizes."""
    return _operations(module) == _operations(other)


def has_sizes(module: fx.GraphModule) -> bool:
    """Return whether sizes are among the inputs of a graph from Dynamo."""
    return any(isinstance(node.meta.get("example_value"), _SIZES) for node in module.graph.nodes)


def _operations(module: fx.GraphModule) -> list[tuple[str, str]]:
    """Return the kind and target of each operation that returns no size."""
    return [
        (node.op, str(node.target))
        for node in module.graph.nodes
        if node.op.startswith("call_") and not isinstance(node.meta.get("example_value"), _SIZES)
    ]
