"""Parameters are recorded whenever they have changed, so that training runs can be compared."""

import copy

import pytest
import torch
from torch import nn

from filch.compare import diff
from filch.steal import restore, steal_forward


class Tied(nn.Module):
    """Two layers that share their weight, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(1, 1)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def _train(model, optimizer, steps=2):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def _keys(capture, kind):
    return [(key.name, key.iteration) for key in capture if key.kind == kind]


def test_parameters_are_recorded_first_and_after_changes():
    """Shared parameters by each of their names, and at the end of the block after the last step."""
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    with steal_forward(("m", model), parameters=True, strict=True) as capture:
        _train(model, optimizer)

    used = ["m.first.weight", "m.second.weight", "m.first.bias"]
    assert _keys(capture, "P") == [
        *((name, 0) for name in (*used, "m.unused.weight", "m.unused.bias")),
        *((name, index) for index in (1, 2) for name in used),
    ]
    assert next(iter(capture)) == ("m.first.weight", 0, "P")
    assert torch.equal(capture["m.first.weight", 2, "P"], model.first.weight)
    assert capture.calls()[0].name == "m"


def test_parameter_gradients_are_recorded_after_each_accumulation():
    """Two backward passes, then an optimizer step."""
    model = nn.Linear(1, 1, bias=False)

    with steal_forward(("m", model), parameters=True) as capture:
        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()

    assert [capture["m.weight", index, "GP"].item() for index in range(2)] == [1, 2]
    assert not model.weight._post_accumulate_grad_hooks  # noqa: SLF001  there is no public API


def test_gradients_are_recorded_before_an_optimizer_step_in_a_hook():
    """The optimizer clears the gradient, so our hook must run first."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)

    def step(_):
        optimizer.step()
        optimizer.zero_grad()

    model.weight.register_post_accumulate_grad_hook(step)
    with steal_forward(("m", model), parameters=True) as capture:
        model(torch.ones(1, 1)).sum().backward()

    assert capture["m.weight", 0, "GP"].item() == 1
    assert capture["m.weight", 1, "P"].item() == capture["m.weight", 0, "P"].item() - 0.5
    assert model.weight.grad is None


@pytest.mark.parametrize("change", [
    lambda weight: weight.data.add_(1),
    lambda weight: weight.detach().numpy().__iadd__(1),
], ids=["data", "numpy"])  # fmt: skip
def test_parameter_changes_without_a_new_version_are_recorded(change):
    """On the CPU, where a checksum detects them."""
    model = nn.Linear(1, 1, bias=False)

    with steal_forward(("m", model), parameters=True) as capture:
        model(torch.ones(1, 1))
        change(model.weight)

    assert _keys(capture, "P") == [("m.weight", 0), ("m.weight", 1)]


def test_parameters_unfrozen_or_replaced_in_the_block_are_recorded():
    """With their gradients."""
    model = nn.Linear(1, 1, bias=False).requires_grad_(requires_grad=False)

    with steal_forward(("m", model), parameters=True, strict=True) as capture:
        model(torch.ones(1, 1))
        model.weight = nn.Parameter(torch.full((1, 1), 7.0))
        model(torch.ones(1, 1)).sum().backward()

    assert capture["m.weight", 1, "P"].item() == 7
    assert capture["m.weight", 0, "GP"].item() == 1


def test_a_lazy_parameter_is_recorded_once_initialized():
    """Before, it has no data."""
    model = nn.LazyLinear(1, bias=False)

    with steal_forward(("m", model), parameters=True, strict=True) as capture:
        model(torch.ones(1, 2))

    assert _keys(capture, "P") == [("m.weight", 0)]


def _dump(tmp_path, name, model, optimizer):
    path = tmp_path / f"{name}.onnx"
    with steal_forward(("m", model), submodules=True, parameters=True, gradients=True, dump_file=path, strict=True):
        _train(model, optimizer(model.parameters()))
    return path


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        (lambda parameters: torch.optim.AdamW(parameters, 0.01), None),
        (lambda parameters: torch.optim.AdamW(parameters, 0.02), ("m.first.weight", 1, "P")),
        (lambda parameters: torch.optim.Adam(parameters, 0.01, weight_decay=0.5), ("m.first.weight", 1, "P")),
        (lambda parameters: torch.optim.AdamW(list(parameters)[1:], 0.01), ("m.first.weight", 0, "GF")),  # never used
    ],
    ids=["same", "rate", "decay", "forgotten"],
)
def test_two_training_runs_can_be_compared(tmp_path, optimizer, found):
    """The first difference is the first parameter that the planted fault affects; without a fault there is none."""
    model = Tied()
    right = _dump(tmp_path, "right", copy.deepcopy(model), lambda parameters: torch.optim.AdamW(parameters, 0.01))
    other = _dump(tmp_path, "other", copy.deepcopy(model), optimizer)

    report = diff(right, other, tolerance=0)

    kinds = {row.key.kind for row in report.rows}
    assert kinds == {"I", "O", "P", "GI", "GO", "GP", "GF"}
    first = report.first_divergence
    assert (first and first.key) == found


def test_the_gradient_of_a_step_is_recorded_once_if_another_optimizer_steps_after_it():
    """As those of a generator and a discriminator."""
    model = Tied()
    optimizers = [torch.optim.SGD([parameter], 0.1) for parameter in (model.first.weight, model.first.bias)]
    with steal_forward(("m", model), parameters=True, gradients=True) as capture:
        model(torch.ones(4, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    assert sorted(_keys(capture, "GF")) == [("m.first.bias", 0), ("m.first.weight", 0), ("m.second.weight", 0)]


def test_training_is_unchanged_and_parameters_are_restored(tmp_path):
    """Weights are bitwise equal to a run without capture, and the dump contains `nn.Parameter`s."""
    model = Tied()
    twin = copy.deepcopy(model)
    _train(twin, torch.optim.AdamW(twin.parameters()))

    path = _dump(tmp_path, "x", model, torch.optim.AdamW)

    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    assert isinstance(restore(path)["m.first.weight", 0, "P"], nn.Parameter)


def test_a_change_of_one_row_is_recorded():
    """However small a part of the parameter it is."""
    embedding = torch.nn.Embedding(2000, 64)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)

    with steal_forward(("m", embedding), parameters=True) as capture:
        for index in range(5):
            optimizer.zero_grad()
            embedding(torch.tensor([index])).sum().backward()
            optimizer.step()

    assert sum(key.kind == "P" for key in capture) == 6
    assert torch.equal(capture["m.weight", 5, "P"], embedding.weight)


def test_parameters_can_be_swapped_during_the_block():
    """As torch does optionally when a model is moved or loaded."""
    linear = torch.nn.Linear(3, 3)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with steal_forward(("m", linear), parameters=True) as capture:
            linear(torch.ones(1, 3)).sum().backward()
            linear.zero_grad()
            linear.to(torch.float64)
            linear(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)

    assert capture["m.weight", 1, "P"].dtype == torch.float64
    assert linear.weight.dtype == torch.float64
