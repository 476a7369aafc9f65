"""`steal_forward` records each call of each module in the order of the run, with the values at that time."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from filch.steal import DumpError, Key, Origin, restore, steal_forward
from support.models.small import module_of


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.linear = (nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 4
        return self.linear(torch.softmax(scores + torch.full((30, 30), -1e9).triu(1), dim=-1) @ self.value(x))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_1, self.relu, self.linear_2 = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)

    def forward(self, x):
        return self.linear_2(self.relu(self.linear_1(x)))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm_1, self.norm_2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class LLM(nn.Module):
    """The model of the onnx-diagnostic script: 22 modules, an embedding and one decoder layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.pe, self.decoder = nn.Embedding(100, 16), nn.Embedding(30, 16), DecoderLayer()

    def forward(self, input_ids):
        return self.decoder(self.embedding(input_ids) + self.pe(torch.arange(30)))


STOLEN = ["", ".decoder", ".decoder.attention", ".decoder.feed_forward", ".decoder.norm_1", ".decoder.norm_2"]

RECORDS = """\
('model', 0, 'I') -- ((i64[2, 30],), {})
('model.decoder', 0, 'I') -- ((f32[2, 30, 16],), {})
('model.decoder.norm_1', 0, 'I') -- ((f32[2, 30, 16],), {})
('model.decoder.norm_1', 0, 'O') -- f32[2, 30, 16]
('model.decoder.attention', 0, 'I') -- ((f32[2, 30, 16],), {})
('model.decoder.attention', 0, 'O') -- f32[2, 30, 16]
('model.decoder.norm_2', 0, 'I') -- ((f32[2, 30, 16],), {})
('model.decoder.norm_2', 0, 'O') -- f32[2, 30, 16]
('model.decoder.feed_forward', 0, 'I') -- ((f32[2, 30, 16],), {})
('model.decoder.feed_forward', 0, 'O') -- f32[2, 30, 16]
('model.decoder', 0, 'O') -- f32[2, 30, 16]
('model', 0, 'O') -- f32[2, 30, 16]"""

NARRATED = """\
+model -- stolen forward for class LLM -- iteration 0
  <- args=(i64[2, 30],) --- kwargs={}
+model.decoder -- stolen forward for class DecoderLayer -- iteration 0
  <- args=(f32[2, 30, 16],) --- kwargs={}
+model.decoder.norm_1 -- stolen forward for class LayerNorm -- iteration 0
  <- args=(f32[2, 30, 16],) --- kwargs={}
  -> f32[2, 30, 16]
-model.decoder.norm_1.
-- stores key=('model.decoder.norm_1', 0, 'O') -- f32[2, 30, 16]
+model.decoder.attention -- stolen forward for class Attention -- iteration 0
  <- args=(f32[2, 30, 16],) --- kwargs={}
  -> f32[2, 30, 16]
-model.decoder.attention.
-- stores key=('model.decoder.attention', 0, 'O') -- f32[2, 30, 16]
+model.decoder.norm_2 -- stolen forward for class LayerNorm -- iteration 0
  <- args=(f32[2, 30, 16],) --- kwargs={}
  -> f32[2, 30, 16]
-model.decoder.norm_2.
-- stores key=('model.decoder.norm_2', 0, 'O') -- f32[2, 30, 16]
+model.decoder.feed_forward -- stolen forward for class FeedForward -- iteration 0
  <- args=(f32[2, 30, 16],) --- kwargs={}
  -> f32[2, 30, 16]
-model.decoder.feed_forward.
-- stores key=('model.decoder.feed_forward', 0, 'O') -- f32[2, 30, 16]
  -> f32[2, 30, 16]
-model.decoder.
-- stores key=('model.decoder', 0, 'O') -- f32[2, 30, 16]
  -> f32[2, 30, 16]
-model.
-- stores key=('model', 0, 'O') -- f32[2, 30, 16]
-- stored 12 values in llm.onnx: 27,360 bytes; sharing saved 15,360
"""


@pytest.fixture
def llm():
    """Return the model, six of its modules with the names of the script, and its inputs."""
    torch.manual_seed(0)
    model = LLM()
    return model, [(f"model{path}", model.get_submodule(path[1:])) for path in STOLEN], torch.randint(0, 100, (2, 30))


def test_six_named_modules_of_a_language_model_give_twelve_records_in_the_order_of_the_run(llm, tmp_path, differ):
    """The keys, order, nesting and values that the modules received and returned."""
    model, modules, ids = llm

    with steal_forward(modules, dump_file=tmp_path / "llm.onnx", storage_limit=2**28) as capture:
        output = model(ids)

    dump = restore(tmp_path / "llm.onnx")
    assert dump.describe() == RECORDS
    assert capture.describe() == RECORDS
    assert list(dump) == list(capture)
    assert differ(dict(dump), dict(capture)) is None
    assert differ(dump["model", 0, "O"], output.detach()) is None
    assert differ(dump["model", 0, "I"], ((ids,), {})) is None
    hidden = model.embedding(ids) + model.pe(torch.arange(30))
    assert differ(dump["model.decoder.norm_1", 0, "O"], model.decoder.norm_1(hidden)) is None


