"""Find the part of a program that is wrong when it runs alone."""

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
        wrong: the part.
        parts: extracts other parts.
        runner: runs the parts.
        script: the code that runs them without Filch.
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
    """Return the part around a node that is wrong when it runs alone, on the captured values.

    Args:
        held: the capture or dump.
        program: the program.
        engine: the backend.
        call: the call of the model.
        node: the name of a node or value of the exported or the compiled graph.
        limits: the tolerance of each value.
        stage: the graph that is wrong; None is the first one with an error.

    Raises:
        CompareError: there is no such node, or no part around it is wrong.
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
        f"no repro: on the captured values, {node!r} is correct on {engine.name}, alone and with its neighbours, "
        "or can't be run"
    )


def _places(program: Program, engine: Backend, node: str) -> Iterator[tuple[Stage, frozenset[str]]]:
    """Yield each stage with a node or value of this name, and the names of the exported nodes that it computes."""
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
            f"there is no node or value {node!r} in the exported graph, nor in the graph that {engine.name} compiles"
            f"{f'; did you mean {near[0]!r}?' if near else ''}"
        )


def _named(graph: Graph, name: str) -> Node | None:
    return next((node for node in graph.nodes if node.name == name), graph.producer.get(name))


def _parts(
    held: Records, program: Program, call: CapturedCall, names: Collection[str], limits: Limits, *, takes: str
) -> tuple[OnnxParts | TorchParts, frozenset[str]]:
    """Return an extractor of parts of the program, and the names of the nodes to start with."""
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
    """Return the smallest part around some nodes that is wrong, preferably one whose references can be recomputed."""
    first: Wrong | None = None
    graph = parts.graph
    fixed = any(graph.constant_values.issuperset(node.outputs) for node in graph.nodes if node.name in names)
    for _ in range(_STEPS):
        case = parts.case(names)
        error = 0.0 if case is None else runner.wrong(case)
        if case is not None and error:
            truth = runner.truth(case)
            wrong = Wrong(names, case, error, truth or "model", fixed=fixed)
            if truth is not None:
                return wrong
            first = first or wrong
        more = grown(graph, names)
        if more == names or len(more) > _NODES:
            break
        names = more
    return first
