"""Draws a graph of Dynamo's as what a compiler made of it, step by step."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from torch import fx

from filch.export import graph_from_fx
from filch.export.backends import BackwardRun, Compiled
from filch.export.views import Series

from ..provenance._provenance import NodeProvenance

_count: Counter[Path] = Counter()  # of the graphs that went into each folder


class GraphIr:
    """The files of one graph: `graph_0/0_Dynamo.json`, `graph_0/0_Dynamo.txt`, `graph_0/1_AOTAutograd.json` and so on.

    Args:
        folder: where the folder of the graph goes; the first of a process begins at 0 again.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        where = Path(folder).absolute()
        self._series = Series(where / f"graph_{_count[where]}")
        _count[where] += 1
        self._series.begin()

    def forward(self, module: fx.GraphModule, made: Compiled | None) -> None:
        """Draw what was handed over, and what was made of it, as far as the compiler shows it."""
        graph = graph_from_fx(module.graph)
        self._series.draw("Dynamo", graph)
        if made is not None:
            for name, step in made.intermediate_graphs().items():
                self._series.draw(name, step)
            self._series.draw("Kernels", replace(NodeProvenance(graph, made).drawn(), source_graph=graph))

    def backward(self, run: BackwardRun) -> None:
        """Draw what became of the backward pass."""
        for name, step in run.compiled.intermediate_graphs().items():
            self._series.draw(f"Backward{name}", step)
        self._series.draw(
            "BackwardKernels", replace(NodeProvenance(run.graph, run.compiled).drawn(), source_graph=run.graph)
        )
