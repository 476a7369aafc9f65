"""Tests of the second input on which values are matched."""

import torch

from filch.compare.models._second_input import other_numbers


def test_other_numbers_do_not_depend_on_the_layout():
    """The same numbers in another order become the same other numbers."""
    image = torch.randn(2, 3, 5, 5)
    tokens = torch.tensor([[5, 9, 2], [7, 9, 4]])
    first, second = other_numbers((image, tokens)), other_numbers((image.permute(0, 2, 3, 1).contiguous(), tokens.T))
    assert torch.equal(first[0].permute(0, 2, 3, 1), second[0])
    assert torch.equal(first[1].T, second[1])
    assert not torch.equal(first[0], image)
    assert sorted(first[1].unique().tolist()) == sorted(tokens.unique().tolist())
    assert not torch.equal(first[1], tokens)


def test_masks_and_positions_are_kept():
    """A mask of other tokens or positions in another order would be another task."""
    mask, positions, flags = torch.tensor([[1, 1, 0]]), torch.arange(6)[None], torch.tensor([True, False])
    kept = other_numbers({"mask": mask, "positions": positions, "flags": flags, "name": "x", "size": 3})
    assert torch.equal(kept["mask"], mask)
    assert torch.equal(kept["positions"], positions)
    assert torch.equal(kept["flags"], flags)
    assert (kept["name"], kept["size"]) == ("x", 3)
