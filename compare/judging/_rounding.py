"""Judge values by their numbers: equal to the model's, or as near to float64 as rounding explains."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from ..float64._noise import unit_of
from ..float64._reductions import reduction_length, running_length
from ..float64._verdict import RoundingVerdict, identical_verdict, largest_distance, rounding_verdict
from ..metrics._metrics import are_equal, replace_masks
from ._pair import Pair
from ._rule import LaterRules, Rule

# Units of float32 that each addition of the same number adds to the rounding level. To the error, it adds up to 1/24
# of a unit in ONNX Runtime's kernels, and 1/6 in a plain loop, which is less than what is wrong.
_SYSTEMATIC = 1 / 16
_SAMPLE, _REPEATED = 2**12, 8  # elements that are looked at, and how often each number is among them on average


class Same(Rule):
    """A value that is bitwise equal to the model's is right, whatever float64 computes."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return `same` for equal bits; else the verdict of the later rules."""
        tensor, expected = pair.tensor, None if largest_distance(pair.spread) else pair.expected
        if expected is not None and tensor.dtype == expected.dtype and are_equal(tensor, expected):
            return identical_verdict(pair.spread)
        return later_rules(pair)


class Rounding(Rule):
    """A value is right if its error relative to float64 is no more than rounding explains."""

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict by float64; that of the later rules if there is no such value of this shape and kind."""
        facts, tensor, reference, exact = self.facts, pair.tensor, pair.expected, pair.exact
        if exact is None or reference is None or exact.value.is_floating_point() != tensor.is_floating_point():
            return later_rules(pair)
        if not tensor.shape == reference.shape == exact.value.shape:
            return later_rules(pair)
        if facts.program.lower_precision:
            tensor = replace_masks(tensor, reference)
        units = facts.units.of(pair.name)
        # The noise in float64 has the units of the model's dtypes on the way to the value.
        exact = replace(exact, unit=units.model or exact.unit)
        unit = (units.run if pair.is_rounded else units.model) or exact.unit
        nodes = facts.program.computes(pair.node)
        length, sequential = (facts.longest_sum(nodes, count) for count in (reduction_length, running_length))
        if unit == facts.units.operand(pair.node):  # the sums themselves are finer
            length = sequential = 1
        judge = partial(
            rounding_verdict,
            tensor,
            reference,
            exact,
            unit=unit,
            reference_unit=units.reference,
            length=length,
            spread=pair.spread,
            is_step=pair.is_decision and facts.numbers.measures(pair.exported_name),
        )
        verdict = judge(sequential=sequential)
        is_sound = verdict is not None and verdict.sound
        if is_sound or unit > unit_of(torch.float32) or not self._sums_repeated_numbers(pair):
            return verdict
        return judge(sequential=max(sequential, int((length * _SYSTEMATIC) ** 2)))

    def _sums_repeated_numbers(self, pair: Pair) -> bool:
        """Return whether a node sums few different numbers, whose rounding errors have one sign and add up."""
        facts = self.facts
        given, program = facts.read_by(pair), facts.program
        sums = [
            item for item in program.computes(pair.node) if reduction_length(item, program.exported, program.shapes) > 1
        ]
        known = [self._is_repetitive(name, given) for item in sums for name in item.inputs[:2] if name]
        return any(known) and all(item is not False for item in known)  # None is not known

    def _is_repetitive(self, name: str, given: Mapping[str, torch.Tensor | None]) -> bool | None:
        """Return whether a value has few different numbers; None if it is not known, or has no floating-point ones."""
        exact, numbers = self.facts.float64.get(name), given.get(name)
        if numbers is None:
            numbers = self.facts.program.constant(name) if exact is None else exact.value
        if numbers is None or not numbers.is_floating_point():
            return None
        # An odd step does not divide the length of most rows, whose columns may differ.
        sample = numbers.reshape(-1)[:: numbers.numel() // _SAMPLE | 1]
        return len(torch.unique(sample)) * _REPEATED <= max(len(sample), _REPEATED)


class CompiledValues(Rule):
    """A value that only the compiled graph has is judged by the float64 values of that graph.

    They take two more runs of the model, so they are for values that exceed the tolerance.
    """

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; if they have none, by the float64 values of the compiled graph."""
        verdict, facts = later_rules(pair), self.facts
        is_known = pair.name != pair.exported_name or pair.name in facts.program.exported.values
        if verdict is not None or not pair.differs or is_known or facts.compiled is None:
            return verdict
        float64 = facts.compiled()
        verdict = later_rules(pair.hypothetical(float64.get(pair.name), pair.reference))
        if float64.changed_decisions and not (verdict is not None and verdict.sound):
            verdict = later_rules(pair.hypothetical(float64.get_with_changed_decisions(pair.name), pair.reference))
        return verdict
