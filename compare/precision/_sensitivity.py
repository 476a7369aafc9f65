"""Which nodes cost most when they are of lower precision."""

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


def measured(trial: Trial, nodes: Sequence[Sensitivity], most: int) -> tuple[Sensitivity, ...]:
    """The nodes in their order, the first `most` of them measured by lowering each alone, and ordered by that."""
    found = []
    for number, item in enumerate(nodes):
        if number < most:
            step(f"{item.node} alone", number, min(most, len(nodes)))
            item = replace(item, alone=trial.keeping([name for name in trial.nodes if name != item.node]))  # noqa: PLW2901
        found.append(item)
    return tuple(sorted(found, key=lambda item: item.cost))


def local_costs(
    program: Program, to: Precision, backend: Backend, calls: Sequence[CapturedCall], *, simulate: bool
) -> tuple[Sensitivity, ...]:
    """Each node that can be lowered, the one whose own results suffer most first.

    One program does it for all: every value between two nodes is cut and fed from the float32 program's run, so that no
    node inherits another one's error.
    """
    graph = program.graph
    exact = backend.compile(program, optimize=False)
    values = [{**call.inputs, **backend.run(exact, call.inputs, graph.producer)} for call in calls]
    fed = {name for name in graph.known - graph.constant_values if all(name in held for held in values)}
    model = Cutter(program.model, graph).cut(graph.nodes, {name for name in graph.producer if name not in fed})
    lowering = Lowering(Program(model), to, calibration=[_feeds(model, held) for held in values], simulate=simulate)
    lowered = backend.compile(lowering.keeping(()), optimize=False)
    worst: dict[str, Difference] = {}
    for held in values:
        found = backend.run(lowered, _feeds(model, held))
        for name, difference in _differences(graph, lowering.nodes, held, found):
            worst[name] = max(worst.get(name, difference), difference, key=_noise)
    rows = [
        Sensitivity(node.name, node.op, node.module, worst[node.name]) for node in graph.nodes if node.name in worst
    ]
    return tuple(sorted(rows, key=lambda item: item.cost))


def _feeds(model: ir.Model, held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = [value.name or "" for value in model.graph.inputs]
    return {name: held[name] for name in names}


def _differences(
    graph: Graph, nodes: Sequence[str], held: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, Difference]]:
    """The worst difference of each node."""
    lowered = frozenset(nodes)
    for node in graph.nodes:
        if node.name in lowered:
            measured = [
                compare_tensors(held[name], found.get(name + AGAIN, found.get(name)), lower_precision=True)
                for name in node.outputs
                if name in held
            ]
            if measured:
                yield node.name, max(measured, key=_noise)


def _noise(difference: Difference) -> tuple[float, float]:
    return float(difference.overflowed), -difference.snr
