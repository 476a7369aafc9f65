"""Run passes on a program, and update its module calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, overload

import onnx
import onnx_ir as ir

from filch.steal import FilchError, Phase, phase

from .._errors import PassError, reason
from ..graph._graph import Graph
from ..program._graph_like import as_program
from ..program._program import Program, follow_changes
from . import Pass, PassContext, default_passes
from ._instrument import notify
from ._registry import find_passes

Passes = Sequence[str | Pass | ir.passes.PassBase | Callable[[Program], Any]]


@overload
def optimize(program: Program | ir.Model | onnx.ModelProto, passes: Passes | None = None) -> Program: ...
@overload
def optimize(program: Graph, passes: Passes | None = None) -> Graph: ...
def optimize(program: Program | Graph | ir.Model | onnx.ModelProto, passes: Passes | None = None) -> Program | Graph:
    """Optimize a program pass by pass. The instruments of the current `PassContext`, if any, observe the passes.

    Args:
        program: the result of `export`, an ONNX model, or a graph that was read from one; it is not changed.
        passes: names of `filch.export.passes.pass_names()`, passes of onnx-ir, or functions of a `Program`. A function
            gets a copy of the model to change, and returns the program or the model. The copy shares its weights with
            the original: a pass may replace weights, but not write into them. It has to keep the graph's inputs and
            outputs, and the names of the values that it keeps. None is the default of `torch.onnx.export`: constant
            folding and pattern rewriting.

    Returns:
        the optimized program; for a graph, the optimized graph. A value of a module call that is no longer in the graph
        is resolved as folded to a constant, or as fused into the node that is named.

    Raises:
        PassError: a pass does not exist or fails; the message names the pass, and `__cause__` is its error.
        ProgramError: `program` is none of these.
    """
    result = _optimized(as_program(program), passes)
    return replace(result.graph, name=program.name) if isinstance(program, Graph) else result


def _optimized(program: Program, passes: Passes | None) -> Program:
    """Run the passes on a copy of a program, and notify the instruments."""
    steps = find_passes(default_passes() if passes is None else passes)
    with phase("pass", len(steps)) as progress:
        return _run(steps, program, progress)


def _run(steps: Sequence[Pass], program: Program, progress: Phase) -> Program:
    context = PassContext.current()
    instruments = context.instruments if context is not None else ()
    reversed_instruments = instruments[::-1]
    start, snapshot = program.graph, program
    # All passes change one copy, as they number new nodes by the existing ones; instruments get copies of it.
    current = replace(program, model=program.model.clone())
    notify(instruments, "before_all_passes", snapshot)
    for number, step in enumerate(steps, 1):
        progress.next(step.name)
        notify(instruments, "before_pass", step.name, snapshot)
        started = perf_counter()
        try:
            current = _checked(step(current), start)
        except Exception as error:  # a pass may raise any error
            notify(reversed_instruments, "pass_failed", step.name, snapshot, error)
            message = str(error) if isinstance(error, FilchError) else reason(error)
            raise PassError(f"pass {step.name!r}, {number} of {len(steps)}, failed: {message}") from error
        notify(reversed_instruments, "pass_took", step.name, perf_counter() - started)
        if reversed_instruments:  # else nobody needs a copy
            snapshot = _with_module_calls(replace(current, model=current.model.clone()), program, start)
            notify(reversed_instruments, "after_pass", step.name, snapshot)
    result = _with_module_calls(current, program, start)
    notify(reversed_instruments, "after_all_passes", result)
    return result


def _with_module_calls(result: Program, program: Program, start: Graph) -> Program:
    """Return a result with the module calls of `program`, resolved in its graph; `start` is their graph."""
    return follow_changes(replace(result, module_calls=program.module_calls), start)


def _checked(result: Program, start: Graph) -> Program:
    """Check the inputs and outputs of a pass's result, and restore the names that it had to keep."""
    copies = _name_inputs(result.model, start.inputs)
    if len(result.model.graph.outputs) != len(start.outputs):
        raise PassError(f"its graph has {len(result.model.graph.outputs)} outputs, not {len(start.outputs)}")
    _rename_split_outputs(result.model, start)
    return replace(result, outputs=tuple(copies.get(name, name) for name in result.outputs))


def _name_inputs(model: ir.Model, names: Sequence[str]) -> dict[str, str]:
    """Restore the names of the inputs. If an output has the name of an input, the output is renamed.

    Returns:
        the new names of such outputs, by the names of the inputs.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    if len(inputs) != len(names):
        raise PassError(f"its graph has {len(inputs)} inputs, not {len(names)} ({', '.join(names)})")
    result = {value.name: value for node in model.graph for value in node.outputs}
    copies = dict[str, str]()
    for value, name in zip(inputs, names, strict=True):
        if value.name != name:
            if name in result:
                copies[name] = result[name].name = f"{name}_copy"
            value.name = name
    return copies


def _rename_split_outputs(model: ir.Model, before: Graph) -> None:
    """Restore the names of the results of SequenceAt nodes, which a pass may have replaced with outputs of a Split.

    onnxscript replaces SplitToSequence with a Split, whose outputs it names `<sequence>_split_<index>`.
    """
    values = {value.name: value for node in model.graph for value in node.outputs}
    for node in before.nodes:
        index = before.producer.get(node.inputs[1]) if node.op == "SequenceAt" else None  # a Constant
        if index is not None and node.outputs[0] not in values:
            output = values.get(f"{node.inputs[0]}_split_{index.attributes.get('value')}")
            if output is not None:
                output.name = node.outputs[0]
