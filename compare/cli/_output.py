"""Print results, and write reports to files in the format of the suffix."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ._command import usage_error

if TYPE_CHECKING:
    from ..rendering._result import Result
    from ..results._report import Report

_WRITERS = {".csv": "to_csv", ".html": "to_html", ".json": "to_json", ".md": "to_markdown"}  # methods of `Report`


def needs_statistics(outputs: Sequence[Path] | None, *, requested: bool) -> bool:
    """Return whether statistics are wanted: pages show them, and pages are made from JSON."""
    return requested or any(output.suffix in (".html", ".json") for output in outputs or ())


def check_outputs(outputs: Sequence[Path] | None) -> None:
    """End the process if no format has the suffix of an output, before the slow part of a command begins."""
    for output in outputs or ():
        if output.suffix not in _WRITERS:
            formats = ", ".join(_WRITERS)
            raise usage_error(f"a report is written as {formats}, not as {output.name!r}; see `filch view`")


def write_reports(reports: Sequence["Report"], outputs: Sequence[Path] | None, *, quiet: bool) -> None:
    """Write each report in each format; of several reports, the name of each file has the backend before the suffix."""
    from filch.steal import writing

    from ..common._errors import CompareError

    written = []
    for output in outputs or ():
        for report in reports:
            path = output.with_suffix(f".{report.backend}{output.suffix}") if len(reports) > 1 else output
            written.append(str(path))
            with writing(path, CompareError):
                path.parent.mkdir(parents=True, exist_ok=True)
                getattr(report, _WRITERS[output.suffix])(path)
    if written:
        echo_unless(quiet, f"\nwritten: {', '.join(written)}")


def echo_result(result: "Result", *, as_json: bool = False, quiet: bool = False, **options: Any) -> None:
    """Print a result as JSON, or unless `quiet` as text, in color on a terminal that shows colors."""
    from ..rendering._console import is_colored

    if as_json or not quiet:
        typer.echo(result.to_json() if as_json else result.table(**options, color=is_colored()))


def echo_unless(quiet: bool, text: str) -> None:
    """Print text that may hold names from files, unless `quiet`."""
    from ..rendering._console import echo

    if not quiet:
        echo(text)
