"""Write reports to files, in the format of the suffix."""

from collections.abc import Sequence
from pathlib import Path

from ..common._errors import CompareError
from ..results._report import Report

_WRITERS = {".csv": Report.to_csv, ".html": Report.to_html, ".json": Report.to_json, ".md": Report.to_markdown}


def needs_statistics(output: Path | None, *, requested: bool) -> bool:
    """Return whether statistics are wanted: pages show them, and pages are made from JSON."""
    return requested or (output is not None and output.suffix in (".html", ".json"))


def check_output(output: Path | None) -> None:
    """Raise if no format has the suffix of `output`, before the slow part of a command begins."""
    if output is not None and output.suffix not in _WRITERS:
        raise CompareError(f"a report is written as {', '.join(_WRITERS)}, not as {output.name!r}; see `filch view`")


def write_reports(reports: Sequence[Report], output: Path) -> list[Path]:
    """Write each report and return the paths; of several, each has its backend's name before the suffix."""
    paths = []
    for report in reports:
        path = output.with_suffix(f".{report.backend}{output.suffix}") if len(reports) > 1 else output
        paths.append(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _WRITERS[output.suffix](report, path)
        except OSError as error:
            raise CompareError(f"can't write {str(path)!r}: {error.strerror or error}") from error
    return paths
