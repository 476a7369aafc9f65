"""Values on which no two runs have to agree: random numbers, and memory that nothing has written to."""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import getitem
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ..graph._graph import Graph
from ..graph._nodes import Node

_RESERVE = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
_FUNCTIONS = {  # of torch, in the graphs that Dynamo hands over; methods have an underscore behind
    *("bernoulli", "cauchy", "exponential", "geometric", "gumbel_softmax", "log_normal", "multinomial", "normal"),
    *(
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "randperm",
        "uniform",
    ),
}
_DRAW = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}


@dataclass(frozen=True)
class Unpredictable:
    """The names of the values of a graph on which no two runs have to agree.

    Attributes:
        drawn: random numbers, as their nodes draw them.
        nested: what nodes with graphs inside (a branch, a loop) compute from random numbers that these draw.
        random: these, and all that is computed from them.
        unwritten: memory that was reserved, and views of it, before anything is written there.
    """

    drawn: frozenset[str] = frozenset()
    nested: frozenset[str] = frozenset()
    random: frozenset[str] = frozenset()
    unwritten: frozenset[str] = frozenset()

    @cached_property
    def replaced(self) -> frozenset[str]:
        """Those in whose place a run is given the reference's, so that what reads them can be judged."""
        return self.drawn | self.nested

    @cached_property
    def all(self) -> frozenset[str]:
        """All of them."""
        return self.random | self.unwritten


def of_program(program: fx.Graph, translated: Graph) -> Unpredictable:
    """The unpredictable values of an exported program, and of the graph that it was translated to."""
    drawn: set[str] = set()
    nested: set[str] = set()
    random: set[str] = set()
    hidden: dict[str, frozenset[int]] = {}
    unwritten: set[str] = set()
    for node in program.nodes:
        read = {item.name for item in node.all_input_nodes}
        if draws(node) or (node.target is getitem and read <= drawn):  # one of several values that are drawn together
            drawn.add(node.name)
        hidden[node.name] = _random_results(node)
        if node.target is getitem and any(node.args[1] in hidden[name] for name in read):
            nested.add(node.name)
        if node.name in drawn | nested or read & random:
            random.add(node.name)
        if reserves(node) or (_is_view(node) and read and read <= unwritten):
            unwritten.add(node.name)
    inside = of_graph(translated)
    return Unpredictable(
        frozenset(drawn) | inside.drawn,
        frozenset(nested) | inside.nested,
        frozenset(random) | translated.computed_from(random) | inside.random,
        frozenset(unwritten),
    )


def of_graph(graph: Graph, nested: frozenset[str] = frozenset()) -> Unpredictable:
    """The random values of an ONNX graph, by its operators; ONNX has no memory that nothing was written to.

    Args:
        graph: the graph.
        nested: see `nested_draws`.
    """
    drawn = frozenset(name for node in graph.nodes if _is_random(node, graph) for name in node.outputs if name)
    return Unpredictable(drawn, nested, graph.computed_from(drawn | nested))


def nested_draws(graph: ir.Graph) -> frozenset[str]:
    """What nodes with graphs inside make, if some of these draw random numbers."""
    return frozenset(
        value.name
        for node in graph
        if any(item.op_type in _DRAW for inner in _inner(node) for item in ir.traversal.RecursiveGraphIterator(inner))
        for value in node.outputs
        if value.name
    )


def _inner(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()


def draws(node: fx.Node) -> bool:
    """Whether a node draws at random; attention and recurrent networks are marked so even if they drop nothing out."""
    if not node.op.startswith("call_"):  # an input may be called `normal`
        return False
    tags = getattr(node.target, "tags", None)
    if tags is None:
        name = str(getattr(node.target, "__name__", node.target)).rstrip("_")
        return name in _FUNCTIONS or ("dropout" in name and any(item is True for item in _arguments(node)))
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    arguments = getattr(node.target, "_schema").arguments  # noqa: B009  of an operator, which a tag says it is
    told = {item.name: node.kwargs.get(item.name, item.default_value) for item in arguments}
    told |= {item.name: value for item, value in zip(arguments, node.args, strict=False)}
    return all(told.get(name) != 0 for name in ("p", "dropout", "dropout_p")) and told.get("train") is not False


def draws_nested(node: fx.Node) -> bool:
    """Whether a graph inside of a node draws at random: a branch, or the body of a loop."""
    return any(draws(item) or draws_nested(item) for graph in _graphs(node) for item in graph.nodes)


def _random_results(node: fx.Node) -> frozenset[int]:
    """Which results of a node with graphs inside are computed from random numbers that these draw, by their places."""
    if not draws_nested(node):
        return frozenset()
    found: set[int] = set()
    for graph in _graphs(node):
        random: set[fx.Node] = set()
        for item in graph.nodes:
            if draws(item) or draws_nested(item) or not random.isdisjoint(item.all_input_nodes):
                random.add(item)
            if item.op == "output":
                results = item.args[0] if isinstance(item.args[0], list | tuple) else item.args
                # What a loop makes at random goes into its next round.
                is_branch = str(node.target) == "cond"
                found.update(place for place, result in enumerate(results) if result in random or not is_branch)
    return frozenset(found)


def _graphs(node: fx.Node) -> Iterator[fx.Graph]:
    for item in node.all_input_nodes if node.op == "call_function" else ():
        held = getattr(node.graph.owning_module, str(item.target), None) if item.op == "get_attr" else None
        if isinstance(held, fx.GraphModule):
            yield held.graph


def random_nodes(graph: fx.Graph) -> tuple[str, ...]:
    """The names of the nodes of a torch graph that draw random numbers, in order; a dropout does where it trains."""
    return tuple(node.name for node in graph.nodes if draws(node) or draws_nested(node))


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return (*node.args, *node.kwargs.values())


def reserves(node: fx.Node) -> bool:
    """Whether a node gives memory as it finds it."""
    return node.op == "call_function" and getattr(node.target, "_opname", "") in _RESERVE


@contextlib.contextmanager
def drawing(node: fx.Node) -> Iterator[None]:
    """Inside of the block, a node draws the same numbers in each run; the caller's generator is left as it is."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(zlib.crc32(node.name.encode()))
        yield


def zeroed(value: Any) -> Any:
    """Reserved memory with zeros in it, as the translation to ONNX has it."""
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def _is_random(node: Node, graph: Graph) -> bool:
    if node.op != "Dropout":
        return node.op in _DRAW
    ratio, training = (_number(graph, node.inputs[place : place + 1]) for place in (1, 2))
    return bool(training) and ratio != 0


def _number(graph: Graph, names: Iterable[str]) -> Any:
    """The number that a `Constant` holds; True if it is not known, None if there is no such input."""
    for name in filter(None, names):
        maker = graph.producer.get(name)
        held: Any = next(iter(maker.attributes.values()), True) if maker and maker.op == "Constant" else True
        while isinstance(held, list) and len(held) == 1:
            held = held[0]
        return held
    return None


def _is_view(node: fx.Node) -> bool:
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
