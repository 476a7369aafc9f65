"""`watch` finds the first NaN or infinity in an output, and ignores masks."""

import pytest
import torch
from torch import nn

from filch.steal import FilchError, Key, NonFinite, NonFiniteError, restore, steal_forward
from support.models.small import module_of


def fault_module(compute):
    """Applies the given function."""
    return module_of(lambda self, *args: self.compute(*args), compute=compute)


def _log(x):
    return torch.log(x - 1)  # of 0


def _model(compute=_log):
    return nn.Sequential(nn.ReLU(), fault_module(compute), nn.Tanh())


def test_the_module_is_named_with_its_line_and_inputs(tmp_path):
    """Earlier records are in the dump, and the message describes the inputs and says that they were finite."""
    model = _model()

    stealing = steal_forward(("m", model), submodules=True, watch="nonfinite", dump_file=tmp_path / "x.onnx")
    with pytest.raises(NonFiniteError, match="non-finite values") as caught, stealing:
        model(torch.ones(2, 3))

    found = caught.value.nonfinite
    assert (found.key, found.path, found.module, found.operator) == (("m.1", 0, "O"), "", "m.1", None)
    assert found.finite_inputs
    assert found.source.startswith("test_watch.py:")
    text = str(caught.value)
    assert text.startswith("module 'm.1' (call 0, from test_watch.py:")
    assert "returned non-finite values: m.1#0.O of f32[2, 3]" in text
    assert "its inputs were all finite: ((f32[2, 3]" in text
    dump = restore(tmp_path / "x.onnx")
    assert dump["m.1", 0, "O"].isinf().all()
    assert "NonFiniteError" in dump.failed["m", 0, "O"]


def test_a_run_with_finite_outputs_raises_nothing():
    """Nor do outputs without tensors."""
    model = _model(lambda x: x + 1)

    with steal_forward(model, submodules=True, watch="nonfinite", operators=True, strict=True) as capture:
        model(torch.ones(2))
        model(torch.ones(2, device="meta"))

    assert Key("", 1, "O") in capture


def test_each_nonfinite_output_can_be_reported_instead():
    """The run continues; the second report says that its inputs were not all finite."""
    model, found = _model(lambda x: x * float("nan")), []

    with steal_forward(("m", model), submodules=True, watch="nan", on_nonfinite=found.append):
        model(torch.ones(2))

    assert all(isinstance(item, NonFinite) for item in found)
    assert [(item.key.name, item.finite_inputs) for item in found] == [("m.1", True), ("m.2", False), ("m", True)]
    assert "were not all finite" in str(found[1])


@pytest.mark.parametrize(
    ("fault", "number", "finite", "options"),
    [
        *((lambda x: x * 2, torch.nan, False, options)
          for options in ({}, {"statistics_only": True}, {"storage_limit": 0}, {"kinds": "O"})),
        (lambda x: x.mul_(torch.nan), 1.0, True, {}),
    ],
)  # fmt: skip
def test_inputs_are_described_whatever_is_recorded_of_them(fault, number, finite, options):
    """As they were before the call, which may change them, if possible; else as they are at its end."""
    module, found = fault_module(fault), []

    with steal_forward(("m", module), watch="nan", on_nonfinite=found.append, strict=True, **options):
        module(torch.tensor([number]))

    assert [item.finite_inputs for item in found] == [finite]


def test_watch_nan_ignores_infinities():
    """For models whose outputs contain masks."""
    model = _model(lambda x: torch.full_like(x, -torch.inf))

    with steal_forward(model, submodules=True, watch="nan", strict=True):
        model(torch.ones(2))


def test_infinities_in_inputs_are_not_reported():
    """Only outputs are checked."""
    module = fault_module(lambda x, mask: (x + mask).softmax(-1))
    mask = torch.tensor([0.0, -torch.inf])

    with steal_forward(module, watch="nonfinite", operators=True, strict=True) as capture:
        module(torch.ones(2), mask)

    assert Key("", 0, "O") in capture


