"""A dump holds what was complete, once, however the run ended and however large it is: D23 to D31.

See `test_defects.py`.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from transformers import DynamicCache

from filch.steal import (
    DumpError,
    Skipped,
    argument_tensors,
    recover,
    restore,
    steal_append,
    steal_forward,
    tensors,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning")


class Passing(nn.Module):
    """Gives what it takes: its one argument, or all of them."""

    def forward(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs else (args, kwargs)


def _bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


KILLED = """
import os, signal, sys, torch
from filch.steal import steal_forward

class Counting(torch.nn.Module):
    count = 0
    def forward(self, x):
        if self.count == 50:
            print(capture.flush(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return x * 2

module = Counting()
with steal_forward(("m", module), dump_file=sys.argv[1]) as capture:
    for step in range(100):
        module(torch.full((64, 64), float(step)))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a dump whose process was killed in its 51st call, and how many records were flushed before."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder / "k.onnx")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder, int(done.stdout)


@pytest.mark.parametrize("to", [None, "elsewhere.onnx"])
def test_d23_a_killed_run_leaves_all_its_complete_records(tmp_path, killed, to):
    """They become a dump under the name that was meant, or under another."""
    folder, flushed = killed
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "k.onnx"

    recover(path, to=to and path.with_name(to))

    dump = restore(path.with_name(to) if to else path)
    expected = [("m", step, kind) for step in range(50) for kind in "IO"] + [("m", 50, "I")]
    assert flushed == 101
    assert list(dump) == expected
    for step in range(50):
        assert torch.equal(dump["m", step, "I"][0][0], torch.full((64, 64), float(step)))
        assert torch.equal(dump["m", step, "O"], torch.full((64, 64), 2.0 * step))
    onnx.checker.check_model(dump.source, full_check=True)


@pytest.fixture
def drafts(tmp_path, killed):
    """A folder of its own with what a killed capture left: its dump to be, the data and the journal."""
    shutil.copytree(killed[0], tmp_path / "copy")
    path = tmp_path / "copy" / "k.onnx"
    (data,), (journal,) = path.parent.glob(".k.onnx.*.data"), path.parent.glob(".k.onnx.*.journal")
    return path, data, journal


def test_recovery_writes_through_no_link(tmp_path, drafts):
    """Whoever made the drafts knows the name that the model is written under first."""
    path, _, journal = drafts
    other = tmp_path / "other"
    other.write_text("mine")
    journal.with_suffix(".model").symlink_to(other)
    assert len(recover(path)) == 101
    assert other.read_text() == "mine"
    assert not path.is_symlink()


@pytest.mark.parametrize("kind", ["hard link", "FIFO"])
def test_recovery_takes_no_data_that_is_another_file(tmp_path, drafts, kind):
    """It would be cut to the size of the dump."""
    path, data, _ = drafts
    data.unlink()
    other = tmp_path / "other"
    other.write_bytes(bytes(5_000_000))
    if kind == "FIFO":
        os.mkfifo(data)
    else:
        os.link(other, data)
    with pytest.raises(DumpError, match=r"can't recover .*: .* is (a hard link|not a regular file)"):
        recover(path)
    assert other.stat().st_size == 5_000_000


def test_recovery_takes_data_that_has_its_name_already(drafts):
    """A kill may come right after the data was put in its place."""
    path, data, _ = drafts
    os.link(data, path.with_name("k.onnx.data"))
    assert len(recover(path)) == 101


def test_recovery_refuses_tensors_that_have_bytes_in_common(drafts):
    """Each would be written by itself."""
    path, _, journal = drafts
    heading, *rest = journal.read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in rest]
    entry = next(entry for line in lines for entry in line[0] if entry[6])
    entry[6] = 0  # where the first tensor's bytes are
    journal.write_text(heading + "".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DumpError, match="overlap those of another tensor"):
        recover(path)


class Opaque:
    """Nothing that one could store."""


ODD = {
    "string": lambda: "eager",
    "set": lambda: {1, 2},
    "dictionary with numbers as keys": lambda: {0: torch.zeros(1), 1: torch.ones(1)},
    "integer of more than 64 bits": lambda: 2**70,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(2, device="meta"),
    **{name: lambda name=name: torch.tensor([1, 2, 3]).to(getattr(torch, name))
       for name in ("uint16", "uint32", "uint64")},
    "object": Opaque,
}  # fmt: skip
MAY_BE_TOLD = {"set", "sparse", "sparse rows", "meta", "object"}


@pytest.mark.parametrize("name", ODD)
def test_d24_an_odd_value_costs_neither_the_dump_nor_the_users_own_exception(tmp_path, differ, plain, name):
    """The block ends in the exception that the user raised, and the dump holds every record until then."""
    module, value, path, error = Passing(), ODD[name](), tmp_path / "dump.onnx", RuntimeError("the user's own")

    with pytest.raises(RuntimeError) as caught, steal_forward(("m", module), dump_file=path):  # noqa: PT012
        module(torch.ones(1))
        module(torch.ones(1), mode=value)
        raise error

    assert caught.value is error
    assert error.__context__ is None
    dump = restore(path)
    assert list(dump) == [("m", step, kind) for step in range(2) for kind in "IO"]
    assert dump["m", 0, "O"].item() == 1
    (beside,), kwargs = dump["m", 1, "I"]
    assert beside.item() == 1
    if name in MAY_BE_TOLD and isinstance(kwargs["mode"], Skipped):
        assert kwargs["mode"].reason
    else:
        assert differ(plain(kwargs["mode"]), plain(value)) is None


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("args", "output"),
    [((ONE, None), ONE), ((ONE,), None), ((ONE,), (ONE, None)), ((None,), None), ((ONE, [None]), {"a": None})],
)
def test_d25_a_dump_with_a_value_that_ends_in_none_is_restored(echo, tmp_path, differ, args, output):
    """As the last argument, as an output, and as the last part of one."""
    module, path = echo(output), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path):
        module(*args)

    dump = restore(path)
    assert differ(dump["m", 0, "I"], (args, {})) is None
    assert differ(dump["m", 0, "O"], output) is None


