"""Find out by the reference how plain tensors of several ranks belong together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from filch.steal import Placement
from filch.steal.ranks._distributed import Distributed, joined_if_equal
from filch.steal.ranks._join import is_same_bits as has_same_bits
from filch.steal.ranks._layouts import LearnedLayout
from filch.steal.ranks._part_layout import layout_of

from ..metrics._metrics import Difference, compare_tensors
from ..metrics._summed_sizes import compare_summed
from ..metrics._tolerance import Tolerance

_PARTIAL = (Placement("partial", reduce_op="sum"), Placement("partial", reduce_op="avg"))
_REPLICATED = Placement("replicate")


@dataclass(frozen=True)
class Inferred:
    """The way in which parts of a tensor fit a reference best.

    Attributes:
        item: the tensor that the parts are together.
        layout: the mesh, the placements and the divisor, as `Layouts.learned` has it.
        difference: of that tensor from the reference.
        unreduced: whether the ranks have partial values, which no collective has added.
        divisor: of the tensor.
        wrong: the ranks whose part or replica differs from the reference; None if that is not known.
        is_rounding: whether the difference is close because of the size of what was summed: rounding errors fit in
            other ways, too.
    """

    item: Distributed
    layout: str
    difference: Difference
    unreduced: bool
    divisor: float
    wrong: tuple[int, ...] | None
    is_rounding: bool = False

    @property
    def order(self) -> tuple[bool, bool, int, float]:
        """A sort key: the best way first, among equal ones those of more likely layouts."""
        if self.difference.close:
            return False, self.unreduced, len(self.item.ranks), 0.0
        error = self.difference.error
        wrong = len(self.wrong or self.item.pieces)
        return True, self.unreduced, wrong, float("inf") if error != error else error  # noqa: PLR0124  NaN


def infer(
    item: Distributed,
    reference: torch.Tensor,
    *,
    size: Callable[[], float] = float,
    divisor: float | None = 1,
    tolerance: float | Tolerance | None,
) -> Inferred | None:
    """Return the way to put parts together that fits the reference best; None if their shapes fit in no way.

    Ways that fit within the tolerance come first, then those in which the parts of fewer ranks are wrong, then those
    with the smaller error; of equal ones, replicas come before shards and these before partial values.

    Args:
        item: the parts of a tensor, at least two.
        reference: the tensor of one process.
        size: returns the size of what was summed to get the reference (see `SummedSizes`); by default, it is not known.
        divisor: of the tensor; None tries 1 and the number of shards: if each of n ranks computes the mean loss of its
            part of a batch, gradients with respect to inputs and outputs are n times as large as in one process.
        tolerance: see `compare`.
    """
    best: Inferred | None = None
    rounding: Inferred | None = None
    for mesh, placements in _candidates(item.tensors, reference):
        sharding = layout_of(item.tensors, placements, mesh)
        shards = prod(mesh[dim] for dim in sharding.shard_dims)
        for number in sorted({1, shards}) if divisor is None else (divisor,):
            made = (joined_if_equal(item) if shards == 1 else None) or item.joined(sharding, "inferred")
            made = made if number == 1 else made.divided(number)
            part = made.parts[0].tensor
            difference, is_rounding = compare_summed(part, reference, size, tolerance=tolerance)
            count = int(number) if number == int(number) else 1  # a factor of clipping is none of the layout
            text = str(LearnedLayout(mesh, placements, count))
            wrong = None if difference.close else wrong_ranks(made, reference, tolerance)
            unreduced = any(placement.kind == "partial" for placement in placements)
            found = Inferred(made, text, difference, unreduced, number, wrong, is_rounding)
            if difference.close and not made.problems and not is_rounding:
                return found
            if is_rounding:
                rounding = rounding or found
            elif best is None or found.order < best.order:
                best = found
    return rounding or best


def fit_known(
    item: Distributed,
    reference: torch.Tensor,
    *,
    size: Callable[[], float],
    divisors: Sequence[float],
    tolerance: float | Tolerance | None,
) -> Inferred:
    """Compare a tensor whose layout is known with the reference; the divisor is the one that fits best."""
    ways = []
    for divisor in divisors:
        made = item if divisor == 1 else item.divided(divisor)
        difference, is_rounding = compare_summed(made.parts[0].tensor, reference, size, tolerance=tolerance)
        wrong = None if difference.close else wrong_ranks(made, reference, tolerance)
        ways.append(Inferred(made, "", difference, False, divisor, wrong, is_rounding))  # noqa: FBT003  not reduced
    return min(ways, key=lambda way: (way.is_rounding, way.order))


def wrong_ranks(
    item: Distributed, reference: torch.Tensor, tolerance: float | Tolerance | None
) -> tuple[int, ...] | None:
    """Return the ranks whose own part or replica differs from the reference; None if that is not known.

    If none differs by more than the tolerance, they are those that differ in any bit, if there are others.
    """
    if item.parts[0].tensor.shape != reference.shape:
        return item.parts[0].ranks if len(item.pieces) == 1 else None
    far, inexact = set(), set()
    for piece in item.pieces:
        if piece.take is None:
            return None
        expected = piece.take(reference)
        if not has_same_bits(expected, piece.tensor):
            inexact.add(piece.rank)
            if not compare_tensors(piece.tensor, expected, tolerance=tolerance).close:
                far.add(piece.rank)
    all_ranks = {piece.rank for piece in item.pieces}
    return tuple(sorted(far or (inexact if inexact != all_ranks else ()))) or None


def _candidates(
    tensors: Sequence[torch.Tensor], reference: torch.Tensor
) -> Iterator[tuple[tuple[int, ...], tuple[Placement, ...]]]:
    """Yield mesh and placements of each way that gives the reference's shape, those with fewer dimensions first."""
    count, shape = len(tensors), tuple(reference.shape)
    is_equal = all(has_same_bits(tensors[0], tensor) for tensor in tensors[1:])
    if is_equal and tuple(tensors[0].shape) == shape:
        yield (count,), (_REPLICATED,)
        return
    meshes = [(count,), *((outer, count // outer) for outer in range(2, count) if count % outer == 0)]
    choices = [*_placements(reference)]
    for mesh in meshes:
        for placements in product(choices, repeat=len(mesh)):
            if _fits(tensors, placements, mesh, shape):
                yield mesh, placements


def _placements(reference: torch.Tensor) -> Iterator[Placement]:
    yield _REPLICATED
    yield from (Placement("shard", dim=dim) for dim in range(reference.dim()))
    yield from (Placement("shard", dim=dim, zigzag=True) for dim in range(reference.dim()))
    if reference.is_floating_point():
        yield from _PARTIAL


def _fits(
    tensors: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: tuple[int, ...], shape: tuple[int, ...]
) -> bool:
    """Return whether parts of these shapes give a tensor of the reference's shape.

    A dimension is sharded over two dimensions of the mesh only without zigzag.
    """
    if len({placement.dim for placement in placements if placement.kind == "shard"}) < sum(
        placement.kind == "shard" for placement in placements
    ) and any(placement.zigzag for placement in placements):
        return False
    sharding = layout_of(tensors, placements, mesh)
    if sharding.shape != shape:
        return False
    return all(sharding.has_part(index, tuple(tensor.shape)) for index, tensor in enumerate(tensors))
