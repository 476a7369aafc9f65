"""Finds the part of a program in which a fault shows when it runs alone."""

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from filch.export import Graph, Node, Program, graph_from_fx
from filch.export.backends import Backend, ProvidesScript, Script, Stage
from filch.steal import Records

from ..common._errors import CompareError
from ..metrics._limits import Limits
from ..provenance._provenance import NodeProvenance
from ..references._inputs import CapturedCall
from ._fx_part import TorchParts
from ._grow import grown
from ._known import known_values
from ._onnx_part import OnnxParts
from ._reduce import Wrong
from ._runner import Runner

_STEPS = 4  # neighbours of neighbours, which a fusion may need
_NODES = 200


@dataclass(frozen=True)
class FaultRegion:
    """A part that is wrong when it runs alone.

    Attributes:
        wrong: it.
        parts: cuts out others.
        runner: runs it.
        script: does that without Filch.
        optimize: see `Backend.compile`.
    """

    wrong: Wrong
    parts: OnnxParts | TorchParts
    runner: Runner
    script: Script
    optimize: bool


def find(
    held: Records,
    program: Program,
    engine: Backend,
    call: CapturedCall,
    *,
    node: str,
    limits: Limits,
    stage: Stage | None = None,
) -> FaultRegion:
    """The part around a node that is wrong when it runs alone, on what the model had.

    Args:
        held: the capture or dump.
        program: the program.
        engine: what runs it.
        call: which call of the model.
        node: a node of the exported graph or of the compiled one, or a value.
        limits: the tolerance of each value.
        stage: which of the graphs is wrong; None is the first one in which something is.

    Raises:
        CompareError: there is no such node, or nothing around it is wrong.
    """
    if not isinstance(engine, ProvidesScript):
        raise CompareError(f"no repro: backend {engine.name!r} can't be run without Filch")
    for place, names in _places(program, engine, node):
        if stage not in (None, place):
            continue
        optimize = place == "compiled"
        script = engine.script(optimize=optimize)
        runner = Runner(engine, limits, optimize=optimize, takes=script.takes)
        parts, begun = _parts(held, program, call, names, limits, takes=script.takes)
        wrong = _wrong(parts, begun, runner)
        if wrong is not None:
            return FaultRegion(wrong, parts, runner, script, optimize)
    raise CompareError(
        f"no repro: fed with what the model had, {node!r} alone and with its neighbours is right on {engine.name}, "
        "or can't be run"
    )


def _places(program: Program, engine: Backend, node: str) -> Iterator[tuple[Stage, frozenset[str]]]:
    """The stages that have a node or value of this name, and the exported nodes that are meant by it."""
    exported = program.graph
    own = _named(exported, node)
    if own is not None and "exported" in engine.stages:
        yield "exported", frozenset({own.name})
    compiled: Graph | None = None
    if "compiled" in engine.stages:
        made = engine.compile(program, optimize=True)
        compiled, origins = made.graph, NodeProvenance(exported, made)
        kernel = _named(compiled, node)
        names = {item.name for item in origins.of(kernel)} if kernel is not None else set()
        names |= {own.name} if own is not None else set()
        if names:
            yield "compiled", frozenset(names)
        own = own or kernel
    if own is None:
        known = [item.name for graph in (exported, compiled) if graph is not None for item in graph.nodes]
        near = difflib.get_close_matches(node, known, n=1)
        raise CompareError(
            f"there is no node or value {node!r} in the exported graph, nor in what {engine.name} makes of it"
            f"{f'; did you mean {near[0]!r}?' if near else ''}"
        )


def _named(graph: Graph, name: str) -> Node | None:
    return next((node for node in graph.nodes if node.name == name), graph.producer.get(name))


def _parts(
    held: Records, program: Program, call: CapturedCall, names: Collection[str], limits: Limits, *, takes: str
) -> tuple[OnnxParts | TorchParts, frozenset[str]]:
    """What cuts parts out of the program, and the nodes to begin with, by the names that they have there."""
    graph = program.graph
    original = program.exported_program if takes == "torch" else None
    if original is None:
        begun = frozenset(names)
    else:
        begun = frozenset(node.target for node in graph.nodes if node.name in names and node.target)
        graph = graph_from_fx(original.graph)
    around = begun
    for _ in range(_STEPS):
        around = grown(graph, around)
    near = [node for node in graph.nodes if node.name in around]
    values = dict.fromkeys(name for node in near for name in (*node.reads, *node.outputs) if name)
    asked = {name for node in near if node.name in begun for name in node.outputs}
    wanted = [name for name in values if name in asked or name not in graph.constant_values]
    known = known_values(held, program, call, wanted, limits)
    return (OnnxParts(program, known) if original is None else TorchParts(original, known)), begun


def _wrong(parts: OnnxParts | TorchParts, names: frozenset[str], runner: Runner) -> Wrong | None:
    """The smallest part around some nodes that is wrong, best where something says what parts of it should give."""
    first: Wrong | None = None
    graph = parts.graph
    fixed = any(graph.constant_values.issuperset(node.outputs) for node in graph.nodes if node.name in names)
    for _ in range(_STEPS):
        case = parts.case(names)
        error = 0.0 if case is None else runner.wrong(case)
        if case is not None and error:
            truth = runner.truth(case)
            found = Wrong(names, case, error, truth or "model", fixed=fixed)
            if truth is not None:
                return found
            first = first or found
        more = grown(graph, names)
        if more == names or len(more) > _NODES:
            break
        names = more
    return first
