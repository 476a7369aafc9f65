"""Find an executor by the text that names it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..common._errors import CompareError
from ._driver import Executor
from ._processes import ProcessExecutor
from ._ray import RayExecutor
from ._submitit import SubmititExecutor

_SLURM_SLOTS = 64  # jobs in the queue
_FORMS = "processes:N, slurm:PARTITION, slurm:PARTITION:N, submitit:local, submitit:local:N, ray or ray://HOST:PORT"


def check_executor(text: str) -> None:
    """Raise an error unless the text names an executor.

    Raises:
        CompareError: it does not.
    """
    _parts(text)


@contextmanager
def open_executor(text: str) -> Iterator[Executor]:
    """Make an executor, and close it at the end.

    Args:
        text: `processes:N`, `slurm:PARTITION[:N]`, `submitit:local[:N]`, `ray` or `ray://HOST:PORT`; N is the number of
            cells at a time.

    Raises:
        CompareError: there is no such executor, its library is missing, or it can't be reached.
    """
    executor = _make(*_parts(text))
    try:
        yield executor
    finally:
        executor.close()


def _parts(text: str) -> tuple[str, str, int]:
    """Return the kind, the partition or address, and the number of cells at a time; 0 of ray, which knows it itself."""
    if text == "ray" or text.startswith("ray://"):
        return "ray", text if text != "ray" else "", 0
    match = re.fullmatch(r"(processes)(?::()([1-9]\d*))?|(slurm|submitit):([\w.-]+)(?::([1-9]\d*))?", text)
    if match is None or (match[4] == "submitit" and match[5] != "local"):
        raise CompareError(f"there is no executor {text!r}: it is {_FORMS}")
    kind = match[1] or match[4]
    number = match[3] or match[6]
    return kind, match[5] or "", int(number) if number else _SLURM_SLOTS if kind == "slurm" else 1


def _make(kind: str, place: str, slots: int) -> Executor:
    if kind == "ray":
        return RayExecutor(place or None)
    if kind == "processes":
        return ProcessExecutor(slots)
    return SubmititExecutor("slurm" if kind == "slurm" else "local", place if kind == "slurm" else "", slots)
