"""Rounding levels and fingerprints as they are stored in golden dumps."""

import math

import pytest
import torch

from filch.compare.float64._fingerprint import Fingerprint
from filch.compare.float64._noise import unit_of
from filch.compare.float64._stored_level import StoredLevel, stored_level
from filch.compare.float64._verdict import Float64Value

UNIT = unit_of(torch.float32)


@pytest.fixture
def value():
    """A float32 value, with the float64 value that it was rounded from, and noise of one rounding error."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(50, 40, generator=generator, dtype=torch.float64)
    noise = torch.randn(50, 40, generator=generator, dtype=torch.float64)
    return exact.float(), Float64Value(exact, exact + 4 * UNIT * noise, UNIT)


def test_a_value_is_within_its_own_level_and_noise_above_it_is_not(value):
    """One element is enough."""
    tensor, float64 = value
    level = stored_level(tensor, float64)
    noise = 4 * UNIT * torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    single = tensor.clone()
    single[3, 4] += 100 * UNIT

    assert level.reliable
    assert level.ratio(tensor, tensor) == 0.0
    assert 0.1 < level.ratio(tensor, tensor + noise) < 2
    assert level.ratio(tensor, tensor + 4 * noise) > 3
    assert level.ratio(tensor, single) > 2
    assert level.ratio(tensor, tensor, float64.value) <= 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_no_rounding(value, wrong):
    """Unless both have it."""
    tensor, float64 = value
    level = stored_level(tensor, float64)
    other = tensor.clone()
    other[0, 0] = wrong

    assert level.ratio(tensor, other) == math.inf
    assert level.ratio(other, other) == 0.0


def test_the_fingerprint_tells_float64_values_apart(value):
    """A millionth of the rounding level is seen, and the size of a change estimated; equal values have no change."""
    tensor, float64 = value
    level = stored_level(tensor, float64)
    one_level = level.typical * level.scale(tensor).reshape(tensor.shape)
    noise = one_level * torch.randn(50, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    assert level.float64_change(tensor, float64.value) == 0.0
    for size in (1e-6, 1.0, 1000.0):
        assert size / 2.5 < level.float64_change(tensor, float64.value + size * noise) < 2.5 * size
    rounded_otherwise = float64.value * (1 + 2**-53)
    assert level.float64_change(tensor, rounded_otherwise) < 1e-7


def test_integers_are_equal_or_not():
    """Also those that float64 can't hold."""
    tensor = torch.tensor([2**60, 3, -5])
    level = stored_level(tensor, Float64Value(tensor, tensor, 0.0))

    assert level.ratio(tensor, tensor) == level.float64_change(tensor, tensor) == 0.0
    assert level.ratio(tensor, tensor + 1) == level.float64_change(tensor, tensor + torch.tensor([1, 0, 0])) == math.inf


def test_a_value_that_rounding_does_not_explain_has_no_reliable_level(value):
    """The level is that of noise alone then, and the fingerprint still that of float64."""
    tensor, float64 = value

    level = stored_level(tensor + 1, float64)

    assert not level.reliable
    assert level.float64_change(tensor + 1, float64.value) == 0.0


def test_without_a_float64_value_there_is_no_level(value):
    """A value that the run in float64 has not computed keeps its dtype."""
    tensor, float64 = value

    assert stored_level(tensor, Float64Value(tensor, tensor, UNIT)) is None
    assert stored_level(tensor[0], float64) is None
    assert stored_level(tensor, Float64Value(float64.value * math.nan, float64.noisy, UNIT)) is None


def test_a_mask_does_not_hide_the_numbers_beside_it(value):
    """The lowest number of the dtype is no measure of rounding."""
    tensor, float64 = value
    lowest = torch.finfo(torch.float32).min
    tensor[0], float64.value[0], float64.noisy[0] = lowest, lowest, lowest
    level = stored_level(tensor, float64)

    assert level.noise < 10 * UNIT
    assert level.ratio(tensor, torch.where(tensor == lowest, tensor, tensor + 1e-4)) > 10
    assert level.float64_change(tensor, torch.where(tensor == lowest, float64.value, float64.value + 1e-4)) > 10


def test_a_level_survives_its_row(value):
    """Nothing is rounded."""
    level = stored_level(*value)

    assert StoredLevel.from_row(level.row()) == level
    weight = Fingerprint.of(value[0])
    assert Fingerprint.from_row(weight.row()) == weight


@pytest.mark.parametrize(
    "row", [[], [1.0] * 7, [UNIT, 0.0, 0.0, 1.0, 0.0, 0.0, [0.0] * 8], [math.inf] * 6 + [[0.0] * 8]]
)
def test_an_invalid_row_is_refused(row):
    """A limit of 0 or infinity would judge everything alike."""
    with pytest.raises(ValueError, match="rounding level"):
        StoredLevel.from_row(row)


def test_the_change_of_a_weight_is_estimated_in_units():
    """Another dtype or shape, and other integers, are no rounding."""
    weight = torch.randn(100, 30, generator=torch.Generator().manual_seed(0))
    noise = UNIT * weight.square().mean().sqrt() * torch.randn(100, 30, generator=torch.Generator().manual_seed(1))
    before = Fingerprint.of(weight)

    assert before.change(Fingerprint.of(weight.clone())) == 0.0
    assert 2 < before.change(Fingerprint.of(weight + 5 * noise)) < 12
    assert before.change(Fingerprint.of(weight.flip(0))) > 1000
    assert Fingerprint.of(weight).digest != Fingerprint.of(weight.double()).digest
    integers = torch.arange(5)
    assert Fingerprint.of(integers).change(Fingerprint.of(integers + 1)) == math.inf


def test_a_step_of_one_element_says_nothing_of_the_others():
    """Noise rounds one of a thousand numbers to another one; that all are off by one is no rounding."""
    value = (torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 5).round()
    noisy = value.double()
    noisy[0] += 1
    level = stored_level(value, Float64Value(value.double(), noisy, 2.0**-24))
    assert level.ratio(value, value) == 0
    assert level.ratio(value, value + 1) > 1000
