"""What became of each tensor that a stolen module took or gave."""

from collections.abc import Iterator, Mapping

import torch

from filch.export import Graph, Port, Program
from filch.steal import Records

from ._inferred import Inference
from ._inputs import StolenCall
from ._metrics import compare_tensors
from ._references import Reference, in_pairs, stolen_tensors
from ._report import ModuleRow
from ._tolerance import Limits


def module_rows(
    reference: Records,
    program: Program,
    call: StolenCall,
    values: Mapping[str, torch.Tensor],
    limits: Limits,
    *,
    lower_precision: bool = False,
) -> Iterator[ModuleRow]:
    """A row for each tensor of each module call, in the order of the run.

    Args:
        reference: the capture or dump.
        program: what it is compared with.
        call: which call of the model.
        values: what the exported graph made of it, by name.
        limits: the tolerance of each value.
        lower_precision: see `compare`.
    """
    inference = Inference(program.graph, values) if program.is_foreign else None
    for (path, iteration), record in call.keys.items():
        known = program.module_calls.get((path, iteration))
        for side, held in zip(("input", "output"), stolen_tensors(reference, record), strict=True):
            ports = {port.path: port for port in (known.inputs if side == "input" else known.outputs)} if known else {}
            for place, tensor in held.items():
                how, value, note = _resolve(ports.get(place), inference, path, iteration, tensor=tensor, side=side)
                difference = None
                actual = None if value is None else values.get(value, program.constant(value))
                if actual is not None:
                    difference = compare_tensors(
                        in_pairs(tensor),
                        in_pairs(actual),
                        tolerance=limits.get(value or ""),
                        lower_precision=lower_precision,
                    )
                yield ModuleRow(call.index, path, iteration, side, place, how, value, note, difference)


def _resolve(
    port: Port | None, inference: Inference | None, path: str, iteration: int, *, tensor: torch.Tensor, side: str
) -> tuple[str, str | None, str]:
    if port is not None:
        return port.how, port.value, port.note
    if inference is None:
        return "not mapped", None, "the exported model did not make this call"
    found = inference.find(path, iteration, tensor) if side == "output" else None
    if found is None:
        return "not mapped", None, "nothing in this file says which value it is, and none has its numbers"
    return "inferred", found[0], found[1]


def inferred_references(reference: Records, call: StolenCall, rows: list[ModuleRow]) -> dict[str, Reference]:
    """What the inferred module rows say the values of a foreign graph should be."""
    found: dict[str, Reference] = {}
    for row in rows:
        if row.how == "inferred" and row.value is not None:
            _, given = stolen_tensors(reference, call.keys[row.path, row.iteration])
            found.setdefault(row.value, Reference(given[row.port], "inferred"))
    return found


def result_references(reference: Records, graph: Graph, call: StolenCall) -> dict[str, Reference]:
    """The model's results as references of the graph's outputs, in order; none if their numbers differ."""
    _, given = stolen_tensors(reference, call.keys["", 0])
    if len(given) != len(graph.outputs):
        return {}
    return {
        name: Reference(in_pairs(tensor), "module") for name, tensor in zip(graph.outputs, given.values(), strict=True)
    }
