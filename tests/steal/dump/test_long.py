"""Long captures and large dumps: all is read back, in linear time and little memory, and stored once."""

import json
import re
import resource
import shutil
import sys
import tracemalloc

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from filch.steal import DumpError, recover, restore, steal_append, steal_forward, tensors
from filch.steal.dump import _format as form
from filch.steal.dump import _rows
from filch.steal.dump._files import Draft
from support.models.small import module_of
from support.thorough import slow


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


def indexed():
    """Returns what it receives under a name, with as many tensors as wanted."""
    return module_of(lambda self, count: {f"tensor {index}": torch.full((1,), float(index)) for index in range(count)})


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
    module = indexed()

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
    module, lines = indexed(), []
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


def _bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@slow
def test_a_tensor_over_2_gib_is_dumped_with_one_copy_in_memory(tmp_path):
    """Protobuf's limit does not apply to tensors; pages of zeros take no memory before the copy."""
    size = 2**31 + 2**20
    if shutil.disk_usage(tmp_path).free < 3 * size:
        pytest.skip(f"a dump of 2 GiB needs more room than there is below {tmp_path}")
    # Returns the last element of its input.
    model = module_of(lambda self, x: x[-1].clone())
    tensor, module, path = torch.zeros(size, dtype=torch.uint8), model, tmp_path / "dump.onnx"
    tensor[[0, 2**31, -1]] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    try:
        with steal_forward(("m", module), dump_file=path):
            module(tensor)
        dump = restore(path)
        found = dump["m", 0, "I"][0][0]
        assert dump["m", 0, "O"].item() == 3
        assert found.shape == (size,)
        assert found[[0, 1, 2**31, -2, -1]].tolist() == [1, 0, 2, 0, 3]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    finally:
        for left in tmp_path.iterdir():
            left.unlink()  # pytest would keep it for three runs

    assert peak - before < 1.25 * size


HEAD = (1, 2, 2, 512)  # batch, heads, tokens of the prompt, features


class Decoding(nn.Module):
    """One decoding step: its cache grows by a token."""

    def forward(self, token, past_key_values):
        for layer in range(2):
            past_key_values.update(token + layer, token - layer, layer)
        return {"logits": token.sum(), "past_key_values": past_key_values}


def _decode(path, steps):
    """Write a dump of a decoding loop, and return the final cache."""
    module, cache = Decoding(), DynamicCache()
    for layer in range(2):
        cache.update(torch.rand(*HEAD), torch.rand(*HEAD), layer)
    with steal_forward(("m", module), dump_file=path):
        for _ in range(steps):
            cache = module(torch.rand(1, 2, 1, 512), past_key_values=cache)["past_key_values"]
    return cache


def _cache_bytes(value):
    return sum(tensor.nbytes for path, tensor in tensors(value).items() if ".layers[" in path)


def test_a_cache_that_is_output_and_next_input_is_stored_once(tmp_path):
    """Of 16 decoding steps, each input cache is the output cache of the previous step."""
    cache = _decode(tmp_path / "dump.onnx", 16)

    dump = restore(tmp_path / "dump.onnx")
    given = [_cache_bytes(dump["m", step, "O"]) for step in range(16)]
    first = _cache_bytes(dump["m", 0, "I"])
    assert given[-1] == _cache_bytes(cache)
    assert _bytes_in(tmp_path) < 1.1 * (first + sum(given))
    for step in range(1, 16):
        taken = tensors(dump["m", step, "I"][1]["past_key_values"])
        assert all(map(torch.equal, taken.values(), tensors(dump["m", step - 1, "O"]["past_key_values"]).values()))


def test_only_new_tokens_of_a_growing_cache_are_stored(tmp_path):
    """64 steps take about twice the space of 32 steps, not four times; every step is restored."""
    sizes = {}
    for steps in (32, 64):
        (tmp_path / str(steps)).mkdir()
        cache = _decode(tmp_path / str(steps) / "dump.onnx", steps)
        dump = restore(tmp_path / str(steps) / "dump.onnx")
        others = sum(dump.nbytes(key) - _cache_bytes(dump[key]) for key in dump)
        sizes[steps] = _bytes_in(tmp_path / str(steps)) - others

    assert sizes[64] < 2.6 * sizes[32]
    assert sizes[64] < 4 * _cache_bytes(cache) + 512 * 2**10  # of JSON, for 128 records
    for step in (0, 31, 63):
        for index, layer in enumerate(dump["m", step, "O"]["past_key_values"].layers):
            assert torch.equal(layer.keys, cache.layers[index].keys[:, :, : 2 + step + 1])
            assert torch.equal(layer.values, cache.layers[index].values[:, :, : 2 + step + 1])


def test_a_list_of_all_stages_of_a_cache_is_read_back(tmp_path):
    """In grown form it would be many times larger than the dump, which a reader refuses."""
    # Takes a list of tensors.
    # Appends one token.
    model = module_of(lambda self, cache: torch.cat([cache, torch.rand(1, 2, 1, 64)], 2))
    last, growing, stages = module_of(lambda self, stages: stages[-1].sum()), model, [torch.rand(1, 2, 3, 64)]

    with steal_forward([("last", last), ("growing", growing)], dump_file=tmp_path / "dump.onnx"):
        for _ in range(60):
            stages.append(growing(stages[-1]))
            last([*stages])

    dump = restore(tmp_path / "dump.onnx")
    for step in range(60):
        [found] = dump["last", step, "I"][0]
        assert all(map(torch.equal, found, stages[: step + 2]))
