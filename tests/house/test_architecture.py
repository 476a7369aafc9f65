"""The pages about the code describe the folders and names that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("steal", "export", "compare")
TEXT, WAYS, VOCABULARY = (
    (ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in ("architecture", "ways", "vocabulary")
)


@pytest.fixture(scope="module")
def sources():
    """The syntax tree of each file."""
    return {file: ast.parse(file.read_text("utf-8")) for room in ROOMS for file in (ROOT / room).rglob("*.py")}


def test_every_folder_is_described_by_its_own_sentence(sources):
    """The table repeats the first line of each folder's docstring, so that neither can become outdated alone."""
    described = dict(re.findall(r"^\| `((?:steal|export|compare)/\w+)` \| (.+?) \|$", TEXT, flags=re.MULTILINE))
    folders = {
        str(file.parent.relative_to(ROOT)): (ast.get_docstring(tree) or "").splitlines()[0]
        for file, tree in sources.items()
        if file.name == "__init__.py" and len(file.relative_to(ROOT).parts) == 3
    }
    assert described == folders


def test_every_file_that_is_named_exists():
    """Paths of files and folders, with or without the name of their package."""
    named = set(re.findall(r"`((?:\w+/)+(?:_\w+\.py)?)`", TEXT + WAYS))
    places = [ROOT, *(ROOT / room for room in ROOMS)]
    assert len(named) > 20
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_the_terms_are_in_the_source(sources):
    """A class that is renamed is renamed in the vocabulary, and there is one of each name."""
    terms = re.findall(r"`([A-Z]\w+)`", VOCABULARY)
    classes = [node.name for tree in sources.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert len(terms) > 15
    assert [term for term in terms if classes.count(term) != 1] == []
