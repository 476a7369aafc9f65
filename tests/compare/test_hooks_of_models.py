"""Models with hooks of their own: the program starts with what the caller passes, and so do its references."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from filch.compare import diff
from filch.compare._compare_export import compare_export
from filch.compare.testing._golden import Golden
from filch.export import export
from filch.steal import steal_forward
from support.faults.fakes import WrongBackend

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Register = Callable[[nn.Module], object]


class Net(nn.Module):
    """A linear layer, whose result may be scaled."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x, scale=None):
        """Return the result."""
        y = self.layer(x)
        return y if scale is None else y * scale


HOOKS: dict[str, Register] = {
    "before": lambda model: model.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:])),
    "before, with keywords": lambda model: model.register_forward_pre_hook(
        lambda _, args, kwargs: ((args[0] * 2,), {**kwargs, "scale": torch.tensor(3.0)}), with_kwargs=True
    ),
    "a further argument": lambda model: model.register_forward_pre_hook(lambda _, args: (args[0], torch.tensor(3.0))),
    "after": lambda model: model.register_forward_hook(lambda _, __, output: output * 2),
    "before a layer": lambda model: model.layer.register_forward_pre_hook(lambda _, args: (args[0] * 2,)),
}


def recorded(register, model=None):
    """Return a model with a hook, and a capture of two calls."""
    model = Net().eval() if model is None else model
    register(model)
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(X)
        model(X + 1)
    return model, capture


@pytest.mark.parametrize("way", HOOKS)
def test_a_model_with_hooks_is_close_to_its_export(way):
    """Every value is judged, and a fault is found."""
    model, capture = recorded(HOOKS[way])
    program = export(model, (X,))

    assert compare_export(capture, program).outcome == "close"
    wrong = WrongBackend({program.graph.outputs[0]: lambda t: t * 1.001})
    assert compare_export(capture, program, backend=wrong).outcome == "different"


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_arguments_of_the_caller_are_recorded_beside_those_of_forward(in_place, is_late):
    """Of the outermost call alone, and only if a hook has changed them, wherever it was registered."""
    model = nn.Sequential(Net()).eval()
    model[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))

    def register():
        model.register_forward_pre_hook(lambda _, args: args[0].mul_(3) if in_place else args[0] * 3)

    if not is_late:
        register()
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        if is_late:
            model(X)
            register()
            model(X.clone())
        model(X.clone())

    last = 2 if is_late else 0
    assert torch.equal(capture["", last, "A"][0][0], X)
    assert torch.equal(capture["", last, "I"][0][0], X * 3)
    assert {key[:2] for key in capture if key.kind == "A"} <= {("", 1), ("", last)}


def test_a_hook_may_do_what_another_implementation_computes():
    """The arguments of the caller are no difference between two captures."""
    _, with_hook = recorded(HOOKS["before"])
    model = Net().eval()
    with torch.no_grad(), steal_forward(model, submodules=True) as without:
        model(X * 2)
        model((X + 1) * 2)

    assert diff(with_hook, without).outcome == diff(without, with_hook).outcome == "close"


def test_a_golden_dump_of_a_model_with_hooks_repeats_its_calls(tmp_path):
    """The hooks change the arguments once, not twice."""
    model, _ = recorded(HOOKS["before"])
    Golden(tmp_path / "golden.onnx", True, None, print, print).check(model, (X,))
    results = []
    Golden(tmp_path / "golden.onnx", False, None, results.append, print).check(model, (X,))
    assert results[0].outcome == "close"
    model.layer.weight.data += 1e-3
    Golden(tmp_path / "golden.onnx", False, None, results.append, print).check(model, (X,))
    assert results[1].outcome == "different"
    assert results[1].cause == "code"
