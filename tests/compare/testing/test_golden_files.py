"""The files of a golden dump: an update removes those of the former one, and no others."""

import errno

import pytest
import torch
from torch import nn

from filch.compare import CompareError
from filch.compare.testing._golden import Golden
from filch.steal import restore


def _update(path):
    """Store a golden dump of a new model."""
    golden = Golden(path, update=True, tolerance=None, check_diff=lambda _: None, report_update=lambda _: None)
    golden.check(nn.Linear(2, 2), (torch.ones(1, 2),))


def test_an_update_removes_only_the_data_of_the_former_dump(tmp_path, monkeypatch):
    """Files whose names begin alike belong to others."""
    path = tmp_path / "a.onnx"
    for name in ("a.onnx.backup.data", "a.onnx_weights.data", "a.onnx.1.data"):
        (tmp_path / name).write_text("the only copy")
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)
    _update(path)
    assert restore(path).files == [path, tmp_path / "a.onnx.data"]
    monkeypatch.undo()

    _update(path)

    assert {file.name for file in tmp_path.iterdir()} == {
        "a.onnx",
        "a.onnx.1.data",
        "a.onnx.backup.data",
        "a.onnx_weights.data",
    }
    assert restore(path).files == [path]


def test_an_update_replaces_no_file_of_others(tmp_path, monkeypatch):
    """It stops before anything is moved."""
    path = tmp_path / "a.onnx"
    _update(path)
    before = path.read_bytes()
    (tmp_path / "a.onnx.data").write_text("the only copy")
    monkeypatch.setattr("filch.steal.dump._format.INLINE_LIMIT", 0)

    with pytest.raises(CompareError, match=r"a\.onnx\.data' exists, and is not of the golden dump: move it elsewhere"):
        _update(path)

    assert path.read_bytes() == before
    assert (tmp_path / "a.onnx.data").read_text() == "the only copy"


def test_an_update_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    """As on a full disk; folders that were there before stay."""
    (tmp_path / "tests").mkdir()

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("filch.compare.testing._golden.shutil.move", refuse)
    with pytest.raises(OSError, match="No space left"):
        _update(tmp_path / "tests" / "golden" / "deep" / "a.onnx")
    assert [*tmp_path.rglob("*")] == [tmp_path / "tests"]
    monkeypatch.undo()

    _update(tmp_path / "tests" / "golden" / "deep" / "a.onnx")
    assert [path.name for path in tmp_path.rglob("*")] == ["tests", "golden", "deep", "a.onnx"]
