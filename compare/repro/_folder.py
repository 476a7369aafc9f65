"""Writes the folder of a repro, and hands it over once it was seen to show the fault in a process of its own."""

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
from ._result import Culprit, Float64Value, Size

_SECONDS = 600
_SHOWN = 6  # operators in a title
_PART = 0.1  # of the error is what a mended library may still show
_TRUTHS: Mapping[Float64Value, tuple[str, str]] = {
    "model": ("what the PyTorch model had", ""),
    "reference": ("what onnx.reference gives", "on what the PyTorch model had, it gives what that gave"),
    "unoptimised": ("what it gives with its optimisations off", "on what the PyTorch model had, that is what it gave"),
    "torch": ("what PyTorch gives", "the operations are those of the model's `torch.export`"),
}
_CULPRITS: Mapping[Culprit, str] = {
    "translation": "onnx.reference gives what {backend} gives: the translation to ONNX is wrong. ",
    "optimiser": "With its optimisations off, {backend} gives what it should. ",
    "runtime": "",
    "compiler": "",
    "": "",
}
_README = """\
# {title}

{told}

    python repro.py

exits with 1 if the difference shows and 0 if it is gone; it needs {needs} and numpy alone. When this was written it
showed: the largest `|actual - expected| / (|expected| + 1)` is {error:.1e}, where {limit:.1e} is allowed.

| file | holds |
| --- | --- |
{files}

| made with | |
| --- | --- |
{versions}
"""
_FILES = {
    "model.onnx": "what is run",
    "inputs.onnx": "what it is fed: a Constant for each tensor, by name",
    "expected.onnx": "what it should give, likewise",
    "repro.py": "runs it, and says how far off it is",
}


@dataclass(frozen=True)
class Told:
    """What a repro's reader has to know besides.

    Attributes:
        backend: the backend's name.
        options: what it was made with.
        script: how it is run.
        optimize: whether with its optimisations.
        truth: where the expected values are from.
        culprit: what is to blame.
        before: the size of the part that was begun with.
        harmonic: the harmonic error that is allowed.
    """

    backend: str
    options: Mapping[str, Any]
    script: Script
    optimize: bool
    truth: Float64Value
    culprit: Culprit
    before: Size
    harmonic: float


def write_folder(case: Case, error: float, told: Told, to: Path) -> None:
    """Write a repro, run it in a process of its own, and hand it over if it shows the fault.

    Args:
        case: what is wrong; `recorded` is what is expected, but for a case with a function, which says that itself.
        error: the harmonic error that was found here.
        told: what else there is to say.
        to: the folder.

    Raises:
        CompareError: the script does not show it, or the disk refuses.
    """
    limit = told.harmonic
    if not math.isinf(error):
        limit = float(f"{max(_PART * error, limit if error > limit else 0.0):.1e}")
    operators = list(dict.fromkeys(case.operators))
    what = ", ".join([*operators[:_SHOWN], *(["…"] if len(operators) > _SHOWN else [])])
    title = f"{what} on {told.backend}: not {_TRUTHS[told.truth][0]}"
    with Scratch() as folder:
        if case.model is not None:
            ir.save(case.model, folder / "model.onnx")
        write_tensors({**case.inputs, **case.weights}, folder / "inputs.onnx")
        if case.function is None:
            write_tensors({name: case.recorded[name] for name in case.outputs}, folder / "expected.onnx")
        (folder / "repro.py").write_text(script_of(case, told.script, title, limit), encoding="utf-8")
        _run(folder, told.backend)
        files = [f"| `{name}` | {holds} |" for name, holds in _FILES.items() if (folder / name).exists()]
        text = _README.format(
            title=for_markdown(title),
            told=_summary(case, told),
            needs=", ".join(dict.fromkeys(["onnx", told.script.module, *(["torch"] if case.function else [])])),
            error=error,
            limit=limit,
            files="\n".join(files),
            versions="\n".join(f"| {name} | {value} |" for name, value in _versions(told).items()),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
        try:
            for file in folder.iterdir():
                refuse_link_out(to / file.name)
            shutil.copytree(folder, to, dirs_exist_ok=True)
        except OSError as refused:
            raise CompareError(f"can't write {str(to)!r}: {refused.strerror or refused}") from refused


def _summary(case: Case, told: Told) -> str:
    expected, why = _TRUTHS[told.truth]
    how = "optimised as repro.py says" if told.optimize else "with its optimisations off"
    return (
        f"{told.backend} runs {case.size}, {how}, and gives something else than {expected}"
        f"{f' ({why})' if why else ''}. "
        f"{_CULPRITS[told.culprit].format(backend=told.backend)}"
        f"It was {told.before}; nodes, shapes and numbers were made less as long as the difference stayed."
    )


def _versions(told: Told) -> dict[str, str]:
    modules = dict.fromkeys(("torch", "onnx", told.script.module, "numpy"))
    options = ", ".join(for_markdown(f"{name}={value}") for name, value in told.options.items()) or "as in repro.py"
    return {
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "CPU": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} processors",
        **{name: importlib.import_module(name).__version__ for name in modules},
        told.backend: options,
    }


def _run(folder: Path, backend: str) -> None:
    """See that the script shows the fault alone: without this process's modules, paths and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-I", str(folder / "repro.py")]
    try:
        done = subprocess.run(  # noqa: S603  our own script
            command, cwd=folder, env=kept, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CompareError(f"no repro: its script runs for more than {_SECONDS} seconds") from None
    if done.returncode != 1 or SHOWS not in done.stderr:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise CompareError(f"no repro: in a process of its own, {backend} does not show the difference, but {said!r}")
