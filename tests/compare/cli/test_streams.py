"""Commands print on any terminal, to any file and pipe, and end with their own exit codes."""

import io
import os
import subprocess
import sys

import pytest

from filch.compare.common import _streams
from filch.compare.rendering._console import as_text, print_text
from filch.compare.rendering._table import Column, Table

MODEL = "import torch\n\ndef model():\n    return torch.nn.Linear(4, 2).eval(), (torch.rand(3, 4),)\n"
TABLE = Table((Column("näme", fill=True), Column("error µ")), (("日本", "1e-7"),))


@pytest.fixture
def factory(tmp_path):
    (tmp_path / "made.py").write_text(MODEL, "utf-8")
    return f"{tmp_path / 'made.py'}:model"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp437", "cp1252"])
def test_what_an_encoding_lacks_is_printed_plainly(monkeypatch, encoding):
    """Lines of tables as hyphens, other characters as escapes."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))

    _streams.show_all_characters()
    print(as_text([TABLE], width=30), "…", flush=True)  # noqa: T201

    lines = written.getvalue().decode(encoding).splitlines()
    assert lines[1] == ("─" if encoding == "cp437" else "-") * 30
    assert lines[2].startswith("\\u65e5\\u672c")


def test_the_library_prints_escapes(monkeypatch):
    """Standard output is the user's then, and stays as it is."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "latin-1"))

    print_text("a ─ 日")
    sys.stdout.flush()

    assert written.getvalue() == b"a \\u2500 \\u65e5\n"


@pytest.mark.parametrize(
    ("columns", "width"), [("0", 80), ("1", 40), ("60", 60), ("abc", 80), ("-5", 80), ("9" * 12, 10_000)]
)
def test_a_width_that_is_none_is_that_of_usual_terminals(monkeypatch, columns, width):
    """And no line is so narrow that no word fits, or so wide that it takes all memory."""
    monkeypatch.setenv("COLUMNS", columns)
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, f"__{stream}__", io.StringIO())

    assert len(as_text([TABLE]).splitlines()[1]) == width


def test_a_reader_that_has_gone_is_no_difference(factory):
    """The exit code is 2; 1 would mean that a value differs."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "from support.processes.commands import run; import sys; sys.exit(run('check', sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    ended = subprocess.run(
        [sys.executable, "-c", code, factory], check=False, stdout=writer, stderr=subprocess.PIPE, env=environment
    )

    os.close(writer)
    assert ended.returncode == 2, ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
