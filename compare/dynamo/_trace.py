"""Trace a frame that torch.compile has compiled once more, for the call that is running."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CellType, FrameType
from typing import Any

import torch
from torch import fx

from filch.steal.private._torch import (
    CompileContext,
    compile_context,
    compile_frame,
    dynamo_config,
    get_compile_id,
    get_metrics_context,
    orig_code_map,
    preserve_global_state,
)

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


def trace_of_caller() -> Trace | None:
    """Return the graph that Dynamo makes of the frame whose compiled graph is being called; None if it makes none.

    A compiled frame first calls its graph, and then has the side effects that Dynamo has recorded: until then, its
    arguments are those of the call. Dynamo runs no code of the frame while it traces it.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code not in orig_code_map:
        frame = frame.f_back
    if frame is None:
        return None
    found: list[Trace] = []

    def stop(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(Trace(module, tuple(inputs)))
        raise _TracedError

    code, values = orig_code_map[frame.f_code], frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    try:
        known = {name: values[name] for name in (*code.co_varnames[:count], *code.co_freevars)}
        closure: Any = tuple(CellType(values[name]) for name in code.co_freevars)
        with (
            dynamo_config.patch(assume_static_by_default=True, automatic_dynamic_shapes=False),
            get_metrics_context(),
            compile_context(CompileContext(get_compile_id({}))),
        ):
            run = preserve_global_state(compile_frame)
            run(code, frame.f_globals, known, frame.f_builtins, closure, stop, False, set(), frame_state={})  # noqa: FBT003
    except Exception:  # noqa: BLE001, S110  Dynamo raises errors of all types; `_TracedError` within one of them
        pass
    return found[0] if found else None


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
