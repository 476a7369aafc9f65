"""The first NaN or infinity is found where it comes out, and masks are no findings."""

import pytest
import torch
from torch import nn

from filch.steal import FilchError, Key, NonFinite, NonFiniteError, restore, steal_forward


class Fault(nn.Module):
    """Computes what it was made with."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, *args):
        return self.compute(*args)


def _log(x):
    return torch.log(x - 1)  # of 0


def _model(compute=_log):
    return nn.Sequential(nn.ReLU(), Fault(compute), nn.Tanh())


def test_the_module_is_named_with_its_line_and_inputs(tmp_path):
    """What was captured until then is in the dump; the message says what came in and that it was finite."""
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


def test_a_clean_run_raises_nothing():
    """Nor do outputs without numbers."""
    model = _model(lambda x: x + 1)

    with steal_forward(model, submodules=True, watch="nonfinite", operators=True, strict=True) as capture:
        model(torch.ones(2))
        model(torch.ones(2, device="meta"))

    assert Key("", 1, "O") in capture


def test_each_finding_can_be_reported_instead():
    """The model runs on; the second finding says that its inputs weren't all finite."""
    model, found = _model(lambda x: x * float("nan")), []

    with steal_forward(("m", model), submodules=True, watch="nan", on_nonfinite=found.append):
        model(torch.ones(2))

    assert all(isinstance(item, NonFinite) for item in found)
    assert [(item.key.name, item.finite_inputs) for item in found] == [("m.1", True), ("m.2", False), ("m", True)]
    assert "were not all finite" in str(found[1])


@pytest.mark.parametrize("wishes", [{}, {"statistics_only": True}, {"storage_limit": 0}, {"kinds": "O"}])
def test_the_inputs_are_judged_whatever_is_kept_of_them(wishes):
    """As they came in, where that was kept; else as they are."""
    module, found = Fault(lambda x: x * 2), []

    with steal_forward(("m", module), watch="nan", on_nonfinite=found.append, strict=True, **wishes):
        module(torch.tensor([torch.nan]))

    assert [item.finite_inputs for item in found] == [False]


def test_inputs_are_judged_as_they_came_in():
    """Not as the module left them."""
    module, found = Fault(lambda x: x.mul_(torch.nan)), []

    with steal_forward(("m", module), watch="nan", on_nonfinite=found.append, strict=True):
        module(torch.ones(2))

    assert [item.finite_inputs for item in found] == [True]


def test_nan_alone_leaves_infinities():
    """`watch="nan"` is for models whose outputs hold masks."""
    model = _model(lambda x: torch.full_like(x, -torch.inf))

    with steal_forward(model, submodules=True, watch="nan", strict=True):
        model(torch.ones(2))


def test_a_mask_among_the_inputs_is_no_finding():
    """Outputs are what counts."""
    module = Fault(lambda x, mask: (x + mask).softmax(-1))
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
def test_the_aten_call_is_named(compute, operator):
    """Though what the module gives is finite; with the line that made the call."""
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
def test_masks_are_made_and_added_without_a_finding(compute):
    """An ATen call that is told to write an infinity, or given one, only passes it on."""
    module = Fault(compute)

    with steal_forward(module, watch="nonfinite", operators=True, strict=True):
        module(torch.ones(2, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64])
@pytest.mark.parametrize("wrong", [None, torch.nan, -torch.inf])
def test_numbers_of_all_kinds_are_judged_one_by_one(dtype, wrong):
    """A sum that overflows is no finding, one wrong number among many is."""
    numbers = torch.full((1000,), 5e4)
    if wrong is not None:
        numbers[500] = wrong
    module, found = nn.Identity(), []

    with steal_forward(module, watch="nonfinite", on_nonfinite=found.append, strict=True):
        module(numbers.to(dtype))

    assert bool(found) is (wrong is not None)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"watch": "inf"}, "watch must be 'nonfinite' or 'nan', not 'inf'"),
        ({"watch": "nan", "on_nonfinite": 5}, "on_nonfinite must be a function that takes a NonFinite, not 5"),
        ({"on_nonfinite": print}, "on_nonfinite needs watch="),
        ({"operators": 5}, "operators must be True or patterns like"),
        ({"operators": []}, "operators must be True or patterns like"),
    ],
)
def test_what_makes_no_sense_is_refused(wishes, message):
    """Before anything runs."""
    with pytest.raises(FilchError, match=message), steal_forward(nn.Identity(), **wishes):
        pytest.fail("the block was entered")


def test_what_a_listener_raises_ends_the_run():
    """It was called to have a say."""

    def stop(found):
        raise ValueError(found.module)

    module = _model()
    with (
        pytest.raises(FilchError, match=r"on_nonfinite raised ValueError: m\.1"),
        steal_forward(("m", module), submodules=True, watch="nan", on_nonfinite=stop),
    ):
        module(torch.zeros(2))
