"""Judge the products that may round an operand by definition."""

from dataclasses import replace

import torch

from filch.export import Node

from ..float64 import Float64Value, RoundingVerdict
from ..metrics._tolerance import operand_unit
from ._facts import RunFacts
from ._pair import Pair
from ._rule import Rest, Rule

_DTYPES = {2: torch.float16, 3: torch.bfloat16}  # by `accuracy_level`
_INT8 = 4
_LARGEST = 127


class RoundedOperands(Rule):
    """A product may round its operand, which could hide a fault in what is computed from it.

    In the whole run, such a value becomes a suspect. In isolation, the product has the numbers of the reference,
    computes what float64 does, or does it with an operand rounded as defined.
    """

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        graph = facts.run.graph
        rounding = (node for node in graph.nodes if facts.units.operand(node))
        self._affected = graph.computed_from(name for node in rounding for name in node.outputs)

    def judge(self, pair: Pair, rest: Rest) -> RoundingVerdict | None:
        """See `Rule.judge`."""
        verdict, facts, exact = rest(pair), self.facts, pair.exact
        is_allowed = verdict is not None and verdict.verdict in ("rounding", "suspicious")
        if not is_allowed or facts.program.lower_precision or pair.name not in self._affected:
            return verdict
        if not facts.is_isolated or exact is None or not facts.units.operand(pair.node):
            facts.suspects.add(pair.name)
            return verdict
        shift = 0.0 if pair.reference is None else pair.reference.double() - exact.value
        known = [exact, replace(exact, value=exact.value + shift, noisy=exact.noisy + shift), self._rounded(pair)]
        found = [rest(replace(pair.supposing(item, None), is_rounded=False)) for item in known if item is not None]
        return min((item for item in found if item is not None), key=lambda item: item.ratio, default=verdict)

    def _rounded(self, pair: Pair) -> Float64Value | None:
        """Return what float64 computes if a node rounds its operands as defined; None if these are not known."""
        given, recompute = self.facts.read_by(pair), self.facts.recompute
        for item in filter(operand_unit, self.facts.program.computes(pair.node)):
            operand = given.get(item.inputs[0])
            if operand is None:
                return None
            given[item.inputs[0]] = rounded_operand(item, operand)
        return None if recompute is None else recompute(given.get).get(pair.exported_name)


def rounded_operand(node: Node, operand: torch.Tensor) -> torch.Tensor:
    """Return an operand as a product reads it whose `accuracy_level` lets it round.

    Eight bits are those of ONNX Runtime: steps of a 127th of the largest number in each block of a row.

    Args:
        node: the product, a `MatMulNBits`.
        operand: floating-point, of any shape.
    """
    level = int(node.attributes["accuracy_level"])
    if level != _INT8:
        return operand.to(_DTYPES[level]).to(operand.dtype)
    count, block = operand.shape[-1], int(node.attributes["block_size"])
    blocks = torch.nn.functional.pad(operand.float(), (0, -count % block)).reshape(*operand.shape[:-1], -1, block)
    step = blocks.abs().amax(-1, keepdim=True) / _LARGEST
    whole = (blocks * torch.where(step > 0, 1 / step, 0.0)).round()
    rounded: torch.Tensor = (whole.double() * step).flatten(-2)[..., :count]
    return rounded
