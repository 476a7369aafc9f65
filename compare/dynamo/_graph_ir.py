"""Draw a Dynamo graph and the graphs that a compiler made of it, step by step."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from torch import fx

from filch.export import graph_from_fx
from filch.export.backends import BackwardRun, Compiled
from filch.export.views._series import Series

from ..provenance._provenance import NodeProvenance

_count: Counter[Path] = Counter()  # of the graphs written to each folder


class GraphIr:
    """The files of one graph: `graph_0/0_Dynamo.json`, `graph_0/0_Dynamo.txt`, `graph_0/1_AOTAutograd.json` and so on.

    Args:
        folder: the parent of the graph's folder; each process counts from 0.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        parent = Path(folder).absolute()
        self._series = Series(parent / f"graph_{_count[parent]}")
        _count[parent] += 1
        self._series.begin()

    def forward(self, module: fx.GraphModule, compiled: Compiled | None) -> None:
        """Draw the graph from Dynamo and, if `compiled` is given, the compiler's graphs and kernels."""
        graph = graph_from_fx(module.graph)
        self._series.draw("Dynamo", graph)
        if compiled is not None:
            for name, intermediate in compiled.intermediate_graphs().items():
                self._series.draw(name, intermediate)
            self._series.draw("Kernels", replace(NodeProvenance(graph, compiled).annotated(), source_graph=graph))

    def backward(self, run: BackwardRun) -> None:
        """Draw the graphs and kernels of the backward pass."""
        for name, intermediate in run.compiled.intermediate_graphs().items():
            self._series.draw(f"Backward{name}", intermediate)
        self._series.draw(
            "BackwardKernels", replace(NodeProvenance(run.graph, run.compiled).annotated(), source_graph=run.graph)
        )
