"""What the repository shows is what happens, its pages describe the code that there is, and it names no machine."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import filch
from support.processes import documents
from support.processes.forked import run_python
from support.thorough import kept

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK_EXAMPLE = ROOT / "examples" / "visualize_model.py"
# stories.md has a test of its own, which skips what was mended since.
PAGES = [
    page
    for page in (README, *sorted((ROOT / "docs").rglob("*.md")))
    if page.name != "stories.md" and documents.runs(page.read_text("utf-8"))
]


@pytest.mark.usefixtures("forked_repros")
@pytest.mark.parametrize("page", kept(PAGES, README), ids=lambda path: path.name)
def test_what_a_page_shows_is_what_happens(page, tmp_path, monkeypatch):
    """Each block does what the ones before it made possible, and prints what stands below it, times apart."""
    text = page.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shown = documents.Page(text, page.name)
    with documents.plain_terminal():
        shown.check()
    if shown.left_out:
        pytest.skip(f"all else is as shown: {'; '.join(shown.left_out)}")


def test_readme_says_how_to_install_and_test():
    """In blocks of commands, whose `make` targets are there."""
    shown = [block.text for block in documents.blocks(README.read_text("utf-8")) if block.language == "console"]
    commands = [command for text in shown for command, _ in documents.console(text)]
    assert [command for command in commands if command.startswith("pip install ")]
    assert [command for command in commands if command.startswith("make test")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1)\n```\n<!-- prints -->\n```text\n2\n```", "page.md:5: shown\n2"),
        ("```python\nprint(1)\n```\n<!-- prints -->\n```text\n2\n…\n```", "page.md:5: shown\n2"),
        ("```python\nprint(1, 2)\n```\n<!-- prints -->\n```text\n2\n…\n1\n```", "page.md:5: shown\n2"),
        ("<!-- prints -->\n```text\n2\n```", "page.md:2: nothing that runs stands above"),
        ("<!-- not executed: -->\n```python\nnothing\n```", "page.md:2: no reason is given"),
        ("```console\n$ filch show nothing.onnx\n```", "page.md:1: \\$ filch show nothing.onnx exits with 2"),
        ("```console\n$ filch --help\nno help\n```", "page.md:1: \\$ filch --help prints"),
        ("```console\n$ make nonsense\n```", "page.md:1: \\$ make .*nonsense exits with 2"),
    ],
)
def test_a_page_that_is_wrong_is_found(text, complaint, tmp_path, monkeypatch):
    """A wrong output, order, exit code or command fails, with the page and the line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=complaint):
        documents.Page(text, "page.md").check()


def test_a_block_is_run_with_the_versions_that_it_needs_alone():
    """The others are named, with the version that is installed."""
    text = "<!-- needs: torch{}1 -->\n```python\nassert False\n```\n<!-- prints -->\n```text\n1\n```\n"
    text += "```python\nseen = 1\n```"
    page = documents.Page(text.format("<"), "page.md")
    page.check()
    assert page.scope["seen"] == 1
    assert page.left_out == [f"page.md:2 needs torch<1, and this is {torch.__version__.partition('+')[0]}"]
    with pytest.raises(AssertionError):
        documents.Page(text.format(">"), "page.md").check()


def _left(folder):
    passing = {".git", ".venv", "__pycache__"}
    return {path for path in folder.rglob("*") if not passing & set(path.parts)}


@pytest.mark.parametrize("example", kept(EXAMPLES, QUICK_EXAMPLE), ids=lambda path: path.name)
def test_examples_run_and_clear_up(example, tmp_path):
    """Each example runs by itself, and leaves nothing: not where it is called, not beside itself."""
    terminal = {"COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"}
    environment = {name: value for name, value in os.environ.items() if name not in terminal}
    before = _left(example.parent)
    done = run_python(example, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _left(tmp_path) == set()
    assert _left(example.parent) == before


def _tracked():
    """The repository's text files: those that git has, and those that it would take."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone: what belongs to it is not known")
    command = [git, "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    for path in (ROOT / name for name in sorted(set(listed)) if name):
        if path.is_file():
            try:
                yield path, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def _found(pattern):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in _tracked()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_machine_path():
    """Nothing that is kept names a folder that only one machine has."""
    assert _found(r"(?<![\w.~:/$-])/(work|root|home|Users|opt|mnt)/\w|\b[A-Z]:\\(Users|work)") == []


def test_no_registry():
    """Where packages come from is a setting of pip and npm; the README alone names PyTorch's index of CPU builds."""
    hosts = r"\b(pypi|pythonhosted|(download|whl)\.pytorch|registry\.npmjs)\.org\b"
    found = _found(rf"{hosts}|--(extra-)?index[-]url|--find[-]links")
    assert [place.partition(":")[0] for place in found] == ["README.md"]


@pytest.mark.parametrize(
    ("file", "pattern"), [("CITATION.cff", r"^version: (.+)$"), ("CHANGELOG.md", r"^## \[(.+?)\]")], ids=str
)
def test_the_version_is_the_same_everywhere(file, pattern):
    """What is cited and what changed last are of the version that `filch.__version__` gives."""
    assert re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)[1] == filch.__version__


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