def test_verbose_1_prints_the_run(llm, tmp_path, monkeypatch, capsys):
    """Calls, stored values, and a summary."""
    model, modules, ids = llm
    monkeypatch.chdir(tmp_path)

    with steal_forward(modules, dump_file="llm.onnx", verbose=1):
        model(ids)

    assert capsys.readouterr().out == NARRATED


def test_verbose_1_prints_skipped_tensors_and_failed_calls(capsys):
    """These are not printed as stored."""
    module = nn.Sequential(nn.Linear(3, 3))

    with steal_forward(("m", module), storage_limit=8, verbose=1):
        module(torch.zeros(3))
        with pytest.raises(TypeError):
            module("no tensor")

    assert (
        capsys.readouterr().out
        == """\
+m -- stolen forward for class Sequential -- iteration 0
  <- args=(f32[3],) --- kwargs={}
-- skips a f32[3] of key=('m', 0, 'I'): its 12 bytes exceed the storage limit of 8
  -> f32[3]
-m.
-- skips a f32[3] of key=('m', 0, 'O'): its 12 bytes exceed the storage limit of 8
+m -- stolen forward for class Sequential -- iteration 1
  <- args=('no tensor',) --- kwargs={}
-m raised.
-- stored 3 values: 0 bytes; sharing saved 0
"""
    )


def test_nothing_is_printed_by_default(llm, steal, capfd):
    """Neither to stdout nor to stderr, in memory and on disk, with skipped tensors and failed calls."""
    model, modules, ids = llm

    def run():
        model(ids)
        with pytest.raises(TypeError):
            model("no tensor")

    steal(modules, run, storage_limit=100)

    assert capfd.readouterr() == ("", "")


def test_each_call_of_a_model_is_an_iteration():
    """With its own records and its own call index."""
    model = nn.Sequential(nn.Linear(2, 2))
    inputs = [torch.full((1, 2), float(index)) for index in range(3)]

    with steal_forward(("m", model), submodules=True) as capture:
        outputs = [model(x) for x in inputs]

    assert [key for key in capture if key.kind == "O"] == [
        ("m.0", 0, "O"), ("m", 0, "O"), ("m.0", 1, "O"), ("m", 1, "O"), ("m.0", 2, "O"), ("m", 2, "O"),
    ]  # fmt: skip
    for index, (x, output) in enumerate(zip(inputs, outputs, strict=True)):
        assert torch.equal(capture["m", index, "I"][0][0], x)
        assert torch.equal(capture["m", index, "O"], output)
        assert capture.records[Key("m.0", index, "O")].origin == Origin("0", index, 0)
    calls = [(call.index, call.name, [key.name for key in call.keys]) for call in capture.calls()]
    assert calls == [(index, "m", ["m", "m.0", "m.0", "m"]) for index in range(3)]


def test_a_module_used_twice_in_one_forward_has_two_iterations_within_its_call():
    """The key counts over the capture, the origin within the call of the outermost module."""
    # Runs one module twice in a forward, under its own name.
    model = module_of(
        lambda self, x: self.inner["linear"](self.inner["linear"](x)), inner=nn.ModuleDict({"linear": nn.Linear(2, 2)})
    )

    with steal_forward(model, submodules=True) as capture:
        model(torch.ones(1, 2))
        model(torch.ones(1, 2))

    origins = {tuple(key): record.origin for key, record in capture.records.items() if key.kind == "O"}
    assert origins == {
        ("inner.linear", 0, "O"): Origin("inner.linear", 0, 0),
        ("inner.linear", 1, "O"): Origin("inner.linear", 0, 1),
        ("", 0, "O"): Origin("", 0, 0),
        ("inner.linear", 2, "O"): Origin("inner.linear", 1, 0),
        ("inner.linear", 3, "O"): Origin("inner.linear", 1, 1),
        ("", 1, "O"): Origin("", 1, 0),
    }
    assert torch.equal(capture["inner.linear", 0, "O"], capture["inner.linear", 1, "I"][0][0])


def test_paths_do_not_depend_on_the_given_names():
    """A module captured alone under any name still has its path in the model that runs it."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))

    with steal_forward([("outer", model), ("anything", model[0][0])]) as capture:
        model(torch.ones(1, 2))
        model[0](torch.ones(1, 2))

    assert {tuple(key): record.origin for key, record in capture.records.items() if key.kind == "O"} == {
        ("anything", 0, "O"): Origin("0.0", 0, 0),
        ("outer", 0, "O"): Origin("", 0, 0),
        ("anything", 1, "O"): Origin("", 1, 0),
    }


class Borrowing(nn.Module):
    """Runs a module that is not its submodule."""

    def __init__(self, other):
        super().__init__()
        self.others = [other]  # not a submodule, as it is in a list

    def forward(self, x):
        return self.others[0](self.others[0](x))


def test_a_module_outside_of_the_model_has_no_path():
    """It belongs to the call of the model that runs it."""
    borrowed = nn.Identity()
    model = Borrowing(borrowed)

    with steal_forward([("m", model), ("b", borrowed)]) as capture:
        model(torch.ones(1))

    origins = [capture.records[Key("b", index, "O")].origin for index in range(2)]
    assert origins == [Origin(None, 0, 0)] * 2
    assert len(capture.calls()) == 1


def test_an_output_of_none_is_recorded_inside_an_exception_handler(echo):
    """An exception that the caller has caught is not a failure of the module."""
    module = echo(None)

    with steal_forward(("m", module)) as capture:
        try:
            raise ValueError  # noqa: TRY301
        except ValueError:
            module()

    assert list(capture) == [("m", 0, "I"), ("m", 0, "O")]
    assert capture["m", 0, "O"] is None


def in_place(self, x):
    """Changes its input and its submodule's output in place."""
    y = self.identity(x)
    y += 1
    return self.relu(y)


