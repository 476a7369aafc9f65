"""Long captures: whatever was written without a message is read back, in linear time and little memory."""

import json
import re
import sys
import tracemalloc

import pytest
import torch
from torch import nn

from filch.steal import DumpError, recover, restore, steal_append, steal_forward
from filch.steal.dump import _format as form
from filch.steal.dump import _rows
from filch.steal.dump._files import Draft


def _record(path, calls, **options):
    """Record calls of one small module, and return the capture."""
    module, x = nn.Linear(2, 2), torch.ones(1, 2)
    with torch.no_grad(), steal_forward(("m", module), dump_file=path, **options) as capture:
        for _ in range(calls):
            module(x)
    return capture


def _count_function_calls(function):
    """Return how many Python and C functions a function calls."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_long_capture_is_opened_in_linear_time_and_little_memory(monkeypatch, tmp_path):
    """Twice the calls take twice the steps; at the peak, less than 2.5 times the file is in memory."""
    monkeypatch.setattr(_rows, "_WINDOW", 2**16)  # as small in relation as for a large file
    counts = {}
    for calls in (1000, 2000):
        _record(tmp_path / f"{calls}.onnx", calls)
        counts[calls] = _count_function_calls(lambda calls=calls: restore(tmp_path / f"{calls}.onnx"))
    tracemalloc.start()
    try:
        dump = restore(tmp_path / "2000.onnx")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert counts[2000] < 2.1 * counts[1000]
    assert peak < 2.5 * (tmp_path / "2000.onnx").stat().st_size
    assert len(dump) == 4000
    assert [key.iteration for key in dump if key.kind == "O"] == list(range(2000))
    assert dump["m", 1999, "O"].shape == (1, 2)


class Indexed(nn.Module):
    """Returns what it receives under a name, with as many tensors as wanted."""

    def forward(self, count):
        return {f"tensor {index}": torch.full((1,), float(index)) for index in range(count)}


@pytest.mark.parametrize("make", [_record, lambda path, calls: _record(path, calls, compress=True)])
def test_a_capture_that_could_not_be_read_is_cut_while_it_is_written(make, monkeypatch, tmp_path, caplog):
    """It is refused at the limit, and everything before it is there."""
    monkeypatch.setattr(form, "MAX_INDEX_SIZE", 200_000)

    capture = make(tmp_path / "dump.onnx", 3000)

    dump = restore(tmp_path / "dump.onnx")
    message = "its index would have more than 200,000 bytes: record less in one file"
    assert message in str(capture.error)
    assert message in caplog.text
    assert f"the first {len(dump)} records are complete" in str(capture.error)
    assert 500 < len(dump) < 6000
    assert 120_000 < (tmp_path / "dump.onnx").stat().st_size < 210_000
    assert [dump[key].shape for key in list(dump)[-2:] if key.kind == "O"] == [(1, 2)]
    assert list(tmp_path.iterdir()) == [tmp_path / "dump.onnx"]


def test_a_capture_at_its_limit_stops_the_run_if_wanted(monkeypatch, tmp_path):
    """With on_error="raise", the model's run ends at the limit."""
    monkeypatch.setattr(form, "MAX_INDEX_SIZE", 20_000)
    module, x, calls = nn.Identity(), torch.ones(2), 0

    def run():
        nonlocal calls
        with steal_forward(module, dump_file=tmp_path / "dump.onnx", on_error="raise") as capture:
            for calls in range(10_000):  # noqa: B007  counted
                module(x)
                capture.flush()

    with pytest.raises(DumpError, match="its index would have more than 20,000 bytes"):
        run()

    assert calls < 1000
    assert len(restore(tmp_path / "dump.onnx")) >= 2 * calls - 2


def test_a_value_whose_description_is_too_long_is_refused(monkeypatch, tmp_path):
    """What was recorded before it is there."""
    monkeypatch.setattr(form, "MAX_ROW_SIZE", 20_000)
    module = Indexed()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        module(100)
        module(1000)
        module(1)

    assert re.search(
        r"the description of 'm#1.O' has [\d,]+ bytes, and at most 20,000 can be read, after \d+ bytes; "
        "the first 3 records are complete",
        str(capture.error),
    )
    assert list(restore(tmp_path / "dump.onnx")) == [("m", 0, "I"), ("m", 0, "O"), ("m", 1, "I")]


