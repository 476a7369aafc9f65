"""`filch repro`: what a report found, as a folder to send upstream."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from filch.steal.text import named

from .._blame import telling_tolerance
from ..common._errors import CompareError
from ..common._progress import progress
from ..rendering._console import echo
from ..repro import write_repro
from ..results._load_report import load_report
from ..results._report import Report
from ..results._rows import Row
from ._options import LimitOption, OptionList, Quiet, told_options


def repro_command(
    report: Annotated[Path, typer.Argument(help="A report as JSON: `filch compare … -o report.json` writes one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to make.")],
    node: Annotated[str | None, typer.Option(help="A node or value of it; by default, the first that differs.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The dump, if it is not where the report was made from.")
    ] = None,
    program: Annotated[Path | None, typer.Option(help="The ONNX file, likewise.")] = None,
    option: OptionList = None,
    limit: LimitOption = None,
    quiet: Quiet = False,
) -> None:
    """Write the smallest part of a program that shows a fault, with a script that needs no Filch."""
    found = load_report(report)
    if found.lower_precision:
        raise CompareError(f"no repro: in {str(report)!r}, values of a lower precision were allowed to differ")
    row = _row(found, node)
    with progress("repro", quiet=quiet):
        made = write_repro(
            _file(reference, found.reference, "reference", "--reference DUMP"),
            _file(program, found.program, "program", "--program FILE"),
            row.node,
            output,
            backend=found.backend,
            options=_options(found, told_options(option)),
            tolerance=telling_tolerance(found, row),
            call=row.call,
            stage=row.stage,
            limit=limit,
        )
    if not quiet:
        echo(f"written: {made}")


# Options by which no backend runs another program, loads a library or writes a file. OpenVINO's and Inductor's `config`
# and a provider's own options can do so: Inductor's `cpp.cxx` is a command.
_HARMLESS = (
    *("device", "disabled_optimizers", "level", "mode", "providers", "search_space", "session_config"),
    *("session_options", "tf32", "threads", "tunable", "use_cuda_graph", "use_fp16", "use_fp16_reduction"),
)
_FILES = "ep."  # what these entries of a session's configuration name is written


def _options(report: Report, given: dict[str, str]) -> dict[str, Any]:
    """The options of the report, which is not trusted, under those that are given."""
    for name, value in report.options.items():
        if name not in given and (name not in _HARMLESS or _FILES in str(value)):
            raise CompareError(
                f"the report was made with the option {name!r}, which may run programs or write files: "
                f"if you trust it, say --option {name}=…"
            )
    return {**report.options, **given}


def _row(report: Report, node: str | None) -> Row:
    """What the repro is to show."""
    if node is None:
        if report.first_divergence is None:
            raise CompareError("nothing differs in this report: say which node is meant, with --node")
        return report.first_divergence
    rows = [row for row in report.rows if node in (row.node, row.value)]
    if not rows:
        raise CompareError(f"there is no node or value {node!r} in this report")
    return next((row for row in rows if row.diverged), rows[0])


def _file(given: Path | None, noted: str, what: str, option: str) -> Path:
    """A file that a report names, or the one that is given instead."""
    path = Path(noted) if given is None else given
    if not os.path.isfile(path):  # noqa: PTH113  `Path.is_file` raises for a name that is too long
        raise CompareError(f"the {what} '{named(path)}' is no file here: say {option}")
    return path
