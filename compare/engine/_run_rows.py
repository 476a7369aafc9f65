"""Make the rows of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from filch.export import Node

from ..float64._verdict import RoundingVerdict
from ..judging._run import Run
from ..provenance._provenance import NodeProvenance
from ..results._rows import Row
from ._isolated_nodes import is_accumulated, is_wrong
from ._judged_value import JudgedValue
from ._random import RandomValues


class RunRows:
    """Make the rows of a run, each of a value that was judged and the facts about its node.

    Args:
        run: the run.
        provenance: for a compiled graph, the exported nodes that its nodes compute.
        random: identifies the nodes that draw random numbers.
    """

    def __init__(self, run: Run, provenance: NodeProvenance | None, random: RandomValues) -> None:
        self._run, self._graph, self._provenance, self._random = run, run.graph, provenance, random
        # By value, not by node: nodes of a foreign file may share a name.
        self._indices = {name: index for index, node in enumerate(run.graph.nodes) for name in node.outputs}

    def rows(
        self,
        values: Mapping[str, JudgedValue],
        outputs: Sequence[JudgedValue],
        isolated: Mapping[str, RoundingVerdict] | None,
    ) -> list[Row]:
        """Return a row for each value that a node computes, in order, then one for each output of the plain run.

        Args:
            values: what is known of each value, by its name.
            outputs: the same of each output.
            isolated: the verdicts on nodes in isolation, by the names of their values; None for a run of a graph from
                Dynamo, whose kernels name only what they compute.
        """
        graph, alone = self._graph, isolated or {}
        is_rounding = isolated is not None and is_accumulated(values, outputs, alone, graph)
        judged = {*graph.inputs, *graph.constants, *(name for name, value in values.items() if value.judged)}
        diverged = set() if is_rounding else {name for name, value in values.items() if value.diverged}
        rows = []
        for name, node in graph.producer.items():
            more: dict[str, Any] = {"isolated": alone.get(name)}
            if values[name].diverged and not judged.issuperset(node.reads):
                more |= self._with_unjudged(name, judged)
            is_introduced = name in diverged and diverged.isdisjoint(node.reads)
            may_be_removed = isolated is not None and (is_introduced or is_wrong(alone.get(name)))
            if self._provenance is not None and may_be_removed:
                more |= self._with_removed(name, self._provenance)
            rows.append(self.row(values[name], is_rounding=is_rounding, **more))
        return rows + [self.row(value, is_output=True, is_rounding=is_rounding) for value in outputs]

    def row(self, value: JudgedValue, *, is_output: bool = False, is_rounding: bool = False, **more: Any) -> Row:
        """Return the row of a value.

        Args:
            value: what is known of the value.
            is_output: whether it is an output of the plain run.
            is_rounding: whether rounding that adds up explains what differs.
            **more: further attributes.
        """
        run, node = self._run, self.node(value.value)
        more = (self._of_output(node) if is_output else self._of_node(value.value, node)) | vars(value) | more
        more["random"] = value.random or self._random.draws(node)
        if is_rounding and value.diverged and value.float64 is not None:
            note = "each node is right by itself"
            more |= {"status": "same", "float64": replace(value.float64, verdict="suspicious", note=note)}
        return Row(run.call, run.stage, node=node.name, op=node.op, **more)

    def node(self, name: str) -> Node:
        """Return the node that computes a value; an output may be an input."""
        return self._graph.producer.get(name) or Node(name, "", (), (name,))

    def _of_output(self, node: Node) -> dict[str, Any]:
        """Return the facts about the node of an output, which comes after all nodes."""
        return {"index": len(self._graph.nodes), "kind": "output", "module": node.module, "source": node.source}

    def _of_node(self, name: str, node: Node) -> dict[str, Any]:
        """Return the facts about the node of a value."""
        provenance = self._provenance
        computes = provenance.of(node) if provenance else ()
        origin = provenance.node_with_module(node) if provenance else node  # the last one with a module
        kind = "fused" if len(computes) > 1 else "node"
        if name in self._graph.constant_values:
            kind = "constant"
        elif provenance is not None and provenance.is_inserted(node):
            kind = "inserted"
        return {
            "index": self._indices[name],
            "kind": kind,
            "module": node.module if node.module is not None else origin.module,
            "source": node.source or origin.source,
            **_origins(computes),
            "code": node.code,
            "seconds": self._run.seconds.get(node.name),
        }

    def _with_unjudged(self, name: str, judged: set[str]) -> dict[str, Any]:
        """Return the unjudged nodes before a value that diverged, any of which may have introduced the error."""
        graph, constants = self._graph, self._graph.constant_values
        nodes = graph.cone([name], judged)
        if self._run.stage != "compiled":
            return _origins(nodes)
        own = graph.producer[name]
        behind = (item.name for item in nodes if item is not own and not constants.issuperset(item.outputs))
        return {"behind": tuple(behind)}

    def _with_removed(self, name: str, provenance: NodeProvenance) -> dict[str, Any]:
        """Return the nodes in which the error of a compiled value may originate, also removed and folded ones."""
        covered = provenance.covers(self._graph.producer[name], name)
        operators = tuple(item.op for item in covered if item.op != "Constant")  # constants compute nothing
        return _origins(covered) | {"operators": operators}


def _origins(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the attributes of a row that name exported nodes in which its error may originate."""
    return {"origins": tuple(item.name for item in nodes), "operators": tuple(item.op for item in nodes)}
