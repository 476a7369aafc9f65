"""What README.md and docs/ show: their blocks of code, run in order, and what these print."""

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from torch.nn import modules

from support.processes import commands, forked

ROOT = Path(__file__).resolve().parents[3]
CUT = "…"  # a line of its own where output was left out
_TORCH_MODULES = "|".join(path.stem for path in Path(modules.__file__).parent.glob("[a-z]*.py"))
_NOT_RUN = object()  # in place of what a block prints
_PYTHON = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}


@dataclass(frozen=True)
class Block:
    """A fenced block of a Markdown text.

    Attributes:
        language: what stands after the fence.
        line: the fence's.
        text: what it holds.
        remark: the HTML comment above it, which says what is to be done with it: `prints` (it is what the block above
            prints), `file: NAME` (it is written), `needs: onnxruntime<1.32` (it is run with these versions alone), `not
            executed: REASON`; "" if there is none.
    """

    language: str
    line: int
    text: str
    remark: str


def blocks(text):
    """Return the fenced blocks of a Markdown text."""
    above, opened = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("```"):
            above = line.strip() or above
        elif opened is None:
            remark = re.fullmatch(r"<!-- (.*) -->", above)
            opened = (line.strip("`").strip(), number, remark[1] if remark else "")
        else:
            language, first, remark = opened
            yield Block(language, first, "\n".join(text.splitlines()[first : number - 1]), remark)
            above, opened = "", None


def console(text):
    """Return the commands of a console block, each with its shown output."""
    for one in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = one.partition("\n")
        yield command, output


def plain(text):
    """Return the text in one line, without what varies: times, errors, ratios, fingerprints, lines of torch."""
    text = re.sub(rf"\b({_TORCH_MODULES})\.py:\d+", r"\1.py:#", text)
    text = re.sub(r"\b\d+(\.\d+)?\s?(ns|[µu]s|ms|s|min)\b", "(time)", text)
    text = re.sub(r"\d\.\de[-+]\d\d|\b\de\d+\b|\b\d{1,3}(,\d{3})+\b|\b\d+\.\d+\b", "#", text)
    return " ".join(text.split())


def shows(shown, printed):
    """Return whether the shown text was printed; where it is abridged, whether its pieces were, in order."""
    first, *pieces = map(plain, re.split(rf"^{CUT}$", shown, flags=re.MULTILINE))
    rest = plain(printed)
    if not pieces:
        return first == rest
    for piece in (first, *pieces):
        _, found, rest = rest.partition(piece) if piece else ("", True, rest)
        if not found:
            return False
    return True


def unmet(requirement):
    """Return which version is installed in place of one such as `onnxruntime<1.32`, whichever package it is of."""
    wanted = Requirement(requirement)
    version = importlib.import_module(wanted.name).__version__.partition("+")[0]
    return "" if wanted.specifier.contains(version) else f"needs {wanted}, and this is {version}"


def run(command):
    """Run a command, those of Filch in this process or in a fork, and return its exit code and its output."""
    program, *arguments = there = shlex.split(command, comments=True)
    if program in _PYTHON:
        done = forked.run_python(*_PYTHON[program], *arguments)
        return done.returncode, done.stdout + done.stderr
    if program != "filch":
        done = subprocess.run(there, capture_output=True, text=True, timeout=forked.PATIENCE, check=False)
        return done.returncode, done.stdout + done.stderr
    if arguments[0] == "fleet":  # its workers are forked, too
        done = forked.run_python("-m", "filch", *arguments, forks=True)
        return done.returncode, done.stdout
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = commands.run(*arguments)
    return code, printed.getvalue()


class Page:
    """A Markdown file, whose blocks run in one namespace and in the working directory."""

    def __init__(self, text, name):
        self.text, self.name = text, name
        self.scope = {"__name__": "__main__"}
        self.left_out: list[str] = []  # which blocks were not run, and why

    def check(self):
        """Run all blocks in order; fail at the first whose result differs from the page."""
        printed = None
        for block in blocks(self.text):
            place = f"{self.name}:{block.line}"
            verb, _, operand = map(str.strip, block.remark.partition(":"))
            if verb == "prints":
                assert printed is not None, f"{place}: nothing that runs stands above"
                is_shown = printed is _NOT_RUN or shows(block.text, printed)
                assert is_shown, f"{place}: shown\n{block.text}\nprinted\n{printed}"
            elif verb == "not executed":
                assert operand, f"{place}: no reason is given"
                printed = None
            elif verb == "needs" and (why := unmet(operand)):
                self.left_out.append(f"{place} {why}")
                printed = _NOT_RUN
            elif verb == "file":
                Path(operand).write_text(f"{block.text}\n", "utf-8")
                sys.modules.pop(Path(operand).stem, None)  # another page's
            elif block.language == "python":
                printed = self._python(block)
            elif block.language == "console":
                printed = "".join(self._command(place, *one) for one in console(block.text))

    def _python(self, block):
        code = compile("\n" * block.line + block.text, self.name, "exec")  # a traceback has the page's own lines
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.scope)  # noqa: S102  our own pages
        return printed.getvalue()

    @staticmethod
    def _command(place, command, shown):
        """Run one command; a comment `# exits with 1` is its expected exit code."""
        if command.startswith("pip install "):  # tests/house/test_packaging.py does
            return ""
        if command.startswith("make "):  # which would install, and run this very test: the Makefile has to know it
            command = f"make --dry-run --directory {shlex.quote(str(ROOT))} {command.removeprefix('make ')}"
        expected = re.search(r"# exits with (\d)", command)
        code, printed = run(command)
        assert code == int(expected[1] if expected else 0), f"{place}: $ {command} exits with {code}\n{printed}"
        assert not shown.strip() or shows(shown, printed), f"{place}: $ {command} prints\n{printed}"
        return printed


@contextlib.contextmanager
def plain_terminal():
    """Make the output independent of this terminal."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        yield


def runs(text):
    """Return whether a page has a block that is run."""
    return any(
        block.language in ("python", "console") and not block.remark.startswith("not executed")
        for block in blocks(text)
    )
