"""Tests of runs that are repeated: with the exact numbers of A, and with numbers in another memory layout."""

import pytest
import torch
from torch import nn

from filch.compare import align
from filch.compare.alignment._tables import computed_tables, exact_tables, tables_of
from filch.compare.runs._execution import run_model
from support.models.small import module_of

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def stored_module():
    """Reads the speeds of its angles from a table in float32."""
    return module_of(
        lambda self, x: x * (torch.arange(5)[:, None] * self.speeds).cos(), speeds=1 / 100 ** (torch.arange(4) / 4)
    )


def computed(theta):
    return module_of(
        lambda self, x: x * (torch.arange(5)[:, None] / self.theta ** (torch.arange(4) / 4)).cos(), theta=theta
    )


def test_tables_get_the_numbers_of_a():
    """Angles that differ by the rounding of a table become A's, and with them all that is computed from them."""
    own, other = run_model(stored_module(), (X,), {}), run_model(computed(100.0), (X,), {})
    (angles,) = (
        value for name, value in own.values.items() if name.startswith("mul") and value[0].count_nonzero() == 0
    )
    exact = other.with_numbers(computed_tables(other, tables_of(own)))
    assert not torch.equal(other.values["div_1"], angles)
    assert torch.equal(exact.values["div_1"], angles)
    assert torch.equal(exact.values["mul"], own.values["mul_1"])
    assert exact.run_again is not None
    assert torch.equal(exact.run_again({}, {"mul"})["mul"], exact.values["mul"])


def test_tables_with_other_numbers_are_kept():
    """Another base is no rounding."""
    own, other = run_model(stored_module(), (X,), {}), run_model(computed(101.0), (X,), {})
    assert torch.equal(other.with_numbers(computed_tables(other, tables_of(own))).values["mul"], other.values["mul"])


def tabulated(shift=0):
    """Reads the cosines of its first positions from a table in float32, which has more."""
    return module_of(
        lambda self, x: x * self.cosines[: len(x)],
        cosines=(torch.arange(shift, 9)[:, None] / 100 ** (torch.arange(4) / 4)).cos(),
    )


@pytest.mark.parametrize("shift", [0, 1])
def test_tables_among_the_weights_get_the_numbers_of_a(shift):
    own, other = run_model(stored_module(), (X,), {}), run_model(tabulated(shift), (X,), {})
    tables = exact_tables(other, ["cosines"], tables_of(own, ["speeds"]))
    if shift:  # the table begins at another position
        assert not tables
        return
    exact = other.with_numbers({}, tables)
    assert not torch.equal(other.values["mul"], own.values["mul_1"])
    assert torch.equal(exact.values["mul"], own.values["mul_1"])
    assert torch.equal(tables["cosines"][5:], other.weights["cosines"][5:].double())


class Long(nn.Module):
    """Multiplies by angles of many positions, in a table or not, whose float32 rounding grows with the position."""

    def __init__(self, theta, *, stored):
        super().__init__()
        self.theta, self.stored = theta, stored
        self.register_buffer("cosines", self.angles().cos())

    def angles(self):
        return torch.arange(300)[:, None] / self.theta ** (torch.arange(4) / 4)

    def forward(self, x):
        return x * (self.cosines if self.stored else self.angles().cos())


@pytest.mark.parametrize(("theta", "count"), [(100.0, 1), (101.0, 0)])
def test_rounding_of_angles_grows_with_the_position(theta, count):
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    own, other = run_model(Long(100.0, stored=False), (x,), {}), run_model(Long(theta, stored=True), (x,), {})
    assert len(exact_tables(other, ["cosines"], tables_of(own))) == count


def test_numbers_in_another_memory_layout_are_read_by_views():
    """A view of a value works with numbers that were permuted."""
    execution = run_model(module_of(lambda self, x: (x * 2).view(-1) + 1), (X,), {})
    number = torch.arange(20.0, dtype=torch.float64).view(4, 5).T
    assert execution.run_again is not None
    assert torch.equal(execution.run_again({"mul": number}, {"add"})["add"], number.reshape(-1) + 1)


