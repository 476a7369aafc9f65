"""Where the command line writes reports to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..common._errors import CompareError
from ..results._report import Report

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the report: .html is a page, .json, .csv, .md; one for each backend."),
]
StatisticsOption = Annotated[
    bool, typer.Option("--statistics", help="What each value and its reference are like; a page always has it.")
]

_WRITERS = {".csv": Report.to_csv, ".html": Report.to_html, ".json": Report.to_json, ".md": Report.to_markdown}


def with_statistics(output: Path | None, *, asked: bool) -> bool:
    """Whether a comparison is to say what values are like: pages show it, and JSON is what pages are made of."""
    return asked or (output is not None and output.suffix in (".html", ".json"))


def check_output(output: Path | None) -> None:
    """See that there is a format for the file that reports are to be written to, before anything takes time."""
    if output is not None and output.suffix not in _WRITERS:
        raise CompareError(f"a report is written as {', '.join(_WRITERS)}, not as {output.name!r}; see `filch view`")


def write_reports(reports: Sequence[Report], output: Path) -> list[Path]:
    """Write each report; if there are several, with the backend's name before the suffix."""
    several = len(reports) > 1
    paths = [output.with_suffix(f".{one.backend}{output.suffix}") if several else output for one in reports]
    for report, path in zip(reports, paths, strict=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _WRITERS[output.suffix](report, path)
        except OSError as error:
            raise CompareError(f"can't write {str(path)!r}: {error.strerror or error}") from error
    return paths
