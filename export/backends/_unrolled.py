"""Run the nodes in branches, loops and functions one by one, instead of the nodes that run these."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from .._errors import BackendError
from ..exporting._infer import infer_types
from ..graph._from_onnx import graph_from_onnx
from ..graph._graph import Graph
from ..graph._sizes import value_sizes
from ..onnx_files._ranks import check_ranks
from ..program._bodies import Bodies, has_bodies, runs_of
from ..program._program import Program
from ._backend import Backend, Compiled, Values

_MOST_NODES = 4096  # that are added, besides one copy of each: 2 ms each; a session of a segment has at most so many
_MOST_BYTES = 2**30  # of all values; with more, further iterations of loops are not added
_DEEPEST = 16  # levels of graphs in graphs
# ONNX Runtime puts a branch in place of an `If` whose condition is constant; a token makes a name unique.
_INLINED = re.compile(r"_if_(then|else)_branch_(.+?)(_token_\d+)?")
_BRANCHES = re.compile(r".*/(then|else)_branch/(.+)")


def unrolled(program: Program, backend: Backend, calls: Sequence[Values]) -> tuple[Program, tuple[str, ...]]:
    """Return a program without the branches, loops and functions that it runs on some inputs, and remarks.

    Their nodes are in place of the nodes that run them (see `Bodies`), so that each of their values can be observed,
    compared and computed by itself. A node stays as it is, with a remark, if it runs otherwise in another call or would
    become too many nodes; a loop without iterations and one that draws random numbers stay, too.

    Args:
        program: the program; it is returned itself if there is nothing to unroll.
        backend: runs what decides which branches run, and how often.
        calls: the inputs of each call, by name.
    """
    model, notes = _unrolled_model(program.model, backend, calls, _MOST_NODES)
    if model is program.model:
        return program, notes
    original = program.original
    if original is not None:
        original = original.changed(lambda exported: _unrolled_model(exported, backend, calls, _MOST_NODES)[0])
    return replace(program, model=model, original=original), notes


def _unrolled_model(
    model: ir.Model, backend: Backend, calls: Sequence[Values], most: int
) -> tuple[ir.Model, tuple[str, ...]]:
    """Return what `unrolled` returns, for a model; `most` nodes may be added, besides one copy of each.

    If the values would take too much memory, no further iterations of loops are added.
    """
    if not has_bodies(model):
        return model, ()
    bodies = Bodies(model)
    unrolling = _Unrolling(most + bodies.size)
    for _ in range(_DEEPEST):
        nodes = [node for node in bodies.open if node.outputs[0].name not in unrolling.kept]
        runs = _runs(bodies, nodes, backend, calls, unrolling.most) if nodes else []
        if not runs:
            break
        unrolling.replace(bodies, nodes, runs)
    if not unrolling.nodes:
        return model, tuple(unrolling.notes)
    if not bodies.model.functions:
        # The file need not declare those of values in bodies. `check_ranks` takes no models with functions.
        infer_types(bodies.model, check_ranks)
    if most and sum(value_sizes(graph_from_onnx(bodies.model), calls[0]).values()) > _MOST_BYTES:
        return _unrolled_model(model, backend, calls, most=0)  # one copy of each node is still added
    return bodies.model, tuple(unrolling.notes)


@dataclass
class _Unrolling:
    """What has been unrolled so far.

    Attributes:
        most: how many nodes may be added.
        nodes: how many were.
        kept: the first outputs of the nodes that stay as they are.
        notes: why, of those that ran.
    """

    most: int
    nodes: int = 0
    kept: set[str | None] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def replace(self, bodies: Bodies, nodes: Sequence[ir.Node], runs: Sequence[set[int]]) -> None:
        """Replace the nodes whose body runs as often, or of which the same branch is taken, in all calls.

        If a loop has more iterations than were counted, only that is kept: how often the others run may depend on it,
        and is asked again without it.

        Args:
            bodies: the model with the graphs and functions that its nodes run.
            nodes: the nodes to replace.
            runs: how often the body of each runs, or which branch is taken; a number for each different call.
        """
        counted = [*zip(nodes, runs, strict=True)]
        endless = [(node, counts) for node, counts in counted if node.op_type == "Loop" and max(counts) > self.most]
        for node, counts in endless or counted:
            count = max(counts)
            size = bodies.added(node, count)
            if len(counts) > 1:
                self._keep(node, "it runs otherwise in another call")
            elif self.nodes + size > self.most or endless:
                self._keep(node, "it runs too many nodes to judge each")
            elif count or node.op_type == "If":
                bodies.replace(node, count)
                self.nodes += size
            else:  # a loop without iterations
                self.kept.add(node.outputs[0].name)

    def _keep(self, node: ir.Node, why: str) -> None:
        """Keep a node as it is, and note why."""
        self.kept.add(node.outputs[0].name)
        self.notes.append(f"{node.name} ({node.op_type}) was judged as a whole: {why}")


def _runs(
    bodies: Bodies, nodes: Sequence[ir.Node], backend: Backend, calls: Sequence[Values], most: int
) -> list[set[int]]:
    """Return how often the body of each node runs, or which branch is taken: the different numbers of the calls.

    Args:
        bodies: the model with the graphs and functions that its nodes run.
        nodes: the nodes.
        backend: runs the part of the model that computes conditions and numbers of iterations.
        calls: the inputs of each call, by name.
        most: iterations that are counted; a loop with more has `most + 1`.

    Returns:
        a set of numbers for each node; no sets if the backend can't compute them.
    """
    question = bodies.question(nodes, most + 1)
    if question is None:  # nothing has to be computed: the nodes are function calls
        return [{1} for _ in nodes]
    inputs = [value.name or "" for value in question.graph.inputs]
    if any(name not in call for call in calls for name in inputs):  # the question can't be run
        return []
    try:
        compiled = backend.compile(Program(question), optimize=False)
        results = [backend.run(compiled, {name: call[name] for name in inputs}) for call in calls]
    except BackendError:
        return []
    return [{runs_of(node, values) for values in results} for node in nodes]


def with_inlined(compiled: Compiled, exported: Graph) -> Compiled:
    """Return a compiled program with the unrolled names of the values of branches that the backend has inlined.

    Args:
        compiled: what a backend made of a program with branches.
        exported: the graph of the unrolled program.
    """
    inside = defaultdict[tuple[str, str], list[str]](list)
    for name in exported.producer:
        if match := _BRANCHES.fullmatch(name):
            inside[match[1], match[2]].append(name)
    aliases = dict(compiled.value_aliases)
    for name in compiled.graph.producer:
        # Of two branches with the same names, it is not known which one this is.
        if (match := _INLINED.fullmatch(name)) and len(values := inside[match[1], match[2]]) == 1:
            aliases.setdefault(name, values[0])
    return replace(compiled, value_aliases=aliases)
