"""Commands print on any terminal, file and pipe, end with their own exit codes, and let torch's threads wait."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from filch.compare.common import _streams
from filch.compare.rendering._console import as_text, print_text
from filch.compare.rendering._table import Column, Table
from support.models.small import capture_of
from support.processes.commands import run
from support.thorough import slow

TABLE = Table((Column("näme", fill=True), Column("error µ")), (("日本", "1e-7"),))


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


@pytest.fixture
def dump(tmp_path):
    """Return the path of a dump with one value."""
    model = torch.nn.Identity()
    capture_of(model, torch.ones(2), dump_file=tmp_path / "dump.onnx")
    return str(tmp_path / "dump.onnx")


def _run_into(monkeypatch, descriptor, *arguments):
    """Run a command whose standard output is this descriptor, and return its exit code."""
    with os.fdopen(descriptor, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        code = run(*arguments)
        assert sys.stdout is stream
    return code


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["show", "--help"], ["show"]], ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_quietly(monkeypatch, capfd, dump, command):
    """With the exit code that other programs have then; 1 would mean that a value differs."""
    reader, writer = os.pipe()
    os.close(reader)

    code = _run_into(monkeypatch, writer, *command, *([dump] if command == ["show"] else []))

    assert (code, capfd.readouterr().err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("command", [["--version"], ["--help"], ["show"]], ids=" ".join)
def test_output_that_can_not_be_written_is_one_sentence(monkeypatch, capfd, dump, command):
    """And no temporary file is said to be the cause."""
    full = os.open("/dev/full", os.O_WRONLY)

    code = _run_into(monkeypatch, full, *command, *([dump] if command == ["show"] else []))

    assert (code, capfd.readouterr().err) == (2, "filch: can't write the output: No space left on device\n")


def test_an_error_without_standard_error_has_its_exit_code(monkeypatch, tmp_path):
    """It may be closed."""
    monkeypatch.setattr(sys, "stderr", None)

    assert run("show", str(tmp_path / "none.onnx")) == 2


_ACTIVE = {"OMP_WAIT_POLICY": "ACTIVE"}
_CODE = """
import sys
from filch.compare.__main__ import main
assert "torch" not in sys.modules  # which reads the variable when it is imported
sys.argv = ["filch", "--help"]
try:
    main()
except SystemExit:
    import torch
"""


@slow
@pytest.mark.parametrize(("chosen", "count"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), (_ACTIVE, "30000000000")])
def test_threads_of_a_command_spin_for_a_short_time_unless_the_user_says_otherwise(chosen, count):
    """Longer, they would keep each other from running where other processes need the processor, too."""
    environment = {name: value for name, value in os.environ.items() if name not in {*_ACTIVE, "GOMP_SPINCOUNT"}}

    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env=environment | chosen | {"OMP_DISPLAY_ENV": "VERBOSE"},  # the library says how its threads wait
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
