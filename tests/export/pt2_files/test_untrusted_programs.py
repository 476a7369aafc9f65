"""Exported programs are read as data: code in a file never runs, and errors are one sentence."""

import contextlib
import resource
import signal
import time
from functools import partial

import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import ExportError, Original, export, load_program
from filch.export.pt2_files import _expressions
from filch.export.pt2_files._archive import Archive, StoredError
from filch.export.pt2_files._load import load_program as load_stored
from filch.export.pt2_files._targets import is_runnable
from filch.steal.files._kinds import budget_of
from support.hostile.pt2_files import ARCHIVES, HARMLESS, REFUSED, canary, contents, write
from support.models.small import capture_of, module_of
from support.processes.commands import run as command

SECONDS, MEGABYTES = 10, 500  # of processor time, and of memory
HANGS = 60  # seconds after which nothing is waited for any more


def small():
    return module_of(lambda self, x: torch.relu(self.first(x)) + 1, first=nn.Linear(4, 3))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    program = export(small().eval(), (torch.ones(2, 4),))
    path = tmp_path_factory.mktemp("stored") / "m.onnx"
    program.save(path)
    return program, path


@pytest.fixture(scope="module")
def files(saved):
    return contents(saved[1].with_name("m.onnx.pt2"))


@contextlib.contextmanager
def bounded():
    """Fail if the block takes too long, or too much memory."""
    began = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert time.process_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def run(path, identity):
    """Load the original at `path` and run its program."""
    original = Original.at(path, identity)
    for _ in original.walk({"x": torch.ones(2, 4)}):
        pass
    return original


def view(path, capsys):
    """Return what `filch view` writes to stderr: nothing, or one sentence if it refuses the program."""
    with bounded():
        code = command("view", str(path), "--as", "text")
    err = capsys.readouterr().err
    assert (code, len(err.splitlines())) in ((0, 0), (2, 1)), err
    return err


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_must_not_hold_is_refused(saved, files, tmp_path, name, capsys):
    """No code of it runs, neither to run the program nor to show it."""
    change, told = REFUSED[name]
    hostile = dict(files)
    change(hostile, tmp_path)
    path = tmp_path / "m.onnx.pt2"
    write(hostile, path)

    with bounded(), pytest.raises(ExportError, match="can't load") as caught:
        run(path, saved[0].original.identity)
    view(path, capsys)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert not canary(tmp_path).exists()


@pytest.mark.parametrize("name", HARMLESS)
def test_what_nothing_needs_is_not_read(saved, files, tmp_path, name, *, capsys, monkeypatch):
    """The program computes the same values, and no other code runs."""
    program, _ = saved
    hostile = dict(files)
    monkeypatch.syspath_prepend(tmp_path)
    HARMLESS[name](hostile, tmp_path)
    path = tmp_path / "m.onnx.pt2"
    write(hostile, path)

    with bounded():
        read = run(path, program.original.identity)
    assert not view(path, capsys)

    inputs = {"x": torch.randn(2, 4, generator=torch.Generator().manual_seed(0))}
    expected, actual = dict(program.original.walk(inputs)), dict(read.walk(inputs))
    assert {name: value.tolist() for name, value in actual.items()} == {
        name: value.tolist() for name, value in expected.items()
    }
    read.program.module()(inputs["x"])
    assert not canary(tmp_path).exists()


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_torch_does_not_write_is_refused(saved, files, tmp_path, name, capsys):
    """Checked for files that are not archives, compressed members, and invalid names and sizes."""
    make, told = ARCHIVES[name]
    path = tmp_path / "inside" / "m.onnx.pt2"
    path.parent.mkdir()
    make(dict(files), path)

    with bounded(), pytest.raises(ExportError, match="can't load") as caught:
        run(path, saved[0].original.identity)

    view(path, capsys)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value) and not canary(tmp_path).exists()


def test_what_is_saved_holds_no_pickle_and_is_read_back_to_the_bit(saved, files):
    """Weights are bytes, the graph is JSON, and there are no examples."""
    program, path = saved

    again = load_program(path)

    assert not files["data/sample_inputs/model.pt"]
    assert not any(data[:2] in (b"\x80\x02", b"PK") for data in files.values())
    assert str(again.exported_program.graph) == str(program.exported_program.graph)
    before, after = program.exported_program.state_dict, again.exported_program.state_dict
    assert [*before] == [*after] and all(torch.equal(before[name], after[name]) for name in before)


