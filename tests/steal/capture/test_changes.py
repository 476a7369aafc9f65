"""Modules that are replaced, added, removed or compiled during a capture are named in a warning."""

import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn

from filch.steal import steal_forward


class Adapter(nn.Module):
    """Adds something to a layer, as LoRA does."""

    def __init__(self, layer):
        super().__init__()
        self.base, self.added = layer, nn.Linear(2, 2)

    def forward(self, x):
        return self.base(x) + self.added(x)


def _model():
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))


def _quantize(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        torch.ao.quantization.quantize_dynamic(model, inplace=True)


def _swap_for_one_call(model):
    own, model[0] = model[0], nn.Linear(2, 2)
    model(torch.ones(1, 2))
    model[0] = own


ADVICE = "; begin another steal_forward block after the model has changed"
COMPILED = "torch.compile calls no hooks inside of compiled code. Compile the model after the block"
LOST = (
    "the hooks of '1' were removed during the capture by other code, and later calls are not recorded; "
    "remove hooks one by one, with the handles that torch returned for them"
)
CHANGES = {
    "nothing": (lambda model: model.train(), []),
    "an attribute": (
        lambda model: setattr(model, "2", nn.Tanh()),
        ["'2' was replaced during the capture by Tanh, whose calls are not recorded" + ADVICE],
    ),
    "an item": (
        lambda model: model[1].__setitem__(0, nn.Linear(2, 2)),
        ["'1.0' was replaced during the capture by Linear, whose calls are not recorded" + ADVICE],
    ),
    "an adapter": (
        lambda model: model[1].__setitem__(0, Adapter(model[1][0])),
        [
            "'1.0' was replaced during the capture by Adapter, whose calls are not recorded "
            "('1.0' in the records is what is now '1.0.base')" + ADVICE,
            "'1.0.added' was added during the capture and not recorded" + ADVICE,
        ],
    ),
    "another item": (
        lambda model: model.append(nn.Linear(2, 2)),
        ["'3' was added during the capture and not recorded" + ADVICE],
    ),
    "a removed item": (
        lambda model: model.__delitem__(2),
        ["'2' was removed from the model during the capture; later calls are not recorded"],
    ),
    "a parametrization": (
        lambda model: nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Identity()),
        ["'0.parametrizations' and 2 more were added during the capture and not recorded" + ADVICE],
    ),
    "compiled in place": (
        lambda model: model[1].compile(backend="eager"),
        ["'1' was compiled during the capture, and later calls are not recorded: " + COMPILED],
    ),
    "compiled": (
        lambda model: model.__setitem__(1, torch.compile(model[1], backend="eager")),
        [
            "'1' was replaced during the capture by OptimizedModule, whose calls are not recorded "
            "('1' in the records is what is now '1._orig_mod')" + ADVICE
        ],
    ),
    "quantized": (
        _quantize,
        [
            "'0' and 2 more were replaced during the capture, '0' by Linear, whose calls are not recorded" + ADVICE,
            "'0._packed_params' and 2 more were added during the capture and not recorded" + ADVICE,
        ],
    ),
    "hooks that other code has cleared": (lambda model: model[1]._forward_hooks.clear(), [LOST]),  # noqa: SLF001  as such code does
    "hooks that other code has replaced": (
        lambda model: setattr(model[1], "_forward_pre_hooks", OrderedDict()),
        [LOST],
    ),
    "put back": (
        _swap_for_one_call,
        ["'0' was replaced during the capture by Linear, whose calls are not recorded" + ADVICE],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_called", [True, False])
def test_a_change_of_the_modules_is_reported_once(name, is_called, tmp_path, caplog):
    """At the next call of the model, or at the end of the block."""
    change, expected = CHANGES[name]
    model, x = _model(), torch.ones(1, 2)

    with steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx") as capture:
        model(x)
        change(model)
        if is_called:
            model(x)
            model(x)

    assert caplog.messages == expected
    assert {key.name for key in capture} == {"", "0", "1", "1.0", "1.1", "2"}


def test_a_change_of_modules_that_are_not_selected_is_not_reported(caplog):
    """Neither without submodules nor outside of the patterns."""
    for options in ({}, {"include": "1.*"}, {"submodules": True, "exclude": "[23]"}):
        model, x = _model(), torch.ones(1, 2)
        with steal_forward(model, **options):
            model(x)
            model[2] = nn.Linear(2, 2)
            model.append(nn.Linear(2, 2))
            model(x)

    assert not caplog.messages


@torch.no_grad()
def test_a_change_before_the_first_call_is_reported(caplog):
    """Also if all is as before at the end of the block."""
    model = _model()

    with steal_forward(model, submodules=True):
        _swap_for_one_call(model)

    assert caplog.messages == ["'0' was replaced during the capture by Linear, whose calls are not recorded" + ADVICE]


@torch.no_grad()
def test_a_model_whose_hooks_are_gone_was_not_uncalled(caplog):
    """One warning, with the reason."""
    model = _model()

    with steal_forward(model, submodules=True):
        for module in model.modules():
            module._forward_hooks.clear()  # noqa: SLF001  as such code does
            module._forward_pre_hooks.clear()  # noqa: SLF001  likewise
        model(torch.ones(1, 2))

    assert [message.partition(" were ")[0] for message in caplog.messages] == ["the hooks of the model and 5 more"]
