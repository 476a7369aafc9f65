"""The error that lowering each node causes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir
import torch

from filch.export import AGAIN, Cutter, Graph, Lowering, Precision, Program
from filch.export.backends import Backend

from ..common._progress import step
from ..metrics._metrics import Difference, compare_tensors
from ..references._inputs import CapturedCall
from ..results._precision import Sensitivity
from ._trial import Trial


def measure_alone(trial: Trial, nodes: Sequence[Sensitivity], most: int) -> tuple[Sensitivity, ...]:
    """Lower each of the first `most` nodes alone, measure the outputs, and return all nodes, highest cost first."""
    most, measured = max(most, 0), list[Sensitivity]()
    for number, item in enumerate(nodes[:most]):
        step(f"{item.node} alone", number, min(most, len(nodes)))
        outcome = trial.keeping([name for name in trial.nodes if name != item.node])
        measured.append(replace(item, alone=outcome))
    return tuple(sorted((*measured, *nodes[most:]), key=lambda item: item.cost))


def isolated_costs(
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
    lowered = backend.compile(lowering.keeping(()), optimize=False)
    worst: dict[str, Difference] = {}
    for expected in values:
        actual = backend.run(lowered, _inputs(model, expected))
        for name, difference in _differences(graph, lowering.nodes, expected, actual):
            worst[name] = max(worst.get(name, difference), difference, key=_noise)
    rows = [
        Sensitivity(node.name, node.op, node.module, worst[node.name]) for node in graph.nodes if node.name in worst
    ]
    return tuple(sorted(rows, key=lambda item: item.cost))


def _inputs(model: ir.Model, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values[name] for name in (value.name or "" for value in model.graph.inputs)}


def _differences(
    graph: Graph, nodes: Sequence[str], expected: Mapping[str, torch.Tensor], actual: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, Difference]]:
    """Yield the largest difference of each lowered node."""
    lowered = frozenset(nodes)
    for node in graph.nodes:
        if node.name in lowered:
            differences = [
                compare_tensors(expected[name], actual.get(name + AGAIN, actual.get(name)), lower_precision=True)
                for name in node.outputs
                if name in expected
            ]
            if differences:
                yield node.name, max(differences, key=_noise)


def _noise(difference: Difference) -> tuple[float, float]:
    return float(difference.overflowed), -difference.snr
