"""What users may import: all of it meant, documented, and no dearer than what it is for."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cached_property
from pathlib import Path

import pytest

from support.thorough import slow

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("steal", "export", "compare")
FILES = sorted([*ROOT.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))])
FOLDERS = {
    ".".join(("filch", *file.parent.relative_to(ROOT).parts)): ast.parse(file.read_text("utf-8"))
    for file in FILES
    if file.name == "__init__.py"
}
INTERNAL = [package for package, tree in FOLDERS.items() if len(tree.body) == 1]  # a docstring and nothing else
PACKAGES = [package for package in FOLDERS if package not in INTERNAL]
MOST_FILES = 20
LAZY = ["filch", "filch.compare", "filch.steal"]
RUNTIMES = {"onnxruntime", "onnx_ir", "onnxscript", "rich", "transformers", "typer"}
MEMBERS = (property, cached_property, classmethod, staticmethod)


def _undocumented(name, value):
    """`name`, and the public methods and properties of `value`, as far as they lack a docstring of their own."""
    made_up = f"{name.rpartition('.')[2]}("  # what dataclasses write where there is none
    doc = inspect.getdoc(value)
    missing = [name] if not doc or doc.startswith(made_up) else []
    if inspect.isclass(value):
        for member, held in vars(value).items():
            if not member.startswith("_") and (inspect.isfunction(held) or isinstance(held, MEMBERS)):
                missing += [] if inspect.getdoc(getattr(value, member)) or held.__doc__ else [f"{name}.{member}"]
    return missing


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted(package):
    """A name is found where one looks for it, once."""
    names = importlib.import_module(package).__all__
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_what_is_public(package):
    """Every name listed is there, and no other without an underscore."""
    module = importlib.import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing
    by_accident = {name for name in dir(module) if not name.startswith("_")} - {*module.__all__}
    assert by_accident <= {other.rpartition(".")[2] for other in FOLDERS if other.rpartition(".")[0] == package}


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package):
    """A lazy package says no as any module does."""
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match="no attribute 'swipe'"):
        module.swipe  # noqa: B018  it is the asking that fails


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_has_a_docstring(package):
    """`help()` has an answer on each class, function, method and property that a user can reach."""
    module = importlib.import_module(package)
    public = {name: getattr(module, name) for name in module.__all__}
    documented = {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert [at for name, value in documented.items() for at in _undocumented(name, value)] == []


def test_every_public_name_is_used_on_a_page():
    """A guide or an example shows what it is for; other names are imported from their modules."""
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference")]
    pages += [*(ROOT / "examples").rglob("*.py"), *(ROOT / "skills").rglob("*.md")]
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text("utf-8"))}
    public = {name for package in PACKAGES for name in importlib.import_module(package).__all__}
    assert sorted(public - words) == []


@pytest.mark.parametrize("package", INTERNAL)
def test_an_internal_folder_says_its_job_in_one_sentence(package):
    """Its `__init__` is one line, and the code that needs it imports its modules."""
    assert ast.get_docstring(FOLDERS[package]).count("\n") == 0


@pytest.mark.parametrize("room", ["steal", "export", "compare"])
def test_no_folder_is_flat(room):
    """A folder that is read at a glance has at most 20 files."""
    files = [file for file in FILES if file.relative_to(ROOT).parts[0] == room]
    counted = Counter(str(file.parent.relative_to(ROOT)) for file in files)
    assert {folder: count for folder, count in counted.items() if count > MOST_FILES} == {}


def test_modules_are_private():
    """Code lives in `_x.py`: what is public stands in the `__init__` of a package."""
    assert [str(file.relative_to(ROOT)) for file in FILES if not file.name.startswith("_")] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_module_says_what_it_is(file):
    """A file is one noun or one verb; its docstring says which."""
    assert ast.get_docstring(ast.parse(file.read_text("utf-8")))


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_what_is_lazy(package):
    """What is imported for type checkers is what `__all__` promises, so that neither knows a name the other lacks."""
    (guarded,) = (node for node in FOLDERS[package].body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    names = [alias.asname or alias.name for node in guarded.body for alias in node.names]
    assert sorted(names) == importlib.import_module(package).__all__


def test_the_main_names_are_those_of_the_rooms():
    """`filch.Dump` is `filch.steal.Dump`; a name that is a folder's is the package, never the function in it."""
    filch = importlib.import_module("filch")
    rooms = [importlib.import_module(f"filch.{room}") for room in ROOMS]
    for name in set(filch.__all__) - {*ROOMS}:
        (room,) = (room for room in rooms if name in room.__all__)
        assert getattr(filch, name) is getattr(room, name)
    assert [filch.steal, filch.export, filch.compare] == rooms


def _loaded_by(statement):
    """The top-level packages that a new interpreter loads for `statement`."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import filch",
        "import filch.compare",
        "from filch import compare",
        "import filch; dir(filch)",
        "from filch.steal.files._untrusted import read_toml; import filch.steal.text",
    ],
)
def test_importing_a_lazy_package_costs_nothing(statement):
    """Naming the package loads nothing, neither torch nor a terminal: a name is loaded when it is asked for."""
    assert _loaded_by(statement) - sys.stdlib_module_names == {"filch"}


@slow
def test_steal_and_its_names_need_no_runtime():
    """`filch.Dump` loads what `filch.steal` does, and not `filch.export` beside it: on a training box it may lack."""
    assert not _loaded_by("from filch import Dump; import filch.steal") & RUNTIMES


def test_the_plugin_costs_nothing_until_it_is_used():
    """Pytest imports it at each of its starts, in whichever project: it needs nothing that pytest has not."""
    plain = _loaded_by("import pytest")
    assert _loaded_by("import pytest, filch.compare.testing._plugin") - plain - sys.stdlib_module_names == {"filch"}


@slow
def test_a_start_of_pytest_loads_no_torch(tmp_path):
    """The whole way, over the entry point: the plugin is there, torch is not."""
    code = (
        "import sys, pytest; pytest.main(['--collect-only', '-p', 'no:cacheprovider', sys.argv[1]]); "
        "print(*(name in sys.modules for name in ('filch.compare.testing._plugin', 'torch', "
        "'filch.compare.testing._checks')))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True False False"
