"""Tests of reading checkpoints in parts, as Hugging Face writes them, and of comparing a conversion of one."""

import json

import pytest
import torch

from filch.compare import CompareError, align
from filch.compare.models._array_files import load_arrays
from support.processes.commands import run

safetensors = pytest.importorskip("safetensors.torch")
GENERATOR = torch.Generator().manual_seed(0)
WEIGHTS = {
    f"layers.{layer}.{name}.weight": torch.randn(shape, generator=GENERATOR)
    for layer in range(3)
    for name, shape in {"q": (12, 8), "k": (12, 8), "norm": (8,)}.items()
}
PARTS = {name: f"model-{1 + index % 2:05}-of-00002" for index, name in enumerate(WEIGHTS)}


def write_parts(folder, suffix, *, indexed=True):
    """Write the weights in two parts, and return the folder or the index."""
    folder.mkdir()
    stem = {".safetensors": "model", ".bin": "pytorch_model"}[suffix]
    files = {name: part.replace("model", stem) + suffix for name, part in PARTS.items()}
    for file in {*files.values()}:
        part = {name: WEIGHTS[name] for name in WEIGHTS if files[name] == file}
        (safetensors.save_file if suffix == ".safetensors" else torch.save)(part, folder / file)
    torch.save({"state": torch.zeros(3)}, folder / "optimizer.bin")
    if not indexed:
        return folder
    index = folder / f"{stem}{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_parts_are_read_by_their_index(tmp_path, suffix):
    """All weights are there, in the order of the index; the folder is read likewise, and one without an index."""
    index = write_parts(tmp_path / "a", suffix)
    for path in (index, index.parent, write_parts(tmp_path / "b", suffix, indexed=False)):
        arrays = load_arrays(path)
        assert {*arrays} == {*WEIGHTS}
        assert all(torch.equal(arrays[name], WEIGHTS[name]) for name in WEIGHTS)
    assert [*load_arrays(index)] == [*WEIGHTS]


def test_a_conversion_of_a_checkpoint_in_parts_is_verified(tmp_path, capsys):
    """Transposed weights are right; two that were swapped between parts are named."""
    folder = write_parts(tmp_path / "a", ".safetensors").parent
    converted = {name: weight.t().contiguous() for name, weight in WEIGHTS.items()}
    safetensors.save_file(converted, tmp_path / "b.safetensors")
    assert run("align", str(folder), str(tmp_path / "b.safetensors")) == 0
    names = "layers.0.q.weight", "layers.1.q.weight"
    converted |= dict(zip(names, (converted[names[1]], converted[names[0]]), strict=True))
    safetensors.save_file(converted, tmp_path / "b.safetensors")
    result = align(folder, tmp_path / "b.safetensors")
    assert not result.close
    assert [any(repr(name) in text for text in result.wrong_outputs) for name in names] == [True, True]
    assert run("align", str(folder), str(tmp_path / "b.safetensors")) == 1
    assert "layers.1.q.weight" in capsys.readouterr().out


def test_a_checkpoint_without_parts_and_one_of_old_pytorch(tmp_path):
    """A folder may have a single file; files in the format before PyTorch 1.6 are not mapped, but read."""
    torch.save(WEIGHTS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert {*load_arrays(tmp_path)} == {*WEIGHTS}
    safetensors.save_file({"x": torch.ones(2)}, tmp_path / "model.safetensors")
    assert {*load_arrays(tmp_path)} == {"x"}


def test_damaged_checkpoints_are_refused(tmp_path):
    """The message says what is missing, and nothing outside of the folder is read."""
    index = write_parts(tmp_path / "a", ".safetensors")
    contents = json.loads(index.read_text())
    name = "layers.0.q.weight"
    for change, message in {
        "model-00002-of-00002.safetensors": f"'{name}' is in 'model-00002-of-00002.safetensors', which does not have",
        "model-00003-of-00003.safetensors": "can't read .*model-00003-of-00003.safetensors|No such file",
        "../other.safetensors": "'../other.safetensors' is no file of weights in the same folder",
        "other.index.json": "is no file of weights",
    }.items():
        index.write_text(json.dumps({"weight_map": {**contents["weight_map"], name: change}}))
        with pytest.raises(CompareError, match=message):
            load_arrays(index)
    for text in ("[]", "{}", '{"weight_map": {"a": 3}}'):
        index.write_text(text)
        with pytest.raises(CompareError, match="an index has a table weight_map"):
            load_arrays(index)
    index.unlink()
    safetensors.save_file({name: torch.ones(2)}, index.parent / "model-00003-of-00003.safetensors")
    with pytest.raises(CompareError, match=f"{name!r} is in several files"):
        load_arrays(index.parent)
    safetensors.save_file({name: torch.ones(2)}, index.parent / "other.safetensors")
    with pytest.raises(CompareError, match="has several checkpoints: give one of model-00001"):
        load_arrays(index.parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CompareError, match="has none of"):
        load_arrays(tmp_path / "empty")
