"""The content address of a cell: it changes with everything that is computed, and with nothing else."""

from dataclasses import replace

import pytest

from filch.compare.fleet import _sources
from filch.compare.fleet._cell import CellOptions, CellSpec, matrix_cells, sweep_cells
from filch.compare.fleet._sources import find_sources

FILES = {
    "models.py": "import helper\nfrom parts import block\ndef make(): ...\ndef other(): ...\n",
    "helper.py": "def late():\n    import deep.inside\n",
    "deep/inside.py": "x = 1\n",  # a namespace package
    "parts/__init__.py": "from . import shared\n",
    "parts/block.py": "from ..parts.shared import y\nfrom .sub.leaf import z\n",
    "parts/shared.py": "import numpy, yaml\ny = 1\n",
    "parts/sub/__init__.py": "",
    "parts/sub/leaf.py": "z = 1\n",
    "unrelated.py": "import torchvision\n",
}
IMPORTED = [name for name in FILES if name != "unrelated.py"]


def _write(folder):
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def read_again():
    """Forget the sources that other tests read."""
    find_sources.cache_clear()


def _key(folder, **changes):
    find_sources.cache_clear()
    return replace(CellSpec("models.py:make", str(folder), "eager"), **changes).key("cpu")


def test_a_moved_folder_keeps_its_keys(tmp_path):
    """Paths are no part of what is computed."""
    first, second = _write(tmp_path / "a"), _write(tmp_path / "b" / "c")

    assert _key(first) == _key(second) == _key(second.parent, factory="c/models.py:make")


@pytest.mark.parametrize("name", IMPORTED)
def test_each_imported_file_changes_the_key(tmp_path, name):
    """Also files that are imported inside of functions, relatively, or from a folder without `__init__.py`."""
    folder = _write(tmp_path)
    before = _key(folder)

    with (folder / name).open("a") as file:
        file.write("# changed\n")

    assert _key(folder) != before


def test_a_file_that_is_not_imported_keeps_the_key(tmp_path):
    """Other models in the same folder may change."""
    folder = _write(tmp_path)
    before = _key(folder)

    (folder / "unrelated.py").write_text("changed = True\n")

    assert _key(folder) == before


CHANGES = {
    "function": {"factory": "models.py:other"},
    "backend": {"backend": "reference"},
    "dtype": {"dtype": "float16"},
    "device": {"device": "cpu"},
    "sizes": {"sizes": {"batch": 2}},
    "export_sizes": {"export_sizes": {"batch": 2}},
    "options": {"judged": CellOptions(options={"level": "basic"})},
    "tolerance": {"judged": CellOptions(tolerance=1e-3)},
    "lower_precision": {"judged": CellOptions(lower_precision=True)},
    "limit": {"judged": CellOptions(limit=5.0)},
}


def test_each_option_changes_the_key(tmp_path):
    """Cells that differ in one thing have different keys."""
    folder = _write(tmp_path)
    keys = {_key(folder), CellSpec("models.py:make", str(folder), "eager").key("another GPU")}

    assert len(keys | {_key(folder, **change) for change in CHANGES.values()}) == 2 + len(CHANGES)


def test_versions_of_imported_packages_are_part_of_the_key(tmp_path, monkeypatch):
    """An upgrade of torch, or of a package that the user's files import, changes the key; another one does not."""
    folder = _write(tmp_path)
    versions = find_sources("models.py:make", str(folder)).versions
    assert {"torch", "numpy", "PyYAML", "python", "filch"} <= {*versions}
    assert "torchvision" not in versions and "pytest" not in versions

    before = _key(folder)
    monkeypatch.setattr(_sources, "version", lambda name: "9.9")
    assert _key(folder) != before


def test_a_package_of_the_user_is_found_by_its_module(tmp_path, monkeypatch):
    """`package.module:factory` is looked up in the folder, and in the folders of `sys.path` that are the user's."""
    folder = _write(tmp_path)
    here = find_sources("parts.block:make", str(folder))
    monkeypatch.syspath_prepend(folder)
    elsewhere = find_sources("parts.block:make", str(tmp_path / "parts" / "sub"))

    assert {*here.hashes} == {"parts", "parts.block", "parts.shared", "parts.sub", "parts.sub.leaf"}
    assert here == elsewhere
    assert find_sources("filch.compare:tiny_llm", str(folder)).hashes == {}


def test_a_file_that_cant_be_parsed_has_a_key(tmp_path):
    """That it can't be imported is for the worker to find."""
    (tmp_path / "models.py").write_text("def make(:\n")

    assert [*find_sources("models.py:make", str(tmp_path)).hashes] == [""]


def test_cells_come_in_the_order_of_the_tables(tmp_path):
    """As `matrix` and `sweep` compare them, with their labels; a worker gets the same cell from JSON."""
    judged = CellOptions({"level": "basic"}, 1e-3)
    cells = matrix_cells(["a", "b"], folder=tmp_path, backends=["x", "y"], dtypes=["float32"], judged=judged)
    sizes = sweep_cells("a", {"batch": [1, 4], "length": [3]}, folder=tmp_path, backends=["x"], judged=judged)

    assert [(cell.factory, cell.backend) for cell in cells] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert cells[0].labels == {"model": "a", "dtype": "float32", "backend": "x"}
    assert sizes[1].labels == {"model": "a", "dim:batch": "4", "dim:length": "3", "backend": "x"}
    assert [cell.export_sizes for cell in sizes] == [{"batch": 4, "length": 3}] * 2
    assert [CellSpec.from_dict(cell.to_dict()) for cell in sizes] == sizes


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"device": "cuda:0"}, True),
        ({"backend": "onnxruntime-tensorrt"}, True),
        ({"backend": "openvino", "judged": CellOptions({"device": "GPU"})}, True),
    ],
)
def test_a_cell_says_whether_it_needs_a_gpu(changes, needed):
    """By its device, its backend or the backend's device; an executor reserves one."""
    assert replace(CellSpec("a", "", "eager"), **changes).needs_gpu is needed
