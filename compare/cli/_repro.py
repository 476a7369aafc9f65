"""The command that writes a difference of a report as a standalone folder: `filch repro`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from filch.steal.text import short_line

from .._blame import failing_tolerance
from ..common._errors import CompareError
from ..common._progress import progress
from ..rendering._console import echo
from ..repro import write_repro
from ..results._load_report import load_report
from ..results._report import Report
from ..results._rows import Row
from . import _options as shared


def repro_command(
    report: Annotated[Path, typer.Argument(help="A report as JSON, as `filch compare … -o report.json` writes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to create.")],
    node: Annotated[
        str | None, typer.Option(help="A node or value of the report; default: the first to differ.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The dump, if it moved since the report was made.")] = None,
    program: Annotated[Path | None, typer.Option(help="The ONNX file, if it moved.")] = None,
    option: shared.Options = None,
    limit: shared.Limit = None,
    quiet: shared.Quiet = False,
) -> None:
    """Write a smallest part of a program that shows a difference, with a script that runs without Filch."""
    loaded = load_report(report)
    if loaded.lower_precision:
        raise CompareError(f"no repro: {str(report)!r} was made with lower_precision, which allows differences")
    row = _row(loaded, node)
    with progress("repro", quiet=quiet):
        repro = write_repro(
            _file(reference, loaded.reference, "reference", "--reference DUMP"),
            _file(program, loaded.program, "program", "--program FILE"),
            row.node,
            output,
            backend=loaded.backend,
            options=_options(loaded, shared.parse_options(option)),
            tolerance=failing_tolerance(loaded, row),
            call=row.call,
            stage=row.stage,
            limit=limit,
        )
    if not quiet:
        echo(f"written: {repro}")


# Options that can't make a backend run another program, load a library or write a file. OpenVINO's and Inductor's
# `config` and a provider's own options can: Inductor's `cpp.cxx` is a command.
_HARMLESS = (
    *("device", "disabled_optimizers", "level", "mode", "providers", "search_space", "session_config"),
    *("session_options", "tf32", "threads", "tunable", "use_cuda_graph", "use_fp16", "use_fp16_reduction"),
)
_FILES = "ep."  # session configuration entries with this prefix name files that are written


def _options(report: Report, overrides: dict[str, str]) -> dict[str, Any]:
    """Return the options of the report, which is not trusted, updated with those of the command line."""
    for name, value in report.options.items():
        if name not in overrides and (name not in _HARMLESS or _FILES in str(value)):
            raise CompareError(
                f"the report was made with the option {name!r}, which may run programs or write files: "
                f"if you trust it, give --option {name}=…"
            )
    return {**report.options, **overrides}


def _row(report: Report, node: str | None) -> Row:
    """Return the row that the repro shows."""
    if node is None:
        if report.first_divergence is None:
            raise CompareError("nothing differs in this report: choose a node with --node")
        return report.first_divergence
    rows = [row for row in report.rows if node in (row.node, row.value)]
    if not rows:
        raise CompareError(f"there is no node or value {node!r} in this report")
    return next((row for row in rows if row.diverged), rows[0])


def _file(override: Path | None, recorded: str, what: str, option: str) -> Path:
    """Return the file of the command line, else the one that the report names."""
    path = Path(recorded) if override is None else override
    if not os.path.isfile(path):  # noqa: PTH113  `Path.is_file` raises for a name that is too long
        raise CompareError(f"the {what} '{short_line(path)}' is not a file: give {option}")
    return path
