"""Parts of a tensor are put together in the way that fits the reference."""

import pytest
import torch

from filch.compare.ranks._inference import infer, wrong_ranks
from filch.steal.ranks._distributed import Distributed, Piece, RankPart

REFERENCE = torch.arange(24.0).view(6, 4)


def _distributed(*tensors):
    whole = ((rank, tensor, (Piece(rank, tensor, lambda value: value),)) for rank, tensor in enumerate(tensors))
    return Distributed([RankPart((rank,), tensor, pieces) for rank, tensor, pieces in whole])


@pytest.mark.parametrize(
    ("tensors", "layout"),
    [
        ((REFERENCE, REFERENCE), "2: R"),
        (REFERENCE.chunk(2), "2: S(0)"),
        (REFERENCE.split([5, 1]), "2: S(0)"),
        (REFERENCE.split([6, 0]), "2: S(0)"),
        ((REFERENCE[:, [0, 3]], REFERENCE[:, [1, 2]]), "2: Z(1)"),
        ((REFERENCE / 4, REFERENCE * 0.75), "2: P(sum)"),
    ],
)
def test_the_layout_that_fits_is_found(tensors, layout):
    """Replicas, shards of equal or other sizes, in zigzag order, and partial values are told from each other."""
    found = infer(_distributed(*tensors), REFERENCE, tolerance=None)
    assert found is not None
    assert (found.layout, found.difference.close) == (layout, True)


def test_equal_parts_may_be_shards():
    """Two equal halves of a mask are shards of it, not replicas."""
    mask = torch.ones(4, 8)
    found = infer(_distributed(mask, mask.clone()), torch.ones(8, 8), tolerance=None)
    assert found is not None
    assert (found.layout, found.difference.close) == ("2: S(0)", True)


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("split", [lambda tensor: [tensor, tensor], lambda tensor: tensor.split([4, 2])])
def test_the_rank_that_differs_from_the_reference_is_named(split, wrong):
    """It is named among two replicas or shards, whichever of them it is."""
    parts = [part.clone() for part in split(REFERENCE)]
    parts[wrong][0] += 1
    found = infer(_distributed(*parts), REFERENCE, tolerance=None)
    assert found is not None
    assert wrong_ranks(found.item, REFERENCE, None) == (wrong,)


def test_parts_that_cannot_give_the_shape_have_no_layout():
    """Rows that are missing on a rank are not made up for."""
    assert infer(_distributed(*REFERENCE[:5].split([3, 2])), REFERENCE, tolerance=None) is None
