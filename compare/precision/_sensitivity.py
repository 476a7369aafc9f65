"""The error that lowering each node causes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
import torch

from filch.export import Precision, Program
from filch.export.backends import Backend
from filch.export.graph._cutting import AGAIN, Cutter
from filch.export.lowering._lower import Lowering
from filch.steal import phase

from ..metrics._metrics import Difference, compare_tensors
from ..references._inputs import CapturedCall
from ..results._precision import Sensitivity
from ._trial import Trial


def measure_alone(trial: Trial, nodes: Sequence[Sensitivity], most: int) -> tuple[Sensitivity, ...]:
    """Lower each of the first `most` nodes alone, measure the outputs, and return all nodes, highest cost first."""
    most, measured = max(most, 0), list[Sensitivity]()
    with phase("node lowered alone", min(most, len(nodes))) as progress:
        for item in nodes[:most]:
            progress.next(item.node)
            outcome = trial.keeping([name for name in trial.lowering.nodes if name != item.node])
            measured.append(replace(item, alone=outcome))
    return tuple(sorted((*measured, *nodes[most:]), key=lambda item: item.cost))


def measure_isolated(
    program: Program, to: Precision, backend: Backend, calls: Sequence[CapturedCall], *, simulate: bool
) -> tuple[Sensitivity, ...]:
    """Return the nodes that can be lowered, the one with the largest error of its own first.

    All are measured in one program: every value between two nodes is cut and fed from a run of the float32 program, so
    that no node inherits the error of another.
    """
    graph = program.graph
    exact = backend.compile(program, optimize=False)
    values = [{**call.inputs, **backend.run(exact, call.inputs, graph.producer)} for call in calls]
    fed = {name for name in graph.known - graph.constant_values if all(name in expected for expected in values)}
    model = Cutter(program.model, graph).cut(graph.nodes, {name for name in graph.producer if name not in fed})
    lowering = Lowering(Program(model), to, calibration=[_inputs(model, known) for known in values], simulate=simulate)
    lowered, names = backend.compile(lowering.keeping(()), optimize=False), {*lowering.nodes}
    worst: dict[str, Difference] = {}
    for expected in values:
        actual = backend.run(lowered, _inputs(model, expected))
        for node in graph.nodes:
            for name in node.outputs:
                if node.name in names and name in expected:
                    result = actual.get(name + AGAIN, actual.get(name))  # `AGAIN`: it is an input, too
                    difference = compare_tensors(result, expected[name], lower_precision=True)
                    worst[node.name] = max(worst.get(node.name, difference), difference, key=_noise)
    rows = [
        Sensitivity(node.name, node.op, node.module, worst[node.name]) for node in graph.nodes if node.name in worst
    ]
    return tuple(sorted(rows, key=lambda item: item.cost))


def _inputs(model: ir.Model, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return those of the values that are inputs of the model."""
    return {name: values[name] for name in (value.name or "" for value in model.graph.inputs)}


def _noise(difference: Difference) -> tuple[float, float]:
    """Return a sort key: the number of overflows, then the noise."""
    return float(difference.overflowed), -difference.snr
