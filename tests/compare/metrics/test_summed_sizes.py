"""Gradients that consist of rounding errors are judged by the size of what was summed; others as before."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody does
from torch import nn

from filch.compare import diff
from filch.compare.metrics._metrics import compare_tensors
from filch.compare.metrics._summed_sizes import SUMMED, SummedSizes, compare_summed
from filch.compare.testing._golden import ComparingSink
from filch.steal import Key, restore, steal_forward, tensors
from support.models.small import module_of

WIDTH = 32


class SplitLinear(nn.Linear):
    """A linear layer that adds two products, as two ranks with half of the columns each do."""

    is_split = False

    def forward(self, x):
        if not self.is_split:
            return super().forward(x)
        weight, half = self.weight, WIDTH // 2
        return F.linear(x[..., :half], weight[:, :half]) + F.linear(x[..., half:], weight[:, half:], self.bias)


def calls(function):
    """A linear layer, and a function of its output that is no module."""
    return module_of(lambda self, x: self.function(self.linear(x)), linear=SplitLinear(WIDTH, WIDTH), function=function)


class Attention(nn.Module):
    """The gradient of the bias of the keys is 0: a softmax does not change if all scores change alike."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.q, self.k, self.v, self.o = (SplitLinear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (layer(x).view(*x.shape[:2], 4, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A transformer's layer whose branches are scaled, and an output that is classified."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)
        self.scale, self.head = scale, nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = x + self.scale * self.attention(self.norm1(x))
        return self.head(x + self.scale * self.down(self.act(self.up(self.norm2(x)))))


class Scores(SplitLinear):
    """A linear layer that reads a mask, whose mean is not finite."""

    def forward(self, x, mask):
        return (super().forward(x) + mask).softmax(-1)


def masked():
    mask = torch.zeros(WIDTH).where(torch.arange(WIDTH) < 20, -torch.inf)
    return module_of(lambda self, x: self.scores(x, mask.to(x.dtype)), scores=Scores(WIDTH, WIDTH))


def _weight_norm():
    return nn.utils.parametrizations.weight_norm(SplitLinear(WIDTH, WIDTH))


def _sequence(*modules):
    return lambda: nn.Sequential(SplitLinear(WIDTH, WIDTH), *(make() for make in modules))


CLEAN = {
    "a norm, squared and summed": (_sequence(lambda: nn.LayerNorm(WIDTH)), lambda y: y.square().sum()),
    "a norm, summed": (_sequence(lambda: nn.LayerNorm(WIDTH)), torch.sum),
    "a softmax, summed": (_sequence(lambda: nn.Softmax(-1)), torch.sum),
    "a log_softmax, exponentiated": (_sequence(lambda: nn.LogSoftmax(-1)), lambda y: y.exp().sum()),
    "a batch norm, summed": (
        _sequence(nn.Flatten, lambda: nn.Unflatten(1, (48, WIDTH)), lambda: nn.BatchNorm1d(48)),
        torch.sum,
    ),
    "the bias before a batch norm": (
        _sequence(lambda: nn.Flatten(0, 1), lambda: nn.BatchNorm1d(WIDTH)),
        lambda y: y.sin().sum(),
    ),
    "a functional norm": (lambda: calls(lambda h: F.layer_norm(h, (WIDTH,))), lambda y: y.square().sum()),
    "a loss in the model": (lambda: calls(lambda h: F.layer_norm(h, (WIDTH,)).square().sum()), lambda y: y),
    "a functional softmax": (lambda: calls(lambda h: h.softmax(-1)), torch.sum),
    "a masked softmax, summed": (masked, torch.sum),
    "keys of attention": (Attention, lambda y: y.cos().sum()),
    "weight norm": (lambda: nn.Sequential(_weight_norm(), nn.LayerNorm(WIDTH)), lambda y: y.square().sum()),
    **{
        f"activations before {name}": (_sequence(nn.GELU, partial(calls, function)), lambda y: y)
        for name, function in (
            ("a root mean square", lambda y: F.rms_norm(y, (WIDTH,)).square().sum()),
            ("a normalization", lambda y: F.normalize(y, dim=-1).square().sum()),
            ("a cosine", lambda y: F.cosine_similarity(y, y).sum()),
        )
    },
    "several layers": (_sequence(nn.ReLU, lambda: SplitLinear(WIDTH, WIDTH), lambda: nn.Softmax(-1)), torch.sum),
}


def _numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _captured(make, loss, dtype, *, split=False, hook=None):
    """Record a step from the same weights and inputs each time; `hook` changes the gradient of the linear layer."""
    torch.manual_seed(0)
    model, x = make().to(dtype), torch.randn(4, 48, WIDTH).to(dtype).requires_grad_()
    for layer in model.modules():
        if isinstance(layer, SplitLinear):
            layer.is_split = split
            if hook is not None:
                layer.register_forward_hook(lambda *call: call[-1].register_hook(hook) and None)
    with steal_forward(model, submodules=True, gradients=True, parameters=True) as capture:
        loss(model(x)).backward()
    return capture


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("make", "loss"), CLEAN.values(), ids=CLEAN)
def test_rounding_errors_of_sums_in_another_order_are_close(make, loss, dtype):
    """Gradients that cancel differ by far more than the tolerance relative to themselves."""
    expected, actual = (_captured(make, loss, dtype, split=split) for split in (False, True))
    result = diff(expected, actual)
    assert result.close, result
    assert not diff(expected, actual, tolerance=0).close


