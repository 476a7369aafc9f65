"""Find where one execution does something else than the other one.

A value of B that is no value of A need not be wrong: another implementation may compute the same in other steps. It
matters only if an output that is wrong depends on it other than through values that are A's. Of those, the ones that
are computed from A's values alone are where B leaves A.

What is behind the first of them is wrong because of it. To judge it by itself, B runs again, and each operation that
reads a weight of A gets A's numbers as its operand; later differences then show wherever they are. As the order of some
operands is guessed, B runs once more, with A's numbers for the results of what was found alone: a later difference
counts if it is there after the earlier ones have been repaired.

Terms: numbers are forced if those who read a value of B get A's in its place, and guessed if nothing confirms their
order. A value is routed if other values select its rows. The owners of a value of B are the values of A that have its
numbers. The root of a value is the one from which it was only moved, by a reshape or a transpose, say. Anchors are
operations of B and A that read the same weight; their operands are what they read besides. The peers of an operation
are the same operation of other layers.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from filch.export import Node

from ..pairing._correspondence import Anchor, Correspondence, size_of
from ..pairing._places import code_of
from ..runs._execution import Tensors, label_of, moved_value
from ._coarser import coarser_operations
from ._counterparts import Counterparts, OtherSteps, first_wrong_operations
from ._notes import copy_in_place_of_step, difference_of, idle_node, misplacing_node, odd_weight, weight_of_other_layer
from ._patched_run import Operands, PatchedRun, arranged, residual_sum
from ._suspect import Suspect

_MOST = 16  # suspects to find


class DivergenceSearch:
    """Finds the operations of B that leave A.

    Args:
        pairs: the values and anchors of a run of each.
    """

    def __init__(self, pairs: Correspondence) -> None:
        self._pairs = pairs
        self._reference, self._actual = pairs.reference.execution, pairs.actual.execution
        self._run = PatchedRun(pairs)
        self._counterparts = Counterparts(self._run)
        self._operands = Operands(pairs)

    def suspects(self) -> list[Suspect]:
        """Return the operations at which B leaves A, in the order of B; empty if all outputs of B are A's."""
        wrong = self._pairs.wrong_outputs
        if not wrong:
            return [*self._last_steps(), *self._misplacing()]
        before, can_run_again = self._run.found, self._actual.run_again is not None
        if can_run_again:
            self._force_operands()
            self._force_residual_sums()  # now most layers are right
        steps = self._other_steps()
        first = self._likeliest(first_wrong_operations(self._actual, wrong, judged=steps.recognizable, found=before))
        found = {node.name: self._suspect(node, steps) for node in first}
        if can_run_again:
            self._add_later(found)
        indices = self._actual.graph.node_indices
        ordered = self._still_wrong(sorted(found.values(), key=lambda suspect: indices[suspect.node.name]))
        # One for each place: the first one.
        places = {suspect.place.name: suspect for suspect in reversed(self._without_further_readers(ordered))}
        return [*reversed(places.values()), *self._misplacing()]

    def _add_later(self, found: dict[str, Suspect]) -> None:
        """Repair the suspects that were found, and add those that show then; explain all by the last run.

        Args:
            found: suspects by the names of their operations.
        """
        for item in found.values():
            self._force_result(item)
        while (suspect := self._next(self._run.run_again(), found)) is not None and len(found) < _MOST:
            found[suspect.node.name] = suspect
            self._force_result(suspect)
        operands = Operands(self._pairs, self._run.found, self._run.operands)
        found.update({name: self._explained(suspect, operands) for name, suspect in found.items()})

    def coarser(self) -> list[Suspect]:
        """Return the operations of B that round to a coarser dtype than A, also behind those at which B leaves A.

        It is asked for after `suspects`, which repairs these.
        """
        return coarser_operations(self._pairs, self._run.owners)

    def missing(self) -> list[Node]:
        """Return the operations of A whose results B lacks, although B has what they are computed from."""
        if not self._pairs.outputs.problems:
            return []
        found = self._pairs.found_in_actual
        outputs = dict.fromkeys(self._reference.roots[name] for name in self._reference.graph.outputs)
        seeds = [name for name in outputs if name in self._pairs.reference.recognizable and name not in found]
        steps = OtherSteps(self._pairs.reference, found, frozenset(), self._counterparts.peers_of_reference)
        return first_wrong_operations(self._reference, seeds, judged=steps.recognizable, found=found)

    def _last_steps(self) -> Iterator[Suspect]:
        """Yield the operations whose results B returns, and with which A goes on."""
        for name in self._pairs.unfinished_outputs:
            node, steps = self._actual.graph.producer.get(name), self._next_in_reference(name)
            if node is not None and steps:
                what = label_of(self._reference, steps[0].outputs[0])
                yield Suspect(node, node, note=f"is an output, where A goes on with {what}")

    def _misplacing(self) -> Iterator[Suspect]:
        """Yield the operations that take a part of A's numbers for an output, or move them."""
        for output in self._pairs.misplaced_outputs:
            name = output.result.value
            root = self._actual.roots[name]
            if name == root and root not in self._pairs.unfinished_outputs:
                yield from self._taking_a_part(root)
            moves = []  # from the output to its root
            while (node := self._actual.graph.producer.get(name)) is not None and name != root:
                moves.append(node)
                name = moved_value(node) or root
            sizes = [size_of(self._actual, node.outputs[0]) for node in moves]
            # Of the movements to the size of the output, the one nearest to the root.
            first_of_size = [node for node, size in zip(moves, sizes, strict=True) if size == sizes[0]][-1:]
            yield from (Suspect(node, node) for node in first_of_size)

    def _taking_a_part(self, name: str) -> Iterator[Suspect]:
        """Yield the operation of B that reads whole values of A, and whose result is a part of what A computes of them.

        It is searched backwards: if B takes the last token before a norm, and A none at all, it is not the norm.

        Args:
            name: a value of B, whose numbers are a part of a value of A.
        """
        producers = self._reference.graph.producer
        while (node := self._actual.graph.producer.get(name)) is not None:
            owners = sorted(self._run.owners_of(name) & producers.keys())
            steps = [producers[owner] for owner in owners]  # of A, which compute the whole value
            read_by_reference = {root for step in steps for root in self._reference.roots_read_by(step)}
            parts = [
                root
                for root in self._run.roots(node)
                for whole in self._run.owners_of(root) & read_by_reference
                if size_of(self._reference, whole) > size_of(self._actual, root)
            ]
            if not parts:
                same = [step for step in steps if step.operator.kind == node.operator.kind]
                yield self._explained(Suspect(node, node, next(iter(same), None)), self._operands)
                return
            name = parts[0]

    def _next_in_reference(self, name: str) -> list[Node]:
        """Return the operations of A that read what a value of B is."""
        owners = sorted(self._run.owners.get(name, ()))
        return [user for item in owners for user in self._reference.readers.get(item, ())]

    def _force_operands(self) -> None:
        """Let each operation that reads a weight of A read A's operand, where B's is not known to be right."""
        run = self._run
        for anchor in self._pairs.anchors:
            name = anchor.operand
            may_have_factor = anchor.folded and anchor.node.operator.kind == "matmul"  # which A's operand has, then
            may_be_of_other_layer = self._counterparts.is_odd(anchor)
            is_right = run.is_right(name) or self._is_confirmed(anchor)
            if may_have_factor or may_be_of_other_layer or is_right or name in run.routed or name in run.forced:
                continue
            number = self._operands.expected(anchor)
            if number is not None:
                run.forced[name] = number
                if self._operands.is_guessed(anchor):
                    run.guessed[name] = self._operands.reference[anchor.reference_operand]

    def _force_residual_sums(self) -> None:
        """Put A's numbers in place of the sums from which B computes operands, and run B.

        Only sums with which B computes A's operand or result are kept. These sums go from layer to layer: behind a
        wrong one, all values would be wrong.
        """
        run = self._run
        sums: dict[str, list[Anchor]] = {}  # for each forced sum, the operations that read what is computed from it
        for anchor in self._pairs.anchors:
            reference = residual_sum(self._reference, anchor.reference_operand)
            actual = residual_sum(self._actual, anchor.operand)
            if reference is None or actual is None or run.is_right(actual) or run.is_right(anchor.operand):
                continue
            number = None if actual in run.forced else self._operands.in_order_of(reference, actual)
            if number is not None:
                run.forced[actual] = number
                sums[actual] = []
            if actual in sums:
                sums[actual].append(anchor)
        run.run_again()
        wrong = [name for name, anchors in sums.items() if not any(map(self._is_right_with_operand, anchors))]
        for name in wrong:
            del run.forced[name]
        if wrong:
            run.run_again()  # without them

    def _is_right_with_operand(self, anchor: Anchor) -> bool:
        """Whether the operand that B computes in the last run is A's, or the result is."""
        if anchor.operand in self._run.forced and self._run.is_as_forced(anchor.operand, self._run.operands):
            return True
        return any(map(self._run.is_right, self._with_bias(anchor.node)))

    def _is_confirmed(self, anchor: Anchor) -> bool:
        """Whether an operation computes A's result, so that its operand must be right."""
        return anchor.whole and anchor.reference.outputs[0] in self._run.owners_of(anchor.node.outputs[0])

    def _force_result(self, suspect: Suspect) -> bool:
        """Put A's result in place of that of a suspect; return whether it is known."""
        number = self._result_of(suspect.node, suspect.reference)
        if number is not None:
            self._run.forced[suspect.node.outputs[0]] = number
        return number is not None

    def _result_of(self, node: Node, reference: Node | None) -> torch.Tensor | None:
        """Return the result of an operation of A in the order of that of B; None if it is not known.

        Args:
            node: the operation of B.
            reference: that of A; None if it is not known.
        """
        result = None if reference is None else self._reference.values.get(reference.outputs[0])
        value = self._run.values.get(node.outputs[0])
        if result is None or value is None or node.outputs[0] in self._run.routed:
            return None
        peers = (peer.outputs[0] for peer in self._counterparts.peers[node.name])
        # In the order in which B has the results of the same operation of other layers.
        for layout in (match.layout for peer in peers for match in self._run.matches.get(peer, ())):
            if layout is not None and layout.numel == value.numel() and layout.last < result.numel() == value.numel():
                return layout.select(result).reshape(value.shape).clone()
        return arranged(result, value, {})

    def _next(self, wrong: Collection[str], found: Collection[str]) -> Suspect | None:
        """Return the first suspect that explains a wrong value which those that were found do not explain."""
        steps, run, indices = self._other_steps(), self._run, self._actual.graph.node_indices
        for name in sorted(wrong, key=lambda name: indices[self._actual.graph.producer[name].name]):
            first = first_wrong_operations(
                self._actual, [name], judged=steps.recognizable, found=run.found, forced=run.forced
            )
            lines = {code_of(node) for node in first if node.name in found}
            if lines:  # what was found may explain it; others need evidence of their own
                first = [
                    node for node in first if code_of(node) not in lines and self._counterparts.has_right_peer(node)
                ]
            for node in self._likeliest(first):
                return self._suspect(node, steps)
        return None

    def _likeliest(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the operation for which there is most evidence, if there is one; the first one of several.

        In this order: it reads the weight of another layer; the same operation of another layer computes values of A;
        it reads no weight into which a factor of A was folded, so that its result would be a value of A; it reads
        values of A alone. Another implementation computes some values in other steps in all layers, which is no
        evidence.
        """
        run, has_peer = self._run, self._counterparts.has_right_peer

        def order(node: Node) -> tuple[bool, ...]:
            is_odd = weight_of_other_layer(self._pairs, node) is not None
            is_read_right = all(map(run.is_right, run.roots(node)))
            return not is_odd, not has_peer(node), node.name in self._folded, not is_read_right

        return sorted(nodes, key=order)[:1]

    @cached_property
    def _folded(self) -> frozenset[str]:
        """The operations of B that read a weight with a factor which A applies elsewhere."""
        return frozenset(anchor.node.name for anchor in self._pairs.anchors if anchor.folded)

    def _suspect(self, node: Node, steps: OtherSteps) -> Suspect:
        """Return the suspect for an operation that computes something wrong from right values."""
        return self._explained(Suspect(node, steps.to_blame(node), self._counterparts.of(node)), self._operands)

    def _explained(self, suspect: Suspect, operands: Operands) -> Suspect:
        """Return a suspect with the operation to show for it and what is wrong there, as far as that is known."""

        def difference(node: Node, reference: Node | None) -> str:
            return difference_of(self._pairs, operands, self._run.owners, node, reference)

        node = suspect.node
        misplacing = misplacing_node(self._pairs, operands, node)
        if misplacing is None:  # what the operation reads may be wrong although its numbers are A's
            if (odd := odd_weight(self._pairs, node)) is not None:
                return replace(suspect, place=odd.node, note=difference(odd.node, odd.reference))
            if (idle := idle_node(self._pairs, node)) is not None:
                return replace(suspect, place=idle, note=difference(idle, self._counterparts.of(idle)))
            if (copied := copy_in_place_of_step(self._pairs, node)) is not None:
                copy, step = copied
                label = label_of(self._reference, step.outputs[0])
                return replace(suspect, place=copy, note=f"copies what it reads, where A goes on with {label}")
        note = suspect.note or difference(node, suspect.reference)
        return replace(suspect, place=misplacing or suspect.place, note=note)

    def _other_steps(self) -> OtherSteps:
        """Return the values of the last run that A does not have.

        Operands must be right whose operations return numbers of A, and products of weights of A that B computes from
        right values.
        """
        run = self._run
        sure = [anchor.operand for anchor in self._pairs.anchors if self._has_right_operand(anchor)]
        sure += [node.outputs[0] for node in self._products if all(map(run.is_right, run.roots(node)))]
        return OtherSteps(self._pairs.actual, run.found, run.forced, self._counterparts.peers, sure, self._lacking)

    @cached_property
    def _lacking(self) -> frozenset[str]:
        """The results of B that are not A's because B lacks a weight that A reads for them."""
        reference, unused = self._reference, self._pairs.weights.unused
        return frozenset(
            anchor.node.outputs[0]
            for anchor in self._pairs.anchors
            if not self._pairs.found_in_actual.issuperset(anchor.reference.outputs[:1])
            and any(reference.roots[read] in unused for read in anchor.reference.reads)
        )

    def _has_right_operand(self, anchor: Anchor) -> bool:
        """Whether an operation returns numbers of A from which all numbers of its operand follow."""
        names = self._actual.roots[anchor.operand], anchor.operand, anchor.node.outputs[0]
        if not anchor.node.operator.is_linear or anchor.operand in self._run.forced:
            return False
        whole, read, returned = (size_of(self._actual, name) for name in names)
        return whole == read <= returned and any(map(self._run.is_right, self._with_bias(anchor.node)))

    def _with_bias(self, node: Node) -> Iterator[str]:
        """Yield the result of an operation of B, and those of sums with weights that read it."""
        result, actual = node.outputs[0], self._actual
        yield result
        for user in actual.readers.get(result, ()):
            if user.operator.rounding == "addition" and {result, *actual.weights}.issuperset(self._run.roots(user)):
                yield user.outputs[0]

    @cached_property
    def _products(self) -> Sequence[Node]:
        """The operations of B that read a product of weights of A, so that A does not compute their results."""
        matches = [match for match in self._pairs.weights.matches if match.parts and len(match.shape) > 1]
        products = {match.weight for match in matches if match.parts[0].weight not in self._reference.weights}
        nodes = (node for node in self._actual.graph.nodes if node.operator.is_linear)
        return [node for node in nodes if not products.isdisjoint(self._run.roots(node))]

    def _still_wrong(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects that are wrong even if the earlier ones, and nothing else, have A's results.

        One whose results are not known in A is left out if all outputs are right when the others have theirs. So is
        one on which they hardly depend, unless the same operation of another layer is wrong.

        Args:
            suspects: in the order of B.
        """
        if len(suspects) < 2:
            return [*suspects]
        run = self._run
        # From here on, nothing is forced but the results of suspects.
        operands, run.forced, run.guessed = run.forced, {}, {}
        wrong: list[Suspect] = []
        repaired: list[Suspect] = []
        for suspect in suspects:
            is_computed = moved_value(suspect.node) is None  # else its numbers are A's, in another order or step
            is_right = is_computed and run.is_right(suspect.node.outputs[0])
            peers = {peer.name for peer in self._counterparts.peers[suspect.node.name]}
            is_like_others = not peers.isdisjoint(item.node.name for item in wrong)
            is_without_effect = run.found.issuperset(run.outputs) and not is_like_others
            if run.forced and (is_right or is_without_effect):
                continue
            wrong.append(suspect)
            if self._repair(suspect, operands):
                repaired.append(suspect)
                run.run_again()
        return repaired if repaired and run.found.issuperset(run.outputs) else wrong

    def _repair(self, suspect: Suspect, operands: Tensors) -> bool:
        """Put A's numbers in place of the result of a suspect, or of the first known ones that are computed from it.

        Args:
            suspect: an operation that is wrong.
            operands: A's numbers for operands of anchors.

        Returns:
            whether any are known in the layer of the suspect.
        """
        forced, count = self._run.forced, len(self._run.forced)
        pending, seen = [suspect], set[str]()
        while pending:
            item = pending.pop()
            name = item.node.outputs[0]
            if self._force_result(item):
                continue
            if name in operands:
                forced[name] = operands[name]
                continue
            for user in (user for output in item.node.outputs for user in self._actual.graph.consumers.get(output, ())):
                if _layer(user) == _layer(suspect.node) and user.name not in seen:
                    seen.add(user.name)
                    pending.append(Suspect(user, user, self._counterparts.in_layer(user)))
        return len(forced) > count

    def _without_further_readers(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return suspects, with one in place of several that read the value before a step of A which B lacks.

        All that A computes from the value has to be missing, or the readers have to be one line of code: parts of a
        joined value may go on otherwise.
        """
        found = [*suspects]
        for root in dict.fromkeys(root for suspect in suspects for root in self._run.roots(suspect.node)):
            readers = [suspect for suspect in found if root in self._run.roots(suspect.node)]
            steps = self._next_in_reference(root) if root in self._actual.graph.producer else []
            missing = [step for step in steps if not self._run.is_known(step.outputs[0])]
            is_one = len(missing) == len(steps) or len({code_of(reader.node) for reader in readers}) == 1
            if len(readers) < 2 or not missing or not is_one:
                continue
            before, after = label_of(self._actual, root), label_of(self._reference, missing[0].outputs[0])
            note = f"reads {before}, where A goes on with {after}, which B lacks"
            found[found.index(readers[0])] = replace(readers[0], reference=missing[0], note=note)
            found = [suspect for suspect in found if suspect not in readers[1:]]
        return found


def _layer(node: Node) -> str | None:
    """Return the first number in the name of the module of an operation, which is that of its layer."""
    number = re.search(r"\d+", node.module or "")
    return None if number is None else number[0]
