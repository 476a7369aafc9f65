"""A comparison as a folder of its own, which shows again what it found, without the model's code."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filch.export import Program

from .._errors import CompareError
from .._tolerance import Tolerance

_SCRIPT = '''\
"""Shows where program.onnx leaves what the model did; needs filch alone, and exits with 1 if something differs."""

import sys
from pathlib import Path

import torch  # an option may be a dtype

from filch.compare import Tolerance, compare
from filch.export.backends import get_backend

here = Path(__file__).resolve().parent
backend = get_backend({backend!r}, **{options!r})
how = {{"tolerance": {tolerance!r}, "lower_precision": {lower_precision!r}}}
report = compare(here / {reference!r}, here / "program.onnx", backend=backend, **how)
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
    tolerance: float | Tolerance | None = None,
    lower_precision: bool = False,
) -> Path:
    """Write the program, what the model did, and a script that compares them again.

    Args:
        reference: the dump that the comparison was made with.
        program: the program.
        backend: the name of what ran it.
        folder: where to; it is made if it is not there.
        options: what the backend was made with; plain values, as they are written into the script.
        tolerance: what the comparison was made with.
        lower_precision: whether it was allowed.

    Returns:
        the script, `repro.py`.

    Raises:
        CompareError: an option can't be written into a script.
    """
    given = dict(options or {})
    text = _SCRIPT.format(
        backend=backend,
        options=given,
        reference=reference.name,
        tolerance=tolerance,
        lower_precision=lower_precision,
    )
    try:
        compile(text, "repro.py", "exec")
    except SyntaxError:
        raise CompareError(f"a repro needs options that can be written into a script, not {given!r}") from None
    folder.mkdir(parents=True, exist_ok=True)
    for file in reference.parent.glob(f"{reference.name}*"):  # its data may be beside it
        shutil.copy(file, folder)
    program.save(folder / "program.onnx")
    script = folder / "repro.py"
    script.write_text(text, encoding="utf-8")
    return script
