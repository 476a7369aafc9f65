"""Options that select what is recorded, and how much of it is stored."""

import io
import math
import os

import pytest
import torch
from torch import nn

from filch.steal import DumpError, FilchError, Skipped, Statistics, describe, restore, steal_forward
from support.models.small import module_of


def _kept(**options):
    module = nn.Identity()
    with steal_forward(("m", module), **options) as capture:
        for index in range(6):
            module(torch.full((4,), float(index)))
    return capture


@pytest.mark.parametrize(
    ("iterations", "kept"),
    [
        (2, [0, 1]), (0, []), (slice(None, None, 3), [0, 3]), (slice(1, 4), [1, 2, 3]), (range(0, 10, 4), [0, 4]),
        ([5, 1], [1, 5]), (lambda iteration: iteration % 2 == 1, [1, 3, 5]), (None, [0, 1, 2, 3, 4, 5]),
    ],
)  # fmt: skip
def test_unselected_iterations_are_counted_but_not_recorded(iterations, kept):
    """With a number, a slice, a range, a list or a function."""
    capture = _kept(iterations=iterations)

    assert [key.iteration for key in capture if key.kind == "O"] == kept
    assert all(capture["m", index, "O"][0] == index for index in kept)


def test_no_inputs_of_unselected_iterations_are_stored(tmp_path):
    """Neither as the caller passes them, which is stored if another hook changes them."""

    def stored(calls):
        module = nn.Identity()
        with steal_forward(("m", module), iterations=1, dump_file=tmp_path / f"{calls}.onnx") as capture:
            module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
            for number in range(calls):
                module(torch.full((1000,), float(number)))
        return capture.totals.nbytes

    assert stored(5) == stored(1)


@pytest.mark.parametrize(
    ("kinds", "kept"), [("I", {"I"}), (["O"], {"O"}), (("I", "O"), {"I", "O"}), ("IO", {"I", "O"})]
)
def test_only_the_selected_kinds_are_recorded(kinds, kept):
    """Inputs, outputs, or both."""
    assert {key.kind for key in _kept(kinds=kinds)} == kept


def test_the_total_limit_applies_to_all_stored_tensors(tmp_path):
    """A shared tensor costs nothing; others beyond the limit are skipped in all later calls, also in the dump."""
    with steal_forward(nn.Identity(), total_limit=0) as nothing:
        pass
    capture = _kept(total_limit=40, dump_file=tmp_path / "dump.onnx")

    dump = restore(tmp_path / "dump.onnx")
    assert [isinstance(dump["m", index, "O"], torch.Tensor) for index in range(6)] == [True, True] + [False] * 4
    for index in range(2, 6):
        assert dump["m", index, "I"][0][0] == Skipped("f32[4]", "its 16 bytes would exceed the total limit of 40")
    assert capture.totals.nbytes == capture.totals.shared == 32
    assert len(dump) == 12
    assert len(nothing) == 0