class Last(nn.Module):
    """Gives the last number that it takes."""

    def forward(self, x):
        return x[-1].clone()


def test_d26_a_tensor_over_2_gib_is_dumped_and_restored_with_no_more_memory_than_it_has(tmp_path):
    """Protobuf's limit is none of a dump's, and there is at most one copy in memory; untouched zeros take none."""
    size = 2**31 + 2**20
    if shutil.disk_usage(tmp_path).free < 3 * size:
        pytest.skip(f"a dump of 2 GiB needs more room than there is below {tmp_path}")
    tensor, module, path = torch.zeros(size, dtype=torch.uint8), Last(), tmp_path / "dump.onnx"
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


class Halving(nn.Module):
    """Gives two views of what it takes."""

    def forward(self, x):
        return x[:32], x[32:]


class Nested(nn.Module):
    """Modules in modules in a row: each value is an output, an input, or both, of several."""

    def __init__(self):
        super().__init__()
        inner = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)))
        self.body, self.halves = nn.Sequential(inner, nn.Identity()), Halving()

    def forward(self, x):
        return self.halves(self.body(x).view(64, 16, 16))


def test_d27_a_tensor_is_on_the_disk_once_however_many_records_hold_it(tmp_path):
    """Four tensors of 64 KiB, in 18 records; views of them cost nothing."""
    model, x = Nested(), torch.randn(64, 256)

    with steal_forward(model, submodules=True, dump_file=tmp_path / "dump.onnx"):
        model(x)

    dump = restore(tmp_path / "dump.onnx")
    unique, held = 4 * x.nbytes, sum(dump.nbytes(key) for key in dump)
    assert len(dump) == 18
    assert held >= 4 * unique
    assert _bytes_in(tmp_path) < unique + 32 * 2**10
    assert torch.equal(torch.cat(dump["", 0, "O"]), torch.cat(model(x)))


