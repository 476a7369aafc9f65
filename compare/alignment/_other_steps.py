"""`OtherSteps`: the values of one implementation that the other one does not have.

Between values of A, another implementation takes other steps: it computes a norm step by step, rotates keys whose rows
are in another order, or adds three terms in another order. Such a value is no value of A in any layer, which says
nothing; what is computed from it does. The peers of an operation are the same operation of other layers.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from filch.export import Node

from ..locating._first_wrong import leading_to
from ..pairing._values import ValueSide
from ..runs._execution import Execution, moved_value

Peers = Mapping[str, Sequence[Node]]
_ENOUGH = 2  # peers that agree


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
