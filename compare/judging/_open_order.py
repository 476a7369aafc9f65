"""Judge numbers and indices whose order the model leaves open, as `topk(..., sorted=False)` does."""

import math
from dataclasses import replace

import torch

from ..float64 import RoundingVerdict
from ._facts import RunFacts
from ._pair import Pair
from ._rule import Rest, Rule


class SelectedIndices(Rule):
    """Indices are wrong if they are not those of the numbers that their node selects in any order."""

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._selected: dict[str, torch.Tensor] = {}

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        axis, node = self.facts.open_axes.get(pair.exported_name), pair.node
        if axis is None or pair.name == node.outputs[0]:
            self._selected |= {} if axis is None else {pair.name: pair.tensor}
            return rest(pair)
        numbers, source = self._selected.pop(node.outputs[0], None), pair.inputs(node.inputs[0])
        source = self.facts.run.inputs.get(node.inputs[0]) if source is None else source
        if numbers is None or source is None or torch.equal(source.gather(axis, pair.tensor), numbers):
            return rest(pair)
        return RoundingVerdict("wrong", math.inf, math.inf, note="they are not the indices of the selected numbers")


class AnyOrder(Rule):
    """Numbers in any order are compared in the same one."""

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        axis, exact, expected = self.facts.open_axes.get(pair.exported_name), pair.exact, pair.expected
        if axis is None or exact is None or expected is None or (pair.is_decision and pair.reference is not None):
            return rest(pair)
        if not pair.tensor.shape == expected.shape == exact.value.shape:
            return rest(pair)
        tensor, reference, value, noisy = (
            item.sort(axis).values for item in (pair.tensor, expected, exact.value, exact.noisy)
        )
        exact = replace(exact, value=value, noisy=noisy)
        return rest(replace(pair, tensor=tensor, reference=reference, exact=exact))
