"""Names that are private to other packages are in one file for each package, and all of them are there."""

import ast
import inspect
import re
import warnings
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name

import pytest

from filch.steal.private import _onnxruntime, _onnxscript, _torch, _transformers
from filch.steal.private._names import PrivateNameError, PrivateNames

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "steal" / "private"
FILES = {"onnxruntime": _onnxruntime, "onnxscript": _onnxscript, "torch": _torch, "transformers": _transformers}
TREES = {
    file: ast.parse(file.read_text("utf-8"))
    for room in ("steal", "export", "compare")
    for file in sorted((ROOT / room).rglob("*.py"))
    if file.parent != FOLDER
}
# `_x`, and what ONNX Runtime and transformers have in modules of their own, from which they tell nobody to import.
PRIVATE = re.compile(rf"({'|'.join(FILES)})(\.\w+)*\._(?!_)|onnxruntime\.(capi|quant)\b|transformers\.|.*_nbits_")
OPERATOR = re.compile(r"(torch\.ops|_aten)\.")  # exported programs contain their names
PYTHON = {"_exit", "_fields", "_getframe", "_name_", "_replace", "_value_"}  # documented


def _names(node):
    """The dotted names that a node of a syntax tree contains."""
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module, names, 0):
            return [f"{module}.{alias.name}" for alias in names]
        case ast.Attribute():
            return [re.sub(r"^ort\b", "onnxruntime", ast.unparse(node))]
        case ast.Constant(str(text)) if re.fullmatch(r"[\w.:]+", text):
            return [text.replace(":", ".")]
    return []


def _attribute(node):
    """The private attribute of another object that a node reads, sets or looks for; None if there is none."""
    match node:
        case ast.Attribute(ast.Name("self" | "cls"), _):
            return None
        case ast.Attribute(_, name) | ast.Call(ast.Name("getattr" | "hasattr"), [_, ast.Constant(str(name)), *_]):
            return name if re.match(r"_[^_]", name) and name not in PYTHON else None
    return None


def _own(tree):
    """The private attributes of the classes of a file."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), name):
                yield name
            case ast.ClassDef():
                yield from (item.name for item in node.body if isinstance(item, ast.FunctionDef))
                yield from (item.target.id for item in node.body if isinstance(item, ast.AnnAssign))


def test_no_other_file_has_a_private_name():
    """Neither an import nor an attribute nor a text: a version that lacks it would fail there, far from its name."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {name}"
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        for name in _names(node)
        if PRIVATE.match(name) and not OPERATOR.match(name)
    ]
    assert found == []


def test_every_private_attribute_is_listed():
    """And no more: an attribute that nothing uses any longer has to go."""
    used = {}
    for file, tree in TREES.items():
        own = {*_own(tree)}
        for node in ast.walk(tree):
            name = _attribute(node)
            if name is not None and name not in own and not OPERATOR.match(ast.unparse(node)):
                used.setdefault(name, f"{file.relative_to(ROOT)}:{node.lineno}")
    listed = {name for module in FILES.values() for names in module.ATTRIBUTES.values() for name in names}
    assert {name: place for name, place in used.items() if name not in listed} == {}
    assert listed - {*used} == set()


def test_every_private_name_is_used():
    """A name that nothing uses any longer has to go."""
    words = Counter(word for file in TREES for word in re.findall(r"\w+", file.read_text("utf-8")))
    words.update(_torch.KERNEL_FUNCTIONS)
    words.update(re.findall(r"find\(\"(\w+)", (FOLDER / "_transformers.py").read_text("utf-8")))
    assert [name for module in FILES.values() for name in module.NAMES.places if not words[name]] == []


@pytest.mark.parametrize("module", FILES.values(), ids=FILES)
def test_type_checkers_know_each_private_name(module):
    """What is imported or declared for them is what is found when Filch runs."""
    nodes = ast.parse(Path(module.__file__).read_text("utf-8")).body
    guarded = next(node for node in nodes if isinstance(node, ast.If)).body
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in guarded
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    places = {name: place.replace(":", ".") for name, place in module.NAMES.places.items()}
    assert {name: place for name, place in imported.items() if places.get(name, place) != place} == {}
    declared = {node.target.id for node in guarded if isinstance(node, ast.AnnAssign)}
    assert declared | {*imported} >= {*places}
    assert declared <= {*places}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in FILES.values() for name in module.NAMES.places], ids=str
)
def test_every_private_name_is_there(module, name):
    """With the versions that are installed."""
    package = module.__name__.rpartition("._")[2]
    pytest.importorskip(package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch imports
        getattr(module, name)


@pytest.mark.parametrize(
    ("place", "names"), [pair for module in FILES.values() for pair in module.ATTRIBUTES.items()], ids=str
)
def test_every_private_attribute_is_there(place, names):
    """Its class has it, or sets it: where it is code of C++, the class has all."""
    pytest.importorskip(place.partition(":")[0], reason="an optional package")
    cls = resolve_name(place)
    assert [name for name in names if not hasattr(cls, name) and name not in inspect.getsource(cls)] == []


def test_a_missing_name_is_an_error_that_names_it():
    """The error says what is missing, from which version, and which versions have it."""
    names = PrivateNames("torch", {"gone": "torch._C:_gone", "moved": "torch._moved.away"})
    for name, place in (("gone", r"torch\._C\._gone"), ("moved", r"torch\._moved\.away")):
        with pytest.raises(PrivateNameError, match=rf"^torch \d.* has no {place}, which Filch uses \("):
            names.find(name)
    with pytest.raises(AttributeError, match="no private name 'never'"):
        names.find("never")


def test_a_package_that_is_not_installed_is_an_import_error():
    """It is none of Filch's names that is missing."""
    with pytest.raises(ModuleNotFoundError):
        PrivateNames("hidet", {"name": "hidet._private:name"}).find("name")


def test_a_name_is_looked_up_without_importing_its_module():
    """Where no module is imported, nothing is an instance of its classes."""
    names = PrivateNames("torch", {"away": "torch._moved.away:Class", "graph": "torch.fx:Graph"})
    assert (names.loaded("away"), names.loaded("graph")) == (None, resolve_name("torch.fx:Graph"))
