"""Values that may differ between correct runs: random numbers and uninitialized memory."""

import contextlib
import inspect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import getitem
from types import FunctionType
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ..graph._arguments import named_arguments
from ..graph._from_onnx import subgraphs
from ..graph._graph import Graph
from ..graph._nodes import Node
from ..operators._registry import operator_of


@dataclass(frozen=True)
class Unpredictable:
    """The names of the values of a graph that may differ between correct runs.

    Attributes:
        drawn: the outputs of nodes that draw random numbers.
        nested: the outputs of nodes with subgraphs (branches, loops) that depend on random numbers drawn in these.
        random: both of these, and all values that depend on them.
        uninitialized: uninitialized memory and views of it.
    """

    drawn: frozenset[str] = frozenset()
    nested: frozenset[str] = frozenset()
    random: frozenset[str] = frozenset()
    uninitialized: frozenset[str] = frozenset()

    @cached_property
    def replaced(self) -> frozenset[str]:
        """The values that a run replaces with the reference's, so that the nodes after them can be compared."""
        return self.drawn | self.nested

    @cached_property
    def all(self) -> frozenset[str]:
        """All unpredictable values."""
        return self.random | self.uninitialized


def of_program(program: fx.Graph, translated: Graph) -> Unpredictable:
    """Return the unpredictable values of an exported program and of its translation to ONNX."""
    drawn: set[str] = set()
    nested: set[str] = set()
    random: set[str] = set()
    random_results: dict[str, frozenset[int]] = {}
    uninitialized: set[str] = set()
    for node in program.nodes:
        read = {item.name for item in node.all_input_nodes}
        if is_random(node) or (node.target is getitem and read <= drawn):  # one of several outputs of a random node
            drawn.add(node.name)
        random_results[node.name] = _random_results(node)
        if node.target is getitem and any(node.args[1] in random_results[name] for name in read):
            nested.add(node.name)
        if node.name in drawn | nested or read & random:
            random.add(node.name)
        if is_uninitialized(node) or (_is_view(node) and read and read <= uninitialized):
            uninitialized.add(node.name)
    in_onnx = of_graph(translated)
    return Unpredictable(
        frozenset(drawn) | in_onnx.drawn,
        frozenset(nested) | in_onnx.nested,
        frozenset(random) | translated.computed_from(random) | in_onnx.random,
        frozenset(uninitialized),
    )


def of_graph(graph: Graph, nested: frozenset[str] = frozenset()) -> Unpredictable:
    """Return the random values of an ONNX graph, found by operator; ONNX has no uninitialized memory.

    Args:
        graph: the graph.
        nested: see `outputs_of_random_subgraphs`.
    """
    drawn = frozenset(name for node in graph.nodes if _is_random_onnx(node, graph) for name in node.outputs if name)
    return Unpredictable(drawn, nested, graph.computed_from(drawn | nested))


def outputs_of_random_subgraphs(graph: ir.Graph) -> frozenset[str]:
    """Return the outputs of the nodes with subgraphs that draw random numbers."""
    return frozenset(value.name for node in graph if draws_inside(node) for value in node.outputs if value.name)


def draws_inside(node: ir.Node) -> bool:
    """Whether a subgraph of an ONNX node draws random numbers."""
    inner = (item for graph in subgraphs(node) for item in ir.traversal.RecursiveGraphIterator(graph))
    return any(operator_of(item.op_type).random for item in inner)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    is_call = node.op in ("call_function", "call_method")  # an input or a module has any name
    return is_call and draws_random(node.target, node.args, node.kwargs)


def draws_random(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers.

    Args:
        target: an operator of torch, a function of Python, or the name of a method.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    tags = getattr(target, "tags", None)
    is_operator = tags is not None
    if tags is not None and torch.Tag.nondeterministic_seeded not in tags:  # each call in float64 asks
        return False
    name = str(getattr(target, "__name__", target)).rstrip("_")
    if not is_operator and operator_of(name).random:
        return True
    operators = [target] if is_operator else _operators_named(name)
    settings = _settings(target, operators, args, kwargs)
    is_seeded = any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators)
    if not (is_seeded or "dropout_p" in settings or "dropout" in name):
        return False
    # torch tags attention and recurrent networks even without dropout. What has no such setting draws: None is not 0.
    has_dropout = all(settings.get(name) != 0 for name in ("p", "dropout", "dropout_p"))
    return has_dropout and settings.get("train") is not False and settings.get("training") is not False


