"""Judge each node on its reference inputs: which nodes introduce an error, and which inherit one."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ..float64 import RoundingVerdict, Verdict, confirmed_verdict, identical_verdict, largest_distance
from ..metrics._metrics import Difference
from ..metrics._tolerance import is_coarser, is_quantized, largest_of
from ..references._resolver import ReferenceResolver
from ..results._rows import Row
from ._allowances import Allowances
from ._float64_checker import Float64Checker
from ._run import ObservedValue, Run

_ACCUMULATED = 16.0  # rounding levels, up to which rounding errors may add up in one direction


class IsolatedInputs:
    """The reference inputs of the nodes of one run, each cached until its last use.

    Args:
        run: the run.
        rows: its rows.
        references: the references of its values.
        selected: the names of the nodes to judge; None is all.

    Attributes:
        nodes: the names of the nodes to run: the selected ones, and those that compute values without a reference from
            which they are computed; None is all.
    """

    def __init__(
        self, run: Run, rows: Iterable[Row], references: ReferenceResolver, selected: Collection[str] | None = None
    ) -> None:
        self.run, self.selected, self._references = run, selected, references
        self._rows = {row.value: row for row in rows if row.kind != "output" and _has_usable_reference(row)}
        self.nodes = None if selected is None else self._required_nodes(selected)
        nodes = [node for node in run.graph.nodes if self.nodes is None or node.name in self.nodes]
        uses = Counter(name for node in nodes for name in {*node.reads} if name in self._rows)
        judged = (name for node in nodes for name in node.outputs if name in self._rows)
        self._cache = ValueCache[torch.Tensor](uses, judged)
        self._names = frozenset(map(run.exported_name, self._rows))
        self._recomputed: frozenset[str] = frozenset()

    def _required_nodes(self, selected: Collection[str]) -> frozenset[str]:
        """Return the names of the selected nodes and of those that must run to compute their inputs."""
        graph = self.run.graph
        outputs = [name for node in graph.nodes if node.name in selected for name in node.outputs]
        replaced = {name for name in self._rows if graph.producer[name].reads}  # constants stay constants
        return frozenset(node.name for node in graph.cone(outputs, replaced))

    @property
    def replaced(self) -> frozenset[str]:
        """The names of the values that are replaced by their references."""
        return frozenset(self._rows)

    def get(self, name: str) -> torch.Tensor | None:
        """Return the reference of a value, cast to its dtype in the run; None leaves the value as computed."""
        row = self._rows.get(name)
        if row is None or name in self._cache.values:
            return self._cache.values.get(name)
        reference = self._references.get(self.run.exported_name(name))
        if reference is None or tuple(reference.tensor.shape) != row.shape:
            return None
        tensor = reference.tensor
        dtype = getattr(torch, row.dtype or "", tensor.dtype)
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


def unexplained_nodes(rows: Iterable[Row], suspects: Collection[str] = ()) -> frozenset[str]:
    """Return the names of the nodes with a value whose error rounding does not explain, or that is among `suspects`."""
    return frozenset(
        row.node
        for row in rows
        if row.kind != "output"
        and (row.value in suspects or (row.diverged if row.float64 is None else not row.float64.sound))
    )


def nodes_of_first_difference(rows: Sequence[Row], graph: Graph) -> frozenset[str]:
    """Return the names of the nodes that compute the first value that differs, if none of them is wrong by itself.

    Rounding explains the errors of the values before it, which may hide the error of a node: an error of 1e-6 is within
    the rounding of numbers around 10, but the exponential of numbers around -1e-3 is then off by more than rounding.
    """
    first = next((row for row in rows if row.diverged and row.kind != "output"), None)
    if first is None:
        return frozenset()
    names = frozenset(node.name for node in graph.cone([first.value], graph.constant_values))
    return frozenset() if any(row.introduced and row.node in names for row in rows) else names


def with_accumulated_rounding(rows: Sequence[Row], graph: Graph) -> list[Row]:
    """Return the rows of a stage; values that differ are only suspicious if rounding may have added up to their errors.

    Rounding errors may add up in one direction, which the noise of the float64 run does not show. This explains errors
    of up to `_ACCUMULATED` rounding levels and other integers, if each node that computes the first of these values is
    right by itself, and so is each other node that ran in isolation.
    """
    differing = [row for row in rows if row.diverged]
    first = next((row for row in differing if row.kind != "output"), None)
    explained = all(map(_may_be_accumulated, differing))
    if first is None or not explained:
        return [*rows]
    names = {node.name for node in graph.cone([first.value], graph.constant_values)}
    if not all(_is_right(row) for row in rows if row.node in names or row.isolated is not None):
        return [*rows]
    return [_as_suspicious(row) if row.diverged else row for row in rows]


def _may_be_accumulated(row: Row) -> bool:
    verdict = row.float64
    if verdict is None or verdict.verdict != "wrong":
        return False
    return verdict.ratio < _ACCUMULATED or (row.dtype or "").startswith(("int", "uint", "bool"))


def _is_right(row: Row) -> bool:
    """Whether a node is right by itself; one that can't be judged is judged with the nodes that read its value."""
    if row.isolated is not None:
        return row.isolated.sound
    is_same = row.float64 is not None and row.float64.verdict == "same"
    return row.kind == "output" or not row.judged or is_same


