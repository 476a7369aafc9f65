"""Layouts come from dumps of unknown origin: they must not make a reader use all memory."""

import pytest
import torch

from filch.steal import DumpError, Mesh, Placement, Sharding
from filch.steal.ranks._join import join

_LINE = Mesh((2,), (0, 1))
_LAYOUT = Sharding(_LINE, (Placement("shard"),), (4, 3)).to_json()


def test_a_layout_is_read_as_it_was_written():
    """Through JSON, which has lists for tuples."""
    layout = Sharding(
        Mesh((2, 2), (3, 1, 2, 0), ("dp", "tp")), tuple(map(Placement.parse, ("S(0, 2)", "P(avg)"))), (8, 3)
    )
    assert Sharding.from_json(layout.to_json()) == layout
    assert str(layout) == "S(0, 2), P(avg) on dp=2, tp=2"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**40, 3]},
        {"shape": [-1, 3]},
        {"shape": "4"},
        {"placements": ["S(2)"]},
        {"placements": ["S(0)", "R"]},
        {"placements": ["X(0)"]},
        {"placements": ["S(0, 9999999)"]},
        {"mesh": [3]},
        {"mesh": [0], "ranks": []},
        {"ranks": [0, 0]},
        {"names": ["dp", "tp"]},
        {"source": 1},
    ],
)
def test_a_damaged_layout_is_refused(change):
    """Sizes, placements and ranks that do not fit each other."""
    with pytest.raises(ValueError, match="is not"):
        Sharding.from_json(_LAYOUT | change)


def test_a_global_tensor_that_is_hardly_stored_is_refused():
    """Two shards of 4 bytes are no tensor of 16 GiB."""
    layout = Sharding(_LINE, (Placement("shard"),), (2**16, 2**16))
    with pytest.raises(DumpError, match="asks for a tensor of 17179869184 bytes"):
        join({0: torch.ones(1), 1: torch.ones(1)}, layout)
