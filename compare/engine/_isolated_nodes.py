"""What each node makes of what it should be given: which of them introduce an error, and which inherit it."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..common._complex import complex_as_real
from ..common._value_cache import ValueCache
from ..float64 import RoundingVerdict, Verdict, largest_distance, same
from ..float64._ties import with_ties
from ..metrics._metrics import Difference, compare_tensors
from ..metrics._tolerance import ANY_ERROR, is_coarser, largest_of
from ..results._rows import Row
from ._allowances import Allowances
from ._float64_checker import Float64Checker
from ._run import ObservedValue, Run
from ._value_comparator import ReferenceProvider


class IsolatedInputs:
    """What the nodes of one run are given: what the values that they read should be, for as long as one reads them.

    Args:
        run: the run that was judged.
        rows: its rows.
        sources: what the values should be.
    """

    def __init__(self, run: Run, rows: Iterable[Row], sources: ReferenceProvider) -> None:
        self._run, self._sources = run, sources
        self._rows = {row.value: row for row in rows if row.kind != "output" and _is_cut(row)}
        uses = Counter(name for node in run.graph.nodes for name in {*node.reads} if name in self._rows)
        self._cache = ValueCache[torch.Tensor](uses, self._rows)
        self._names = frozenset(map(run.exported_name, self._rows))
        self._inside: frozenset[str] = frozenset()

    @property
    def cut(self) -> frozenset[str]:
        """The names of the values that are given."""
        return frozenset(self._rows)

    def given(self, name: str) -> torch.Tensor | None:
        """What a value of the graph should be, of the type that it has there; None lets it be."""
        row = self._rows.get(name)
        if row is None or name in self._cache.values:
            return self._cache.values.get(name)
        reference = self._sources.get(self._run.exported_name(name))
        if reference is None or tuple(reference.tensor.shape) != row.shape:
            return None
        dtype = getattr(torch, row.dtype or "", reference.tensor.dtype)
        tensor = reference.tensor
        if is_coarser(dtype, tensor.dtype):  # a mask is the lowest number of the type, which is no infinity
            tensor = torch.where(tensor.isfinite(), tensor.clamp(-largest_of(dtype), largest_of(dtype)), tensor)
        self._cache.put(name, tensor.to(dtype))
        return self._cache.values[name]

    def read_by(self, node: Node, computes: Iterable[Node]) -> None:
        """Say which node is judged next: what it computes again by itself, it is not given.

        Args:
            node: of the graph that ran.
            computes: the exported nodes that it computes.
        """
        read = set(map(self._run.exported_name, node.reads))
        self._inside = frozenset(name for item in computes for name in item.outputs if name not in read)

    def known(self, name: str) -> torch.Tensor | None:
        """Likewise, by its name in the exported graph, in its own type."""
        held = self._sources.get(name) if name in self._names and name not in self._inside else None
        return None if held is None else held.tensor

    def read(self, node: Node) -> dict[str, torch.Tensor]:
        """What a node is given, by name, weights aside."""
        found = {name: self.given(name) for name in node.reads}
        return {**self._run.inputs, **{name: tensor for name, tensor in found.items() if tensor is not None}}

    def consume(self, node: Node) -> None:
        """Release one use of each value that a node reads."""
        for name in self._cache.consume({*node.reads}):
            self._sources.release(self._run.exported_name(name))

    def release(self, name: str) -> None:
        """Take note that a value was judged."""
        for gone in self._cache.release(name):
            self._sources.release(self._run.exported_name(gone))


def _is_cut(row: Row) -> bool:
    """Whether a value is given to those that read it: it has a reference of its own shape and type."""
    return (row.judged or row.random) and row.status != "shape or dtype differs" and row.shape is not None


def compare_isolated_nodes(  # noqa: PLR0917  called in one place
    run: Run,
    rows: Sequence[Row],
    values: Iterable[ObservedValue],
    inputs: IsolatedInputs,
    checker: Float64Checker,
    allowances: Allowances,
    computes: Callable[[Node], Iterable[Node]],
    unjudged: Collection[str] = (),
) -> list[Row]:
    """Return the rows of a run with the verdict on each node by itself: what it computes from its reference inputs.

    Args:
        run: the run that was judged.
        rows: its rows.
        values: what the nodes computed in isolation, each value after those that it was computed from.
        inputs: the reference inputs that the nodes were given.
        checker: says whether a value is off by more than rounding.
        allowances: what rounding explains where float64 does not know a value.
        computes: gives the exported nodes that a node computes.
        unjudged: the names of values that no reference can judge, such as random numbers.
    """
    by_value = {row.value: row for row in rows if row.kind != "output"}
    found = dict(_misshapen(by_value, run.graph))
    passed: set[str] = set()
    for name, tensor, spread in values:
        node = run.graph.producer.get(name)
        if node is None or name not in by_value:
            continue
        plain = complex_as_real(tensor)
        inputs.read_by(node, computes(node))
        checker.record_output_dtype(node, name, plain.dtype)
        reference = inputs.given(name)
        if name not in unjudged:
            verdict = _verdict(run, by_value[name], reference, plain, spread, inputs, checker, allowances)
            found |= {} if verdict is None else {name: verdict}
        if node.name not in passed:
            passed.add(node.name)
            inputs.consume(node)
        inputs.release(name)
        checker.release(run.exported_name(name))
    return [
        replace(row, isolated=found[row.value]) if row.kind != "output" and row.value in found else row for row in rows
    ]


def _verdict(  # noqa: PLR0917  called in one place
    run: Run,
    row: Row,
    reference: torch.Tensor | None,
    tensor: torch.Tensor,
    spread: torch.Tensor | None,
    inputs: IsolatedInputs,
    checker: Float64Checker,
    allowances: Allowances,
) -> RoundingVerdict | None:
    """The verdict on a value; without a reference, the specification says what its node computes."""
    node = run.graph.producer[row.value]
    tolerance = None if row.difference is None else row.difference.tolerance
    quantized = tolerance is not None and tolerance.harmonic == ANY_ERROR  # integers are coarser than float64
    if not quantized:
        verdict = checker.judged(row.value, run.exported_name(row.value), node, reference, tensor, spread)
        if verdict is not None:
            numbers = inputs.given(node.inputs[0]) if node.inputs else None
            return with_ties(verdict, node, numbers, tensor, reference)
    if reference is None:
        return None
    difference = compare_tensors(reference, tensor, tolerance=tolerance)
    if not difference.close and not difference.problem:
        magnitude = allowances.magnitude(row.value, node, inputs.read(node), reference, tensor)
        difference = compare_tensors(reference, tensor, tolerance=tolerance, magnitude=magnitude)
    return by_limits(difference, spread)


def _misshapen(rows: Mapping[str, Row], graph: Graph) -> Iterator[tuple[str, RoundingVerdict]]:
    """The values of a wrong shape or type that are made of none: they are given to nobody."""
    wrong = {name for name, row in rows.items() if row.status == "shape or dtype differs"}
    for name in wrong:
        if wrong.isdisjoint(graph.producer[name].reads):
            yield name, RoundingVerdict("wrong", math.inf, math.inf, note=rows[name].reason)


def by_limits(difference: Difference, spread: torch.Tensor | None) -> RoundingVerdict:
    """What there is to say where float64 does not know a value: whether the tolerance holds."""
    distance = largest_distance(spread)
    if difference.problem or difference.nonfinite:
        return RoundingVerdict("wrong", math.inf, math.inf, spread=distance, note=difference.problem or "not finite")
    if not difference.absolute:
        return same(spread)
    ratio = difference.excess if math.isfinite(difference.excess) else difference.scale
    unstable = distance is not None and 0 < difference.absolute <= 2 * distance
    verdict: Verdict = "rounding" if difference.close else "unstable" if unstable else "wrong"
    return RoundingVerdict(verdict, ratio, difference.absolute, spread=distance, note=_BY_TOLERANCE)


_BY_TOLERANCE = "by the tolerance: float64 does not know it"