def test_statistics_replace_tensors(tmp_path):
    """Equal data has an equal hash, and NaNs and infinities are counted separately."""
    numbers = torch.tensor([1.0, -3.0, math.nan, math.inf, 5.0])
    module = nn.Identity()

    with steal_forward(("m", module), statistics_only=True, dump_file=tmp_path / "dump.onnx") as capture:
        module({"x": numbers, "none": None})
        module({"x": numbers + 1, "none": None})

    dump = restore(tmp_path / "dump.onnx")
    found = dump["m", 0, "O"]["x"]
    assert found == capture["m", 0, "O"]["x"] == dump["m", 0, "I"][0][0]["x"]
    assert (found.minimum, found.maximum, found.mean, found.nan, found.inf) == (-3, 5, 1, 1, 1)
    assert math.isclose(found.std, numbers[[0, 1, 4]].std(correction=0).item(), rel_tol=1e-6)
    assert found.content != dump["m", 1, "O"]["x"].content
    assert capture.totals.nbytes == 0


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 3 * 2**20 + 5])
def test_statistics_of_a_long_tensor_cover_all_elements(size):
    """They are computed in chunks."""
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 3 + 1000
    module = nn.Identity()

    with steal_forward(module, statistics_only=True) as capture:
        module(numbers)

    found, wide = capture["", 0, "O"], numbers.double()
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert math.isclose(found.mean, wide.mean(), rel_tol=1e-12)
    assert math.isclose(found.std, wide.std(correction=0), rel_tol=1e-9)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor([True, False]),
        torch.arange(5).to(torch.uint16),
        torch.tensor([3 + 4j, 0]),
        torch.ones(6, dtype=torch.float16).view(torch.complex32),
        torch.ones(4).to(torch.float8_e4m3fn),
        torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        torch.full((2,), math.nan),
    ],
    ids=describe,
)
def test_every_dtype_has_statistics(tensor):
    """Those that torch can't compute with, and empty tensors, have at least a hash."""
    module = nn.Identity()

    with steal_forward(module, statistics_only=True) as capture:
        module(tensor)

    found = capture["", 0, "O"]
    assert isinstance(found, Statistics)
    assert found.what == describe(tensor)
    assert len(found.content) == 32


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100_000),
        torch.randn(1000),
        torch.zeros(0),
        torch.zeros(2**18),
        torch.ones(7, dtype=torch.complex64),
    ],
    ids=describe,
)
def test_compressed_tensors_are_restored_bit_for_bit(tmp_path, tensor, differ):
    """From the dump and from the capture; similar numbers take less space."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx", compress=True) as capture:
        module(tensor)

    assert differ(restore(tmp_path / "dump.onnx")["m", 0, "O"], tensor) is None
    assert differ(capture["m", 0, "O"], tensor) is None
    if tensor.nbytes > 2**16:
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < tensor.nbytes / 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": "all"}, "iterations must be a number"),
        ({"iterations": -1}, "iterations must be a number"),
        ({"iterations": slice(-3, None)}, "iterations must be a number"),
        ({"iterations": [0, "1"]}, "iterations must be a number"),
        ({"kinds": "X"}, "kinds must be 'I' (inputs) and 'O' (outputs), not 'X'"),
        ({"kinds": ()}, "kinds must be 'I' (inputs) and 'O' (outputs), not ()"),
        ({"total_limit": "1 GB"}, "total_limit must be a number of bytes like 2**28, not '1 GB'"),
        ({"on_error": "ignore"}, "on_error must be 'continue' or 'raise', not 'ignore'"),
    ],
)
def test_invalid_options_are_refused_before_the_block_runs(options, message):
    """The message contains name and value."""
    with pytest.raises(FilchError) as caught, steal_forward(nn.Identity(), **options):
        pytest.fail("the block was entered")

    assert message in str(caught.value)


@pytest.mark.parametrize("buffer", [0, -1, "1", None, True, 1.5])
def test_an_invalid_buffer_is_refused(buffer, tmp_path):
    """No file is left."""
    with (
        pytest.raises(DumpError, match=r"buffer must be a positive number of bytes like 2\*\*28, not "),
        steal_forward(nn.Identity(), dump_file=tmp_path / "dump.onnx", buffer=buffer),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [-1, float("nan"), True, "1"])
@pytest.mark.parametrize("name", ["storage_limit", "total_limit"])
def test_an_invalid_limit_is_refused(name, limit):
    """Booleans and negative numbers."""
    with (
        pytest.raises(FilchError, match=f"{name} must be a number of bytes"),
        steal_forward(nn.Identity(), **{name: limit}),
    ):
        pass


def test_fifos_and_devices_are_refused_as_dump_file(tmp_path):
    """Writing would wait for a reader, or replace the device."""
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", "/dev/null", "/dev/full"):
        with pytest.raises(DumpError, match="it is not a regular file"), steal_forward(nn.Identity(), dump_file=path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_an_error_while_printing_does_not_lose_records(monkeypatch, caplog):
    """Such as a terminal that can't encode a name, or a closed pipe."""
    text = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", text)
    module = nn.Identity()
    with steal_forward(("ü", module), verbose=1) as capture:
        module(torch.ones(2))

    assert len(capture) == 2
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "can't print the progress of the capture, and continue without"
    ]


@pytest.mark.parametrize(("limit", "kept"), [(23, False), (24, True), (None, True), (0, False)])
def test_the_storage_limit_applies_to_each_tensor(steal, limit, kept):
    """At the limit a tensor is stored; above, it is skipped with dtype, shape and reason, as input and as output."""
    module, x = nn.Identity(), torch.arange(6.0).reshape(2, 3)

    records = steal(("m", module), lambda: module(x), storage_limit=limit)

    for value in (records["m", 0, "I"][0][0], records["m", 0, "O"]):
        if kept:
            assert torch.equal(value, x)
        else:
            assert value == Skipped("f32[2, 3]", f"its 24 bytes exceed the storage limit of {limit}")


def test_the_storage_limit_skips_tensors_not_records(steal):
    """A small tensor beside a large one is stored, and so is a small output."""
    module = module_of(lambda self, x, small: x.sum())

    records = steal(("m", module), lambda: module(torch.ones(100), small=torch.ones(2)), storage_limit=8)

    (large,), kwargs = records["m", 0, "I"]
    assert isinstance(large, Skipped)
    assert torch.equal(kwargs["small"], torch.ones(2))
    assert records["m", 0, "O"].item() == 100
