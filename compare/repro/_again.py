"""Write a comparison as a folder that repeats it without the model's code."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filch.export import Program
from filch.steal import writing
from filch.steal.files._outputs import new_files
from filch.steal.text._python import python_literal

from ..common._errors import CompareError
from ..metrics._tolerance import Tolerance, ToleranceOption

_SCRIPT = '''\
"""Compare program.onnx with the recorded model; needs only filch, and exits with 1 if a value differs."""

import sys
from pathlib import Path

import torch  # an option may be a dtype

from filch.compare import Tolerance, compare
from filch.export.backends import get_backend

here = Path(__file__).resolve().parent
backend = get_backend({backend}, **{options})
limits = {{"tolerance": {tolerance}, "lower_precision": {lower_precision}}}
report = compare(here / {reference}, here / "program.onnx", backend=backend, **limits)
print(report)
sys.exit(not report.close)
'''


def write_comparison(
    reference: Path,
    program: Program,
    backend: str,
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    tolerance: ToleranceOption = None,
    lower_precision: bool = False,
) -> Path:
    """Write the program, the dump of the model, and a script that compares them again.

    Args:
        reference: the dump.
        program: the program.
        backend: the name of the backend.
        folder: the folder to write to; it is created if needed.
        options: the options of the backend, of types that can be written into a script.
        tolerance: the tolerance of the comparison.
        lower_precision: whether values of a lower precision are allowed.

    Returns:
        the script, `repro.py`.

    Raises:
        CompareError: an option can't be written into a script, or the folder can't be written.
    """
    try:
        if isinstance(tolerance, Tolerance):
            limits = f"Tolerance(**{python_literal(asdict(tolerance))})"
        else:
            limits = python_literal(tolerance)
        text = _SCRIPT.format(
            backend=python_literal(backend),
            options=python_literal(options or {}),
            reference=python_literal(reference.name),
            tolerance=limits,
            lower_precision=python_literal(lower_precision),
        )
    except TypeError as error:
        raise CompareError(f"a repro needs options that can be written into a script: {error}") from None
    with writing(folder, CompareError), new_files(folder) as new:
        for file in reference.parent.glob(f"{reference.name}*"):  # with its external data
            shutil.copy(file, new)
        program.save(new / "program.onnx")
        (new / "repro.py").write_text(text, encoding="utf-8")
    return folder / "repro.py"
