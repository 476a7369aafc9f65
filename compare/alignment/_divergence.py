"""Find where one execution does something else than the other one.

A value of B that is no value of A need not be wrong: another implementation may compute the same in other steps. It
matters only if an output that is wrong depends on it other than through values that are A's. Of those, the ones that
are computed from A's values alone are where B leaves A.

What is behind the first of them is wrong because of it. To judge it by itself, B runs again, and each operation that
reads a weight of A gets A's numbers as its operand; later differences then show wherever they are.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from filch.export import Node

from ..layouts._closeness import RELATIVE
from ..layouts._numbers import Numbers
from ..layouts._solve import have_same_rows, solve
from ._correspondence import Anchor, Correspondence
from ._execution import moved_value
from ._first_wrong import first_wrong, is_right
from ._notes import difference_of, misplacing_node
from ._operands import Operands, arranged
from ._operators import family
from ._values import match_values

_MOST = 16  # suspects to find
_SUMS = frozenset({"add", "sub"})


@dataclass(frozen=True)
class Suspect:
    """An operation of B that computes something else than A, from A's numbers.

    Attributes:
        node: the operation.
        place: the operation to show: what moves the operand of `node`, if that is in a wrong order.
        reference: the operation of A that it corresponds to; None if that is not known.
        note: what is wrong with it, as far as that is known.
    """

    node: Node
    place: Node
    reference: Node | None = None
    note: str = ""


class Divergence:
    """Finds the operations of B that leave A.

    Args:
        correspondence: the values and anchors of a run of each.
    """

    def __init__(self, correspondence: Correspondence) -> None:
        self._pairs = correspondence
        self._own, self._other = correspondence.reference.execution, correspondence.other.execution
        self._found = set(correspondence.found)
        self._values: dict[str, torch.Tensor] = dict(self._other.values)
        self._forced: dict[str, torch.Tensor] = {}
        self._guessed: dict[str, torch.Tensor] = {}  # forced in an order that no other place confirms
        self._owners = dict(correspondence.owners)
        self._operands = Operands(correspondence)
        self._replayed: dict[str, torch.Tensor] = {}  # the operands of anchors in the last run with other numbers

    def wrong_outputs(self) -> list[str]:
        """Return the outputs of B that are not values of A."""
        return [name for name in self._outputs if name not in self._pairs.found]

    @cached_property
    def _outputs(self) -> list[str]:
        """The outputs of B that can be recognized by their numbers."""
        outputs = dict.fromkeys(self._other.roots[name] for name in self._other.graph.outputs)
        return [name for name in outputs if name in self._pairs.other.recognizable]

    def suspects(self) -> list[Suspect]:
        """Return the operations at which B leaves A, in the order of B; empty if all outputs of B are A's."""
        wrong = self.wrong_outputs()
        if not wrong:
            return []
        found = {node.name: self._suspect(node) for node in self._first(wrong)[:1]}
        if self._other.run_again is not None:
            self._force_operands()
            self._force_results(found.values())
            while (suspect := self._next(self._replay(), found)) is not None and len(found) < _MOST:
                found[suspect.node.name] = suspect
                self._force_results([suspect])
            operands = Operands(self._pairs, self._found, self._replayed)  # now most layers are right
            found = {name: self._explained(suspect, operands) for name, suspect in found.items()}
        indices = self._other.graph.node_indices
        return sorted(found.values(), key=lambda suspect: indices[suspect.node.name])

    def _next(self, wrong: Collection[str], found: Collection[str]) -> Suspect | None:
        """Return the first suspect that explains a wrong value which those that were found do not explain."""
        order = self._other.graph.node_indices
        for name in sorted(wrong, key=lambda name: order[self._other.graph.producer[name].name]):
            first = self._first([name])
            if first and not any(node.name in found for node in first):
                return self._suspect(first[0])
        return None

    def missing(self) -> list[Node]:
        """Return the operations of A whose results B lacks, although B has what they are computed from."""
        if not self.wrong_outputs():
            return []
        found = {*self._pairs.found_in_other}
        outputs = dict.fromkeys(self._own.roots[name] for name in self._own.graph.outputs)
        seeds = [name for name in outputs if name in self._pairs.reference.recognizable and name not in found]
        return first_wrong(self._pairs.reference, found, frozenset(), seeds)

    def _first(self, seeds: Collection[str]) -> list[Node]:
        return first_wrong(self._pairs.other, self._found, self._forced, seeds)

    def _is_right(self, name: str) -> bool:
        return is_right(self._other, self._found, name)

    def _suspect(self, node: Node) -> Suspect:
        return self._explained(Suspect(node, node, self._counterpart(node)), self._operands)

    def _explained(self, suspect: Suspect, operands: Operands) -> Suspect:
        """Return a suspect with what can be said of it."""
        node = suspect.node
        note = suspect.note or difference_of(self._pairs, operands, self._owners, node, suspect.reference)
        place = misplacing_node(self._pairs, operands, node) or suspect.place
        return replace(suspect, place=place, note=note)

    def _counterpart(self, node: Node) -> Node | None:
        """Return the operation of A that reads the same weight, or computes the same from the same values."""
        for anchor in self._pairs.anchors:
            if anchor.node.name == node.name and anchor.whole:
                users = self._users.get(anchor.reference.outputs[0], ())
                return users[0] if anchor.folded and len(users) == 1 else anchor.reference
        for read in node.reads:
            if (before := self._before_bias.get(self._other.roots[read])) is not None and family(node) in _SUMS:
                return before.reference
        owned = [self._owners.get(self._other.roots[read], frozenset()) for read in node.reads]
        own = self._own
        candidates = []
        for items in owned:
            for item in items:
                for user in self._users.get(item, ()):
                    if family(user) == family(node) and user not in candidates:
                        candidates.append(user)
        size = self._values[node.outputs[0]].numel() if node.outputs[0] in self._values else 0
        candidates = [
            item
            for item in candidates
            if item.outputs[0] in own.values
            and own.values[item.outputs[0]].numel() == size
            and all(
                any(own.roots[read] in items for items in owned) or not self._is_known(own.roots[read])
                for read in item.reads
            )
        ]
        return candidates[0] if len(candidates) == 1 else None

    @cached_property
    def _before_bias(self) -> Mapping[str, Anchor]:
        """The values of B to which A adds a bias in one operation."""
        return self._pairs.without_bias(self._pairs.other.recognizable)

    def _is_known(self, name: str) -> bool:
        """Whether a value of A is in B, as B has computed it."""
        return any(name in items for items in self._owners.values())

    @cached_property
    def _users(self) -> Mapping[str, list[Node]]:
        """The operations of A that read each value or what was moved from it, by its name."""
        users: dict[str, list[Node]] = {}
        for node in self._own.graph.nodes:
            if moved_value(node) is None:
                for root in dict.fromkeys(self._own.roots[read] for read in node.reads):
                    users.setdefault(root, []).append(node)
        return users

    def _force_operands(self) -> None:
        """Let each operation that reads a weight of A read A's operand, where B's is not known to be right."""
        for anchor in self._pairs.anchors:
            if anchor.folded and family(anchor.node) == "matmul":  # A's operand may have the factor
                continue
            number = None if self._is_right(anchor.operand) else self._operands.expected(anchor)
            if number is not None and anchor.operand not in self._forced:
                self._forced[anchor.operand] = number
                if self._operands.is_guessed(anchor):
                    self._guessed[anchor.operand] = self._operands.own[anchor.reference_operand]

    def _replay(self) -> list[str]:
        """Run B again with the forced numbers, and return the values that are wrong."""
        run_again = self._other.run_again
        if run_again is None:
            return []
        operands = {anchor.operand for anchor in self._pairs.anchors}
        wanted = {*self._pairs.other.recognizable, *self._forced, *operands}
        values = run_again(self._forced, wanted)
        while reordered := [
            name for name in self._guessed if name in values and self._is_reordered(name, values[name])
        ]:
            for name in reordered:  # B's order is as good as the guess
                del self._forced[name], self._guessed[name]
            values = run_again(self._forced, wanted)
        changed = {
            name: Numbers(value)
            for name, value in values.items()
            if name in self._pairs.other.recognizable and not torch.equal(value, self._values[name])
        }
        matches = match_values(self._pairs.other, self._pairs.reference, changed)
        self._found = (self._found - changed.keys()) | matches.keys() | self._joined(changed)
        left = {name: numbers for name, numbers in changed.items() if name not in self._found}
        self._found.update(self._pairs.without_bias(left))
        self._owners |= {name: frozenset(match.source for match in found) for name, found in matches.items()}
        for name in changed.keys() - matches.keys():
            self._owners.pop(name, None)
        self._replayed = {name: value for name, value in values.items() if name in operands}
        self._values |= {name: numbers.tensor for name, numbers in changed.items()}
        wrong = [name for name, number in self._forced.items() if name in values and not _equal(values[name], number)]
        return wrong + [name for name in self._outputs if name not in self._found]

    def _is_reordered(self, name: str, value: torch.Tensor) -> bool:
        """Whether a value of B has the numbers of the value of A that was put in its place, in another order."""
        if _equal(value, self._forced[name]):
            return False
        numbers, guess = Numbers(value), Numbers(self._guessed[name])
        return solve(numbers, guess) is not None or have_same_rows(numbers, guess)

    def _joined(self, changed: Mapping[str, Numbers]) -> set[str]:
        """Return the changed values of B that values of A make up, as in other places of the run."""
        found = set()
        for anchor in self._pairs.anchors:
            name = anchor.node.outputs[0]
            if name in changed and not anchor.whole:
                parts = [item for item in self._pairs.anchors if item.node.name == anchor.node.name]
                sources = {item.reference.outputs[0] for item in parts}
                if all(solve(Numbers(self._own.values[source]), changed[name]) is not None for source in sources):
                    found.add(name)
        return found

    def _force_results(self, suspects: Collection[Suspect]) -> None:
        """Put A's results in place of those of suspects."""
        for suspect in suspects:
            name = suspect.node.outputs[0]
            own = None if suspect.reference is None else self._own.values.get(suspect.reference.outputs[0])
            if own is not None and name in self._values:
                number = arranged(own, self._values[name], {})
                if number is not None:
                    self._forced[name] = number


def _equal(value: torch.Tensor, number: torch.Tensor) -> bool:
    return Numbers(number).closeness(RELATIVE).holds(value.reshape(-1), number.reshape(-1))
