"""Write the folder of a repro, after checking in a separate process that its script shows the difference."""

import importlib
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from filch.export.backends import Script
from filch.steal import Scratch, refuse_link_out
from filch.steal.text import for_markdown

from ..common._errors import CompareError
from ._case import Case
from ._code import SHOWS, script_of, write_tensors
from ._result import Culprit, ExpectedSource, Size

_SECONDS = 600
_SHOWN = 6  # operators in a title
_PART = 0.1  # of the error is tolerated, so that a fixed library passes
_TRUTHS: Mapping[ExpectedSource, tuple[str, str]] = {
    "model": ("the captured values of the PyTorch model", ""),
    "reference": ("the result of onnx.reference", "which agrees with the PyTorch model on the captured values"),
    "unoptimised": (
        "the result with optimisations disabled",
        "which agrees with the PyTorch model on the captured values",
    ),
    "torch": ("the result of PyTorch", "the operations are those of the model's `torch.export`"),
}
_CULPRITS: Mapping[Culprit, str] = {
    "translation": "onnx.reference agrees with {backend}: the translation to ONNX is wrong. ",
    "optimiser": "With its optimisations disabled, {backend} is correct. ",
    "runtime": "",
    "compiler": "",
    "": "",
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
_FILES = {
    "model.onnx": "the model",
    "inputs.onnx": "its inputs, a Constant for each",
    "expected.onnx": "the expected outputs, a Constant for each",
    "repro.py": "runs the model and compares its outputs",
}


@dataclass(frozen=True)
class Context:
    """How the case of a repro is run, and where it is from.

    Attributes:
        backend: the backend's name.
        options: its options.
        script: the code that runs it.
        optimize: whether its optimisations are enabled.
        truth: the source of the expected values.
        culprit: the faulty component.
        before: the size of the part before the reduction.
        harmonic: the harmonic error that is allowed.
    """

    backend: str
    options: Mapping[str, Any]
    script: Script
    optimize: bool
    truth: ExpectedSource
    culprit: Culprit
    before: Size
    harmonic: float


def write_folder(case: Case, error: float, context: Context, to: Path) -> None:
    """Write a repro to a temporary folder, run its script, and copy the folder if it shows the difference.

    Args:
        case: the part that is wrong; `recorded` has the expected values unless it has a function, which computes them.
        error: the harmonic error in this process.
        context: how it is run.
        to: the folder.

    Raises:
        CompareError: the script does not show the difference, or the folder can't be written.
    """
    limit = context.harmonic
    if not math.isinf(error):
        limit = float(f"{max(_PART * error, limit if error > limit else 0.0):.1e}")
    operators = list(dict.fromkeys(case.operators))
    what = ", ".join([*operators[:_SHOWN], *(["…"] if len(operators) > _SHOWN else [])])
    title = f"{what} on {context.backend} differs from {_TRUTHS[context.truth][0]}"
    with Scratch() as folder:
        if case.model is not None:
            ir.save(case.model, folder / "model.onnx")
        write_tensors({**case.inputs, **case.weights}, folder / "inputs.onnx")
        if case.function is None:
            write_tensors({name: case.recorded[name] for name in case.outputs}, folder / "expected.onnx")
        (folder / "repro.py").write_text(script_of(case, context.script, title, limit), encoding="utf-8")
        _check_script(folder, context.backend)
        files = [f"| `{name}` | {contents} |" for name, contents in _FILES.items() if (folder / name).exists()]
        text = _README.format(
            title=for_markdown(title),
            summary=_summary(case, context),
            needs=", ".join(dict.fromkeys(["onnx", context.script.module, *(["torch"] if case.function else [])])),
            error=error,
            limit=limit,
            files="\n".join(files),
            versions="\n".join(f"| {name} | {value} |" for name, value in _versions(context).items()),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
        try:
            for file in folder.iterdir():
                refuse_link_out(to / file.name)
            shutil.copytree(folder, to, dirs_exist_ok=True)
        except OSError as refused:
            raise CompareError(f"can't write {str(to)!r}: {refused.strerror or refused}") from refused


def _summary(case: Case, context: Context) -> str:
    expected, why = _TRUTHS[context.truth]
    optimized = "optimised as in repro.py" if context.optimize else "with its optimisations disabled"
    return (
        f"{context.backend} runs {case.size}, {optimized}, and differs from {expected}{f' ({why})' if why else ''}. "
        f"{_CULPRITS[context.culprit].format(backend=context.backend)}"
        f"It was reduced from {context.before}."
    )


def _versions(context: Context) -> dict[str, str]:
    modules = dict.fromkeys(("torch", "onnx", context.script.module, "numpy"))
    options = ", ".join(for_markdown(f"{name}={value}") for name, value in context.options.items()) or "as in repro.py"
    return {
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "CPU": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} processors",
        **{name: importlib.import_module(name).__version__ for name in modules},
        context.backend: options,
    }


def _check_script(folder: Path, backend: str) -> None:
    """Check that the script shows the difference in a process without this one's modules, paths and settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-I", str(folder / "repro.py")]
    try:
        done = subprocess.run(  # noqa: S603  our own script
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompareError(f"no repro: its script runs for more than {_SECONDS} seconds") from None
    if done.returncode != 1 or SHOWS not in done.stderr:
        last_line = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise CompareError(
            f"no repro: in a separate process, {backend} does not show the difference; the last output is {last_line!r}"
        )
