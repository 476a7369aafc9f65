"""The weights of a saved program are on the disk once, and in memory once when it is loaded."""

import json

import onnx_ir as ir
import pytest
import torch
from torch import nn

from filch.compare import compare
from filch.export import ExportError, export, load_program, optimize
from filch.export.program import _original
from filch.export.pt2_files._archive import StoredError
from support.models.small import capture_of
from support.thorough import slow


class _Model(nn.Module):
    """A model with 70 MB of weights, two of which are the same tensor."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8000, 1024)
        self.inner = nn.Linear(1024, 9000)
        self.head = nn.Linear(1024, 8000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, index):
        inner = self.inner(self.embedding(index))
        return self.head(inner[:, :1024].relu())


_INPUTS = (torch.tensor([1, 5, 999]),)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    model, path = _Model(), tmp_path_factory.mktemp("saved") / "model.onnx"
    export(model, _INPUTS).save(path)
    return model, path


def _capture(model):
    return capture_of(model, *_INPUTS, submodules=True)


def _state(program):
    assert program.original is not None
    return {**program.original.program.state_dict}


def _addresses(model):
    return {
        name: value.const_value.numpy().__array_interface__["data"][0]
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }


def test_the_weights_are_written_once(saved):
    """All files together take at most 5 % more than the weights."""
    model, path = saved
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 1.05 * weights


def test_an_exported_program_shares_the_memory_of_the_parameters():
    """`export` copies no parameter."""
    model = nn.Linear(8, 8)
    program = export(model, (torch.ones(1, 8),))
    assert program.original is not None
    for onnx_model in (program.model, program.original.model):
        assert _addresses(onnx_model)["weight"] == model.weight.data_ptr()


def test_a_loaded_program_has_its_weights_in_memory_once(saved):
    """The graph, the exported graph and the exported program read the same mapped memory."""
    model, path = saved
    program = load_program(path)
    assert program.original is not None
    state = _state(program)
    addresses = _addresses(program.model)
    assert addresses == _addresses(program.original.model)
    assert addresses["inner.weight"] == state["inner.weight"].data_ptr()
    assert state["embedding.weight"].data_ptr() == state["head.weight"].data_ptr()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    assert not program.is_changed()


@slow
def test_a_comparison_of_the_files_is_that_of_the_model(saved):
    """Loading changes no row."""
    model, path = saved
    capture = _capture(model)
    rows = [compare(capture, program).rows for program in (export(model, _INPUTS), path)]
    assert rows[0] == rows[1]


@slow
def test_weights_that_the_graph_no_longer_has_are_in_the_file_of_the_exported_program(saved, tmp_path):
    """A changed weight of the graph is a fault, though the exported program's other weights are shared."""
    model, path = saved
    program = load_program(path)
    wrong = model.inner.weight.detach() * 1.01
    program.model.graph.initializers["inner.weight"].const_value = ir.tensor(wrong.numpy(), name="inner.weight")
    program.save(tmp_path / "wrong.onnx")
    loaded = load_program(tmp_path / "wrong.onnx")
    assert torch.equal(_state(loaded)["inner.weight"], model.inner.weight)
    assert loaded.is_changed()
    assert not compare(_capture(model), loaded).close


def test_a_program_can_be_saved_over_its_own_file(saved, tmp_path):
    """The mapped weights stay readable while their file is replaced, by the optimized ones, too."""
    model, path = saved
    load_program(path).save(tmp_path / "copy.onnx")
    program = optimize(load_program(tmp_path / "copy.onnx"))
    program.save(tmp_path / "copy.onnx")
    again = load_program(tmp_path / "copy.onnx")
    for name, tensor in _state(again).items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_weights_that_were_changed_in_their_file_are_no_reference(saved, tmp_path):
    """Values are not compared with those of changed weights; the modules show the fault."""
    model, path = saved
    load_program(path).save(tmp_path / "model.onnx")
    data = tmp_path / "model.onnx.data"
    contents = bytearray(data.read_bytes())
    contents[3 * len(contents) // 4] ^= 0x40
    data.write_bytes(contents)
    original = load_program(tmp_path / "model.onnx").original
    assert original is not None
    with pytest.raises(ExportError, match="was changed since it was saved"):
        _ = original.program
    report = compare(_capture(model), tmp_path / "model.onnx")
    assert "was changed" in " ".join(report.notes)


@pytest.mark.parametrize(
    "entry", [["inner.weight"], {"inner.weight": 1}, {"inner.weight": ["no such", 1]}, {"inner.weight": [[], 1]}]
)
def test_a_damaged_list_of_weights_is_refused(saved, entry):
    """An untrusted file gives a one-line error."""
    with pytest.raises(StoredError, match="damaged"):
        _original._read_elsewhere(json.dumps(entry).encode(), load_program(saved[1]).model)  # noqa: SLF001  unit under test


def test_the_file_of_an_exported_program_with_all_weights_is_loaded(saved, tmp_path):
    """Earlier versions stored all weights in it."""
    model, path = saved
    program = load_program(path)
    assert program.original is not None
    assert _original.save(program.original, tmp_path / "all.pt2", {})
    loaded = _original.Original.at(tmp_path / "all.pt2", program.original.identity)
    assert torch.equal(loaded.program.state_dict["inner.weight"], model.inner.weight)