def test_a_comparison_goes_on_without_a_program_that_is_refused(saved, files, tmp_path):
    """A note gives the reason why only modules have reference values."""
    path = saved[1]
    hostile = dict(files)
    REFUSED["a shell"][0](hostile, tmp_path)
    (tmp_path / "m.onnx").write_bytes(path.read_bytes())
    write(hostile, tmp_path / "m.onnx.pt2")
    torch.manual_seed(0)
    model = small().eval()
    captured = capture_of(model, torch.ones(2, 4))

    report = compare(captured, tmp_path / "m.onnx")

    assert report.close and "torch knows no operator 'torch.os.system' here" in report.notes[0]
    assert not canary(tmp_path).exists()


def test_sizes_of_an_exported_program_are_read_as_torch_wrote_them(tmp_path):
    """Checked for symbols, sums, products, quotients and powers."""

    class Sizes(nn.Module):
        def forward(self, x):
            flat = x.reshape(-1)
            return flat[: (x.shape[0] * 3 + 1) // 2], torch.cat([flat, flat]), flat * x.shape[0] ** 2

    exported = torch.export.export(Sizes(), (torch.ones(4, 8),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    torch.export.save(exported, tmp_path / "sizes.pt2")

    with (tmp_path / "sizes.pt2").open("rb") as file:
        read = load_stored(Archive(file))

    told = [
        [str(node.meta["val"]) for node in program.graph.nodes if node.op != "output"] for program in (exported, read)
    ]
    assert told[0] == told[1] and any("//" in text for text in told[1])
    x = torch.randn(6, 8)
    expected, actual = exported.module()(x), read.module()(x)
    assert all(map(torch.equal, expected, actual))


def test_numbers_of_a_stored_program_stay_bounded(saved, files, tmp_path):
    """Repeated squares of a size would take all memory."""
    import json

    data = json.loads(files["models/model.json"])
    nodes, values = data["graph_module"]["graph"]["nodes"], data["graph_module"]["graph"]["sym_int_values"]
    for index in range(60):
        read = {"as_sym_int": {"as_int": 1000}} if index == 0 else {"as_sym_int": {"as_name": f"n{index - 1}"}}
        inputs = [{"name": "", "arg": read, "kind": 1}] * 2
        output = {"as_sym_int": {"as_name": f"n{index}"}}
        nodes.insert(index, {"target": "_operator.mul", "inputs": inputs, "outputs": [output], "metadata": {}})
        values[f"n{index}"] = {"as_int": 4}
    path = tmp_path / "m.onnx.pt2"
    write(files | {"models/model.json": json.dumps(data).encode()}, path)

    with bounded(), pytest.raises(ExportError, match="more than 64 bits"):
        run(path, saved[0].original.identity)


def test_the_symbolic_sizes_of_a_file_are_counted_together(monkeypatch):
    """One after the other they may take days, as sympy compares all arguments of a maximum with each other."""
    symbols = [f"Symbol('s{index}')" for index in range(90)]
    texts = [f"Max({', '.join(symbols[first : first + 9])})" for first in range(0, 90, 9)]
    monkeypatch.setattr(_expressions, "budget_of", partial(budget_of, steps=1_000_000))
    with _expressions.expressions_of_one_file():
        for _ in range(10):  # the same one costs nothing
            _expressions.expression(texts[0])
        with pytest.raises(StoredError, match="symbolic sizes takes more than 1,000,000 steps or 120 seconds"):
            [*map(_expressions.expression, texts)]
    assert len(_expressions.expression(texts[1]).args) == 9  # of another file


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (torch.ops.aten.add.Tensor, True),
        (torch.ops.aten.scaled_dot_product_attention.default, True),
        (torch.ops.higher_order.cond, True),
        (torch.ops.aten.from_file.default, False),
        (torch.ops.aten.add_.Tensor, False),
        (torch.ops.aten.set_.source_Storage, False),
        (torch.ops.aten.sparse_coo_tensor.indices, False),
        (torch.ops.higher_order.while_loop, False),
        (print, False),
    ],
)
def test_only_functions_of_tensors_are_run_from_a_file(target, expected):
    """Operators that access files, work in place, do not check indices, or may not end are refused."""
    assert is_runnable(target) is expected


def test_what_only_a_pickle_can_hold_is_not_saved(saved, tmp_path, caplog, monkeypatch):
    """A warning is logged, and the ONNX file is written."""
    program = saved[0]
    monkeypatch.setitem(program.exported_program.constants, "object", object())

    program.save(tmp_path / "m.onnx")

    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert "'object' is a object, which only a pickle can hold" in caplog.text
