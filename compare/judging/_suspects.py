"""Judge nodes by themselves whose errors the whole run does not show."""

from dataclasses import replace

import torch

from filch.export import Node

from ..float64._verdict import BOTH_WRONG, UNRELIABLE, Float64Value, RoundingVerdict, shares_error
from ..metrics._metrics import replace_masks
from ..metrics._tolerance import operand_unit
from ._facts import LaterRules, Rule, RunFacts
from ._run import Pair

_DTYPES = {2: torch.float16, 3: torch.bfloat16}  # by `accuracy_level`
_INT8 = 4  # the `accuracy_level` of 8-bit integers
_LARGEST = 127


class SharedErrors(Rule):
    """A node is wrong by itself if its value agrees with the model's although both are far from float64.

    In the whole run, rounding errors may have grown that far: the value becomes a suspect, if what it is computed from
    is near float64.
    """

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._far_from_float64: set[str] = set()

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; for a node in isolation, `wrong` if it shares its error."""
        if self.facts.is_isolated:
            return self._shared_error(pair, later_rules) or later_rules(pair)
        if not self._far_from_float64.isdisjoint(pair.node.reads):
            self._far_from_float64.add(pair.name)
        elif self._shared_error(pair, later_rules) is not None:
            self._far_from_float64.add(pair.name)
            self.facts.suspects.add(pair.name)
        return later_rules(pair)

    def _shared_error(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict on a value that is as far from float64 as its reference; None for any other."""
        reference, exact = pair.reference, pair.exact
        if reference is None or exact is None or not shares_error(pair.tensor, reference, exact):
            return None
        by_model = later_rules(pair.hypothetical(exact, reference))
        if by_model is not None and not by_model.sound:  # it is not the model's error
            return None
        if exact.value.shape == pair.tensor.shape:  # the lowest number of the dtype masks as well as -inf
            masked = replace(exact, value=replace_masks(exact.value, pair.tensor))
            if not shares_error(pair.tensor, reference, masked):
                return None
        if self.facts.hidden_in(pair.exported_name):  # in fused nodes and folded constants: rounding may decide them
            return None
        verdict = later_rules(pair.hypothetical(exact, None))
        if verdict is None or verdict.verdict != "wrong" or verdict.ratio <= UNRELIABLE:
            return None
        return replace(verdict, note=BOTH_WRONG)


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

    def judge(self, pair: Pair, later_rules: LaterRules) -> RoundingVerdict | None:
        """Return the verdict of the later rules; in isolation, the best by any operand that the product may read."""
        verdict, facts, exact = later_rules(pair), self.facts, pair.exact
        is_allowed = verdict is not None and verdict.verdict in ("rounding", "suspicious")
        if not is_allowed or facts.program.lower_precision or pair.name not in self._affected:
            return verdict
        if not facts.is_isolated or exact is None or not facts.units.operand(pair.node):
            facts.suspects.add(pair.name)
            return verdict
        shift = 0.0 if pair.reference is None else pair.reference.double() - exact.value
        known = [exact, replace(exact, value=exact.value + shift, noisy=exact.noisy + shift), self._rounded(pair)]
        found = [
            later_rules(replace(pair.hypothetical(item, None), is_rounded=False)) for item in known if item is not None
        ]
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
