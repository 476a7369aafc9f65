"""Tests of runs that are repeated: with the exact numbers of A, and with numbers in another memory layout."""

import pytest
import torch
from torch import Tensor, nn

from filch.compare.alignment._exact import computed_tables, exact_run, exact_tables, tables_of
from filch.compare.alignment._execution import run_model

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Stored(nn.Module):
    """Reads the speeds of its angles from a table in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speeds", 1 / 100 ** (torch.arange(4) / 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.arange(5)[:, None] * self.speeds).cos()


class Computed(nn.Module):
    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.arange(5)[:, None] / self.theta ** (torch.arange(4) / 4)).cos()


class Flattened(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).view(-1) + 1


def test_tables_get_the_numbers_of_a():
    """Angles that differ by the rounding of a table become A's, and with them all that is computed from them."""
    own, other = run_model(Stored(), (X,), {}), run_model(Computed(100.0), (X,), {})
    (angles,) = (
        value for name, value in own.values.items() if name.startswith("mul") and value[0].count_nonzero() == 0
    )
    exact = exact_run(other, computed_tables(other, tables_of(own)))
    assert not torch.equal(other.values["div_1"], angles)
    assert torch.equal(exact.values["div_1"], angles)
    assert torch.equal(exact.values["mul"], own.values["mul_1"])
    assert exact.run_again is not None
    assert torch.equal(exact.run_again({}, {"mul"})["mul"], exact.values["mul"])


def test_tables_with_other_numbers_are_kept():
    """Another base is no rounding."""
    own, other = run_model(Stored(), (X,), {}), run_model(Computed(101.0), (X,), {})
    assert torch.equal(exact_run(other, computed_tables(other, tables_of(own))).values["mul"], other.values["mul"])


class Tabulated(nn.Module):
    """Reads the cosines of its first positions from a table in float32, which has more."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.register_buffer("cosines", (torch.arange(shift, 9)[:, None] / 100 ** (torch.arange(4) / 4)).cos())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.cosines[: len(x)]


@pytest.mark.parametrize("shift", [0, 1])
def test_tables_among_the_weights_get_the_numbers_of_a(shift: int) -> None:
    own, other = run_model(Stored(), (X,), {}), run_model(Tabulated(shift), (X,), {})
    tables = exact_tables(other, ["cosines"], tables_of(own, ["speeds"]))
    if shift:  # the table begins at another position
        assert not tables
        return
    exact = exact_run(other, {}, tables)
    assert not torch.equal(other.values["mul"], own.values["mul_1"])
    assert torch.equal(exact.values["mul"], own.values["mul_1"])
    assert torch.equal(tables["cosines"][5:], other.weights["cosines"][5:].double())


class Long(nn.Module):
    """Multiplies by angles of many positions, in a table or not, whose float32 rounding grows with the position."""

    def __init__(self, theta: float, *, stored: bool) -> None:
        super().__init__()
        self.theta, self.stored = theta, stored
        self.register_buffer("cosines", self.angles().cos())

    def angles(self) -> Tensor:
        return torch.arange(300)[:, None] / self.theta ** (torch.arange(4) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.cosines if self.stored else self.angles().cos())


@pytest.mark.parametrize(("theta", "count"), [(100.0, 1), (101.0, 0)])
def test_rounding_of_angles_grows_with_the_position(theta: float, count: int) -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    own, other = run_model(Long(100.0, stored=False), (x,), {}), run_model(Long(theta, stored=True), (x,), {})
    assert len(exact_tables(other, ["cosines"], tables_of(own))) == count


def test_numbers_in_another_memory_layout_are_read_by_views():
    """A view of a value works with numbers that were permuted."""
    execution = run_model(Flattened(), (X,), {})
    number = torch.arange(20.0, dtype=torch.float64).view(4, 5).T
    assert execution.run_again is not None
    assert torch.equal(execution.run_again({"mul": number}, {"add"})["add"], number.reshape(-1) + 1)


class Decays(nn.Module):
    """Multiplies by rates of many channels, of which a few are larger than the others by orders of magnitude."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.logarithms = nn.Parameter(torch.randn(128, 8, generator=generator))
        self.logarithms.data[0, 0] = 18.0

    def forward(self, x: Tensor) -> Tensor:
        return x * -self.logarithms.exp()


def test_rates_of_other_weights_are_no_rounding_beside_a_few_large_ones() -> None:
    x = torch.randn(3, 128, 8, generator=torch.Generator().manual_seed(2))
    own, other = (run_model(Decays(seed), (x,), {}) for seed in (0, 1))
    assert computed_tables(other, tables_of(own)) == {}
