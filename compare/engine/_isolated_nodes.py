"""Judge each node on its reference inputs: which nodes introduce an error, and which inherit one."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import torch

from filch.export import Graph, Node

from ..common._complex import complex_as_real
from ..common._dtypes import torch_dtype
from ..common._value_cache import ValueCache
from ..float64._verdict import RoundingVerdict
from ..judging._judge import Judge
from ..judging._run import ObservedValue, Pair, Run
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import is_coarser, largest_of
from ..references._resolver import ReferenceResolver
from ..results._rows import JudgedValue
from ._allowances import Allowances


class IsolatedInputs:
    """The reference inputs of the nodes of one run, each cached until its last use.

    Args:
        run: the run.
        values: what is known of its values, by name.
        references: the references of its values.
        selected: the names of the nodes to judge; None is all.

    Attributes:
        nodes: the names of the nodes to run: the selected ones, and those that compute values without a reference from
            which they are computed; None is all.
    """

    def __init__(
        self,
        run: Run,
        values: Mapping[str, JudgedValue],
        references: ReferenceResolver,
        selected: Collection[str] | None = None,
    ) -> None:
        self.run, self.selected, self._references = run, selected, references
        self._values = {name: value for name, value in values.items() if _has_usable_reference(value)}
        self.nodes = None if selected is None else self._required_nodes(selected)
        nodes = [node for node in run.graph.nodes if self.nodes is None or node.name in self.nodes]
        uses = Counter(name for node in nodes for name in {*node.reads} if name in self._values)
        judged = (name for node in nodes for name in node.outputs if name in self._values)
        self._cache = ValueCache[torch.Tensor](uses, judged)
        self._names = frozenset(map(run.exported_name, self._values))
        self._recomputed: frozenset[str] = frozenset()  # exported names; see `set_node`

    def _required_nodes(self, selected: Collection[str]) -> frozenset[str]:
        """Return the names of the selected nodes and of those that must run to compute their inputs."""
        graph = self.run.graph
        outputs = [name for node in graph.nodes if node.name in selected for name in node.outputs]
        replaced = {name for name in self._values if graph.producer[name].reads}  # constants stay constants
        return frozenset(node.name for node in graph.cone(outputs, replaced))

    @property
    def replaced(self) -> frozenset[str]:
        """The names of the values that are replaced by their references."""
        return frozenset(self._values)

    def get(self, name: str) -> torch.Tensor | None:
        """Return the reference of a value, cast to its dtype in the run; None leaves the value as computed."""
        value = self._values.get(name)
        if value is None or name in self._cache.values:
            return self._cache.values.get(name)
        reference = self._references.get(self.run.exported_name(name))
        if reference is None or tuple(reference.tensor.shape) != value.shape:
            return None
        tensor = reference.tensor
        dtype = torch_dtype(value.dtype) or tensor.dtype
        if is_coarser(dtype, tensor.dtype):  # masks use the lowest finite number of the dtype, not -inf
            tensor = torch.where(tensor.isfinite(), tensor.clamp(-largest_of(dtype), largest_of(dtype)), tensor)
        tensor = tensor.to(dtype)
        if self._cache.needs(name):
            self._cache.put(name, tensor)
        return tensor

    def set_node(self, node: Node, computes: Iterable[Node]) -> None:
        """Select the node to judge next; `get_exported` omits the values that it recomputes internally.

        Args:
            node: a node of the run's graph.
            computes: the exported nodes that it computes.
        """
        read = set(map(self.run.exported_name, node.reads))
        self._recomputed = frozenset(name for item in computes for name in item.outputs if name not in read)

    def get_exported(self, name: str) -> torch.Tensor | None:
        """Return the reference of a value by its exported name, in the reference's own dtype; None if not replaced."""
        reference = self._references.get(name) if name in self._names and name not in self._recomputed else None
        return None if reference is None else reference.tensor

    def of(self, node: Node) -> dict[str, torch.Tensor]:
        """Return the inputs of a node by name, without weights."""
        references = {name: self.get(name) for name in node.reads}
        return {**self.run.inputs, **{name: tensor for name, tensor in references.items() if tensor is not None}}

    def consume(self, node: Node) -> None:
        """Release one use of each value that a node reads."""
        for name in self._cache.consume({*node.reads}):
            self._references.release(self.run.exported_name(name))

    def release(self, name: str) -> None:
        """Declare that a value was judged."""
        for dropped in self._cache.release(name):
            self._references.release(self.run.exported_name(dropped))


def unexplained_nodes(
    values: Mapping[str, JudgedValue], graph: Graph, suspects: Collection[str] = ()
) -> frozenset[str]:
    """Return the names of the nodes with a value whose error rounding does not explain, or that is among `suspects`."""
    return frozenset(
        graph.producer[name].name
        for name, value in values.items()
        if name in suspects or (value.diverged if value.float64 is None else not value.float64.sound)
    )


