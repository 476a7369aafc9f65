"""Graphs made by hand, runs of them whose values are given, and their float64 values: no exporter and no backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from filch.compare.float64._noise import unit_of
from filch.compare.float64._values import Float64Values, RecordedValues
from filch.compare.float64._verdict import Float64Value
from filch.compare.judging._facts import RunFacts
from filch.compare.judging._judge import Judge
from filch.compare.judging._run import JudgedProgram, Run
from filch.compare.references._resolver import Reference
from filch.export import Graph, Node, Value
from filch.export.backends import Compiled

Tensors = Mapping[str, torch.Tensor]


def chain(*operators: str) -> Graph:
    """Return nodes in a row: the first reads `x`, and each computes the value of its name, `a`, `b` and so on."""
    names = "abcdefgh"[: len(operators)]
    nodes = [
        Node(name, op, (before,), (name,)) for name, op, before in zip(names, operators, "x" + names, strict=False)
    ]
    return graph_of(nodes, outputs=(names[-1],))


def graph_of(nodes: Sequence[Node], *, outputs: tuple[str, ...], constants: tuple[str, ...] = ()) -> Graph:
    """Return a graph with the input `x`, whose values are float32."""
    names = ["x", *constants, *(name for node in nodes for name in node.outputs)]
    values = {name: Value(name, "float32") for name in names}
    return Graph("main", ("x",), outputs, constants, tuple(nodes), values)


def run_of(graph: Graph, inputs: Tensors, outputs: Tensors | None = None, **made: Any) -> Run:
    """Return a run of a graph; `made` are further attributes of `Compiled`, and the stage."""
    stage = made.pop("stage", "exported")
    return Run(0, stage, Compiled(graph, None, **made), inputs, {} if outputs is None else outputs)


@dataclass
class HeldReferences:
    """References by name, which record the names that are requested and released.

    Attributes:
        tensors: what the values should be.
        asked: the names that were asked for, in order.
        released: the names that were released, in order.
    """

    tensors: Tensors
    asked: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def get(self, name: str) -> Reference | None:
        self.asked.append(name)
        return Reference(self.tensors[name], "eager") if name in self.tensors else None

    def release(self, name: str) -> None:
        self.released.append(name)


class HandMadeFloat64(RecordedValues):
    """Float64 values with given units; integers have none."""

    def __init__(self, values: Mapping[str, Float64Value], units: Mapping[str, float]) -> None:
        super().__init__(values)
        self._units = units

    def unit(self, name: str) -> float:
        return self._units.get(name, 0.0)


def float64_values(tensors: Tensors) -> Float64Values:
    """Return tensors in float64, and the same with errors as if computed from rounded inputs."""
    values, units = {}, {}
    for name, tensor in tensors.items():
        unit = unit_of(tensor.dtype)
        exact = noisy = tensor.double() if tensor.is_floating_point() else tensor
        if unit:
            pattern = torch.ones(tensor.shape, dtype=torch.float64).cumsum(-1).remainder(2)
            noisy, units[name] = exact * (1 + 3 * unit * pattern), unit
        values[name] = Float64Value(exact, noisy, unit or unit_of(torch.float32))
    return HandMadeFloat64(values, units)


def judge_of(float64: Float64Values, run: Run, exported: Graph | None = None, **known: Any) -> Judge:
    """Return the judge of a run; `known` are attributes of `JudgedProgram` or arguments of `RunFacts`."""
    program = {name: known.pop(name) for name in [*known] if name in JudgedProgram.__dataclass_fields__}
    return Judge(RunFacts(run, JudgedProgram(exported or run.graph, **program), float64, **known))
