"""A reference has a rounding level for each value of the forward and the backward pass, and the step runs as usual."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from filch.compare import CompareError, diff, record_reference
from filch.compare.float64._levels_file import levels_of
from filch.compare.float64._stored_level import stored_level
from filch.compare.models._module_values import accumulated_gradients, module_values
from filch.compare.models._state import ModelState
from filch.compare.runs._measured_levels import measured_levels
from filch.compare.runs._mode import float64_values
from filch.steal import Key, restore, steal_forward, tensors
from support.models.small import module_of

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))


def test_levels_are_those_of_values_that_are_all_kept(tmp_path):
    """Measuring with one value in memory at a time gives the same numbers, and keeps no tensor of the run."""
    model = _model()
    state = ModelState(model)
    record_reference(model, lambda: model(X).square().mean().backward(), tmp_path / "r.onnx", name="m")
    dump = restore(tmp_path / "r.onnx")

    def run(put):
        with state.restored():
            with module_values("m", model, put), accumulated_gradients("m", model, put):
                model(X).square().mean().backward()
            for name, parameter in model.named_parameters():
                put(Key(f"m.{name}", 0, "GF"), "", parameter.grad.clone())

    def kept():
        values = {}
        run(lambda key, path, tensor: values.update({key.label + path: tensor}))
        return values

    alive = []

    def run_watched(put):
        def watched(key, path, tensor):
            put(key, path, tensor)
            alive.append(weakref.ref(tensor))
            assert sum(one() is not None for one in alive) == 1

        run(watched)

    float64 = float64_values(kept)
    values = {key.label + path: tensor for key in dump for path, tensor in tensors(dump[key]).items()}
    expected = {
        place: stored_level(tensor, exact)
        for place, tensor in values.items()
        if (exact := float64.get(place)) is not None
    }
    assert {place.rpartition(".")[2].partition("[")[0] for place in expected} == {"I", "O", "GI", "GO", "GP", "GF"}
    assert all(level is not None and level.reliable for level in expected.values())
    assert levels_of(dump) == expected
    assert measured_levels(run_watched, dump) == (expected, "")


def test_values_are_those_of_their_modules_after_an_exception():
    """The model catches what a module raises, and computes something else."""

    def failing(self, x):
        raise NotImplementedError

    def forward(self, x):
        try:
            return self.fast(x)
        except NotImplementedError:
            return self.slow(x) + 1

    found = {}
    model = module_of(forward, fast=module_of(failing), slow=nn.Identity())
    with module_values("m", model, lambda key, _, tensor: found.update({key: tensor})):
        model(torch.ones(1))

    outputs = {name: found.get(Key(name, 0, "O")) for name in ("m", "m.fast", "m.slow")}
    assert outputs == {"m": torch.full((1,), 2.0), "m.fast": None, "m.slow": torch.ones(1)}


def test_the_step_has_the_effects_of_one_run(tmp_path):
    """Gradients accumulate once, buffers and random numbers change once, and no hook stays on a tensor."""
    recorded, plain = _model(), _model()
    start = torch.randn(8, 8)
    random = torch.random.get_rng_state()
    results = []
    for model in (plain, recorded):
        torch.random.set_rng_state(random)
        model[0].weight.grad = gradient = start.clone()
        x = X.clone().requires_grad_()

        def step(model=model, x=x):
            model(x).square().mean().backward()

        step() if model is plain else record_reference(model, step, tmp_path / "r.onnx")
        assert model[0].weight.grad is gradient
        assert not x._backward_hooks  # noqa: SLF001  there is no public API
        results.append([*(p.grad for p in model.parameters()), *model.buffers(), torch.random.get_rng_state()])

    assert all(map(torch.equal, *results))


def test_a_step_that_changes_parameters_is_refused(tmp_path):
    """Its second run would compute something else."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(X).sum().backward()
        optimizer.step()

    with pytest.raises(CompareError, match="the step changes parameters"):
        record_reference(model, step, tmp_path / "r.onnx")


def test_a_step_that_float64_cannot_run_is_refused(tmp_path):
    """The message has the reason; the first run is not affected."""
    model, calls = _model(), []

    def step():
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("it runs once")
        model(X)

    with pytest.raises(CompareError, match="no value was computed in float64: it runs once"):
        record_reference(model, step, tmp_path / "r.onnx")


def in_two_parts(linear):
    """Computes what a linear layer does, in another order."""
    return module_of(
        lambda self, x: x[:, :3] @ self.weight[:, :3].T + (x[:, 3:] @ self.weight[:, 3:].T + self.bias),
        weight=linear.weight,
        bias=linear.bias,
    )


@pytest.mark.parametrize(
    "loss",
    [lambda y: functional.layer_norm(y, (8,)).square().sum(), lambda y: y.softmax(-1).sum()],
    ids=["norm", "softmax"],
)
@pytest.mark.parametrize("is_wrong", [False, True])
def test_gradients_that_are_all_rounding_are_judged_by_it(tmp_path, loss, is_wrong):
    """The loss is constant but for rounding, so that all gradients are; one that is not is wrong."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    record_reference(model, lambda: loss(model(X)).backward(), tmp_path / "a.onnx")
    model.zero_grad()
    model[0] = in_two_parts(model[0])
    if is_wrong:
        model[0].bias.register_hook(lambda gradient: gradient + 0.01)
    with steal_forward(model, submodules=True, gradients=True, parameters=True, dump_file=tmp_path / "b.onnx"):
        loss(model(X)).backward()

    result = diff(tmp_path / "a.onnx", tmp_path / "b.onnx")

    assert {row.key.label for row in result.diverged} == ({"0.bias#0.GP", "0.bias#0.GF"} if is_wrong else set())
