"""Find where one execution does something else than the other one.

A value of B that is no value of A need not be wrong: another implementation may compute the same in other steps. It
matters only if an output that is wrong depends on it other than through values that are A's. Of those, the ones that
are computed from A's values alone are where B leaves A.

What is behind the first of them is wrong because of it. To judge it by itself, B runs again, and each operation that
reads a weight of A gets A's numbers as its operand; later differences then show wherever they are.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from filch.export import Node

from ..common._operators import operator_name
from ..layouts._closeness import RELATIVE
from ..layouts._numbers import Numbers
from ..layouts._solve import have_same_rows, solve
from ._correspondence import Anchor, Correspondence, size_of
from ._exact import equal_values, matched_values
from ._execution import Tensors, label_of
from ._first_wrong import OtherSteps, first_wrong, is_right
from ._notes import difference_of, misplacing_node, odd_weight
from ._operands import Operands, arranged
from ._operators import PRODUCTS, SUMS, family, place_of, same_operations
from ._values import match_values

_MOST = 16  # suspects to find
_EXACT = 1e-10  # differences above this are no rounding of float64
_SELECTS = frozenset({"NonZero", "argsort", "nonzero", "sort"})
_RETURNS = frozenset({"ScatterElements", "ScatterND", "index_add", "index_put", "scatter", "scatter_add"})


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
        self._matches = dict(correspondence.from_reference)
        self._values: dict[str, torch.Tensor] = dict(self._other.values)
        self._forced: dict[str, torch.Tensor] = {}
        self._guessed: dict[str, torch.Tensor] = {}  # forced in an order that no other place confirms
        self._owners = dict(correspondence.owners)
        self._operands = Operands(correspondence)
        self._replayed: dict[str, torch.Tensor] = {}  # the operands of anchors in the last run with other numbers

    @cached_property
    def _outputs(self) -> list[str]:
        """The outputs of B that can be recognized by their numbers."""
        outputs = dict.fromkeys(self._other.roots[name] for name in self._other.graph.outputs)
        return [name for name in outputs if name in self._pairs.other.recognizable]

    def suspects(self) -> list[Suspect]:
        """Return the operations at which B leaves A, in the order of B; empty if all outputs of B are A's."""
        wrong = self._pairs.wrong_outputs
        if not wrong:
            return [*self._last_steps()]
        before = self._found
        if self._other.run_again is not None:
            self._force_operands()
            self._replay()  # now most layers are right
        steps = self._other_steps()
        first = self._likeliest(first_wrong(steps, before, frozenset(), wrong))
        found = {node.name: self._suspect(node, steps) for node in first}
        if self._other.run_again is not None:
            self._force_results(found.values())
            while (suspect := self._next(self._replay(), found)) is not None and len(found) < _MOST:
                found[suspect.node.name] = suspect
                self._force_results([suspect])
            operands = Operands(self._pairs, self._found, self._replayed)
            found = {name: self._explained(suspect, operands) for name, suspect in found.items()}
        indices = self._other.graph.node_indices
        ordered = self._still_wrong(sorted(found.values(), key=lambda suspect: indices[suspect.node.name]))
        places = {suspect.place.name: suspect for suspect in reversed(self._without_step(ordered))}
        return [*places.values()][::-1]

    def _without_step(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return suspects, with the operation before a step that B lacks in place of several that read its result."""
        readers: dict[str, list[Suspect]] = {}
        for suspect in suspects:
            for root in dict.fromkeys(self._roots(suspect.node)):
                readers.setdefault(root, []).append(suspect)
        found = [*suspects]
        for root, group in readers.items():
            node = self._other.graph.producer.get(root)
            further = [user for item in sorted(self._owners.get(root, ())) for user in self._own.readers.get(item, ())]
            if (
                node is None
                or len(group) < 2
                or not further
                or any(self._is_known(user.outputs[0]) for user in further)
            ):
                continue
            note = f"A goes on with {label_of(self._own, further[0].outputs[0])}, which B lacks"
            found = [item for item in found if item not in group[1:]]
            found[found.index(group[0])] = Suspect(node, node, further[0], note)
        return found

    def _last_steps(self) -> Iterator[Suspect]:
        """Yield the operations whose results B returns, and with which A goes on."""
        for name in self._pairs.unfinished_outputs:
            node = self._other.graph.producer.get(name)
            further = [user for item in sorted(self._owners[name]) for user in self._own.readers.get(item, ())]
            if node is not None and further:
                what = label_of(self._own, further[0].outputs[0])
                yield Suspect(node, node, note=f"is an output, where A goes on with {what}")

    def _still_wrong(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects that are wrong even if the earlier ones, and nothing else, have A's results.

        One whose results are not known in A is left out if all outputs are right when the others have theirs.

        Args:
            suspects: in the order of B.
        """
        if len(suspects) < 2:
            return [*suspects]
        operands, self._forced, self._guessed = self._forced, {}, {}
        wrong, repaired = [], []
        for suspect in suspects:
            if self._forced and (self._found.issuperset(self._outputs) or self._is_right(suspect.node.outputs[0])):
                continue
            wrong.append(suspect)
            count = len(self._forced)
            self._repair(suspect, operands)
            if len(self._forced) > count:
                repaired.append(suspect)
                self._replay()
        return repaired if repaired and self._found.issuperset(self._outputs) else wrong

    def _repair(self, suspect: Suspect, operands: Tensors) -> None:
        """Put A's numbers in place of the result of a suspect, or of the first known ones that are computed from it.

        Args:
            suspect: an operation that is wrong.
            operands: A's numbers for operands of anchors.
        """
        pending, seen = [suspect], set[str]()
        while pending:
            item = pending.pop()
            name, count = item.node.outputs[0], len(self._forced)
            self._force_results([item])
            if len(self._forced) == count and name in operands:
                self._forced[name] = operands[name]
            if len(self._forced) > count:
                continue
            users = [user for output in item.node.outputs for user in self._other.graph.consumers.get(output, ())]
            users = [user for user in users if _layer(user) == _layer(suspect.node)]
            pending += [Suspect(user, user, self._by_layer(user)) for user in users if user.name not in seen]
            seen.update(user.name for user in users)

    def _next(self, wrong: Collection[str], found: Collection[str]) -> Suspect | None:
        """Return the first suspect that explains a wrong value which those that were found do not explain."""
        order, steps = self._other.graph.node_indices, self._other_steps()
        for name in sorted(wrong, key=lambda name: order[self._other.graph.producer[name].name]):
            first = first_wrong(steps, self._found, self._forced, [name])
            if any(node.name in found for node in first):  # which may explain it; others need evidence of their own
                lines = {_line(node) for node in first if node.name in found}
                first = [node for node in first if _line(node) not in lines and self._has_right_peer(node)]
            for node in self._likeliest(first):
                return self._suspect(node, steps)
        return None

    def _likeliest(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the first operation that computes values of A in another layer; else the first one, if there is one.

        Another implementation computes some values in other steps in all layers, which says nothing. A product with a
        weight into which A's factor was folded is no value of A either, and the last one to choose.
        """
        return sorted(nodes, key=lambda node: (not self._has_right_peer(node), node.name in self._folded))[:1]

    @cached_property
    def _folded(self) -> frozenset[str]:
        """The operations of B that read a weight with a factor which A applies elsewhere."""
        return frozenset(anchor.node.name for anchor in self._pairs.anchors if anchor.folded)

    def _has_right_peer(self, node: Node) -> bool:
        return any(self._is_right(peer.outputs[0]) for peer in self._peers[node.name])

    @cached_property
    def _peers(self) -> Mapping[str, list[Node]]:
        """The same operations of other layers, or else of other calls of the same code, by the name of each one."""
        return {name: [node for node in group if node.name != name] for name, group in self._groups.items()}

    @cached_property
    def _groups(self) -> Mapping[str, Sequence[Node]]:
        return same_operations(self._other.graph)

    @cached_property
    def _own_groups(self) -> Mapping[str, Sequence[Node]]:
        return same_operations(self._own.graph)

    def missing(self) -> list[Node]:
        """Return the operations of A whose results B lacks, although B has what they are computed from."""
        if not self._pairs.wrong_outputs:
            return []
        found = {*self._pairs.found_in_other}
        outputs = dict.fromkeys(self._own.roots[name] for name in self._own.graph.outputs)
        seeds = [name for name in outputs if name in self._pairs.reference.recognizable and name not in found]
        return first_wrong(self._pairs.reference, found, frozenset(), seeds)

    def _other_steps(self) -> OtherSteps:
        sure = [anchor.operand for anchor in self._pairs.anchors if self._has_right_operand(anchor)]
        sure += [node.outputs[0] for node in self._of_products if all(map(self._is_right, self._data_of(node)))]
        return OtherSteps(self._pairs.other, self._found, self._forced, self._peers, sure)

    def _has_right_operand(self, anchor: Anchor) -> bool:
        """Whether an operation returns numbers of A from which all numbers of its operand follow."""
        other, root = self._other, self._other.roots[anchor.operand]
        if family(anchor.node) not in PRODUCTS or anchor.operand in self._forced:
            return False
        sizes = [size_of(other, name) for name in (root, anchor.operand, anchor.node.outputs[0])]
        return sizes[0] == sizes[1] <= sizes[2] and any(map(self._is_right, self._with_bias(anchor.node)))

    @cached_property
    def _of_products(self) -> Sequence[Node]:
        """The operations of B that read a product of weights of A, whose results A does not compute."""
        matches = self._pairs.weights.by_weight
        weights = {
            name for name, match in matches.items() if any(part.weight not in self._own.weights for part in match.parts)
        }
        return [
            node
            for node in self._other.graph.nodes
            if family(node) in PRODUCTS
            and any(root in weights and len(matches[root].shape) > 1 for root in self._roots(node))
        ]

    def _data_of(self, node: Node) -> Iterator[str]:
        return (root for root in self._roots(node) if root not in self._other.weights)

    def _with_bias(self, node: Node) -> Iterator[str]:
        """Yield the result of an operation of B, and those of sums with weights that read it."""
        result, other = node.outputs[0], self._other
        yield result
        for user in other.readers.get(result, ()):
            if family(user) in SUMS and all(root in (result, *other.weights) for root in self._roots(user)):
                yield user.outputs[0]

    def _roots(self, node: Node) -> Iterator[str]:
        return map(self._other.roots.__getitem__, node.reads)

    def _is_right(self, name: str) -> bool:
        return is_right(self._other, self._found, name)

    def _suspect(self, node: Node, steps: OtherSteps) -> Suspect:
        reference = self._by_layer(node) or self._as_in_peers(node, self._counterpart(node))
        return self._explained(Suspect(node, steps.to_blame(node), reference), self._operands)

    def _by_layer(self, node: Node) -> Node | None:
        """Return the operation of A in the same layer, if those of the other layers are A's in the same layers."""
        group = self._groups[node.name]
        index = {item.name: number for number, item in enumerate(group)}
        right = [peer for peer in self._peers[node.name] if self._is_right(peer.outputs[0])]
        found: Counter[str] = Counter()
        for peer in right:
            owners = self._owners.get(self._other.roots[peer.outputs[0]], frozenset())
            items = [self._own.graph.producer[item] for item in sorted(owners) if item in self._own.graph.producer]
            groups = {tuple(item.outputs[0] for item in self._own_groups[producer.name]) for producer in items}
            found.update(
                names[index[node.name]]
                for names in groups
                if len(names) == len(group) and names[index[peer.name]] in owners
            )
        names = [name for name, count in found.items() if count == len(right)]
        return self._own.graph.producer[names[0]] if len(names) == 1 else None

    def _as_in_peers(self, node: Node, reference: Node | None) -> Node | None:
        """Return the operation of A, or the later one whose result the same operation of other layers computes."""
        right = [self._other.roots[peer.outputs[0]] for peer in self._peers[node.name]]
        owners = {item for name in right for item in self._owners.get(name, ())}
        kinds = {family(self._own.graph.producer[item]) for item in owners if item in self._own.graph.producer}
        while reference is not None and kinds and family(reference) not in kinds:
            users = self._own.readers.get(reference.outputs[0], [])
            reference = users[0] if len(users) == 1 else None
        return reference

    def _explained(self, suspect: Suspect, operands: Operands) -> Suspect:
        """Return a suspect with what can be said of it."""
        node = suspect.node
        note = suspect.note or difference_of(self._pairs, operands, self._owners, node, suspect.reference)
        misplacing = misplacing_node(self._pairs, operands, node)
        place, odd = misplacing or suspect.place, odd_weight(self._pairs, node)
        if misplacing is None and odd is not None:
            place, note = odd.node, difference_of(self._pairs, operands, self._owners, odd.node, odd.reference)
        return replace(suspect, place=place, note=note)

    def _counterpart(self, node: Node) -> Node | None:
        """Return the operation of A that reads the same weight, or computes the same from the same values."""
        for anchor in self._anchors.get(node.name, ()):
            if self._is_odd(anchor) and (reference := self._with_other_weights(anchor)) is not None:
                return reference
            return self._after_factor(anchor.reference) if anchor.folded else anchor.reference
        for read in node.reads:
            if (before := self._before_bias.get(self._other.roots[read])) is not None and family(node) in SUMS:
                return before.reference
        return self._same_operation(node)

    def _after_factor(self, node: Node) -> Node:
        """Return the operation of A that applies a factor to a result; the one that computes it if there is none."""
        users = self._own.readers.get(node.outputs[0], ())
        return users[0] if len(users) == 1 else node

    def _is_odd(self, anchor: Anchor) -> bool:
        """Whether an operation may read the weight of another one: others read it, too, or it is elsewhere in A."""
        readers = {item.node.name for item in self._pairs.anchors if item.reference is anchor.reference and item.whole}
        places = self._usual_places(anchor.node)
        return len(readers) > 1 or bool(places and place_of(anchor.reference.module or "") not in places)

    def _usual_places(self, node: Node) -> set[str]:
        """Return where the operations of A are that read the weights of the same operation of other layers."""
        references = [item.reference for peer in self._peers[node.name] for item in self._anchors.get(peer.name, ())]
        return {place_of(reference.module or "") for reference in references}

    @cached_property
    def _anchors(self) -> Mapping[str, list[Anchor]]:
        """The anchors with whole weights, by the name of the operation of B."""
        found: dict[str, list[Anchor]] = {}
        for anchor in self._pairs.anchors:
            if anchor.whole:
                found.setdefault(anchor.node.name, []).append(anchor)
        return found

    def _with_other_weights(self, anchor: Anchor) -> Node | None:
        """Return the operation of A that reads what that of B reads, if the one with the same weights does not."""
        owners = self._owners.get(self._other.roots[anchor.operand], frozenset())
        is_usual = not owners or self._own.roots[anchor.reference_operand] in owners
        return None if is_usual else self._same_operation(anchor.node)

    def _same_operation(self, node: Node) -> Node | None:
        """Return the operation of A that computes the same from the same values, with whatever weights."""
        owned = [self._owners.get(self._other.roots[read], frozenset()) for read in node.reads]
        own = self._own
        candidates = []
        for items in owned:
            for item in items:
                for user in self._own.readers.get(item, ()):
                    if family(user) == family(node) and user not in candidates:
                        candidates.append(user)
        size = self._values[node.outputs[0]].numel() if node.outputs[0] in self._values else 0
        candidates = [
            item
            for item in candidates
            if item.outputs[0] in own.values
            and own.values[item.outputs[0]].numel() == size
            and all(
                root in own.weights or any(root in items for items in owned) or not self._is_known(root)
                for root in self._roots_of(item)
            )
        ]
        if len(candidates) > 1:
            places = self._usual_places(node)
            candidates = [item for item in candidates if place_of(item.module or "") in places]
        if len(candidates) != 1:
            return None
        norm = self._after_factor(candidates[0])
        weights = (root for root in self._roots_of(norm) if root in own.weights)
        is_folded = family(norm) == "batch_norm" and not any(map(self._is_known, weights))
        return norm if is_folded else candidates[0]

    def _roots_of(self, node: Node) -> Iterator[str]:
        """Yield the values and weights that an operation of A reads, in whatever order of their elements."""
        return map(self._own.roots.__getitem__, node.reads)

    @cached_property
    def _before_bias(self) -> Mapping[str, Anchor]:
        """The values of B to which A adds a bias in one operation."""
        return self._pairs.without_bias(self._pairs.other.recognizable)

    def _is_known(self, name: str) -> bool:
        """Whether a value of A is in B, as B has computed it."""
        return any(name in items for items in self._owners.values())

    def _force_operands(self) -> None:
        """Let each operation that reads a weight of A read A's operand, where B's is not known to be right."""
        for anchor in self._pairs.anchors:
            if anchor.folded and family(anchor.node) == "matmul":  # A's operand may have the factor
                continue
            if self._is_odd(anchor):  # A's operand may be that of another layer
                continue
            if self._is_right(anchor.operand) or self._is_confirmed(anchor) or anchor.operand in self._routed:
                continue
            number = self._operands.expected(anchor)
            if number is not None and anchor.operand not in self._forced:
                self._forced[anchor.operand] = number
                if self._operands.is_guessed(anchor):
                    self._guessed[anchor.operand] = self._operands.own[anchor.reference_operand]

    def _is_confirmed(self, anchor: Anchor) -> bool:
        """Whether an operation computes A's result, so that its operand must be right."""
        owners = self._owners.get(self._other.roots[anchor.node.outputs[0]], frozenset())
        return anchor.whole and anchor.reference.outputs[0] in owners

    @cached_property
    def _routed(self) -> frozenset[str]:
        """The values of B whose rows are selected by other values, so that A may have them in another order."""
        routed: set[str] = set()
        for node in self._other.graph.nodes:
            name = operator_name(node.op).removesuffix("_")
            if name in _SELECTS or (name not in _RETURNS and not routed.isdisjoint(node.reads)):
                routed.update(node.outputs)
        return frozenset(routed)

    def _replay(self) -> list[str]:
        """Run B again with the forced numbers, and return the values that are wrong.

        If some are, it runs with the numbers of A in place of all that are equal, until no more are: see `_exact`.
        """
        wrong, count = self._run_again({}), 0
        while wrong and len(self._found) > count:
            count = len(self._found)
            exact = equal_values(matched_values(self._matches, self._own.values), self._values)
            if all(
                Numbers(number).closeness(_EXACT).holds(self._values[name], number) for name, number in exact.items()
            ):
                break
            wrong = self._run_again(exact)
        return wrong

    def _run_again(self, given: Tensors) -> list[str]:
        """Run B again with the forced numbers, and others if these are not forced; return the values that are wrong."""
        run_again = self._other.run_again
        if run_again is None:
            return []
        operands = {anchor.operand for anchor in self._pairs.anchors}
        wanted = {*self._pairs.other.recognizable, *self._forced, *operands}
        values = run_again({**given, **self._forced}, wanted)
        while reordered := [
            name for name in self._guessed if name in values and self._is_reordered(name, values[name])
        ]:
            for name in reordered:  # B's order is as good as the guess
                del self._forced[name], self._guessed[name]
            values = run_again({**given, **self._forced}, wanted)
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
        self._matches |= matches
        for name in changed.keys() - matches.keys():
            self._owners.pop(name, None)
            self._matches.pop(name, None)
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
            if own is not None and name in self._values and name not in self._routed:
                number = self._as_in_layers(suspect.node, own)
                if number is not None:
                    self._forced[name] = number

    def _as_in_layers(self, node: Node, own: torch.Tensor) -> torch.Tensor | None:
        """Return a value of A in the order of the result of an operation, which may be that of its peers."""
        value = self._values[node.outputs[0]]
        matches = (match for peer in self._peers[node.name] for match in self._matches.get(peer.outputs[0], ()))
        for layout in (match.layout for match in matches):
            if layout is not None and layout.numel == value.numel() and layout.last < own.numel() == value.numel():
                return layout.select(own).reshape(value.shape).clone()
        return arranged(own, value, {})


def _layer(node: Node) -> str | None:
    """Return the first number in the name of the module of an operation, which is that of its layer."""
    number = re.search(r"\d+", node.module or "")
    return None if number is None else number[0]


def _line(node: Node) -> tuple[str, str | None]:
    """Return the module of an operation, in whichever of its calls, and its line."""
    return (node.module or "").partition("@")[0], node.source


def _equal(value: torch.Tensor, number: torch.Tensor) -> bool:
    return Numbers(number).closeness(RELATIVE).holds(value.reshape(-1), number.reshape(-1))
