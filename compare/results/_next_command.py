"""The commands that results suggest to run next."""

import os
import shlex
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..metrics._tolerance import Tolerance
from ..rendering._result import NextCommand
from ..rendering._words import command_text

DEFAULT_BACKEND = "onnxruntime-cpu"  # of the command line
_FOLDER = "blame"  # in which the suggested command writes
# Options that can't make a backend run another program, load a library or write a file. OpenVINO's and Inductor's
# `config` and a provider's own options can: Inductor's `cpp.cxx` is a command.
_HARMLESS = (
    *("device", "disabled_optimizers", "level", "mode", "providers", "search_space", "session_config"),
    *("session_options", "tf32", "threads", "tunable", "use_cuda_graph", "use_fp16", "use_fp16_reduction"),
)
_FILES = "ep."  # session configuration entries with this prefix name files that are written


def to_repeat(
    reference: str,
    program: str,
    *,
    backend: str = DEFAULT_BACKEND,
    options: Mapping[str, Any] = MappingProxyType({}),
    tolerance: Tolerance | None = None,
) -> str:
    """Return the command that compares two files again; `""` if one of them is not a file, or an option is unsafe.

    The arguments may be those of a report from somebody else: see `unsafe_options`.
    """
    exist = all(name.isprintable() and os.path.isfile(name) for name in (reference, program))  # noqa: PTH113  any text
    if not exist or unsafe_options(options):
        return ""
    named = None if backend == DEFAULT_BACKEND else backend
    limit = None if tolerance is None else tolerance.harmonic
    return command_text("compare", reference, program, backend=named, option=options, tolerance=limit)


def to_run_repro(folder: str) -> NextCommand:
    """Return the command that runs the script of a repro."""
    script = os.path.join(folder, "repro.py")  # noqa: PTH118  as it was given
    return NextCommand(f"python {shlex.quote(script)}", "show the error without Filch")


def to_blame(command: str) -> NextCommand:
    """Return the command that finds the cause of a difference; `command` is `""` if objects in memory were compared."""
    numbered = (f"{_FOLDER}-{number}" for number in count(2))
    folder = next(name for name in chain([_FOLDER], numbered) if not Path(name).exists())
    text = f"{command} --blame {folder}" if command else f"blame(report, capture, program, {folder!r})"
    return NextCommand(text, "find the cause and write a repro")


def to_run_every_node(command: str) -> NextCommand:
    """Return the command that runs each node alone, which may find the node that introduces an error."""
    option = "" if "--every-node" in command else " --every-node"
    text = f"{command}{option} -o report.html" if command else "compare(capture, program, every_node=True).show()"
    return NextCommand(text, "run every node alone, and look at the graph")


def to_show_all(command: str) -> NextCommand:
    """Return the command that prints a row for each value."""
    return NextCommand(f"{command} --all" if command else 'report.table("nodes")', "show a row for each value")


def unsafe_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of options that may run programs or write files, so that their value has to be trusted."""
    return [name for name, value in options.items() if name not in _HARMLESS or _FILES in str(value)]