def _as_suspicious(row: Row) -> Row:
    note = "each node is right by itself"
    verdict = None if row.float64 is None else replace(row.float64, verdict="suspicious", note=note)
    return replace(row, status="same", float64=verdict)


def _has_usable_reference(row: Row) -> bool:
    """Whether a reference of the same shape and dtype can replace a value."""
    return (row.judged or row.random) and row.status != "shape or dtype differs" and row.shape is not None


def compare_isolated_nodes(  # noqa: PLR0917  called in one place
    rows: Sequence[Row],
    values: Iterable[ObservedValue],
    inputs: IsolatedInputs,
    checker: Float64Checker,
    allowances: Allowances,
    computes: Callable[[Node], Iterable[Node]],
    unjudged: Collection[str] = (),
) -> list[Row]:
    """Return the rows of a run with a verdict on what each node computes from its reference inputs.

    Args:
        rows: the rows of the run.
        values: what the nodes computed in isolation, in the order of execution.
        inputs: the reference inputs of the nodes.
        checker: decides whether an error exceeds rounding.
        allowances: the magnitudes that rounding is relative to, for values without a float64 reference.
        computes: returns the exported nodes that a node computes.
        unjudged: the names of values that no reference can judge, such as random numbers.
    """
    run = inputs.run
    by_value = {row.value: row for row in rows if row.kind != "output"}
    verdicts = dict(_shape_errors(by_value, run.graph))
    consumed: set[str] = set()
    for name, row in by_value.items():
        if row.dtype is not None:
            checker.record_output(run.graph.producer[name], name, getattr(torch, row.dtype), row.shape)
    for name, tensor, spread in values:
        node = run.graph.producer.get(name)
        if node is None or name not in by_value or (inputs.nodes is not None and node.name not in inputs.nodes):
            continue
        plain = complex_as_real(tensor)
        inputs.set_node(node, computes(node))
        reference = inputs.get(name)
        verdict = None
        if name not in unjudged and (inputs.selected is None or node.name in inputs.selected):
            verdict = _node_verdict(by_value[name], node, reference, plain, spread, inputs, checker, allowances)
        verdicts |= {} if verdict is None else {name: verdict}
        if node.name not in consumed:
            consumed.add(node.name)
            inputs.consume(node)
        inputs.release(name)
        checker.release(run.exported_name(name))
    return [
        row if row.kind == "output" else replace(row, isolated=verdicts.get(row.value, row.isolated)) for row in rows
    ]


def _node_verdict(  # noqa: PLR0917  called in one place
    row: Row,
    node: Node,
    reference: torch.Tensor | None,
    actual: torch.Tensor,
    spread: torch.Tensor | None,
    inputs: IsolatedInputs,
    checker: Float64Checker,
    allowances: Allowances,
) -> RoundingVerdict | None:
    """Return the verdict on a value: by its float64 value, else by the tolerance of its reference, else None."""
    tolerance = None if row.difference is None else row.difference.tolerance
    if not is_quantized(tolerance):  # the error of quantized values is relative to their step, not to rounding
        verdict = checker.verdict(row.value, node, reference, actual, spread, inputs=inputs.get)
        if verdict is not None:
            return confirmed_verdict(verdict, row.float64, sums=checker.sums(node))
    if reference is None or (row.float64 is not None and row.float64.sound):
        return None  # a tolerance does not override float64, which found only rounding in the whole run
    difference = allowances.difference(row.value, node, inputs.of(node), actual, reference, tolerance=tolerance)
    return tolerance_verdict(difference, spread)


def _shape_errors(rows: Mapping[str, Row], graph: Graph) -> Iterator[tuple[str, RoundingVerdict]]:
    """Yield the verdicts on values of a wrong shape or dtype whose node reads none: references can't replace them."""
    wrong = {name for name, row in rows.items() if row.status == "shape or dtype differs"}
    for name in wrong:
        if wrong.isdisjoint(graph.producer[name].reads):
            yield name, RoundingVerdict("wrong", math.inf, math.inf, note=rows[name].reason)


def tolerance_verdict(difference: Difference, spread: torch.Tensor | None) -> RoundingVerdict:
    """Return the verdict by tolerance on a value without a float64 reference."""
    distance = largest_distance(spread)
    if difference.problem or difference.nonfinite:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=difference.problem or "not finite")
    if not difference.absolute:
        return identical_verdict(spread)
    ratio = difference.excess if math.isfinite(difference.excess) else difference.scale
    unstable = distance is not None and 0 < difference.absolute <= 2 * distance
    verdict: Verdict = "rounding" if difference.close else "unstable" if unstable else "wrong"
    note = "judged by tolerance: no float64 reference"
    return RoundingVerdict(verdict, ratio, difference.absolute, spread=distance, note=note)
