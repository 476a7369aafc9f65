"""Runs passes over a program, with the module calls followed through them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, overload

import onnx
import onnx_ir as ir

from filch.steal import FilchError

from .._errors import PassError, reason
from ..graph._graph import Graph
from ..program._graph_like import as_program
from ..program._program import Program, follow_changes
from . import Pass, PassContext, default_passes
from ._instrument import tell
from ._registry import find_passes

Passes = Sequence[str | Pass | ir.passes.PassBase | Callable[[Program], Any]]


@overload
def optimize(program: Program | ir.Model | onnx.ModelProto, passes: Passes | None = None) -> Program: ...
@overload
def optimize(program: Graph, passes: Passes | None = None) -> Graph: ...
def optimize(program: Program | Graph | ir.Model | onnx.ModelProto, passes: Passes | None = None) -> Program | Graph:
    """Optimise a program, one pass after the other; what looks on is up to the `PassContext` that it runs in, if any.

    Args:
        program: as `export` returns it, an ONNX model, or a graph that was read from one; it stays as it is.
        passes: names of `filch.export.passes.pass_names()`, passes of onnx-ir's, or functions that take a `Program`
            whose model is a copy for them to change, and return it, or the model alone. The copy shares the weights:
            they put others in their places, and write into none. They keep the graph's inputs and outputs, and the
            names of the values that they keep. None is what `torch.onnx.export` does by default:
            constants folded, patterns rewritten.

    Returns:
        the optimised program; for a graph, the optimised graph. A value of a module call that is no longer in the graph
        is resolved as folded to a constant, or as fused into the node that is named.

    Raises:
        PassError: there is no such pass, or one fails; then the error says which one, and its cause is the reason.
        ProgramError: `program` is none of these.
    """
    made = _optimized(as_program(program), passes)
    return replace(made.graph, name=program.name) if isinstance(program, Graph) else made


def _optimized(program: Program, passes: Passes | None) -> Program:
    steps = find_passes(default_passes() if passes is None else passes)
    context = PassContext.current()
    ahead = context.instruments if context is not None else ()
    behind = ahead[::-1]
    start, shown = program.graph, program
    # One copy goes through all passes, as they name nodes by how many there were; what looks on is shown copies of it.
    work = replace(program, model=program.model.clone())
    tell(ahead, "before_all_passes", shown)
    for number, step in enumerate(steps, 1):
        tell(ahead, "before_pass", step.name, shown)
        began = perf_counter()
        try:
            work = _mended(step(work), start)
        except Exception as error:  # a pass raises whatever it meets
            tell(behind, "pass_failed", step.name, shown, error)
            told = str(error) if isinstance(error, FilchError) else reason(error)
            raise PassError(f"pass {step.name!r}, {number} of {len(steps)}, failed: {told}") from error
        tell(behind, "pass_took", step.name, perf_counter() - began)
        if behind:
            shown = _followed(replace(work, model=work.model.clone()), program, start)
            tell(behind, "after_pass", step.name, shown)
    made = _followed(work, program, start)
    tell(behind, "after_all_passes", made)
    return made


def _followed(made: Program, program: Program, start: Graph) -> Program:
    return follow_changes(replace(made, module_calls=program.module_calls), start)


def _mended(made: Program, start: Graph) -> Program:
    """What a pass made, with the names back that it had to keep."""
    copies = _name_inputs(made.model, start.inputs)
    if len(made.model.graph.outputs) != len(start.outputs):
        raise PassError(f"its graph gives {len(made.model.graph.outputs)} values, not {len(start.outputs)}")
    _name_parts(made.model, start)
    return replace(made, outputs=tuple(copies.get(name, name) for name in made.outputs))


def _name_inputs(model: ir.Model, names: Sequence[str]) -> dict[str, str]:
    """Give the inputs their names back: one that is a result, too, loses its own to the result's copy.

    Returns:
        the names of such copies, by the names of the inputs.
    """
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    if len(inputs) != len(names):
        raise PassError(f"its graph takes {len(inputs)} values, not {len(names)} ({', '.join(names)})")
    made = {value.name: value for node in model.graph for value in node.outputs}
    copies = dict[str, str]()
    for value, name in zip(inputs, names, strict=True):
        if value.name != name:
            if name in made:
                copies[name] = made[name].name = f"{name}_copy"
            value.name = name
    return copies


def _name_parts(model: ir.Model, before: Graph) -> None:
    """Give what was taken out of a sequence its name back: a Split in the sequence's place numbers what it makes."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    for node in before.nodes:
        index = before.producer.get(node.inputs[1]) if node.op == "SequenceAt" else None
        if index is not None and node.outputs[0] not in values:
            part = values.get(f"{node.inputs[0]}_split_{index.attributes.get('value')}")
            if part is not None:
                part.name = node.outputs[0]
