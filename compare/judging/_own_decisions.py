"""Judge decisions: integers and booleans that are computed from floating-point numbers (see `Decisions`)."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from filch.export import Node

from ..float64._decision_values import differing
from ..float64._margins import Compared, flips_of
from ..float64._noise import unit_of
from ..float64._ties import selecting_node, with_ties
from ..float64._verdict import SUSPICIOUS, WRONG, Flips, RoundingVerdict, Verdict
from ._facts import LaterRules, Rule
from ._run import Pair

_COMPARED = "another decision than the model's about the same numbers, bit for bit: comparing does not round"


def _compares(node: Node) -> bool:
    """Return whether a node decides without computing numbers that it could round."""
    decision = node.operator.decision
    return decision is not None and decision.kind in ("comparison", "jump")


class ExactComparisons(Rule):
    """A kernel that compares numbers which are the model's, bit for bit, decides as the model does.

    Comparing does not round, so that only what was compared can explain another decision. Float64 decides otherwise
    than the model where PyTorch rounds a number to the dtype of the tensor that it is compared with.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; `wrong` in place of a sound one on another decision."""
        verdict, facts = later_rules(pair), self.facts
        is_explained = verdict is not None and verdict.sound and verdict.verdict != "same"
        # In other graphs than compiled ones, a node may read what another one has changed in place.
        if verdict is None or not is_explained or not pair.observed or facts.is_isolated:
            return verdict
        if facts.run.stage != "compiled" or facts.program.lower_precision or not self._only_compares(pair):
            return verdict
        return replace(verdict, verdict="wrong", ratio=math.inf, flips=None, note=_COMPARED)

    def _only_compares(self, pair: Pair) -> bool:
        """Return whether a node of the run compares what is the model's, and does not compute other numbers."""
        facts, reference, nodes = self.facts, pair.reference, [*self.facts.program.computes(pair.node)]
        if reference is None or pair.tensor.dtype != reference.dtype:
            return False
        compared: set[str] = set()  # and converted afterwards, which does not round booleans
        for node in nodes:
            if _compares(node) or (node.operator.movement == "cast" and not compared.isdisjoint(node.inputs)):
                compared.update(node.outputs)
            elif node.operator.movement == "cast" or not node.operator.rearranges:
                return False
        if not compared:
            return False
        within = {name for node in nodes for name in node.outputs}
        # What is converted to be compared, may have digits that the model's value does not have.
        converted = facts.run.compiled.value_aliases
        read = {name for name in pair.node.reads if name in facts.equal and name not in converted}
        # An input that a node of a torch graph writes to has other numbers when it is compared.
        is_written = any(node.op.endswith("_") or node.op == "setitem" for node in facts.program.exported.nodes)
        given = read if is_written else read.union(facts.run.inputs)
        return all(
            name in within or name in given or facts.program.constant(name) is not None
            for node in nodes
            for name in node.reads
        )