@pytest.mark.parametrize("name", ["a norm, squared and summed", "a functional norm", "a softmax, summed"])
def test_a_gradient_that_should_cancel_and_does_not_is_wrong(name):
    """A thousandth of what was summed remains."""
    make, loss = CLEAN[name]
    expected = _captured(make, loss, torch.float32)
    size = max(SummedSizes(expected).of(key, "", ()) for key in expected if key.kind == "GO")

    actual = _captured(
        make, loss, torch.float32, hook=lambda gradient: gradient + 1e-3 * size * torch.randn_like(gradient)
    )
    assert diff(expected, actual).first_divergence.key.kind in ("GI", "GO")


def test_a_golden_dump_with_gradients_is_judged_alike(tmp_path):
    """Records are compared as they come, with the sizes of what is in the dump."""
    make, loss = CLEAN["a softmax, summed"]
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 48, WIDTH)
    with steal_forward(model, dump_file=tmp_path / "golden.onnx", submodules=True, gradients=True):
        loss(model(x)).backward()
    model[0].is_split, sink = True, ComparingSink(restore(tmp_path / "golden.onnx"))
    with steal_forward(model, sink=sink, submodules=True, gradients=True):
        loss(model(x)).backward()
    result = sink.result()
    assert result.close, result
    assert any(row.reason == SUMMED for row in result.rows)


def _faults(gradient):
    """Return wrong gradients by name."""
    torch.manual_seed(1)
    channel, half = gradient.clone().reshape(-1, gradient.shape[-1]), gradient.clone().flatten()
    channel[:, 0], half[half.numel() // 2 :] = 0, 0
    return {
        "scaled": gradient * 1.01,
        "wrong sign": -gradient,
        "a channel of zeros": channel.reshape(gradient.shape),
        "not reduced": half.reshape(gradient.shape),
        "wrong epsilon": gradient * (1 + 1e-2 * torch.rand((*gradient.shape[:-1], 1))),
        "noise": gradient * (1 + 5e-2 * torch.randn_like(gradient)),
    }


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-5])
def test_faults_in_other_gradients_are_found_as_before(scale):
    """Only the bias of the keys consists of rounding errors, also where branches are scaled by little."""
    labels = torch.randint(10, (4 * 48,), generator=torch.Generator().manual_seed(0))
    capture = _captured(lambda: Block(scale), lambda y: F.cross_entropy(y.flatten(0, 1), labels), torch.float32)
    sizes, lost = SummedSizes(capture), set()
    for key in capture:
        for path, gradient in tensors(capture[key]).items() if key.kind in ("GI", "GO", "GF") else ():
            for name, wrong in _faults(gradient).items():
                size = sizes.of(key, path, gradient.shape)
                assert not compare_tensors(wrong, gradient).close
                if compare_summed(wrong, gradient, lambda size=size: size, tolerance=None)[0].close:
                    lost.add((key.name, name))
    assert {place for place, _ in lost} == {"attention.k.bias"}


# The mean of what the module reads is no number. Its gradient is finite, as it does not read these.
NONFINITE = {
    "missing inputs": (lambda x: x.where(x > 0, torch.nan), lambda self, x: x.nan_to_num() @ self.weight),
    "a mask": (lambda x: x.where(x > 0, -torch.inf), lambda self, x: x.softmax(-1) @ self.weight),
}


@pytest.mark.parametrize(("inputs", "forward"), NONFINITE.values(), ids=NONFINITE)
def test_a_wrong_gradient_is_found_beside_inputs_that_are_not_finite(inputs, forward):
    """The size of what was summed is that of the finite ones."""

    def run(change):
        module = module_of(forward, weight=nn.Parameter(_numbers(WIDTH, WIDTH)))
        module.weight.register_hook(lambda gradient: gradient + change * _numbers(WIDTH, WIDTH))
        with steal_forward(("m", module), gradients=True, parameters=True) as capture:
            module(inputs(_numbers(16, WIDTH))).square().sum().backward()
        return capture

    assert diff(run(0), run(0)).close
    assert {row.key.kind for row in diff(run(0), run(1)).rows if row.diverged} == {"GP", "GF"}


@pytest.mark.parametrize("wrong", [False, True])
def test_partial_sums_of_ranks_that_cancel_are_no_difference(tmp_path, wrong):
    """Each rank has half of the batch; how its gradients belong together is not known."""
    make, loss = CLEAN["a norm, squared and summed"]
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 48, WIDTH)
    for name, rows, split in (("reference", x, False), ("run.0", x[:2], True), ("run.1", x[2:], True)):
        model[0].is_split = split
        given = rows.clone().requires_grad_()
        if wrong and name == "run.1":
            given.register_hook(lambda gradient: gradient + 1e-3)
        with steal_forward(model, dump_file=tmp_path / f"{name}.onnx", submodules=True, gradients=True):
            loss(model(given)).backward()
    result = diff(tmp_path / "reference.onnx", f"{tmp_path}/run.*.onnx")
    assert result.close != wrong, result
    if wrong:
        assert result.first_divergence.key.kind == "GI"


def test_a_long_chain_of_modules_is_followed_to_its_end():
    """One call is read by the next, hundreds of times."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(500)), nn.LayerNorm(4, elementwise_affine=False))
    x = torch.randn(3, 4)
    with steal_forward(model, submodules=True, gradients=True) as capture:
        model(x).square().sum().backward()

    sizes = SummedSizes(capture)

    assert sizes.of(Key("499", 0, "GO"), "", (3, 4)) > 0
    assert sizes.of(Key("0", 0, "GO"), "", (3, 4)) >= 0
