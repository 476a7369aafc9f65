"""What each node makes of what it should be given: which of them introduce an error, and which inherit it."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from filch.export import Graph, Node

from ..common._complex import complex_as_real
from ..float64 import RoundingVerdict, Verdict, largest_distance, same
from ..float64._ties import with_ties
from ..metrics._metrics import Difference
from ..metrics._tolerance import ANY_ERROR, is_coarser, largest_of
from ..results._rows import Row
from ._allowances import Allowances
from ._float64_checker import Float64Checker
from ._run import Run
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
        self._uses = Counter(name for node in run.graph.nodes for name in {*node.reads} if name in self._rows)
        self._uses.update(self._rows.keys())  # the last to ask is who judges it
        self._held: dict[str, torch.Tensor] = {}
        self._names = frozenset(map(run.exported_name, self._rows))
        self._inside: frozenset[str] = frozenset()

    @property
    def cut(self) -> frozenset[str]:
        """The names of the values that are given."""
        return frozenset(self._rows)

    def given(self, name: str) -> torch.Tensor | None:
        """What a value of the graph should be, of the type that it has there; None lets it be."""
        row = self._rows.get(name)
        if row is None or name in self._held:
            return self._held.get(name)
        reference = self._sources.get(self._run.exported_name(name))
        if reference is None or tuple(reference.tensor.shape) != row.shape:
            return None
        dtype = getattr(torch, row.dtype or "", reference.tensor.dtype)
        tensor = reference.tensor
        if is_coarser(dtype, tensor.dtype):  # a mask is the lowest number of the type, which is no infinity
            tensor = torch.where(tensor.isfinite(), tensor.clamp(-largest_of(dtype), largest_of(dtype)), tensor)
        self._held[name] = tensor.to(dtype)
        return self._held[name]

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

    def release(self, names: Iterable[str]) -> None:
        """Say that nobody will ask for these once more than they have."""
        for name in names:
            self._uses[name] -= 1
            if self._uses[name] <= 0 and self._held.pop(name, None) is not None:
                self._sources.release(self._run.exported_name(name))


def _is_cut(row: Row) -> bool:
    """Whether a value is given to those that read it: it has a reference of its own shape and type."""
    return (row.judged or row.random) and row.status != "shape or dtype differs" and row.shape is not None


class IsolatedNodes:
    """Judges what each node makes of what it should be given.

    Args:
        run: the run that was judged.
        rows: its rows.
        fed: what the nodes are given.
        rounding: what knows whether a value is off by more than rounding.
        allowances: what rounding explains where float64 does not know a value.
        measure: how far it is from its reference there: (row, expected, actual, magnitude that was rounded).
        computes: gives the exported nodes that a node computes.
        unjudged: the names of values that no reference can judge: random numbers, say.
    """

    def __init__(  # noqa: PLR0917  made in one place
        self,
        run: Run,
        rows: Sequence[Row],
        fed: IsolatedInputs,
        rounding: Float64Checker,
        allowances: Allowances,
        measure: Callable[[Row, torch.Tensor, torch.Tensor, float], Difference],
        computes: Callable[[Node], Iterable[Node]],
        unjudged: Collection[str] = (),
    ) -> None:
        self._run, self._rows, self._fed, self._rounding = run, rows, fed, rounding
        self._allowances, self._measure, self._computes = allowances, measure, computes
        self._unjudged = unjudged

    def rows(self, isolated: Iterable[tuple[str, torch.Tensor]]) -> list[Row]:
        """The rows, with what was found.

        Args:
            isolated: what the nodes made, each value after those that it was made of.
        """
        by_value = {row.value: row for row in self._rows if row.kind != "output"}
        found = dict(_misshapen(by_value, self._run.graph))
        passed: set[str] = set()
        for name, tensor in isolated:
            node = self._run.graph.producer.get(name)
            if node is None or name not in by_value:
                continue
            plain = complex_as_real(tensor)
            self._fed.read_by(node, self._computes(node))
            self._rounding.record_output_dtype(node, name, plain.dtype)
            given = self._fed.given(name)
            judgement = None if name in self._unjudged else self._judged(by_value[name], given, plain)
            if judgement is not None:
                found[name] = judgement
            if node.name not in passed:
                passed.add(node.name)
                self._fed.release({*node.reads})
            self._fed.release([name])
            self._rounding.release(self._run.exported_name(name))
        return [
            replace(row, isolated=found[row.value]) if row.kind != "output" and row.value in found else row
            for row in self._rows
        ]

    def _judged(self, row: Row, reference: torch.Tensor | None, tensor: torch.Tensor) -> RoundingVerdict | None:
        """What there is to say of a value; where no reference does, the specification says what its node makes."""
        node = self._run.graph.producer[row.value]
        spread = self._run.spreads.get(row.value)
        if (
            row.difference is None or row.difference.tolerance.harmonic != ANY_ERROR
        ):  # integers are coarser than float64
            known = self._run.exported_name(row.value)
            judgement = self._rounding.judged(row.value, known, node, reference, tensor, spread)
            if judgement is not None:
                numbers = self._fed.given(node.inputs[0]) if node.inputs else None
                return with_ties(judgement, node, numbers, tensor, reference)
        return None if reference is None else by_limits(self._measured(row, node, reference, tensor), spread)

    def _measured(self, row: Row, node: Node, reference: torch.Tensor, tensor: torch.Tensor) -> Difference:
        difference = self._measure(row, reference, tensor, 0.0)
        if difference.close or difference.problem:
            return difference
        magnitude = self._allowances.magnitude(row.value, node, self._fed.read(node), reference, tensor)
        return self._measure(row, reference, tensor, magnitude)


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