def isolated_verdicts(
    values: Mapping[str, JudgedValue],
    graph: Graph,
    suspects: Collection[str],
    isolate: Callable[[Collection[str] | None], dict[str, RoundingVerdict]],
    *,
    every_node: bool = False,
) -> dict[str, RoundingVerdict]:
    """Return the verdicts on the nodes that have to run in isolation, by the names of their values.

    They are those with an unexplained error. If none of these that computes the first value that differs is wrong, all
    nodes that compute it run, too: rounding explains the errors of the values before it, which may hide the error of a
    node. An error of 1e-6 is within the rounding of numbers around 10, but the exponential of numbers around -1e-3 is
    then off by more than rounding.

    Args:
        values: what is known of the values of a run, by name.
        graph: the graph of the run.
        suspects: see `unexplained_nodes`.
        isolate: returns the verdicts on nodes by their names, or all, in isolation.
        every_node: whether all nodes have to.
    """
    if every_node:
        return isolate(None)
    selected = unexplained_nodes(values, graph, suspects)
    isolated = isolate(selected) if selected else {}
    wrong = {graph.producer[name].name for name, verdict in isolated.items() if is_wrong(verdict)}
    before = first_difference(values, graph) if selected else frozenset()
    return isolated | isolate(before) if before and before.isdisjoint(wrong) else isolated


def first_difference(values: Mapping[str, JudgedValue], graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that compute the first value that differs; empty if there is none."""
    first = [name for name in graph.producer if name in values and values[name].diverged][:1]
    return frozenset(node.name for node in graph.cone(first, graph.constant_values))


def is_wrong(verdict: RoundingVerdict | None) -> bool:
    """Whether a node is wrong or unstable by its verdict."""
    return verdict is not None and verdict.verdict in ("wrong", "unstable")


def _has_usable_reference(value: JudgedValue) -> bool:
    """Whether a reference of the same shape and dtype can replace a value."""
    return (value.judged or value.random) and value.status != "shape or dtype differs" and value.shape is not None


def compare_isolated_nodes(  # noqa: PLR0917  called in one place
    known: Mapping[str, JudgedValue],
    values: Iterable[ObservedValue],
    inputs: IsolatedInputs,
    judge: Judge,
    allowances: Allowances,
    unjudged: Collection[str] = (),
) -> dict[str, RoundingVerdict]:
    """Return the verdicts on what the nodes of a run compute from their reference inputs, by the names of the values.

    Args:
        known: what is known of the values of the whole run, by name.
        values: what the nodes computed in isolation, in the order of execution.
        inputs: the reference inputs of the nodes.
        judge: judges the run whose nodes read them.
        allowances: the magnitudes that rounding is relative to, for values without a float64 reference.
        unjudged: the names of values that no reference can judge, such as random numbers.
    """
    run, facts = inputs.run, judge.facts
    producers = run.graph.producer
    verdicts = dict(_shape_errors(known, run.graph))
    consumed: set[str] = set()

    def measure(pair: Pair, expected: torch.Tensor) -> Difference:
        """Return how far a value is from what is expected, for the rules that judge by tolerance."""
        magnitude = partial(allowances.magnitude, pair.name, pair.node, inputs.of(pair.node), pair.tensor, expected)
        return compare_tensors(pair.tensor, expected, tolerance=pair.tolerance, magnitude=magnitude)

    for name, value in known.items():
        if value.dtype is not None:
            facts.record(producers[name], name, getattr(torch, value.dtype), value.shape)
    for name, tensor, spread in values:
        node = producers.get(name)
        if node is None or name not in known or (inputs.nodes is not None and node.name not in inputs.nodes):
            continue
        inputs.set_node(node, facts.program.computes(node))
        reference = inputs.get(name)
        if name not in unjudged and (inputs.selected is None or node.name in inputs.selected):
            actual, difference = complex_as_real(tensor), known[name].difference
            verdict = judge.verdict(
                name,
                node,
                reference,
                actual,
                spread,
                inputs=inputs.get,
                tolerance=None if difference is None else difference.tolerance,
                measure=measure,
                whole=known[name].float64,
            )
            verdicts |= {} if verdict is None else {name: verdict}
        if node.name not in consumed:  # once for all of its outputs
            consumed.add(node.name)
            inputs.consume(node)
        inputs.release(name)
        facts.release(run.exported_name(name))
    return verdicts


def _shape_errors(values: Mapping[str, JudgedValue], graph: Graph) -> Iterator[tuple[str, RoundingVerdict]]:
    """Yield the verdicts on values of a wrong shape or dtype whose node reads none: references can't replace them."""
    wrong = {name for name, value in values.items() if value.status == "shape or dtype differs"}
    for name in wrong:
        if wrong.isdisjoint(graph.producer[name].reads):
            yield name, RoundingVerdict("wrong", math.inf, math.inf, note=values[name].reason)
