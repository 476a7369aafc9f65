"""Values that the user adds with `steal_append`, and records that a `sink` gets as soon as they are complete."""

import threading
import weakref

import pytest
import torch
from torch import nn

from filch.steal import FilchError, Key, Origin, is_stealing, restore, steal_append, steal_forward


class Appending(nn.Module):
    """Appends a value inside its forward."""

    def forward(self, x):
        y = x + 1
        steal_append("between", {"y": y, "note": "as it was"})
        y *= 0
        return y


def test_a_value_appended_in_a_forward_is_copied_and_keeps_its_position(steal, differ):
    """The record lies between the inputs and the output of the module that appended it, and belongs to its call."""
    module = Appending()

    records = steal(("m", module), lambda: [module(torch.zeros(2)), module(torch.ones(2))])

    assert list(records)[:3] == [("m", 0, "I"), ("between", 0, "V"), ("m", 0, "O")]
    assert differ(records["between", 0, "V"], {"y": torch.ones(2), "note": "as it was"}) is None
    assert differ(records["between", 1, "V"], {"y": torch.full((2,), 2.0), "note": "as it was"}) is None
    assert records.records[Key("between", 1, "V")].origin == Origin(None, 1, 1)
    assert records.calls()[1].keys == (("m", 1, "I"), ("between", 1, "V"), ("m", 1, "O"))


def test_a_value_appended_between_calls_belongs_to_no_call(tmp_path):
    """It may have the name of a module, as its kind is different."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        steal_append("m", 5)
        module(torch.ones(1))
        steal_append("m", 6)

    for records in (capture, restore(tmp_path / "dump.onnx")):
        assert [records["m", index, "V"] for index in range(2)] == [5, 6]
        assert records.records[Key("m", 0, "V")].origin == Origin(None, None, 0)
        assert records.calls()[0].keys == (("m", 0, "I"), ("m", 0, "O"))


def test_appending_outside_a_block_does_nothing():
    """So the line can stay in the model's code."""
    steal_append("nobody", torch.ones(1))

    assert not is_stealing()


def test_appending_goes_to_the_innermost_block():
    """After that block, values go to the outer one again."""
    with steal_forward(nn.Identity()) as outer:
        steal_append("a", 1)
        with steal_forward(nn.Identity()) as inner:
            steal_append("a", 2)
        steal_append("a", 3)

    assert dict(inner) == {("a", 0, "V"): 2}
    assert dict(outer) == {("a", 0, "V"): 1, ("a", 1, "V"): 3}


@pytest.mark.parametrize("name", [5, None, ("m", 0)])
def test_a_name_that_is_not_a_string_is_refused(name):
    """Also outside of a block, so that the error shows without a capture."""
    with pytest.raises(FilchError, match="steal_append takes a name and a value; the name must be a string, not"):
        steal_append(name, 1)


def test_is_stealing_is_true_only_inside_a_block():
    """With nested blocks, and after an exception."""
    inside = []

    with pytest.raises(ValueError, match="the user's"), steal_forward(nn.Identity()):  # noqa: PT012
        with steal_forward(nn.Identity()):
            inside.append(is_stealing())
        inside.append(is_stealing())
        raise ValueError("the user's")

    assert inside == [True, True]
    assert not is_stealing()


def test_another_thread_is_not_inside_the_block():
    """Its calls of a captured model are recorded, but values that it appends are not."""
    module, seen = Appending(), []

    def run():
        seen.append(is_stealing())
        module(torch.zeros(1))

    with steal_forward(("m", module)) as capture:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    assert seen == [False]
    assert list(capture) == [("m", 0, "I"), ("m", 0, "O")]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()


def test_the_sink_gets_all_records():
    """With the keys, order and values of a capture, which stays empty itself."""
    net, x, seen = model(), torch.ones(2, 3), []
    with steal_forward(net, submodules=True) as kept:
        net(x)
        steal_append("mine", {"a": x})
    with steal_forward(net, submodules=True, sink=lambda key, value: seen.append((key, value))) as capture:
        net(x)
        steal_append("mine", {"a": x})

    assert [key for key, _ in seen] == list(kept) and len(capture) == 0
    assert capture.totals.records == len(kept)
    for key, value in seen:
        torch.testing.assert_close(value, kept[key], rtol=0, atol=0)


def test_the_sink_gets_values_as_they_were():
    """A later in-place change doesn't affect them."""
    net, found = model(), {}
    with steal_forward(net, submodules=True, sink=found.__setitem__):
        net(-torch.ones(2, 3))

    assert (found["1", 0, "I"][0][0] < 0).any() and (found["1", 0, "O"] >= 0).all()


def test_values_are_released_after_the_sink_returns():
    """Only one value at a time is in memory."""
    alive = weakref.WeakSet()
    most = 0

    def count(key, value):
        nonlocal most
        most = max(most, len(alive))
        if isinstance(value, torch.Tensor):
            alive.add(value)

    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
    with steal_forward(net, submodules=True, kinds="O", sink=count):
        net(torch.ones(1, 4))

    assert most <= 1


def test_the_sink_gets_lazy_and_shared_tensors_whole():
    """A tensor in several records is passed each time."""
    net, found = nn.Identity(), {}
    z = torch.tensor([1 + 2j]).conj()
    with steal_forward(net, sink=found.__setitem__):
        net((z, z, torch.arange(6).reshape(2, 3).T))

    pair = found["", 0, "O"]
    assert pair[0] is pair[1] and pair[0].item() == 1 - 2j
    assert pair[2].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_sink_gets_gradients():
    """As any other record."""
    net, found = model(), {}
    x = torch.ones(2, 3, requires_grad=True)
    with steal_forward(net, gradients=True, parameters=True, sink=found.__setitem__):
        net(x).sum().backward()

    assert torch.equal(found["", 0, "GI"][0][0], x.grad)
    assert torch.equal(found["2.bias", 0, "GP"], net[2].bias.grad)


def test_an_exception_of_the_sink_is_raised_with_strict():
    """Otherwise it is logged, as any exception in a hook."""

    def refuse(key, value):
        raise RuntimeError("full")

    net = model()
    with pytest.raises(RuntimeError, match="full"), steal_forward(net, strict=True, sink=refuse):
        net(torch.ones(1, 3))


@pytest.mark.parametrize(("options", "text"), [({"dump_file": "x.onnx"}, "dump_file"), ({"watch": "nan"}, "watch")])
def test_a_sink_excludes_options_that_need_stored_records(options, text):
    """Refused before anything runs."""
    with (
        pytest.raises(FilchError, match=f"sink and {text} are mutually exclusive"),
        steal_forward(model(), sink=print, **options),
    ):
        pass
