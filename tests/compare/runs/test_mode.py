"""PyTorch code that runs in float64 beside its own dtypes."""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.compare.float64._noise import unit_of
from filch.compare.runs._mode import Float64Mode, float64_values
from support.models.small import module_of

HALF, SINGLE = unit_of(torch.float16), unit_of(torch.float32)


def value_of(run):
    """Return the float64 value of one tensor."""
    values = float64_values(lambda: {"it": run()})
    assert not values.problem
    value = values.get("it")
    assert value is not None
    return value


def test_in_place_operations_and_views_have_the_same_effect_as_in_a_float64_model():
    """Slices, expanded gradients, complex numbers and a memory format; forward and backward."""

    def written(self, x):
        y = self.conv(x).to(memory_format=torch.channels_last).mean((2, 3))
        self.seen.mul_(0.5).add_(y.detach().amax(0))
        z = torch.zeros_like(y)
        z[:, 1:] = self.linear(y)[:, :-1]
        z[:, 0] += self.seen[1]
        turned = torch.polar(z.abs() + 1, z.transpose(0, 1).contiguous().t())
        return torch.view_as_real(turned * turned.conj() * 1j).flatten(1)

    def run(model, x):
        model = copy.deepcopy(model)
        result = model(x)
        result.square().sum().backward()
        gradients = {name: item.grad for name, item in model.named_parameters()}
        return {"result": result.detach(), "seen": model.seen, **gradients}

    torch.manual_seed(0)
    model = module_of(written, conv=nn.Conv2d(2, 4, 3), linear=nn.Linear(4, 4), seen=torch.zeros(4))
    x = torch.randn(3, 2, 6, 6)
    values = float64_values(lambda: run(model, x))
    for name, expected in run(model.double(), x.double()).items():
        value = values.get(name)
        assert value is not None
        torch.testing.assert_close(value.value, expected, rtol=1e-12, atol=1e-12)
        error = (value.noisy - expected).abs().max() / expected.abs().max()
        assert 1e-9 < error < 1e-5, name


def test_random_numbers_are_those_of_the_run():
    """A dropout has the same mask; the random number state is unchanged."""
    torch.manual_seed(0)
    x = torch.randn(50)
    before = torch.get_rng_state()

    value = value_of(lambda: functional.dropout(x, 0.5) * torch.rand(50))

    assert torch.equal(before, torch.get_rng_state())
    dropped = functional.dropout(x, 0.5)
    torch.testing.assert_close(value.value, dropped.double() * torch.rand(50).double())


def test_a_run_takes_the_branches_of_its_own_dtype():
    """Code that asks for a dtype gets the model's; the result is in float64 nevertheless."""
    x = torch.tensor([0.1])
    value = value_of(lambda: x * 3 if x.dtype == torch.float32 else x)
    assert value.value.item() == x.double().item() * 3


def test_the_noise_is_that_of_the_dtype_of_each_value():
    """A cast to float16 within a float32 model rounds; a float16 weight that is only cast to float32 is exact."""
    torch.manual_seed(0)
    x, weight = torch.randn(1000), torch.randn(1000).half()

    through_half = value_of(lambda: x.half().float() * 1)
    single = value_of(lambda: x * weight.float() * 1)
    read_in_half = value_of(lambda: weight * 2)

    for value, unit in ((through_half, HALF), (single, SINGLE), (read_in_half, HALF)):
        assert value.unit == unit
        noise = ((value.noisy - value.value) / value.value).square().mean().sqrt().item()
        assert 0.5 * unit < noise < 4 * unit
    torch.testing.assert_close(through_half.value, x.double(), rtol=1e-15, atol=0.0)


def test_numbers_that_are_only_moved_have_the_noise_of_one_rounding():
    """Gathering, concatenating and transposing round nothing."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    value = value_of(lambda: torch.cat([x[torch.arange(63, -1, -1)], x]).view(2, 64).t().contiguous())
    noise = ((value.noisy - value.value) / value.value).abs().max().item()
    assert 0 < noise < 1.75 * SINGLE


def test_a_sum_that_cancels_has_the_noise_of_its_partial_sums():
    """Ones and then minus ones: the sum is exact, and its kernel may not be."""
    x = torch.cat([torch.full((512,), 0.1), torch.full((512,), -0.1)])
    value = value_of(x.sum)
    assert value.value.item() == 0.0
    few = value_of(x[::256].sum)
    assert abs(value.noisy.item()) > 10 * abs(few.noisy.item())


def test_what_depends_on_an_operation_without_float64_is_nan():
    """Everything else has its value, and the problem names the operation."""

    @torch.library.custom_op("filch_tests::needs_float32", mutates_args=())
    def needs_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("expected float32")
        return x.clone()

    x = torch.ones(3)
    values = float64_values(lambda: {"before": x * 2, "after": needs_float32(x * 2) + 1})
    before, after = values.get("before"), values.get("after")
    assert before is not None and after is not None
    assert before.value.tolist() == [2.0, 2.0, 2.0]
    assert after.value.isnan().all()
    assert values.problem == "filch_tests.needs_float32.default in float64: expected float32"


def test_code_that_can_not_run_has_no_values():
    """The problem is the error's first line."""

    def fail():
        raise RuntimeError("no such thing\nmore")

    values = float64_values(fail)
    assert values.problem == "no such thing"
    assert values.get("it") is None
    assert values.unit("it") == 0.0


