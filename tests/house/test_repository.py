"""What the repository shows is what happens; and it names no machine."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import filch

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTS = "<!-- prints -->"
BETWEEN = "\x1e"  # printed before each block: ASCII's record separator
PATIENCE = 300  # seconds


@dataclass(frozen=True)
class Block:
    """A fenced block of README.md.

    Attributes:
        language: what stands after the fence.
        line: the fence's.
        text: what it holds.
        prints: whether it claims to be what the python block above prints.
    """

    language: str
    line: int
    text: str
    prints: bool


def _blocks(lines):
    """The fenced blocks of a Markdown text."""
    said, opened = "", None
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            said = line.strip() or said
        elif opened is None:
            opened = (line.strip("`").strip(), number, said == PRINTS)
        else:
            language, first, prints = opened
            yield Block(language, first, "\n".join(lines[first : number - 1]), prints)
            said, opened = "", None


BLOCKS = list(_blocks(README.read_text("utf-8").splitlines()))
PYTHON = [block for block in BLOCKS if block.language == "python"]
CLAIMS = [(block, [b for b in PYTHON if b.line < block.line]) for block in BLOCKS if block.prints]


def _run(script, folder):
    """Run a script as a user would, in `folder`, with nothing of this terminal's in what it prints."""
    terminal = {"COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"}
    environment = {name: value for name, value in os.environ.items() if name not in terminal}
    return subprocess.run(
        [sys.executable, script.name if script.parent == folder else str(script)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _without_times(text):
    """The text with each duration blanked, the blanks that padded it, and the errors: rounding is the processor's."""
    text = re.sub(r"\s*\b\d+(\.\d+)?\s?(ns|[µu]s|ms|s|min)\b", " (time)", text)
    text = re.sub(r"\b\d\.\de[-+]\d\d\b", "#", text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """README.md's python blocks, run as one script: on the same lines, so that a traceback points into the README."""
    folder = tmp_path_factory.mktemp("readme")
    code = [""] * len(README.read_text("utf-8").splitlines())
    for block in PYTHON:
        code[block.line - 1] = f"print({BETWEEN!r}, end='', flush=True)"
        lines = block.text.splitlines()
        code[block.line : block.line + len(lines)] = lines
    script = folder / "readme.py"
    script.write_text("\n".join(code) + "\n", "utf-8")
    return _run(script, folder)


def test_readme_runs(readme):
    """Each python block of README.md does what the ones before it made possible."""
    assert PYTHON, "README.md shows no python"
    assert readme.returncode == 0, f"README.md's python blocks, by its own line numbers:\n{readme.stderr}"


@pytest.mark.parametrize(("block", "above"), [pytest.param(*claim, id=f"line {claim[0].line}") for claim in CLAIMS])
def test_readme_shows_what_is_printed(readme, block, above):
    """What README.md says a block prints is what it prints, times apart."""
    assert above, f"nothing python stands above the {PRINTS} of line {block.line}"
    assert readme.returncode == 0, "it did not run"
    printed = readme.stdout.split(BETWEEN)[len(above)]
    assert _without_times(printed) == _without_times(block.text)


def _left(folder):
    passing = {".git", ".venv", "__pycache__"}
    return {path for path in folder.rglob("*") if not passing & set(path.parts)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_and_clear_up(example, tmp_path):
    """Each example runs by itself, and leaves nothing: not where it is called, not beside itself."""
    before = _left(example.parent)
    done = _run(example, tmp_path)
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
    """Where packages come from is pip's to know, and differs from machine to machine."""
    assert _found(r"\b(pypi|pythonhosted|(download|whl)\.pytorch)\.org\b|--(extra-)?index[-]url|--find[-]links") == []


@pytest.mark.parametrize(
    ("file", "pattern"), [("CITATION.cff", r"^version: (.+)$"), ("CHANGELOG.md", r"^## \[(.+?)\]")], ids=str
)
def test_the_version_is_the_same_everywhere(file, pattern):
    """What is cited and what changed last are of the version that `filch.__version__` gives."""
    assert re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)[1] == filch.__version__