@torch.no_grad()
def test_d27_equal_numbers_at_the_same_place_are_not_taken_for_the_same_after_a_change(tmp_path):
    """What is written into a tensor between two calls makes it another one."""
    module, x, path = nn.Identity(), torch.zeros(4096), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path):
        for value in range(3):
            x.fill_(value)
            module(x)

    dump = restore(path)
    assert [dump["m", step, "O"][0].item() for step in range(3)] == [0, 1, 2]


HEAD = (1, 2, 2, 512)  # batch, heads, tokens of the prompt, features


class Decoding(nn.Module):
    """A step of a decoder and nothing more: its cache grows by a token."""

    def forward(self, token, past_key_values):
        for layer in range(2):
            past_key_values.update(token + layer, token - layer, layer)
        return {"logits": token.sum(), "past_key_values": past_key_values}


def _decode(path, steps):
    """A dump of a decode loop, and the final cache."""
    module, cache = Decoding(), DynamicCache()
    for layer in range(2):
        cache.update(torch.rand(*HEAD), torch.rand(*HEAD), layer)
    with steal_forward(("m", module), dump_file=path):
        for _ in range(steps):
            cache = module(torch.rand(1, 2, 1, 512), past_key_values=cache)["past_key_values"]
    return cache


def _cache_bytes(value):
    return sum(tensor.nbytes for path, tensor in tensors(value).items() if ".layers[" in path)


def test_d27_the_cache_that_a_step_gives_and_the_next_one_takes_is_stored_once(tmp_path):
    """A decode loop of 16 steps: half of its caches are the other half."""
    cache = _decode(tmp_path / "dump.onnx", 16)

    dump = restore(tmp_path / "dump.onnx")
    given = [_cache_bytes(dump["m", step, "O"]) for step in range(16)]
    first = _cache_bytes(dump["m", 0, "I"])
    assert given[-1] == _cache_bytes(cache)
    assert _bytes_in(tmp_path) < 1.1 * (first + sum(given))
    for step in range(1, 16):
        taken = tensors(dump["m", step, "I"][1]["past_key_values"])
        assert all(map(torch.equal, taken.values(), tensors(dump["m", step - 1, "O"]["past_key_values"]).values()))


def test_d27_a_cache_that_grows_by_a_token_is_stored_by_that_token(tmp_path):
    """64 steps take about twice as much as 32, not four times; every step comes back whole."""
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


def test_d28_a_model_can_be_exported_inside_a_block(tmp_path):
    """The program is the one that it would be without, and the dump is one."""
    model, x, path = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), tmp_path / "dump.onnx"
    without = torch.export.export(model, (x,))

    with steal_forward(("m", model), submodules=True, dump_file=path):
        inside = torch.export.export(model, (x,))
        model(x)

    dump = restore(path)
    assert inside.graph_module.code == without.graph_module.code
    assert [key for key in dump if not isinstance(dump[key], Skipped)] == list(dump)
    assert torch.equal([value for key, value in dump.items() if key.kind == "O"][-1], model(x))


@pytest.mark.parametrize("name", ["ROI", "I", "O", "GO", "m"])
def test_d29_an_appended_value_may_have_any_name(tmp_path, name):
    """It is not taken for an input or an output, and does not take the place of one."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"

    with steal_forward(("m", module), dump_file=path):
        module(ONE)
        steal_append(name, torch.full((1,), 5.0))

    dump = restore(path)
    assert list(dump) == [("m", 0, "I"), ("m", 0, "O"), (name, 0, "V")]
    assert dump[name, 0, "V"].item() == 5


def test_d29_choosing_kinds_looks_at_kinds_and_not_at_names(tmp_path):
    """Inputs are left out, and nothing that is called like them."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"

    with steal_forward([("ROI", module), ("I", nn.Identity())], dump_file=path, kinds=("O",)):
        module(ONE)
        steal_append("ROI", ONE)

    dump = restore(path)
    assert ("ROI", 0, "O") in dump
    assert ("ROI", 0, "I") not in dump
    assert ("ROI", 0, "V") in dump


