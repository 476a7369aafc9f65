"""The files and recorded properties of a test."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..rendering._result import Result


@dataclass
class ArtifactStore:
    """Writes the files of a test and records its properties.

    Attributes:
        golden: the folder of the golden dumps of the test's file.
        reports: the folder for the test's reports; None if only failures are written.
        scratch: creates the folder for the files of a failure, where `reports` is None.
        record: called with the name and value of each property. `backend` starts a comparison; `result`,
            `worst_error`, `first_divergence`, `cause`, `report`, `repro` and `golden` describe it.
        update: whether golden dumps are overwritten.
        allow_less_precise: whether these may be overwritten with values that are further from float64.
        stored: the golden dumps that were stored in this run.
        accepted: the values that need not be judged, in any test; see `Result.accepted`.
    """

    golden: Path
    reports: Path | None
    scratch: Callable[[], Path]
    record: Callable[[str, str], None]
    update: bool = False
    allow_less_precise: bool = False
    stored: set[Path] = field(default_factory=set)
    accepted: Mapping[str, str] = field(default_factory=dict)
    _count: int = 0

    def folder(self) -> Path:
        """Return the folder for this test's files, and create it."""
        folder = self.scratch() if self.reports is None else self.reports
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def unique_name(self, name: str) -> str:
        """Return `name`, with a number in front after the first comparison of this test."""
        self._count += 1
        return name if self._count == 1 else f"{self._count}-{name}"

    def write(self, result: Result, name: str) -> Path | None:
        """Write a result as HTML and JSON and return the page; skip one that passes unless `reports` is set."""
        if result.passes and self.reports is None:
            return None
        page = self.folder() / f"{name}.html"
        result.to_html(page)
        result.to_json(page.with_suffix(".json"))
        self.record("report", str(page))
        return page