class OwnDecisions(Rule):
    """A decision may differ from the model's where rounding decides it.

    Rounding does if it is the right one for what the node has read, and this is off by no more than rounding. What the
    node has read in a run without instrumentation is not known. Different indices may also select equal numbers.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules, or `decision` for one that rounding explains."""
        verdict = later_rules(pair)
        if verdict is None or not pair.is_decision:
            return verdict
        verdict = self._with_ties(verdict, pair)
        if verdict.flips is not None:
            return self._with_margin(verdict, pair)
        if verdict.sound or verdict.verdict == "unstable" or not self._reads_right_numbers(pair):
            return verdict
        count = pair.tensor.numel()
        if pair.reference is not None:
            count = int(differing(pair.tensor, pair.reference, unit_of(pair.tensor.dtype)).sum())
        if not count:  # large numbers, which have no fraction to round
            return verdict
        flips = Flips(count, pair.tensor.numel())
        decision = self._with_margin(replace(verdict, verdict="decision", note="", flips=flips), pair)
        own = self._by_inputs(pair, later_rules) if pair.observed else None
        if own is not None and own.sound:
            return decision
        # What a fused node compares is not known, only what it reads; without `own`, not even that.
        may_round = own is None or len(self.facts.program.computes(pair.node)) > 1
        is_near = decision.verdict == "decision" and decision.flips is not None and decision.flips.margin is not None
        return decision if may_round and is_near else verdict

    def _reads_right_numbers(self, pair: Pair) -> bool:
        """Return whether what a decision was computed from is off by no more than rounding, as far as it is known."""
        return self.facts.wrong.isdisjoint((*pair.node.reads, *self.facts.numbers.names_in_run(pair.exported_name)))

    def _with_margin(self, verdict: RoundingVerdict, pair: Pair) -> RoundingVerdict:
        """Return the verdict on decisions that differ, by the largest of their margins; another order has none."""
        if verdict.flips is not None and verdict.flips.is_order:
            return verdict
        actual, expected, found = pair.tensor, pair.reference, None
        if expected is not None:
            found = self.facts.numbers.margins(pair.exported_name, actual, expected, self.facts.compared)
        if expected is None or found is None:
            return replace(verdict, ratio=1.0)  # stands for a margin that is not known
        flips = flips_of(found, differing(actual, expected, unit_of(actual.dtype)))
        ratio = flips.ratio or 0.0
        judged: Verdict = "decision" if ratio <= SUSPICIOUS else "suspicious" if ratio <= WRONG else "wrong"
        if verdict.note:  # the run's numbers are equal
            judged = "decision"
        return replace(verdict, verdict=judged, ratio=ratio, flips=flips)

    def _by_inputs(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict on a decision by what float64 computes from what the node has read; None if not known."""
        run, recompute = self.facts.run, self.facts.recompute
        if recompute is None or self.facts.is_isolated:  # in isolation, nodes read the reference
            return None
        read = {name: pair.inputs(name) for name in pair.node.reads if name not in run.graph.constants}
        known = {run.exported_name(name): item for name, item in read.items() if item is not None}
        if not known or len(known) < len(read):
            return None
        exact = recompute(known.get, by_graph=True).get(pair.exported_name)
        if exact is None:
            return None
        pair = replace(pair, exact=exact, reference=exact.value, spread=None)
        verdict = later_rules(pair)
        if verdict is None or verdict.sound:
            return verdict
        is_rounded = self._decides_rounded(pair, exact.value, known)
        return replace(verdict, verdict="decision") if is_rounded else self._with_ties(verdict, pair)

    def _decides_rounded(self, pair: Pair, exact: torch.Tensor, known: Mapping[str, torch.Tensor]) -> bool:
        """Return whether a decision is right for numbers that are rounded to those that its node is known to have read.

        A kernel may compute in float32 what a value has in half precision, and what reads it gets the former.
        """

        def rounded(name: str, _: torch.Tensor | None) -> Compared | None:
            """Return what the node has read, with its own rounding, if that is coarser than that of float32."""
            read = known.get(name)
            return None if read is None or unit_of(read.dtype) <= unit_of(torch.float32) else Compared.of(read)

        expected = exact.to(pair.tensor.dtype)
        found = self.facts.numbers.margins(pair.exported_name, pair.tensor, expected, rounded)
        differs = differing(pair.tensor, expected, unit_of(expected.dtype))
        ratio = None if found is None or not bool(differs.any()) else flips_of(found, differs).ratio
        return ratio is not None and ratio <= 1.0

    def _with_ties(self, verdict: RoundingVerdict, pair: Pair) -> RoundingVerdict:
        """Return the verdict on indices, `decision` if they select equal numbers (see `with_ties`)."""
        facts, name = self.facts, pair.exported_name
        producers, read = facts.run.graph.producer, {name: name for name in pair.node.reads}
        selecting = selecting_node(pair.name, pair.node, producers)
        if selecting is None:  # a backend's own operator, for example
            producers, read = facts.program.exported.producer, {facts.run.exported_name(name): name for name in read}
            selecting = selecting_node(name, producers[name], producers) if name in producers else None
        source = "" if selecting is None else selecting.inputs[0]
        node_input = pair.inputs(read.get(source, source))
        any_order = name in facts.any_order or name in facts.open_axes
        return with_ties(verdict, selecting, node_input, pair.tensor, pair.reference, any_order=any_order)
