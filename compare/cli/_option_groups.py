"""Options that the commands which run several comparisons share: a parameter of such a class has one for each field."""

from dataclasses import dataclass
from typing import Any

from . import _options as shared
from ._command import usage_error


@dataclass(frozen=True)
class Judging:
    """How values are judged, and how backends run."""

    tolerance: shared.ToleranceOrDefault = None
    lower_precision: shared.LowerPrecision = False
    option: shared.Options = None
    limit: shared.Limit = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the same meaning of `matrix`, `sweep` and `CellOptions`."""
        return {
            "options": shared.parse_options(self.option),
            "tolerance": shared.parse_tolerance(self.tolerance),
            "lower_precision": self.lower_precision,
            "limit": self.limit,
        }


@dataclass(frozen=True)
class Execution:
    """Where comparisons run, and which of them; the other options need an executor."""

    executor: shared.Executor = None
    ledger: shared.Ledger = None
    timeout: shared.Timeout = None
    again: shared.Again = None

    def __post_init__(self) -> None:
        given = {"--ledger": self.ledger, "--timeout": self.timeout, "--again": self.again}
        needless = next((name for name, value in given.items() if value is not None), None)
        if needless and not self.executor:
            raise usage_error(f"{needless} needs an executor: --executor processes:4")


@dataclass(frozen=True)
class FleetExecution(Execution):
    """The same for a fleet, which always has an executor."""

    executor: shared.Executor = "processes:1"


@dataclass(frozen=True)
class Output:
    """How the table is printed; `--json` and `--markdown` are mutually exclusive."""

    as_json: shared.Json = False
    as_markdown: shared.Markdown = False
    quiet: shared.Quiet = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_markdown:
            raise usage_error("--json and --markdown are mutually exclusive")
