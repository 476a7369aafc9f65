"""Tests of matching the weights of two implementations."""

from __future__ import annotations

import torch

from filch.compare.alignment._weights import match_weights

GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def parts_of(reference: dict[str, torch.Tensor], other: torch.Tensor) -> list[tuple[str, str, str]]:
    match = match_weights(reference, {"other": other}).by_weight["other"]
    return [(part.weight, part.arrangement, part.factor) for part in match.parts]


A = {"q": numbers(64, 48), "k": numbers(32, 48), "v": numbers(32, 48), "gain": numbers(48) + 1, "bias": numbers(64)}
EXPERTS = {"experts": numbers(4, 32, 24)}


def test_weights_are_found_joined_split_and_moved():
    """The arrangement says which is a part of which."""
    assert parts_of(A, A["q"].T.contiguous()) == [("q", "moved", "")]
    joined = parts_of(A, torch.cat([A["q"], A["k"], A["v"]]))
    assert joined == [("q", "holds", ""), ("k", "holds", ""), ("v", "holds", "")]
    assert parts_of(EXPERTS, EXPERTS["experts"][2].T.contiguous()) == [("experts", "part", "")]
    assert parts_of(A, torch.cat([A["bias"], A["gain"]])) == [("bias", "holds", ""), ("gain", "holds", "")]


def test_factors_are_named():
    """A scale, the gain of a norm, and a norm that stores its gain without 1."""
    assert parts_of(A, A["q"] * 0.125) == [("q", "same", "times 0.125")]
    assert parts_of(A, A["q"] * A["gain"]) == [("q", "same", "times gain, along dimension 1")]
    assert parts_of(A, (A["q"] * A["gain"]).T.contiguous()) == [("q", "moved", "times gain, along dimension 0")]
    assert parts_of(A, A["gain"] - 1) == [("gain", "same", "plus -1")]
    joined = torch.cat([A["q"], A["k"]]) * (1 + A["gain"])
    folded = [(name, "holds", "times 1 + gain, along dimension 1") for name in ("q", "k")]
    assert parts_of(A, joined) == folded
    assert parts_of(A, joined.T.contiguous())[0] == ("q", "holds", "times 1 + gain, along dimension 0")
    assert match_weights(A, {"other": joined}).unused == ("v", "bias")


def test_factors_are_known_without_rounding():
    """A product with a gain, and a gain with 1, are computed again in float64; what is only moved has no rounding."""
    joined = torch.cat([A["q"], A["k"]]) * A["gain"]
    exact = match_weights(A, {"folded": A["v"] * A["gain"], "joined": joined, "moved": A["bias"].clone()}).exact
    gain = A["gain"].double()
    assert exact.keys() == {"folded", "joined"}
    assert torch.equal(exact["folded"], A["v"].double() * gain)
    assert torch.equal(exact["joined"], torch.cat([A["q"], A["k"]]).double() * gain)
    assert torch.equal(match_weights(A, {"shifted": A["gain"] - 1}).exact["shifted"], gain - 1)


def test_other_numbers_are_not_found():
    """One wrong element, one wrong row and unrelated numbers are all missing; what they replace is unused."""
    wrong = A["q"].clone()
    wrong[3, 5] += 1e-3
    row = A["q"].clone()
    row[3] = row[4]
    for other in (wrong, row, numbers(64, 48), numbers(7)):
        result = match_weights(A, {"other": other})
        assert result.missing == ("other",)
        assert "q" in result.unused


def test_a_joined_weight_with_a_foreign_part_is_incomplete():
    """The part that is found does not hide the one that is not."""
    match = match_weights(A, {"other": torch.cat([A["q"], numbers(32, 48)])}).by_weight["other"]
    assert [part.weight for part in match.parts] == ["q"]
    assert not match.complete
    joined = torch.cat([A["q"], A["k"]]) * A["gain"]
    joined[-1, -1] += 1e-3
    match = match_weights(A, {"other": joined}).by_weight["other"]
    assert [part.weight for part in match.parts] == ["q"]
    assert not match.complete


def test_zeros_take_the_place_of_a_missing_bias():
    """A layer without bias that was joined with others is complete; zeros in place of another number are not."""
    zeros = torch.zeros(32)
    assert match_weights(A, {"other": torch.cat([zeros, A["bias"]])}).matches[0].complete
    assert match_weights(A, {"other": torch.cat([zeros, A["bias"][:32]])}).missing == ("other",)


def test_weights_of_another_dtype_are_compared_in_the_coarser_one():
    """A checkpoint in bfloat16 has the numbers of one in float32, rounded."""
    result = match_weights(A, {"other": A["q"].T.bfloat16()})
    assert result.missing == ()
    assert match_weights(A, {"other": (A["q"] + 0.1).bfloat16()}).missing == ("other",)
