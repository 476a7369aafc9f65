"""Values that the user adds to a capture with `steal_append`."""

import threading

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


def test_a_value_appended_in_a_forward_is_copied_and_keeps_its_position(tmp_path, differ):
    """The record lies between the inputs and the output of the module that appended it, and belongs to its call."""
    module = Appending()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(torch.zeros(2))
        module(torch.ones(2))

    dump = restore(tmp_path / "dump.onnx")
    assert list(dump)[:3] == [("m", 0, "I"), ("between", 0, "V"), ("m", 0, "O")]
    assert differ(dump["between", 0, "V"], {"y": torch.ones(2), "note": "as it was"}) is None
    assert differ(dump["between", 1, "V"], {"y": torch.full((2,), 2.0), "note": "as it was"}) is None
    assert dump.records[Key("between", 1, "V")].origin == Origin(None, 1, 1)
    assert dump.calls()[1].keys == (("m", 1, "I"), ("between", 1, "V"), ("m", 1, "O"))


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


def test_an_appended_value_is_copied(steal):
    """A later change in place does not affect the record."""
    buffer = torch.ones(2)

    def run():
        steal_append("buf", buffer)
        buffer.mul_(100)

    records = steal(nn.Identity(), run)

    assert records["buf", 0, "V"].tolist() == [1, 1]
