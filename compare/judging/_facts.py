"""`RunFacts`: what is known of a run while its values are judged, and what a `Rule` is, which judges by it."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

import torch

from filch.export import Graph, Node

from ..common._dtypes import declared_dtype
from ..float64._decisions import Decisions
from ..float64._margins import Compared
from ..float64._reductions import TF32_UNIT, ObservedShapes, reduction_length, running_length
from ..float64._ties import unordered_axes, unordered_indices
from ..float64._values import Float64Values
from ..float64._verdict import RoundingVerdict, rounding_level
from ._compared_numbers import ComparedNumbers
from ._run import JudgedProgram, Pair, Run
from ._run_decisions import RunDecisions
from ._units import CoarsestUnits


class RunFacts:
    """What is known of a run while its values are judged, in the order of execution.

    Args:
        run: the run.
        program: the program.
        float64: the values in float64; those that will not be judged again can be released.
        replaced: the names of the values whose consumers read the reference instead: each node runs in isolation.
        recompute: returns the float64 outputs of each node, computed from the inputs of the node that a function
            returns by their exported names; with `by_graph` and `ties`, see `RunOptions`. None if it can't be done.
        compiled: returns float64 values of the values that only the compiled graph has; called when they are needed.
        known_decisions: see `RunDecisions`.

    Attributes:
        is_isolated: whether each node runs on its reference inputs.
        units: the units on the way to each value.
        noise: the decisions that noise changes in the float64 values.
        decisions: the decisions of the run.
        numbers: the numbers that decisions compare.
        any_order: the indices whose order is left open.
        open_axes: the axis along which the order of numbers, or of their indices, is left open.
        wrong: the values of the run that are wrong, or vary from run to run.
        equal: those that are the model's, bit for bit.
        suspects: the values of the whole run that agree with the model's although both are far from float64, and that
            are computed from values which are not: in isolation, their nodes tell a wrong kernel from rounding errors
            that have grown.
    """

    def __init__(
        self,
        run: Run,
        program: JudgedProgram,
        float64: Float64Values,
        *,
        replaced: Collection[str] = frozenset(),
        recompute: Callable[..., Float64Values] | None = None,
        compiled: Callable[[], Float64Values] | None = None,
        known_decisions: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.run, self.program, self.float64 = run, program, float64
        self.is_isolated, self.recompute, self.compiled = bool(replaced), recompute, compiled
        self.any_order = unordered_indices(program.original or program.exported)
        self.open_axes = unordered_axes(program.original or program.exported)
        self.wrong: set[str] = set()
        self.equal: set[str] = set()
        self.suspects: set[str] = set()
        program.shapes.update((name, tuple(tensor.shape)) for name, tensor in run.inputs.items())
        self.units = CoarsestUnits(run, program, float64, replaced)
        self.noise = Decisions(float64)
        self.decisions = RunDecisions(float64, self.units.floats, known_decisions)
        self._run_names = {run.exported_name(name): name for name in run.graph.producer}  # by exported names
        self.numbers = ComparedNumbers(program.exported, self._run_names, program.constant)
        self._recorded: set[str] = set()
        # By the name of each decision within a node: how many values computed from it are not released.
        self._hidden_uses = Counter(chain.from_iterable(map(self.hidden_in, self._run_names)))

    def record(self, node: Node, name: str, dtype: torch.dtype, shape: Sequence[int] | None) -> None:
        """Record the dtype and shape of a node's output; call it for each value in the order of execution."""
        # A fused node may return what it computes another of its values from.
        within = {self._run_names.get(output, "") for item in self.program.computes(node) for output in item.outputs}
        reads = {*self._known_reads(node), *(within & self._recorded)}
        self._recorded.add(name)
        if shape is not None:
            self.program.shapes[self.run.exported_name(name)] = tuple(shape)
        self.decisions.follow(name, reads, dtype)
        self.units.add(node, name, dtype)

    def _known_reads(self, node: Node) -> Iterator[str]:
        """Yield what a node reads; what has no dtype, such as a tuple, stands for what it was computed from."""
        pending, visited = [*node.reads], set[str]()
        while pending:
            name = pending.pop()
            producer = None if name in self._recorded else self.run.graph.producer.get(name)
            if name not in visited and producer is None:
                yield name
            elif name not in visited and producer is not None:
                pending += producer.reads
            visited.add(name)

    def release(self, name: str) -> None:
        """Declare that a value will not be judged again.

        Args:
            name: its name in the exported graph.
        """
        hidden = self.hidden_in(name) if name in self._run_names else ()
        self._hidden_uses.subtract(hidden)
        names = (*(item for item in hidden if not self._hidden_uses[item]), name)
        for unused in chain.from_iterable(map(self.numbers.release, names)):
            self.float64.release(unused)
            self.decisions.release(unused)

    def uses_tf32(self, name: str) -> bool:
        """Return whether the run or the model may have rounded factors to TF32 on the way to a recorded value."""
        units = self.units.of(name)
        return max(units.run, units.reference) >= TF32_UNIT > units.model  # no dtype of the model is as coarse

    def hidden_in(self, name: str) -> tuple[str, ...]:
        """Return the decisions that a value of the exported graph is computed from within a node of the run."""
        return self.numbers.hidden_in(self.program.exported.cone([name], self._run_names))

    def read_by(self, pair: Pair) -> dict[str, torch.Tensor | None]:
        """Return what a node has read, by its names in the exported graph; None for weights."""
        names = {self.run.exported_name(name): name for name in pair.node.reads}
        return {name: self.run.inputs.get(own, pair.inputs(own)) for name, own in names.items()}

    def compared(self, name: str, reference: torch.Tensor | None) -> Compared | None:
        """Return a value of the exported graph in float64 and its rounding level; None if unknown, or no float."""
        source, run_name, exported = self.float64, self._run_names.get(name), self.program.exported
        if self.decisions.values is not None and run_name is not None and self.decisions.affect(run_name):
            source = self.decisions.values
        exact, node = source.get(name), exported.producer.get(name)
        if exact is None or node is None:  # an input of the graph, or not known
            known = self.run.inputs.get(name)
            if known is None or not known.is_floating_point():
                return None
            return Compared.of(known)
        if not exact.value.is_floating_point():
            return None
        if reference is None or reference.shape != exact.value.shape:
            reference = exact.value.to(declared_dtype(exported, name) or torch.float32)
        unit = exact.unit
        if run_name is not None:
            units = self.units.of(run_name)
            unit, exact = units.run or unit, replace(exact, unit=units.model or unit)
        level = rounding_level(
            reference,
            exact,
            unit=unit,
            length=self.longest_sum([node], reduction_length),
            sequential=self.longest_sum([node], running_length),
        )
        return Compared(exact.value, level.scale * level.largest)

    def sums(self, node: Node) -> bool:
        """Return whether a node sums numbers."""
        nodes = self.program.computes(node)
        return max(self.longest_sum(nodes, count) for count in (reduction_length, running_length)) > 1

    def longest_sum(self, nodes: Iterable[Node], count: Callable[[Node, Graph, ObservedShapes], int]) -> int:
        """Return the length of the longest sum of some exported nodes, and of others within the same model operation.

        `count` returns the length of the sum of a node.
        """
        exported, pending, found = self.program.exported, [*nodes], dict[str, int]()
        while pending:
            node = pending.pop()
            if node.name not in found:
                found[node.name] = count(node, exported, self.program.shapes)
                inner = (exported.producer.get(name) for name in node.reads if self.float64.is_inner(name))
                pending += [item for item in inner if item is not None]
        return max(found.values(), default=1)


LaterRules = Callable[[Pair], RoundingVerdict | None]  # asks the rules after one, which see the pair that it is given


class Rule(ABC):
    """One rule by which values are judged.

    Args:
        facts: what is known of the run.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts

    @abstractmethod
    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict on a value; None if it can't be judged.

        Args:
            pair: the value and what it should be.
            later_rules: returns the verdict of the rules after this one, on the same pair or another.
        """
