"""Find the part of a program that is wrong when it runs alone."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from filch.export import BackendError, Graph, Node, Program, graph_from_fx
from filch.export.backends import Backend, ProvidesScript, Stage, get_backend
from filch.steal import Records

from ..common._errors import CompareError
from ..engine._modules import ModuleRows
from ..metrics._limits import Limits
from ..metrics._tolerance import default_tolerance
from ..provenance._provenance import NodeProvenance
from ..references._inputs import CapturedCall
from ..references._references import References, captured_results, result_references
from ._case import Case
from ._fx_part import TorchParts
from ._grow import with_neighbors
from ._onnx_part import OnnxParts
from ._result import ExpectedSource
from ._runner import Runner

_MAX_STEPS = 4  # from a node to neighbors of its neighbors, which a fusion may need
_MAX_NODES = 200


@dataclass(frozen=True)
class FaultRegion:
    """A part of a program that is wrong when it runs alone.

    Attributes:
        nodes: the names of its nodes.
        case: the part with its inputs.
        expected_source: the source of the expected values.
        error: the largest harmonic error.
        has_constants: whether the wrong values may be constants.
        parts: extracts other parts of the program.
        runner: runs the parts.
    """

    nodes: frozenset[str]
    case: Case
    expected_source: ExpectedSource
    error: float
    has_constants: bool
    parts: OnnxParts | TorchParts
    runner: Runner


def find_fault_region(
    records: Records,
    program: Program,
    backend: Backend,
    call: CapturedCall,
    *,
    node: str,
    limits: Limits,
    stage: Stage | None = None,
    fails: bool = False,
) -> FaultRegion:
    """Return the part around a node that is wrong when it runs alone, on the captured values.

    Args:
        records: the capture or dump.
        program: the program.
        backend: the backend.
        call: the call of the model.
        node: the name of a node or value of the exported or the compiled graph.
        limits: the tolerance of each value.
        stage: the graph that is wrong; None is the first one with an error.
        fails: see `Runner`.

    Raises:
        CompareError: there is no such node, or no part around it is wrong.
    """
    if not isinstance(backend, ProvidesScript):
        raise CompareError(f"no repro: backend {backend.name!r} can't be run without Filch")
    for candidate, names in _stages(program, backend, node):
        if stage not in (None, candidate):
            continue
        optimize = candidate == "compiled"
        runner = Runner(backend, backend.script(optimize=optimize), limits, optimize=optimize, fails=fails)
        parts, start = _parts(records, program, call, names, limits, takes=runner.script.takes)
        for source in (None, "float64"):
            if (region := _wrong_region(parts, start, runner, source)) is not None:
                return region
    raise CompareError(
        f"no repro: on the captured values, {node!r} is correct on {backend.name}, alone and with its neighbors, "
        "or can't be run"
    )


def _stages(program: Program, backend: Backend, name: str) -> Iterator[tuple[Stage, frozenset[str]]]:
    """Yield each stage with a node or value of this name, and the names of the exported nodes that it computes.

    Raises:
        CompareError: there is no such node or value.
    """
    known = [node.name for node in program.graph.nodes]
    exported_node = _node(program.graph, name)
    names = set() if exported_node is None else {exported_node.name}
    if names and "exported" in backend.stages:
        yield "exported", frozenset(names)
    compiled_node = None
    if "compiled" in backend.stages:
        try:
            compiled = backend.compile(program, optimize=True)
        except BackendError:  # which the repro may show
            if not names:
                raise
            yield "compiled", frozenset(names)
            return
        known += [node.name for node in compiled.graph.nodes]
        compiled_node = _node(compiled.graph, name)
        if compiled_node is not None:
            names |= {origin.name for origin in NodeProvenance(program.graph, compiled).of(compiled_node)}
        if names:
            yield "compiled", frozenset(names)
    if exported_node is None and compiled_node is None:
        near = difflib.get_close_matches(name, known, n=1)
        raise CompareError(
            f"there is no node or value {name!r} in the exported graph, nor in the graph that {backend.name} compiles"
            f"{f'; did you mean {near[0]!r}?' if near else ''}"
        )


def _node(graph: Graph, name: str) -> Node | None:
    """Return the node of this name, else the one that computes the value of this name."""
    return next((node for node in graph.nodes if node.name == name), graph.producer.get(name))


def _parts(
    records: Records, program: Program, call: CapturedCall, names: frozenset[str], limits: Limits, *, takes: str
) -> tuple[OnnxParts | TorchParts, frozenset[str]]:
    """Return what extracts parts of the program, and the names of the nodes to start with.

    Args:
        records: the capture or dump.
        program: the program.
        call: the call of the model.
        names: the names of exported nodes.
        limits: the tolerance of each value.
        takes: what the backend runs: `onnx`, or `torch`, for which parts are operations of the exported program.
    """
    graph = program.graph
    original = program.exported_program if takes == "torch" else None
    if original is not None:  # the targets of ONNX nodes are the names of its operations
        names = frozenset(node.target for node in graph.nodes if node.name in names and node.target)
        graph = graph_from_fx(original.graph)
    nearby = names  # and all nodes that a larger part may have
    for _ in range(_MAX_STEPS):
        nearby = with_neighbors(graph, nearby)
    nodes = [node for node in graph.nodes if node.name in nearby]
    outputs = {name for node in nodes if node.name in names for name in node.outputs}
    values = dict.fromkeys(name for node in nodes for name in (*node.reads, *node.outputs) if name)
    needed = [name for name in values if name in outputs or name not in graph.constant_values]
    known = _known_values(records, program, call, needed, limits)
    return (OnnxParts(program, known) if original is None else TorchParts(original, known)), names


def _known_values(
    records: Records, program: Program, call: CapturedCall, names: Sequence[str], limits: Limits
) -> dict[str, torch.Tensor]:
    """Return the references of some values, where they have one, and the inputs of the call, by name."""
    # All values are in memory at once anyway: a smaller buffer would only compute some of them twice.
    sources = References(records, program, wanted=names, buffer=2**62).of(call, names)
    modules = ModuleRows(records, program, call, limits)
    if not modules.is_resolved:  # a foreign file: match values of modules by their numbers
        backend = get_backend("onnxruntime-cpu")
        compiled = backend.compile(program, optimize=False)
        modules.infer({**call.inputs, **backend.run(compiled, call.inputs, program.graph.producer)})
    sources.set_preferred(modules.references())
    sources.set_fallback(result_references(captured_results(records, call), program.graph))
    references = {name: sources.get(name) for name in names}
    return {**{name: known.tensor.detach() for name, known in references.items() if known is not None}, **call.inputs}


def _wrong_region(
    parts: OnnxParts | TorchParts, names: frozenset[str], runner: Runner, source: ExpectedSource | None
) -> FaultRegion | None:
    """Return the smallest wrong part around some nodes, preferably one whose expected values can be recomputed.

    If they can't be for any of them, the smallest one with the captured values; None if no part is wrong.

    Args:
        parts: extracts parts of the program.
        names: the nodes.
        runner: runs the parts.
        source: the source of the expected values; None is one that agrees with the captured values.
    """
    fallback: FaultRegion | None = None
    constants = parts.graph.constant_values
    has_constants = any(constants.issuperset(node.outputs) for node in parts.graph.nodes if node.name in names)
    for _ in range(_MAX_STEPS):
        case, error, least = parts.case(names), 0.0, 0.0
        if case is not None:
            error = runner.error(case, source) if source else runner.error_from_captured(case)
        if case is not None and source:  # a distance within the tolerance may be rounding, as of the captured values
            least = max((default_tolerance(item.dtype).harmonic for item in case.recorded.values()), default=0.0)
        if case is not None and error > least:
            chosen = source or runner.choose_expected_source(case)
            region = FaultRegion(names, case, chosen or "model", error, has_constants, parts, runner)
            if chosen is not None:
                return region
            fallback = fallback or region
        larger = with_neighbors(parts.graph, names)
        if larger == names or len(larger) > _MAX_NODES:
            break
        names = larger
    return fallback
