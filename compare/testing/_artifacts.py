"""Where a test's reports go, and who hears what came out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..results._dump_diff import DumpDiff
from ..results._report import Report


@dataclass
class ArtifactStore:
    """Where a test's files go, and who hears what came out.

    Attributes:
        golden: the folder of the golden dumps of the test's file.
        reports: the folder for the test's reports; None if only failures are written.
        scratch: makes a folder for what a failure leaves, where `reports` is None.
        say: called with the name and the value of each result: `backend` begins one, and `result`, `worst_error`,
            `first_divergence`, `report`, `repro` and `golden` tell of it.
        update: whether golden dumps are stored anew.
        stored: the golden dumps that were stored in this run.
    """

    golden: Path
    reports: Path | None
    scratch: Callable[[], Path]
    say: Callable[[str, str], None]
    update: bool = False
    stored: set[Path] = field(default_factory=set)
    _count: int = 0

    def folder(self) -> Path:
        """The folder for what this test leaves."""
        folder = self.scratch() if self.reports is None else self.reports
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def numbered(self, name: str) -> str:
        """`name`, told apart from those of this test's other comparisons."""
        self._count += 1
        return name if self._count == 1 else f"{self._count}-{name}"

    def write(self, found: Report | DumpDiff, name: str) -> Path | None:
        """Write a report as a page and as JSON, if it is wanted or tells of a failure; returns the page."""
        if found.close and self.reports is None:
            return None
        page = self.folder() / f"{name}.html"
        found.to_html(page)
        found.to_json(page.with_suffix(".json"))
        self.say("report", str(page))
        return page