@lru_cache(maxsize=2**10)
def _operators_named(name: str) -> Sequence[Any]:
    """Return the operators of ATen with a name, one for each overload."""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _settings(target: Any, operators: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults: of a function of Python, or of the first operator."""
    if operators and (operators[0] is target or not isinstance(target, FunctionType)):
        defaults = {item.name: item.default_value for item in operators[0]._schema.arguments}  # noqa: SLF001  as above
        return {**defaults, **named_arguments(operators[0], args, kwargs)}
    try:
        bound = inspect.signature(target).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no function, or a call with other arguments
        return dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def has_random_subgraph(node: fx.Node) -> bool:
    """Whether a subgraph of a node (a branch, a loop body) draws random numbers."""
    return any(is_random(item) or has_random_subgraph(item) for graph in _graphs(node) for item in graph.nodes)


def _random_results(node: fx.Node) -> frozenset[int]:
    """Return the indices of a node's results that depend on random numbers drawn in its subgraphs."""
    if not has_random_subgraph(node):
        return frozenset()
    indices: set[int] = set()
    for graph in _graphs(node):
        random: set[fx.Node] = set()
        for item in graph.nodes:
            if is_random(item) or has_random_subgraph(item) or not random.isdisjoint(item.all_input_nodes):
                random.add(item)
            if item.op == "output":
                results = item.args[0] if isinstance(item.args[0], list | tuple) else item.args
                # In a loop, each result may depend on random numbers of an earlier iteration.
                is_branch = str(node.target) == "cond"
                indices.update(index for index, result in enumerate(results) if result in random or not is_branch)
    return frozenset(indices)


def _graphs(node: fx.Node) -> Iterator[fx.Graph]:
    """Yield the subgraphs of a node: branches and loop bodies."""
    for item in node.all_input_nodes if node.op == "call_function" else ():
        attribute = getattr(node.graph.owning_module, str(item.target), None) if item.op == "get_attr" else None
        if isinstance(attribute, fx.GraphModule):
            yield attribute.graph


def random_nodes(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of a torch graph's nodes that draw random numbers, in order; dropout does in training mode."""
    return tuple(node.name for node in graph.nodes if is_random(node) or has_random_subgraph(node))


def uninitialized_nodes(graph: fx.Graph) -> tuple[str, ...]:
    """Return the names of a torch graph's nodes that return uninitialized memory, in order."""
    return tuple(node.name for node in graph.nodes if is_uninitialized(node))


def is_uninitialized(node: fx.Node) -> bool:
    """Whether a node returns uninitialized memory."""
    return node.op in ("call_function", "call_method") and returns_uninitialized(node.target)


def returns_uninitialized(target: Any) -> bool:
    """Whether a function, operator or method returns uninitialized memory."""
    return operator_of(str(getattr(target, "_opname", getattr(target, "__name__", target)))).uninitialized


@contextlib.contextmanager
def fixed_seed(node: fx.Node) -> Iterator[None]:
    """Seed torch's generators for a node, so that it draws the same numbers in each run; restore them at the end."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(zlib.crc32(node.name.encode()))
        yield


def zero_filled(value: Any) -> Any:
    """Replace uninitialized memory with zeros, as the translation to ONNX does."""
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def _is_random_onnx(node: Node, graph: Graph) -> bool:
    """Whether a node of an ONNX graph draws random numbers; `Dropout` does in training mode."""
    if node.op != "Dropout":
        return node.operator.random
    ratio, training = (_number(graph, name) for name in (*node.inputs, "", "")[1:3])
    return bool(training) and ratio != 0


def _number(graph: Graph, name: str) -> Any:
    """Return the number of a `Constant` node by its value's name; True if it is unknown, None if the name is empty."""
    if not name:
        return None
    producer = graph.producer.get(name)
    value: Any = next(iter(producer.attributes.values()), True) if producer and producer.op == "Constant" else True
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _is_view(node: fx.Node) -> bool:
    """Return whether an operator returns a view of an input."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