@pytest.mark.parametrize("on_disk", [False, True])
def test_later_in_place_changes_do_not_affect_a_capture(tmp_path, on_disk):
    """By the model or by its caller."""
    model, x = module_of(in_place, identity=nn.Identity(), relu=nn.ReLU(inplace=True)), torch.tensor([-3.0, 3.0])

    with steal_forward(("m", model), submodules=True, dump_file=tmp_path / "d.onnx" if on_disk else None) as capture:
        output = model(x)
        output.fill_(9)

    assert x.tolist() == [9, 9]
    assert capture["m", 0, "I"][0][0].tolist() == [-3, 3]
    assert capture["m.identity", 0, "O"].tolist() == [-3, 3]
    assert capture["m.relu", 0, "I"][0][0].tolist() == [-2, 4]
    assert capture["m", 0, "O"].tolist() == [0, 4]


def test_keys_with_equal_labels_have_different_onnx_names(tmp_path):
    """Even if their keys and paths are written the same way."""
    first, second = nn.Identity(), nn.Identity()

    with steal_forward([("", first), ("(root)", second)], dump_file=tmp_path / "dump.onnx"):
        first(torch.ones(1))
        second(torch.zeros(1))

    dump = restore(tmp_path / "dump.onnx")
    assert dump["", 0, "O"] == 1
    assert dump["(root)", 0, "O"] == 0


def test_a_capture_can_be_read_inside_the_block_and_after_it(tmp_path):
    """Inside, it reads what is on disk so far; afterwards, the finished dump."""
    module = nn.Identity()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx") as capture:
        module(torch.ones(3))
        inside = capture["m", 0, "O"]
        empty = capture.get(("m", 1, "O"))
        module(torch.ones(0, 2))
        assert capture["m", 1, "O"].shape == (0, 2)

    assert torch.equal(inside, torch.ones(3))
    assert empty is None
    assert torch.equal(capture["m", 0, "O"], torch.ones(3))
    assert capture["m", 1, "O"].shape == (0, 2)
    assert capture.dump_file == str(tmp_path / "dump.onnx")
    assert repr(capture) == f"<Capture of 4 values in {tmp_path / 'dump.onnx'}>"


def test_a_block_may_change_the_working_directory(tmp_path, monkeypatch):
    """A relative dump_file refers to the directory in which the block began."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    module = nn.Identity()

    with steal_forward(("m", module), dump_file="dump.onnx") as capture:
        module(torch.ones(1))
        os.chdir("elsewhere")

    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["dump.onnx"]
    assert capture["m", 0, "O"] == 1
    assert capture.dump_file == "dump.onnx"


@pytest.mark.parametrize(
    ("dump_file", "message"),
    [
        ("missing/dump.onnx", "can't write a dump to '.*missing/dump.onnx': No such file or directory"),
        ("taken/dump.onnx", "can't write a dump to '.*taken/dump.onnx': Not a directory"),
        ("", "can't write a dump to '': it is a folder; add a name like 'reference.onnx'"),
        ("folder", "can't write a dump to 'folder': it is a folder; add a name like 'reference.onnx'"),
        ("a\0b", "can't write a dump to '.*': (open: )?embedded null (byte|character)"),
        (5, "dump_file must be a path like 'reference.onnx', not 5"),
    ],
)
def test_an_unwritable_dump_file_is_refused_before_the_block_runs(tmp_path, monkeypatch, dump_file, message):
    """The module has no hooks, and the folder is unchanged."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("taken").touch()
    module, entered = nn.Identity(), False

    with pytest.raises(DumpError, match=message), steal_forward(module, dump_file=dump_file):
        entered = True

    assert not entered
    assert not module._forward_hooks  # noqa: SLF001
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "taken"]


@pytest.mark.gpu
def test_gpu_tensors_are_restored_on_the_cpu(tmp_path, differ):
    """Bit for bit, from memory and from a dump."""
    module = nn.Linear(3, 2).cuda()

    with steal_forward(("m", module), dump_file=tmp_path / "dump.onnx"), steal_forward(("m", module)) as capture:
        output = module(torch.randn(4, 3, device="cuda"))

    for records in (capture, restore(tmp_path / "dump.onnx")):
        assert differ(records["m", 0, "O"], output.detach()) is None