@pytest.mark.parametrize(
    ("compute", "operator"),
    [
        (lambda x: torch.log(x - 1).exp() + 1, "aten.log.default"),
        (lambda x: (x * 1000).exp_() * 0 + 1, "aten.exp_.default"),
        (lambda x: x.masked_fill(x > 0, -torch.inf).softmax(-1).nan_to_num(), "aten._softmax.default"),
        (lambda x: (x - torch.inf).softmax(-1).nan_to_num(), "aten._softmax.default"),
        (lambda x: torch.sqrt(-x).nan_to_num(), "aten.sqrt.default"),
        (lambda x: (x / (x - 1)).clamp(max=1), "aten.div.Tensor"),
    ],
    ids=["log", "in place", "masked row", "infinite number", "sqrt", "division"],
)
def test_the_aten_call_with_a_nonfinite_output_is_named(compute, operator):
    """Even if the module's output is finite; with the line that made the call."""
    model = _model(compute)

    stealing = steal_forward(("m", model), submodules=True, watch="nonfinite", operators=True)
    with pytest.raises(NonFiniteError) as caught, stealing:
        model(torch.ones(2))

    found = caught.value.nonfinite
    assert (found.module, found.operator) == ("m.1", operator)
    assert found.finite_inputs is (operator != "aten._softmax.default")
    assert str(caught.value).startswith(f"{operator} in module 'm.1' (call 0, from test_watch.py:")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: (x + torch.full((2, 2), -torch.inf).triu(1)).softmax(-1),
        lambda x: (x + torch.zeros(2, 2).masked_fill_(torch.eye(2).bool(), -torch.inf)).softmax(-1),
        lambda x: torch.where(x > 0, x, torch.tensor(-torch.inf)),
        lambda x: nn.functional.scaled_dot_product_attention(
            *[x.reshape(1, 2, 2)] * 3, torch.tensor([[True, False], [True, True]])
        ),
        lambda x: torch.empty(2, 2).fill_(torch.nan).copy_(x),
    ],
    ids=["triu", "masked_fill", "where", "attention", "empty"],
)
def test_creating_and_adding_masks_is_not_reported(compute):
    """An ATen call that writes a given infinity, or has one in its inputs, only passes it on."""
    module = fault_module(compute)

    with steal_forward(module, watch="nonfinite", operators=True, strict=True):
        module(torch.ones(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64])
@pytest.mark.parametrize("wrong", [None, torch.nan, -torch.inf])
def test_single_nonfinite_elements_of_any_dtype_are_found(dtype, wrong):
    """A sum that overflows is not reported."""
    numbers = torch.full((1000,), 5e4)
    if wrong is not None:
        numbers[500] = wrong
    module, found = nn.Identity(), []

    with steal_forward(module, watch="nonfinite", on_nonfinite=found.append, strict=True):
        module(numbers.to(dtype))

    assert bool(found) is (wrong is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watch": "inf"}, "watch must be 'nonfinite' or 'nan', not 'inf'"),
        ({"watch": "nan", "on_nonfinite": 5}, "on_nonfinite must be a function that takes a NonFinite, not 5"),
        ({"on_nonfinite": print}, "on_nonfinite needs watch="),
        ({"operators": 5}, "operators must be True or patterns like"),
        ({"operators": []}, "operators must be True or patterns like"),
    ],
)
def test_invalid_watch_options_are_refused(options, message):
    """Before anything runs."""
    with pytest.raises(FilchError, match=message), steal_forward(nn.Identity(), **options):
        pytest.fail("the block was entered")


def test_an_exception_of_on_nonfinite_ends_the_run():
    """As the callback may decide to stop."""

    def stop(found):
        raise ValueError(found.module)

    module = _model()
    with (
        pytest.raises(FilchError, match=r"on_nonfinite raised ValueError: m\.1"),
        steal_forward(("m", module), submodules=True, watch="nan", on_nonfinite=stop),
    ):
        module(torch.zeros(2))
