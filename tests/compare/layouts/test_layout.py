"""Tests of layouts: they are solved for, and hold for all elements or not at all."""

import pytest
import torch

from filch.compare.layouts._layout import Layout
from filch.compare.layouts._numbers import TensorNumbers
from filch.compare.layouts._solve import have_same_rows, holds, solve

GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def solved(tensor, source):
    return solve(TensorNumbers(tensor), TensorNumbers(source))


MATRIX, TOKENS = numbers(48, 64), numbers(2, 7, 64)
HEADS = TOKENS.view(2, 7, 4, 16)
PACKED = numbers(4, 3, 12, 48)  # a query, a key and a value for each head
IMAGE, KEYS, EXPERTS = numbers(2, 8, 5, 5), numbers(2, 2, 7, 16), numbers(4, 160, 64)
CASES = {
    "the same": (MATRIX, MATRIX),
    "transposed": (MATRIX.T, MATRIX),
    "rows": (MATRIX[8:16], MATRIX),
    "columns": (MATRIX[:, 8:16], MATRIX),
    "rows of each head interleaved": (MATRIX.view(4, 2, 6, 64).transpose(1, 2).reshape(48, 64), MATRIX),
    "the queries of packed heads": (PACKED[:, 0].reshape(48, 48), PACKED.view(144, 48)),
    "heads before tokens": (HEADS.transpose(1, 2), TOKENS),
    "tokens before heads": (TOKENS, HEADS.transpose(1, 2).contiguous()),
    "heads of all sequences": (HEADS.transpose(1, 2).reshape(8, 7, 16), TOKENS.view(14, 64)),
    "tokens before sequences": (TOKENS.view(14, 64), TOKENS.transpose(0, 1).contiguous()),
    "halves of heads interleaved": (HEADS.view(2, 7, 4, 2, 8).transpose(3, 4), TOKENS),
    "channels last": (IMAGE.permute(0, 2, 3, 1), IMAGE),
    "repeated keys": (KEYS[:, :, None].expand(2, 2, 2, 7, 16), KEYS),
    "one expert, transposed": (EXPERTS[2, 80:].T, EXPERTS),
    "a part of a vector": (MATRIX.view(-1)[32:64], MATRIX.view(-1)[:96]),
    "every third element": (MATRIX.view(-1)[1:300:3], MATRIX.view(-1)[:300]),
    "numbers that occur often": (MATRIX.bfloat16()[3:30].T.double(), MATRIX.bfloat16().double()),
    "infinite numbers": (MATRIX.masked_fill(MATRIX > 1, torch.inf).T, MATRIX.masked_fill(MATRIX > 1, torch.inf)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layout_selects_the_elements(name):
    """The elements that the layout selects are those of the tensor, in their order; it survives as text."""
    tensor, source = CASES[name]
    layout = solved(tensor.contiguous(), source)
    assert layout is not None
    assert torch.equal(layout.select(source).reshape(tensor.shape), tensor)
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize("name", CASES)
def test_one_wrong_element_is_enough(name):
    """No layout is returned if a single element differs by more than the tolerance."""
    tensor, source = CASES[name]
    wrong = tensor.clone().contiguous()
    finite = wrong.isfinite().reshape(-1).nonzero()[-1]
    wrong.view(-1)[finite] += 1e-3
    assert solved(wrong, source) is None


def test_elements_in_no_regular_order_have_no_layout():
    """Rows in a random order are the same rows, but have no layout."""
    order = torch.randperm(48, generator=GENERATOR)
    assert solved(MATRIX[order], MATRIX) is None
    assert have_same_rows(TensorNumbers(MATRIX[order]), TensorNumbers(MATRIX))
    assert not have_same_rows(TensorNumbers(MATRIX[order] + 1e-3), TensorNumbers(MATRIX))


def test_two_different_numbers_are_found_in_usual_orders_only():
    """They fit in many places, so that a mask would be looked for in vain in all others."""
    mask = numbers(4, 9, 9).sign()
    assert solved(mask, mask) == Layout.of(0, [(324, 1)])
    assert solved(mask.mT, mask) == Layout.of(0, [(4, 81), (9, 1), (9, 9)])
    assert solved(mask.repeat(2, 1, 1), mask) is None
    assert solved(mask.mT, numbers(4, 9, 9).sign()) is None


def test_a_mixture_of_two_tensors_has_no_layout():
    """`relu(y) + r` has elements of r where y is negative, which are not all of its elements."""
    other = numbers(48, 64)
    assert solved(MATRIX.relu() + other, other) is None


def test_a_layout_beyond_the_tensor_is_refused():
    """A layout may come from a file: it does not reach beyond the tensor."""
    with pytest.raises(IndexError, match="reaches beyond 64 elements"):
        Layout(60, (8,), (1,)).select(torch.zeros(64))
    assert not holds(Layout(60, (8,), (1,)), TensorNumbers(torch.zeros(8)), TensorNumbers(torch.zeros(64)))


def test_a_layout_counts_from_the_beginning_of_a_view():
    """A tensor may be a part of a larger one in memory, as that of a split is."""
    part = numbers(6, 4)[2:5]
    expected = part.clone().reshape(-1)[1:9:2]
    assert torch.equal(Layout(1, (4,), (2,)).select(part), expected)
    found = solved(part.T.contiguous(), part)
    assert found is not None
    assert torch.equal(found.select(part).reshape(4, 3), part.T)


@pytest.mark.parametrize("text", ["", "1+2", "1+2:3:4", "-1+2:1", "0+2:-1", "a+1:2"])
def test_other_texts_are_no_layouts(text):
    """A layout that people have edited is checked."""
    with pytest.raises(ValueError, match=r"layout|int"):
        Layout.parse(text)


@pytest.mark.parametrize("text", [f"0+{10**30}:0", f"{10**30}+1:1", f"0+2:{10**30}", "0+" + "·".join(["2:0"] * 200)])
def test_a_layout_larger_than_any_tensor_is_refused(text):
    """PyTorch would raise errors of several types for such numbers from a file."""
    with pytest.raises(ValueError, match="no tensor has as many elements"):
        Layout.parse(text)


def test_a_finite_number_is_not_equal_to_one_that_stands_for_infinity():
    """As where a mask is missing; infinite numbers of one sign are equal."""
    scores, mask = numbers(4, 4), torch.ones(4, 4, dtype=torch.bool).triu(1)
    masked = scores.masked_fill(mask, -torch.inf)
    closeness = TensorNumbers(masked).closeness(1e-6)
    assert not closeness.holds(scores, masked)
    assert closeness.holds(scores.masked_fill(mask, torch.finfo(torch.float32).min), masked)
    assert solved(scores, masked) is None
