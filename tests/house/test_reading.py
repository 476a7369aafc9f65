"""Every file that somebody else may have written is read through one door, which has limits that the docs state."""

import ast
import re
from pathlib import Path

from filch.steal.files._kinds import FILE_KINDS

ROOT = Path(__file__).resolve().parents[2]
DOOR = "steal/files/_untrusted.py"
OPENING = {"GGUFReader", "ZipFile", "fromfile", "load_file", "memmap", "open", "read_bytes", "read_text", "safe_open"}
LOADING = {"ir", "json", "np", "numpy", "onnx", "pickle", "torch"}  # packages whose `load` opens a file
# What else opens files, and why it may.
OTHERS = {
    "compare/bisection/_journal.py": "writes",
    "compare/common/_streams.py": "the null device",
    "compare/fleet/_ledger.py": "creates a file",
    "compare/fleet/_sources.py": "code of the user, which is run",
    "compare/fleet/_supervisor.py": "files of its own processes",
    "compare/fleet/_worker.py": "a file of the process that started it",
    "compare/models/_array_files.py": "a file that the door has opened",
    "compare/models/_input_files.py": "contents that the door has read",
    "compare/rendering/_html.py": "a file of this package",
    "compare/rendering/_result.py": "a page that Filch has written, in a browser",
    "compare/testing/_summary.py": "writes",
    "export/backends/_files.py": "files that Filch has written",
    "export/backends/inductor/_kernel_graph.py": "files that Inductor has written",
    "export/backends/inductor/_kernels.py": "files that Inductor has written",
    "export/backends/inductor/_wrapper.py": "files that Inductor has written",
    "export/backends/onnxruntime/_backend.py": "files that ONNX Runtime has written",
    "export/backends/onnxruntime/_log.py": "an open descriptor",
    "export/backends/onnxruntime/_options.py": "libraries of an installed package",
    "export/backends/onnxruntime/_run.py": "files that ONNX Runtime has written",
    "export/backends/onnxruntime/_versions.py": "files of its own processes",
    "export/common/_memory.py": "the state of this process",
    "export/common/_onnxruntime.py": "files of installed packages",
    "export/lowering/_integers.py": "files that Filch has written",
    "export/passes/_profile.py": "writes",
    "export/pt2_files/_archive.py": "a file that the door has opened",
    "export/views/_html.py": "a file of this package",
    "export/views/_series.py": "writes",
    "export/views/_serve.py": "files of an installed package, and the one that is served",
    "steal/dump/_dump.py": "appends to a dump that the door has read",
    "steal/dump/_environment.py": "the state of this machine",
    "steal/dump/_files.py": "creates and locks files",
    "steal/files/_outputs.py": "writes",
    "steal/files/_scratch.py": "creates and locks files",
    "steal/private/_versions.py": "a file of this package",
}


def _opens(call):
    """Whether a call opens a file by its name."""
    name = ast.unparse(call.func)
    package, _, last = name.rpartition(".")
    return last in OPENING or (last == "load" and package in LOADING)


def test_files_are_opened_at_the_door():
    """A new reader uses `open_untrusted` or what is built on it, or says here why it need not."""
    assert {
        str(file.relative_to(ROOT))
        for room in ("steal", "export", "compare")
        for file in (ROOT / room).rglob("*.py")
        if any(isinstance(node, ast.Call) and _opens(node) for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    } == {DOOR, *OTHERS}


def test_a_file_that_is_opened_elsewhere_is_found():
    """Each way to open one counts; what only looks like it does not."""
    for code in ("open(x)", "path.read_text()", "np.load(x)", "zipfile.ZipFile(x)", "os.open(x, 0)"):
        assert _opens(ast.parse(code, mode="eval").body), code
    assert not _opens(ast.parse("layouts.load(x)", mode="eval").body)


def test_each_kind_of_file_has_a_row_and_is_read():
    """`docs/security.md` says how it is read and within which limits, and a reader asks for its budget by its name."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "security.md").read_text("utf-8"), flags=re.MULTILINE)
    sources = "\n".join(
        file.read_text("utf-8") for room in ("steal", "export", "compare") for file in (ROOT / room).rglob("*.py")
    )
    for name in FILE_KINDS:
        assert [row for row in rows if row.startswith(name)], f"docs/security.md has no row for {name!r}"
        assert sources.count(f'"{name}"') > 1, f"nothing reads {name!r}"