class Decays(nn.Module):
    """Multiplies by rates of many channels, of which a few are larger than the others by orders of magnitude."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.logarithms = nn.Parameter(torch.randn(128, 8, generator=generator))
        self.logarithms.data[0, 0] = 18.0

    def forward(self, x):
        return x * -self.logarithms.exp()


def test_rates_of_other_weights_are_no_rounding_beside_a_few_large_ones():
    x = torch.randn(3, 128, 8, generator=torch.Generator().manual_seed(2))
    own, other = (run_model(Decays(seed), (x,), {}) for seed in (0, 1))
    assert computed_tables(other, tables_of(own)) == {}


class Written(nn.Module):
    """Adds columns of a product in its own way, by writing into memory that views share, and goes on with a norm."""

    def __init__(self, way="sum", eps=1e-5, factor=1.0):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 12), nn.LayerNorm(8, eps), nn.Linear(8, 5)
        self.way, self.factor = way, factor

    def forward(self, x):
        return self.last(self.norm(self.spread(torch.tanh(self.first(x)) * self.factor) + 1.0))

    def spread(self, y):
        """Return the sums of neighbors 4 apart, and zeros between them, as [*, 8]."""
        parts, even = y.chunk(3, -1), torch.arange(0, 8, 2)
        summed = parts[0] + parts[1] + parts[2]
        out = torch.zeros(*y.shape[:-1], 8)
        if self.way == "sum":
            return torch.stack([summed, torch.zeros_like(summed)], -1).flatten(-2)
        if self.way == "slices":
            for part in parts:
                out[..., ::2] += part
        elif self.way == "index_put":
            for part in parts:
                out.index_put_((torch.arange(len(y))[:, None], even), part, accumulate=True)
        elif self.way == "scatter_add":
            for part in parts:
                out.scatter_add_(-1, even.expand_as(part), part)
        elif self.way == "copy":
            out[..., ::2].copy_(summed)
        elif self.way == "out":
            torch.add(parts[0] + parts[1], parts[2], out=out.view(-1)[: summed.numel()].view(summed.shape))
            out = torch.stack([out.view(-1)[: summed.numel()].view(summed.shape), torch.zeros_like(summed)], -1)
            return out.flatten(-2)
        else:
            view = out.view(-1, 4, 2).select(-1, 0)
            view.add_(parts[0]).add_(parts[1])
            view += parts[2]
        return out


WAYS = ("slices", "index_put", "scatter_add", "copy", "out", "views")


@pytest.mark.parametrize("way", WAYS)
def test_writes_into_views_are_run_again_as_they_were(way):
    """A right port that writes is close; a fault before or behind the writes is named, and a wrong input is kept."""
    torch.manual_seed(0)
    a, x = Written(), torch.randn(6, 8)
    for eps, factor, modules in ((1e-5, 1.0, []), (1e-2, 1.0, ["norm"]), (1e-5, 1.1, [""])):
        b = Written(way, eps, factor)
        b.load_state_dict(a.state_dict())
        result = align(a, b, x)
        assert [item.module for item in result.departures] == modules, str(result)
        assert result.close != bool(modules)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_its_own_numbers_computes_the_same(way):
    """Values that are given take the place of those in the memory that others read."""
    torch.manual_seed(0)
    run = run_model(Written(way).eval(), (torch.randn(6, 8),), {})
    assert run.run_again is not None
    names = [name for name in run.values if name in run.graph.producer and run.values[name].is_floating_point()]
    for name in names:
        values = run.run_again({name: run.values[name]}, names)
        assert all(torch.allclose(values[item], run.values[item]) for item in names), name


def test_a_run_does_not_change_the_inputs_of_the_next_one():
    """A write into a view of an input reaches only a copy."""

    class InPlace(nn.Module):
        def forward(self, x):
            x[:, 1].mul_(2)
            return x.square()

    run = run_model(InPlace(), (torch.randn(3, 4),), {})
    assert run.run_again is not None
    results = [run.run_again({}, run.graph.outputs)[name] for name in run.graph.outputs for _ in range(2)]
    assert torch.equal(*results)
