"""Entries that others add to the metadata of a dump, and the environment in it."""

import numpy as np
import onnx
import pytest
import torch

from filch.steal import DumpError, add_properties, environment, restore, steal_forward


@pytest.fixture
def dump(tmp_path):
    model = torch.nn.Linear(3, 2)
    with steal_forward(model, dump_file=tmp_path / "dump.onnx"):
        model(torch.ones(1, 3))
    return tmp_path / "dump.onnx"


def test_an_added_property_is_read_and_changes_nothing_else(dump):
    """The file is still an ONNX model with the same tensors."""
    before = {key: restore(dump)[key] for key in restore(dump)}

    add_properties(dump, {"filch.note": "é", "filch.other": ""})

    found = restore(dump)
    assert found.properties == {"filch.note": "é", "filch.other": ""}
    assert found.keys() == before.keys()
    assert torch.equal(found["", 0, "O"], before["", 0, "O"])
    onnx.checker.check_model(onnx.load(dump), full_check=True)


@pytest.mark.parametrize("key", ["filch.records", "filch.note", "note"])
def test_a_property_must_be_new_and_named_for_filch(dump, key):
    """A dump with a key twice could not be read."""
    add_properties(dump, {"filch.note": "one"})
    before = dump.read_bytes()

    with pytest.raises(DumpError, match=r"must begin with 'filch\.' and be new"):
        add_properties(dump, {key: "two"})
    assert dump.read_bytes() == before


def test_the_environment_has_what_rounding_depends_on(dump, monkeypatch):
    """Versions, libraries, instruction set, threads and settings; and the packages that define the modules."""
    found = restore(dump).environment

    assert found["numpy"] == np.__version__
    assert found["threads"] == str(torch.get_num_threads())
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["blas"] and found["processor"]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    changed = environment(["onnx.helper:Thing", "nowhere:Thing"])
    assert "MKL_CBWR=COMPATIBLE" in changed["settings"] and "MKL_CBWR" not in found["settings"]
    assert changed["onnx"] == onnx.__version__ and "nowhere" not in changed
