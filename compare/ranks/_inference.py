"""Find out by the reference how plain tensors of several ranks belong together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from filch.steal import Distributed, Placement
from filch.steal.ranks import has_same_bits, layout_of

from ..metrics._metrics import Difference, compare_tensors
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
    """

    item: Distributed
    layout: str
    difference: Difference
    unreduced: bool


def infer(
    item: Distributed, reference: torch.Tensor, *, gradient: bool, tolerance: float | Tolerance | None
) -> Inferred | None:
    """Return the way to put parts together that fits the reference best; None if their shapes fit in no way.

    Ways that fit within the tolerance come first, then those with the smaller error; of equal ones, replicas come
    before shards and these before partial values.

    Args:
        item: the parts of a tensor, at least two.
        reference: the tensor of one process.
        gradient: whether it is a gradient with respect to an input or output: if each of n ranks computes the mean loss
            of its part of a batch, gradients are n times as large as in one process.
        tolerance: see `compare`.
    """
    best: Inferred | None = None
    for mesh, placements, divisor in _candidates(item.tensors, reference, gradient=gradient):
        made = item.joined(layout_of(item.tensors, placements, mesh), "inferred", divisor)
        difference = compare_tensors(reference, made.parts[0].tensor, tolerance=tolerance)
        text = f"{'x'.join(map(str, mesh))}: {', '.join(map(str, placements))}{f' / {divisor}' if divisor > 1 else ''}"
        found = Inferred(made, text, difference, any(placement.kind == "partial" for placement in placements))
        if best is None or _rank(found) < _rank(best):
            best = found
        if difference.close and not found.unreduced and not made.problems:
            break
    return best


def _rank(found: Inferred) -> tuple[bool, bool, float]:
    """Return a sort key: the best way first."""
    error = found.difference.error_max
    far = not found.difference.close
    return far, far and found.unreduced, float("inf") if error != error else error  # noqa: PLR0124  NaN


def _candidates(
    tensors: Sequence[torch.Tensor], reference: torch.Tensor, *, gradient: bool
) -> Iterator[tuple[tuple[int, ...], tuple[Placement, ...], int]]:
    """Yield mesh, placements and divisor of each way that gives the reference's shape."""
    count, shape = len(tensors), tuple(reference.shape)
    if all(has_same_bits(tensors[0], tensor) for tensor in tensors[1:]):
        if tuple(tensors[0].shape) == shape:
            yield (count,), (_REPLICATED,), 1
        return
    meshes = [(count,), *((outer, count // outer) for outer in range(2, count) if count % outer == 0)]
    for mesh in meshes:
        choices = [*_placements(reference)]
        for placements in product(choices, repeat=len(mesh)):
            if not _fits(tensors, placements, mesh, shape):
                continue
            yield mesh, placements, 1
            sharded = [size for size, placement in zip(mesh, placements, strict=True) if placement.kind == "shard"]
            if gradient and reference.is_floating_point():
                yield from ((mesh, placements, divisor) for divisor in sorted({*sharded}))


def _placements(reference: torch.Tensor) -> Iterator[Placement]:
    yield _REPLICATED
    yield from (Placement("shard", dim=dim) for dim in range(reference.dim()))
    yield from (Placement("shard", dim=dim, zigzag=True) for dim in range(reference.dim()))
    if reference.is_floating_point():
        yield from _PARTIAL


def _fits(
    tensors: Sequence[torch.Tensor], placements: Sequence[Placement], mesh: tuple[int, ...], shape: tuple[int, ...]
) -> bool:
    """Return whether parts of these shapes give a tensor of the reference's shape."""
    if len({placement.dim for placement in placements if placement.kind == "shard"}) < sum(
        placement.kind == "shard" for placement in placements
    ) and any(placement.zigzag for placement in placements):
        return False
    sharding = layout_of(tensors, placements, mesh)
    if sharding.shape != shape:
        return False
    return all(sharding.has_part(index, tuple(tensor.shape)) for index, tensor in enumerate(tensors))