def _resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc to ask for the memory in use")
def test_d30_restoring_a_dump_reads_no_tensor_of_it(tmp_path):
    """128 MiB stay on the disk until they are asked for, and then it is that tensor alone."""
    module, path = nn.Identity(), tmp_path / "dump.onnx"
    with steal_forward(("m", module), dump_file=path):
        for value in range(8):
            module(torch.full((2**22,), float(value)))
    before = _resident()

    dump = restore(path)
    opened = _resident() - before
    total = dump["m", 3, "O"].sum().item()
    read = _resident() - before
    path.with_name("dump.onnx.data").unlink(missing_ok=True)

    assert total == 3 * 2**22
    assert opened < 16 * 2**20
    assert read < 64 * 2**20


WITHOUT_RUNTIME = """
import sys
from filch.steal import restore
assert restore(sys.argv[1])["m", 0, "O"].tolist() == [1.5, -2.0]
assert not {"onnxruntime", "onnx.reference"} & set(sys.modules)
"""


def test_d30_restoring_needs_no_runtime_whatever_the_dtype(tmp_path):
    """A bfloat16 comes back as one."""
    module, path, value = nn.Identity(), tmp_path / "dump.onnx", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    with steal_forward(("m", module), dump_file=path):
        module(value)

    subprocess.run([sys.executable, "-c", WITHOUT_RUNTIME, str(path)], check=True)

    found = restore(path)["m", 0, "O"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, value)


def test_d30_a_dump_knows_its_modules_calls_and_environment(tmp_path):
    """Classes and parameters, which call ran in which and in what order, where, when and with what it was made."""
    model, path = nn.Sequential(nn.Sequential(nn.Linear(2, 2))), tmp_path / "dump.onnx"
    with steal_forward(("m", model), submodules=True, dump_file=path):
        for _ in range(2):
            model(torch.ones(1, 2))

    dump = restore(path)
    found = onnx.load(path)

    assert dump.modules["m.0.0"].type_name == "torch.nn.modules.linear:Linear"
    assert dump.modules["m.0.0"].parameters == ("input",)
    assert [(call.index, call.name) for call in dump.calls()] == [(0, "m"), (1, "m")]
    assert [key.name for key in dump.calls()[1].keys] == ["m", "m.0", "m.0.0", "m.0.0", "m.0", "m"]
    origins = [dump.records[key].origin for key in dump if key.kind == "I"]
    assert [(origin.path, origin.call) for origin in origins[:4]] == [("", 0), ("0", 0), ("0.0", 0), ("", 1)]
    assert {"torch", "onnx", "python", "platform", "device", "time"} <= dump.environment.keys()
    assert found.producer_name == "filch"
    assert found.metadata_props


def test_d30_a_call_by_keyword_is_the_same_call_as_by_position(tmp_path):
    """By the names of the parameters; how it was written is known too."""
    module, x = nn.Linear(2, 2), torch.ones(1, 2)
    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"):
        module(x)
        module(input=x)

    dump = restore(tmp_path / "dump.onnx")
    inputs = [dump["m", step, "I"] for step in range(2)]
    named = [argument_tensors(dump.modules["m"].parameters, *value) for value in inputs]

    assert [list(arguments) for arguments in named] == [["input"], ["input"]]
    assert [(len(args), list(kwargs)) for args, kwargs in inputs] == [(1, []), (0, ["input"])]


def test_d31_names_of_submodules_are_their_paths(tmp_path):
    """Nothing of the class or of its source is in them, so that the runs of two versions can be joined."""

    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = nn.Sequential(nn.LayerNorm(2), nn.ReLU())

        def forward(self, x):
            return self.decoder(x)

    class Longer(Short):
        """The same module, after somebody worked on its file."""

        def forward(self, x):
            y = self.decoder(x)
            return y + 0

    names = []
    for index, model in enumerate((Short(), Longer())):
        path = tmp_path / f"{index}.onnx"
        with steal_forward(("m", model), submodules=True, dump_file=path):
            model(torch.ones(1, 2))
        names.append([key.name for key in restore(path) if key.kind == "O"])

    assert names[0] == ["m.decoder.0", "m.decoder.1", "m.decoder", "m"]
    assert names[0] == names[1]