def test_many_long_descriptions_are_written_and_recovered(monkeypatch, tmp_path):
    """They are read through a window that grows with them, and their journal has short lines."""
    monkeypatch.setattr(form, "MAX_ROW_SIZE", 60_000)
    monkeypatch.setattr(_rows, "_WINDOW", 1000)
    module, lines = Indexed(), []
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        for count in (300, 1, 300, 2, 300, 3):
            module(count)
        capture.flush()
        for file in Draft.find_all(tmp_path / "dump.onnx"):
            lines = file.journal.read_bytes().splitlines()
            (tmp_path / ".new.onnx.00000000.journal").write_bytes(file.journal.read_bytes())
            (tmp_path / ".new.onnx.00000000.data").write_bytes(file.data.read_bytes())

    dump, recovered = restore(tmp_path / "dump.onnx"), recover(tmp_path / "new.onnx")

    assert capture.error is None
    assert max(map(len, lines)) < 60_000
    assert list(dump) == list(recovered) == [("m", call, kind) for call in range(6) for kind in "IO"]
    for name in dump:
        assert dump[name] == recovered[name]
    assert [len(dump["m", call, "O"]) for call in range(6)] == [300, 1, 300, 2, 300, 3]


def test_too_many_modules_are_refused_before_the_run(monkeypatch, tmp_path):
    """Their list would be longer than what `recover` reads."""
    monkeypatch.setattr(form, "MAX_ROW_SIZE", 2000)

    with (
        pytest.raises(DumpError, match=r"the list of its 101 modules has .* bytes, and at most 2,000 can be read"),
        steal_forward(nn.Sequential(*map(nn.Linear, [1] * 100, [1] * 100)), submodules=True, dump_file=tmp_path / "d"),
    ):
        pass

    assert not list(tmp_path.iterdir())


def test_long_names_are_read_back(tmp_path):
    """Keys and paths are stored as they are; the names of nodes are cut."""
    name, entry = "n" * 300_000, "k" * 300_000

    with steal_forward(nn.Identity(), dump_file=tmp_path / "dump.onnx"):
        steal_append(name, {entry: torch.ones(1), entry + "2": torch.zeros(1)})

    assert restore(tmp_path / "dump.onnx")[name, 0, "V"] == {entry: torch.ones(1), entry + "2": torch.zeros(1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[1],,[2]]", "not a list of rows"),
        ("[[1][2]]", "not a list of rows"),
        ("[[1],[2]", "not a list of rows"),
        ("[[1],[2]]]", "not a list of rows"),
        ("[[1],2]", "not a list of rows"),
        ("", "not a list of rows"),
        ("[[1],[nul]]", "Expecting value"),
        ("[[1],[NaN]]", "NaN is not JSON"),
        (f"[[{'[' * 100_000}", "nested too deep"),
        (f"[[{'9' * 5000}]]", "a number in it has too many digits"),
        (f"[[1],[{'1,' * 5000}1]]", "a row of it has more than 4,000 bytes"),
        ("[[1],[é]]", "can't decode byte"),
    ],
)
def test_a_list_of_rows_is_read_or_refused(monkeypatch, text, message):
    """Each way to be wrong, at every size of the window."""
    monkeypatch.setattr(form, "MAX_ROW_SIZE", 4000 if "4,000" in message else 10**6)
    contents = text.encode()
    for window in (1, 5, 1000):
        monkeypatch.setattr(_rows, "_WINDOW", window)
        with pytest.raises(ValueError, match=message):
            _rows.Rows(contents, (0, len(contents)), lambda _: None)


@pytest.mark.parametrize("text", ["[]", " [ ] ", "[[1]]", '[[1],["]", [2, {"a": null}]] , [] ]\n'])
def test_rows_are_read_at_every_size_of_the_window(monkeypatch, text):
    """Wherever a window ends."""
    found = []
    for window in range(1, 40):
        monkeypatch.setattr(_rows, "_WINDOW", window)
        rows = _rows.Rows(b"x" + text.encode() + b"y", (1, 1 + len(text)), lambda _: None)
        found.append([rows[index] for index in range(len(rows))])

    assert all(rows == json.loads(text) for rows in found)


def test_what_is_known_of_modules_is_kept_once(tmp_path):
    """Of the thousands that a large model has, most are of few classes."""
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(50)])
    with torch.no_grad(), steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx"):
        model(torch.ones(1))

    modules = restore(tmp_path / "dump.onnx").modules

    assert len(modules) == 51
    assert len({id(info) for info in modules.values()}) == 2
