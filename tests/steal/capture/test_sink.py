"""`sink` gets each record as soon as it is complete, and nothing is stored."""

import weakref

import pytest
import torch
from torch import nn

from filch.steal import FilchError, steal_append, steal_forward


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
