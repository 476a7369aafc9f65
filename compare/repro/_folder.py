"""Write the folder of a repro, after checking in a separate process that its script shows the difference."""

import importlib
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from filch.steal import writing
from filch.steal.files._outputs import new_files, refuse_foreign
from filch.steal.files._scratch import Scratch
from filch.steal.text._markup import for_markdown

from ..common._errors import CompareError
from ..rendering._words import listed
from ._case import Case
from ._code import DIFFERENCE_ERROR, repro_script, write_tensors
from ._result import Culprit, ExpectedSource, Repro
from ._runner import Runner

_SECONDS = 600
_SHOWN = 6  # operators in a title
_LIMIT_RATIO = 0.1  # of the error: the limit of the script, so that a fixed library passes
# What the expected values are, and why they are right.
_EXPECTED: Mapping[ExpectedSource, tuple[str, str]] = {
    "model": ("the captured values of the PyTorch model", ""),
    "reference": ("the result of onnx.reference", "which agrees with the PyTorch model on the captured values"),
    "unoptimized": (
        "the result with optimizations disabled",
        "which agrees with the PyTorch model on the captured values",
    ),
    "float64": ("the same in float64", "computed with PyTorch, and rounded to the dtype of the output"),
    "torch": ("the result of PyTorch", "the operations are those of the model's `torch.export`"),
}
_CULPRIT_SENTENCES: Mapping[Culprit, str] = {
    "translation": "onnx.reference agrees with {backend}: the translation to ONNX is wrong. ",
    "optimizer": "With its optimizations disabled, {backend} is correct. ",
}
_README = """\
# {title}

{summary}

    python repro.py

exits with 1 if there is a difference and 0 if not; it only needs {needs} and numpy. When this was written, the largest
`|actual - expected| / (|expected| + 1)` was {error:.1e}; {limit:.1e} is allowed.

| file | contents |
| --- | --- |
{files}

| made with | |
| --- | --- |
{versions}
"""
_MARK = "exits with 1 if there is a difference and 0 if not; it only needs"  # in each README
_FILES = {
    "model.onnx": "the model",
    "inputs.onnx": "its inputs, a Constant for each",
    "expected.onnx": "the expected outputs, a Constant for each",
    "repro.py": "runs the model and compares its outputs",
}


def write_folder(repro: Repro, case: Case, runner: Runner, options: Mapping[str, Any], limit: float) -> None:
    """Write a repro to a temporary folder, run its script, and copy the folder if it shows the difference.

    Args:
        repro: the description of the folder.
        case: the part that is wrong; `recorded` has the expected values unless it has a function, which computes them.
        runner: runs the part.
        options: the options of the backend.
        limit: the harmonic error that the tolerance allows.

    Raises:
        CompareError: the script does not show the difference, or the folder can't be written.
    """
    if not math.isinf(repro.error):  # an error near the tolerance shows only with a smaller limit
        limit = float(f"{max(_LIMIT_RATIO * repro.error, limit if repro.error > 2 * limit else 0.0):.1e}")
    shown = listed(list(dict.fromkeys(case.operators)), _SHOWN, ", …")
    backend, script = runner.backend.name, runner.script
    what = "can't be run, unlike" if runner.fails else "differs from"
    title = f"{shown} on {backend} {what} {_EXPECTED[repro.expected_source][0]}"
    with Scratch() as folder:
        if case.model is not None:
            ir.save(case.model, folder / "model.onnx")
        write_tensors({**case.inputs, **case.weights}, folder / "inputs.onnx")
        if case.function is None:
            write_tensors({name: case.recorded[name] for name in case.outputs}, folder / "expected.onnx")
        (folder / "repro.py").write_text(repro_script(case, script, title, limit, fails=runner.fails), encoding="utf-8")
        _check_script(folder, backend)
        files = [f"| `{name}` | {contents} |" for name, contents in _FILES.items() if (folder / name).exists()]
        text = _README.format(
            title=for_markdown(title),
            summary=_summary(repro, runner),
            needs=", ".join(dict.fromkeys(["onnx", script.module, *(["torch"] if case.function else [])])),
            error=repro.error,
            limit=limit,
            files="\n".join(files),
            versions="\n".join(f"| {name} | {value} |" for name, value in _versions(runner, options).items()),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
        with writing(repro.folder, CompareError), new_files(repro.folder) as new:
            refuse_foreign(repro.folder, [*_FILES, "README.md"], ("README.md", _MARK))
            for file in folder.iterdir():
                shutil.copy(file, new)


def _summary(repro: Repro, runner: Runner) -> str:
    """Return what the folder shows, in sentences."""
    backend = runner.backend.name
    expected, reason = _EXPECTED[repro.expected_source]
    optimized = "optimized as in repro.py" if runner.optimize else "with its optimizations disabled"
    what = f"runs {repro.after}, {optimized}, and differs from"
    if runner.fails:
        what = f"can't run {repro.after}, {optimized}; expected is"
    return (
        f"{backend} {what} {expected}{f' ({reason})' if reason else ''}. "
        f"{_CULPRIT_SENTENCES.get(repro.culprit, '').format(backend=backend)}It was reduced from {repro.before}."
    )


def _versions(runner: Runner, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of what ran the case, the processor, and the options of the backend, by name."""
    modules = dict.fromkeys(("torch", "onnx", runner.script.module, "numpy"))
    return {
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "CPU": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} processors",
        **{name: importlib.import_module(name).__version__ for name in modules},
        runner.backend.name: ", ".join(for_markdown(f"{name}={value}") for name, value in options.items())
        or "as in repro.py",
    }


def _check_script(folder: Path, backend: str) -> None:
    """Check that the script shows the difference in a process without this one's modules and settings.

    It finds packages where this process does: a runtime may be in a folder of PYTHONPATH.
    """
    settings = {name for name in os.environ if name.startswith("PYTHON")} - {
        "PYTHONPATH",
        "PYTHONUSERBASE",
        "PYTHONNOUSERSITE",
    }
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    command = [sys.executable, "-P", str(folder / "repro.py")]
    try:
        process = subprocess.run(  # noqa: S603  our own script
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompareError(f"no repro: its script runs for more than {_SECONDS} seconds") from None
    if process.returncode != 1 or DIFFERENCE_ERROR not in process.stderr:  # any exception exits with 1
        last_line = (process.stderr or process.stdout).strip().rpartition("\n")[2]
        raise CompareError(
            f"no repro: in a separate process, {backend} does not show the difference; the last output is {last_line!r}"
        )
