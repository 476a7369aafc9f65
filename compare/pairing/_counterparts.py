"""`Counterparts`: which operation of A an operation of B corresponds to, also where it computes something else.

The peers of an operation are the same operation of other layers. A value of B is right if its numbers are numbers of
A; its owners are the values of A that have them. Anchors are operations of B and A that read the same weight.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from filch.export import Node

from ._correspondence import Anchor
from ._patched_run import PatchedRun
from ._places import place_of, same_operations


class Counterparts:
    """Finds operations of A by those of B.

    Args:
        run: the last run of B.
    """

    def __init__(self, run: PatchedRun) -> None:
        self._run, self._reference, self._actual = run, run.reference, run.actual
        self._producers = self._reference.graph.producer

    @cached_property
    def peers(self) -> Mapping[str, list[Node]]:
        """The same operations of other layers, or else of other calls of the same code, by the name of each one."""
        return _without_itself(self._groups)

    @cached_property
    def peers_of_reference(self) -> Mapping[str, list[Node]]:
        """The same of the operations of A."""
        return _without_itself(self._reference_groups)

    @cached_property
    def _groups(self) -> Mapping[str, Sequence[Node]]:
        """The same operations of all layers of B, in their order, by the name of each one."""
        return same_operations(self._actual.graph)

    @cached_property
    def _reference_groups(self) -> Mapping[str, Sequence[Node]]:
        """The same of A."""
        return same_operations(self._reference.graph)

    def has_right_peer(self, node: Node) -> bool:
        """Whether the same operation of another layer computes a value of A."""
        return any(self._run.is_right(peer.outputs[0]) for peer in self.peers[node.name])

    def of(self, node: Node) -> Node | None:
        """Return the operation of A that an operation of B corresponds to; None if that is not known.

        It is known by its place in the layer; else it is the one that reads the same weight, adds the same bias, or
        computes the same from the same values.
        """
        if (found := self.in_layer(node)) is not None:
            return found
        ways = self._by_weight, self._by_bias, self._by_operands
        return self._as_in_peers(node, next((item for way in ways if (item := way(node)) is not None), None))

    def in_layer(self, node: Node) -> Node | None:
        """Return the operation of A in the same layer, if those of the other layers are A's in the same layers."""
        names = [item.name for item in self._groups[node.name]]
        right = [peer for peer in self.peers[node.name] if self._run.is_right(peer.outputs[0])]
        votes: Counter[str] = Counter()  # of the right peers, for the results of A
        for peer in right:
            owners = self._run.owners_of(peer.outputs[0])
            producers = [self._producers[name] for name in owners if name in self._producers]
            groups = {tuple(item.outputs[0] for item in self._reference_groups[owner.name]) for owner in producers}
            votes.update(
                group[names.index(node.name)]
                for group in groups
                if len(group) == len(names) and group[names.index(peer.name)] in owners
            )
        results = [result for result, count in votes.items() if count == len(right)]
        return self._producers[results[0]] if len(results) == 1 else None

    def _as_in_peers(self, node: Node, reference: Node | None) -> Node | None:
        """Return an operation of A, or one after it that is of the kind which the peers of a node correspond to.

        Args:
            node: the operation of B.
            reference: the operation of A; None if it is not known.
        """
        owners = {item for peer in self.peers[node.name] for item in self._run.owners_of(peer.outputs[0])}
        kinds = {self._producers[owner].operator.kind for owner in owners if owner in self._producers}
        while reference is not None and kinds and reference.operator.kind not in kinds:
            users = self._reference.readers.get(reference.outputs[0], [])
            reference = users[0] if len(users) == 1 else None
        return reference

    def _by_weight(self, node: Node) -> Node | None:
        """Return the operation of A that reads the same weight, or else what that of B reads."""
        anchor = next(iter(self._anchors.get(node.name, ())), None)
        if anchor is None:
            return None
        if self.is_odd(anchor) and (reference := self._with_other_weights(anchor)) is not None:
            return reference
        return self._after_factor(anchor.reference) if anchor.folded else anchor.reference

    def _by_bias(self, node: Node) -> Node | None:
        """Return the operation of A that also adds a bias, where that of B is a sum with it."""
        if node.operator.rounding != "addition":
            return None
        roots = (root for root in self._run.roots(node) if root in self._before_bias)
        return next((self._before_bias[root].reference for root in roots), None)

    def _after_factor(self, node: Node) -> Node:
        """Return the only operation of A that reads a result, which applies a factor; else the one that computes it."""
        users = self._reference.readers.get(node.outputs[0], ())
        return users[0] if len(users) == 1 else node

    def is_odd(self, anchor: Anchor) -> bool:
        """Whether an operation may read the weight of another one: others read it, too, or it is elsewhere in A."""
        anchors = self._run.pairs.anchors
        readers = {item.node.name for item in anchors if item.reference is anchor.reference and item.whole}
        places = self._usual_places(anchor.node)
        return len(readers) > 1 or bool(places and place_of(anchor.reference.module or "") not in places)

    def _usual_places(self, node: Node) -> set[str]:
        """Return where the operations of A are that read the weights of the same operation of other layers."""
        references = [item.reference for peer in self.peers[node.name] for item in self._anchors.get(peer.name, ())]
        return {place_of(reference.module or "") for reference in references}

    @cached_property
    def _anchors(self) -> Mapping[str, list[Anchor]]:
        """The anchors with whole weights, by the name of the operation of B."""
        found: dict[str, list[Anchor]] = {}
        for anchor in self._run.pairs.anchors:
            if anchor.whole:
                found.setdefault(anchor.node.name, []).append(anchor)
        return found

    def _with_other_weights(self, anchor: Anchor) -> Node | None:
        """Return the operation of A that reads what that of B reads, if the one with the same weights does not."""
        owners = self._run.owners_of(anchor.operand)
        is_usual = not owners or self._reference.roots[anchor.reference_operand] in owners
        return None if is_usual else self._by_operands(anchor.node)

    def _by_operands(self, node: Node) -> Node | None:
        """Return the operation of A that computes the same from the same values, with whatever weights.

        If there are several, it is the one in the place of the same operation of other layers. In place of one into
        whose weights B may have folded a batch norm, which B lacks, it is the norm.
        """
        owned = [self._run.owners_of(read) for read in node.reads]
        users = [user for items in owned for item in items for user in self._reference.readers.get(item, ())]
        alike = {user.name: user for user in users if user.operator.kind == node.operator.kind}.values()
        candidates = [user for user in alike if self._has_size_of(node, user) and self._reads_only(user, owned)]
        if len(candidates) > 1:
            places = self._usual_places(node)
            candidates = [item for item in candidates if place_of(item.module or "") in places]
        if len(candidates) != 1:
            return None
        norm = self._after_factor(candidates[0])
        weights = (root for root in self._reference.roots_read_by(norm) if root in self._reference.weights)
        is_folded = norm.operator.kind == "batch_norm" and not any(map(self._run.is_known, weights))
        return norm if is_folded else candidates[0]

    def _has_size_of(self, node: Node, reference: Node) -> bool:
        """Whether the results of two operations have as many numbers."""
        actual, expected = self._run.values.get(node.outputs[0]), self._reference.values.get(reference.outputs[0])
        return expected is not None and expected.numel() == (0 if actual is None else actual.numel())

    def _reads_only(self, reference: Node, owned: Sequence[frozenset[str]]) -> bool:
        """Whether an operation of A reads no values that B has, but those which an operation of B reads.

        Args:
            reference: the operation of A.
            owned: the values of A that have numbers of each value that the operation of B reads.
        """
        roots = self._reference.roots_read_by(reference)
        values = (root for root in roots if root not in self._reference.weights)
        return all(any(root in items for items in owned) or not self._run.is_known(root) for root in values)

    @cached_property
    def _before_bias(self) -> Mapping[str, Anchor]:
        """The values of B to which A adds a bias in one operation."""
        return self._run.pairs.without_bias(self._run.pairs.actual.recognizable)


def _without_itself(groups: Mapping[str, Sequence[Node]]) -> dict[str, list[Node]]:
    """Return the other nodes of the group of each node, by its name."""
    return {name: [node for node in group if node.name != name] for name, group in groups.items()}
