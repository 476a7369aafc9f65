"""Fleets in TOML: what they mean, and what is refused before anything runs."""

import pytest

from filch.compare.fleet._cell import CellOptions
from filch.compare.fleet._spec import read_fleet
from filch.steal import FilchError

FLEET = """
[defaults]
backends = ["eager", "reference"]
dtypes = ["float32"]
tolerance = 1e-4
options = {memory_pattern = false, threads = 2}

[[matrix]]
models = ["models.py:make", "package.module:make"]

[[matrix]]
models = ["models.py:make"]
backends = ["onnxruntime-cpu"]
dtypes = ["float16", "bfloat16"]
devices = ["cpu"]
lower_precision = true
limit = 5

[[sweep]]
model = "models.py:make"
dims = {batch = [1, 8], length = [3]}
tolerance = "default"
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a fleet beside a file with models, and returns its path."""
    (tmp_path / "models.py").write_text("def make(): ...\n")

    def write(text):
        path = tmp_path / "fleet.toml"
        path.write_text(text)
        return path

    return write


def test_matrices_and_sweeps_take_what_they_do_not_say_from_the_defaults(write):
    """Paths are relative to the file; values of options are text, as on the command line."""
    path = write(FLEET)
    cells = read_fleet(path)
    options = {"memory_pattern": "false", "threads": "2"}

    assert {cell.folder for cell in cells} == {str(path.parent)}
    assert [(cell.factory, cell.backend, cell.dtype) for cell in cells[:4]] == [
        (model, backend, "float32")
        for model in ("models.py:make", "package.module:make")
        for backend in ("eager", "reference")
    ]
    assert {cell.judged.tolerance for cell in cells[:6]} == {1e-4}
    assert [(cell.dtype, cell.device) for cell in cells[4:6]] == [("float16", "cpu"), ("bfloat16", "cpu")]
    assert cells[4].judged == CellOptions(options, 1e-4, lower_precision=True, limit=5)
    assert [(*cell.sizes.values(), cell.backend) for cell in cells[6:]] == [
        *((1, 3, "eager"), (1, 3, "reference"), (8, 3, "eager"), (8, 3, "reference")),
    ]
    assert {(cell.dtype, cell.judged.tolerance) for cell in cells[6:]} == {("", "default")}


MATRIX = '[[matrix]]\nmodels = ["models.py:make"]\n'
WRONG = {
    "[[matricks]]": "the file has no key 'matricks'; did you mean 'matrix'?",
    '[[matrix]]\nmodel = ["a"]': r"\[\[matrix\]\] 1 has no key 'model'; did you mean 'models'?",
    f'{MATRIX}[[matrix]]\nmodels = ["models.py:make"]\ndtype = []': "2 has no key 'dtype'; did you mean 'dtypes'?",
    "[defaults]\nmodels = []": r"\[defaults\] has no key 'models'; there are",
    "[[matrix]]\nbackends = []": r"\[\[matrix\]\] 1 has no 'models'",
    '[[sweep]]\nmodel = "models.py:make"': "has no 'dims'",
    "[[sweep]]\nmodel = 3": "'model' in .* has to be a string, not 3",
    '[[sweep]]\nmodel = "a:b"\ndims = {batch = 2}': "'dims' in .* has to be a table of lists of sizes",
    '[[sweep]]\nmodel = "a:b"\ndims = {batch = [0]}': "'dims' in .* has to be a table of lists of sizes",
    f'{MATRIX}backends = "eager"': "'backends' in .* has to be a list of strings, not 'eager'",
    f'{MATRIX}tolerance = "tight"': "'tolerance' in .* has to be a number or 'default'",
    f"{MATRIX}limit = true": "'limit' in .* has to be a number of seconds",
    f"{MATRIX}options = {{level = []}}": "'options' in .* has to be a table of options",
    f"{MATRIX}lower_precision = 1": "'lower_precision' in .* has to be true or false",
    "matrix = 3": r"'matrix' in the file has to be tables \[\[matrix\]\]",
    "defaults = 3": "'defaults' in the file has to be a table",
    f'{MATRIX}backends = ["onyxruntime-cpu"]': "no backend 'onyxruntime-cpu'; did you mean 'onnxruntime-cpu'?",
    f'{MATRIX}dtypes = ["fp16"]': "did you mean 'float16'?",
    f'{MATRIX}devices = ["gpu"]': "a device is one like cpu or cuda:0, not 'gpu'",
    '[[matrix]]\nmodels = ["gone.py:make"]': "there is no file 'gone.py' in",
    '[[matrix]]\nmodels = ["make"]': "named as package.module:factory or path.py:factory, not 'make'",
    "": "has no comparison",
    "[[matrix": "is not a TOML file",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named(write, text):
    """The message has the table, the key, and what may have been meant."""
    with pytest.raises(FilchError, match=WRONG[text]):
        read_fleet(write(text))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """As is one that can't be decoded."""
    with pytest.raises(FilchError, match=r"can't read .*No such file"):
        read_fleet(tmp_path / "gone.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FilchError, match="is not a TOML file"):
        read_fleet(tmp_path / "binary.toml")