def test_the_negative_bit_of_a_view_is_followed():
    """The imaginary part of a conjugate is a view of the imaginary part with this bit."""
    torch.manual_seed(0)
    z = torch.randn(8, dtype=torch.complex64)

    value = value_of(lambda: (z * 1j).conj().imag * 2)

    torch.testing.assert_close(value.value, (z.to(torch.complex128) * 1j).conj().imag * 2)


def test_sums_of_integers_of_nothing_and_of_complex_numbers_have_float64_values():
    """Their partial sums round like those of any sum, or not at all."""
    torch.manual_seed(0)
    mask, z = torch.rand(4, 300) < 0.5, torch.randn(4, 300, dtype=torch.complex64)

    counts = value_of(lambda: mask.sum(1, dtype=torch.float32) / 3)
    empty = value_of(lambda: torch.ones(0, 4).sum(1) + torch.ones(0))
    sums = value_of(lambda: torch.view_as_real(z.sum(1)))

    torch.testing.assert_close(counts.value, mask.sum(1).double() / 3)
    assert empty.value.shape == (0,)
    torch.testing.assert_close(sums.value, torch.view_as_real(z.to(torch.complex128).sum(1)))
    assert not torch.equal(sums.noisy, sums.value)


def test_numbers_that_are_added_at_indices_are_rounded():
    """The gradient of an indexed table is a sum, although `index_put` often only moves numbers."""
    torch.manual_seed(0)
    table, indices = torch.zeros(2), torch.zeros(1000, dtype=torch.int64)
    terms = torch.rand(1000)

    def run(*, accumulate):
        result = torch.ops.aten.index_put(table, [indices], terms, accumulate)
        return result * 1  # a value gets its noise when it is read

    added, put = value_of(lambda: run(accumulate=True)), value_of(lambda: run(accumulate=False))

    # The noise of the terms, and of the sum and the product.
    def units(value):
        return float((value.noisy - value.value)[0].abs() / value.value[0] / SINGLE)

    assert units(added) > 0.2
    assert units(put) < 2 * 3**0.5 + 1e-6


def test_dropout_of_everything_is_zero():
    """Not 0 / 0."""
    value = value_of(lambda: functional.dropout(torch.ones(8), 1.0, training=True))

    assert value.value.tolist() == [0.0] * 8


def test_noise_takes_no_second_copy_of_a_weight() -> None:
    """It is added where the weight is read; what is computed or written to has both numbers."""
    weight, counts = torch.randn(2**17), []

    def count() -> None:
        alive = (item for item in gc.get_objects() if isinstance(item, torch.Tensor))
        counts.append(sum(item.dtype == torch.float64 and item.numel() == weight.numel() for item in alive))

    def run() -> Mapping[str, torch.Tensor]:
        total = (weight * 2).sum()
        count()
        doubled = weight * 2
        count()
        return {"it": doubled + total}

    assert float64_values(run).get("it") is not None
    assert counts == [1, 3]


@pytest.mark.parametrize("ways", [("exact", "noisy"), ("noisy",)])
def test_what_is_converted_at_each_read_is_what_is_kept(monkeypatch, ways):
    """A weight is not kept in float64, however often it is read; what an operation writes to is, from then on."""
    torch.manual_seed(0)
    weight, tied, x = torch.randn(6, 6), torch.randn(6, 6), torch.randn(3, 6)

    def values(limit):
        monkeypatch.setattr("filch.compare.runs._mode._LARGE", limit)
        mode, state = Float64Mode(*ways), tied.clone()
        with mode.running():
            y = torch.relu(x @ weight.T) @ weight + weight[:3]
            z = y @ state
            state[1:].mul_(3.0)
            z = z + state.sum(0) + x.to(torch.float64)[:, :1]
        kept = sum(len(shadow.flats) for shadow in map(mode._shadow, (weight, x)))  # noqa: SLF001
        return kept, [mode.value(item, way) for item in (y, z, state, weight) for way in ways]

    (none, lazy), (all_, eager) = values(0), values(2**30)
    assert all(map(torch.equal, lazy, eager))
    assert (none, all_) == ((0, 2) if len(ways) > 1 else (2, 2))
