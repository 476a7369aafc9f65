"""Which operation of A an operation of B corresponds to, and which values of B are those of steps that A does not take.

`Counterparts` finds operations of A, also where those of B compute something else. Between values of A, another
implementation takes other steps: it computes a norm step by step, rotates keys whose rows are in another order, or adds
three terms in another order. Such a value is no value of A in any layer, which says nothing; what is computed from it
does. `OtherSteps` are these values, and `first_wrong_operations` finds where others become wrong.

The peers of an operation are the same operation of other layers. A value of B is right if its numbers are numbers of
A; its owners are the values of A that have them. Anchors are operations of B and A that read the same weight.
"""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from filch.export import Node

from ..locating._first_wrong import first_wrong, leading_to
from ..pairing._correspondence import Anchor
from ..pairing._places import place_of, same_operations
from ..pairing._values import ValueSide
from ..runs._execution import Execution, moved_value
from ._patched_run import PatchedRun

Peers = Mapping[str, Sequence[Node]]
_ENOUGH = 2  # peers that agree


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


@dataclass(frozen=True)
class OtherSteps:
    """The values of B that A does not have.

    Attributes:
        side: the execution of B, and which of its values can be judged.
        found: the values whose numbers are those of A.
        forced: values that were replaced by right ones, for those who read them.
        peers: the same operations of other layers, by the name of each operation.
        sure: values that must be right, because what is computed from them is.
        lacking: values that are wrong because B lacks a weight that A reads for them: never in `names`.
    """

    side: ValueSide
    found: Collection[str]
    forced: Collection[str]
    peers: Peers
    sure: Collection[str] = ()
    lacking: Collection[str] = ()

    @property
    def _execution(self) -> Execution:
        """The execution of B."""
        return self.side.execution

    @cached_property
    def recognizable(self) -> frozenset[str]:
        """The names of the values that can be judged, without those that A does not have."""
        return frozenset(self.side.recognizable) - self.names

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the values that A does not have.

        A value of A is computed from them, or from the same values of other layers, none of which is a value of A.
        """
        names = set()
        weighted = self._execution.graph.computed_from(self._execution.weights)  # a table is computed from no weight
        for node in self._execution.graph.nodes:
            of_peers = [name for peer in self.peers[node.name] for name in peer.outputs]
            in_layers = not self.harmless.isdisjoint(of_peers) and not any(map(self._is_right, of_peers))
            for name in node.outputs:
                is_table = name in self.harmless and name not in weighted
                if (in_layers or is_table or name in self._before_sure) and not self._is_right(name):
                    names.add(name)
        return frozenset(names.difference(self.lacking))

    @cached_property
    def harmless(self) -> frozenset[str]:
        """The values that A does not have from which a value of A is computed."""
        right = {name for name in self._execution.graph.producer if self._is_right(name)}
        return self._leading_to(right) - right

    @cached_property
    def _before_sure(self) -> frozenset[str]:
        """The values that must be right, and those from which they are computed."""
        return self._leading_to(self._execution.roots[name] for name in self.sure)

    def _leading_to(self, names: Iterable[str]) -> frozenset[str]:
        """Return values and all that they are computed from, up to values that are right for those who read them."""
        right = {name for name in self._execution.graph.known if self._is_right(name)}
        return leading_to(self._execution.graph, names, right.union(self.forced))

    def to_blame(self, node: Node) -> Node:
        """Return the operation on the way to a wrong value that is unlike the same operation of other layers.

        If there is none, but all that is computed from the same steps is wrong, it is the last of these steps; else the
        operation itself.

        Args:
            node: an operation that computes something wrong from values of A, in steps that A does not have.
        """
        steps = [*self._steps(node)]
        odd = [step for step in (*steps, node) if self._is_odd(step)]
        if odd:
            return min(odd, key=lambda step: moved_value(step) is not None)  # the first one that computes something
        shared = [step for step in steps if len(self._ends_of(step)) > 1 and moved_value(step) is None]
        return shared[-1] if shared else node

    def _steps(self, node: Node) -> Iterator[Node]:
        """Yield the operations of which a node reads results that A does not have, in the order of B.

        Movements are crossed; values that were replaced, or from which a value of A is computed, are not.
        """
        graph, pending, names = self._execution.graph, [*node.reads], set[str]()
        while pending:
            name = pending.pop()
            producer = graph.producer.get(name)
            if producer is None or name in self.forced or name in self.harmless:
                continue
            if name in self.names:
                names.add(producer.name)
            if name in self.names or moved_value(producer) is not None:
                pending += producer.reads
        yield from (item for item in graph.nodes if item.name in names)

    def _is_odd(self, node: Node) -> bool:
        """Whether other layers have the operation with other settings, or do not have it."""
        peers = self.peers[node.name]
        if not peers:
            return re.search(r"\d", node.module or "") is not None  # it is in a layer, and in no other one
        for name, value in node.attributes.items():
            counts = Counter(str(peer.attributes.get(name)) for peer in peers)
            usual, count = counts.most_common(1)[0]
            if count == len(peers) >= _ENOUGH and usual != str(value):
                return True
        return False

    @cached_property
    def _ends(self) -> Mapping[str, frozenset[str]]:
        """The nearest values computed from each value that are not among `names`, by its name."""
        ends: dict[str, frozenset[str]] = {}
        for node in reversed(self._execution.graph.nodes):
            at_outputs = (ends.get(name, frozenset()) if name in self.names else {name} for name in node.outputs)
            further = frozenset[str]().union(*at_outputs)
            for read in node.reads:
                ends[read] = ends.get(read, frozenset()) | further
        return ends

    def _ends_of(self, node: Node) -> frozenset[str]:
        """Return these values of all results of an operation."""
        return frozenset[str]().union(*(self._ends.get(name, frozenset()) for name in node.outputs))

    def _is_right(self, name: str) -> bool:
        """Whether a value is one of A, a weight or an input, or was moved from one."""
        return self._execution.is_right(name, self.found)


def first_wrong_operations(
    run: Execution,
    wrong: Collection[str],
    *,
    judged: Collection[str],
    found: Container[str],
    forced: Collection[str] = (),
) -> list[Node]:
    """Return the operations of a run that compute something wrong from right values; see `first_wrong`.

    Args:
        run: the run.
        wrong: values that are wrong, or whose elements are in a wrong order.
        judged: the values that can be recognized by their numbers.
        found: those whose numbers are the reference's.
        forced: values that were replaced by right ones, for those who read them.
    """
    right = {name for name in run.graph.known if run.is_right(name, found)}.union(forced)
    moved = {name for node in run.graph.nodes if moved_value(node) is not None for name in node.outputs}
    of_wrong = {name for name in moved.intersection(wrong) if not run.is_right(name, found)}
    judged = {*judged, *wrong} - of_wrong  # a movement is to blame for the order of right numbers alone
    return first_wrong(run.graph, wrong, judged=judged, right=right)
