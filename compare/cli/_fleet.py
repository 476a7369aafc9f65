"""The command `filch fleet`, and `filch matrix` and `filch sweep` with an executor."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options as shared
from ._cell_table import EXAMINED, Output, next_command, run_cells
from ._command import usage_error

if TYPE_CHECKING:
    from ..fleet._cell import CellSpec
    from ..results._cells import Cell

_DEFAULT = "processes:1"


def fleet_command(
    spec: Annotated[Path, typer.Argument(help="A TOML file with matrices and sweeps.")],
    executor: shared.Executor = _DEFAULT,
    ledger: shared.Ledger = None,
    timeout: shared.Timeout = None,
    again: shared.Again = None,
    as_json: shared.Json = False,
    as_markdown: shared.Markdown = False,
    quiet: shared.Quiet = False,
) -> None:
    """Run the matrices and sweeps of a TOML file, each comparison in a process of its own.

    What has ended is in a ledger, by default beside the TOML file: after an interruption, run the command again.
    Exits with 1 if one differs, else with 2 if one could not be compared.
    """
    fleet = _fleet_options(executor or _DEFAULT, ledger or spec.with_suffix(".jsonl"), timeout, again)
    from ..fleet._spec import read_fleet

    specs = read_fleet(spec)
    output = Output(as_json=as_json, as_markdown=as_markdown, quiet=quiet)
    raise typer.Exit(run_specs("fleet", specs, fleet, output, factories=[]))


@dataclass(frozen=True)
class FleetOptions:
    """Where the comparisons run, and which of them; see the options of the same names."""

    executor: str
    ledger: Path | None
    timeout: float
    again: tuple[str, ...]


def fleet_options(
    executor: str | None, ledger: Path | None, timeout: float | None, again: str | None
) -> FleetOptions | None:
    """Return the options of a fleet; None without an executor, which the others need."""
    if executor:
        return _fleet_options(executor, ledger, timeout, again)
    given = {"--ledger": ledger, "--timeout": timeout, "--again": again}
    if needless := next((name for name, value in given.items() if value is not None), None):
        raise usage_error(f"{needless} needs an executor: --executor processes:4")
    return None


def _fleet_options(executor: str, ledger: Path | None, timeout: float | None, again: str | None) -> FleetOptions:
    limit = shared.DEFAULT_TIMEOUT if timeout is None else timeout
    return FleetOptions(executor, ledger, limit, shared.parse_again(again))


def run_specs(
    title: str, specs: "list[CellSpec]", options: FleetOptions, output: Output, *, factories: list[str]
) -> int:
    """Run comparisons on an executor, print the table of their outcomes, and return the exit code."""
    from ..fleet._driver import run_fleet
    from ..fleet._executors import check_executor, open_executor
    from ..fleet._ledger import Ledger
    from ..fleet._spec import check_cells

    check_executor(options.executor)
    check_cells(specs)
    hidden = {"model"} if title == "sweep" else set[str]()
    hidden |= {"backend"} if title == "sweep" and len({spec.backend for spec in specs}) == 1 else set()

    def labels(spec: "CellSpec") -> dict[str, str]:
        shown = {name.removeprefix("dim:"): text for name, text in spec.labels.items()}
        return {name: text for name, text in shown.items() if name not in hidden}

    def run() -> "list[Cell]":
        with Ledger(options.ledger) as ledger, open_executor(options.executor) as executor:
            return run_fleet(*(specs, executor, ledger), timeout=options.timeout, again=options.again, labels=labels)

    def command(cells: "list[Cell]") -> str:
        if title != "fleet":
            return next_command(cells, factories)
        return next((_check(spec) for spec, cell in zip(specs, cells, strict=True) if cell.status in EXAMINED), "")

    return run_cells(title, run, output, command)


def _check(spec: "CellSpec") -> str:
    """Return the command line that examines one comparison of a fleet."""
    place, colon, function = spec.factory.rpartition(":")
    path = Path(spec.folder, place)
    if place.endswith(".py"):
        place = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    judged = spec.judged
    values: list[tuple[str, object]] = [("-b", spec.backend), ("--dtype", spec.dtype), ("--device", spec.device)]
    values += [("--dim", f"{name}={size}") for name, size in spec.sizes.items()]
    values += [("--option", f"{name}={value}") for name, value in judged.options.items()]
    values += [("--tolerance", judged.tolerance), ("--limit", judged.limit)]
    given = (part for name, value in values if value not in (None, "") for part in (name, str(value)))
    flags = ["--lower-precision"] if judged.lower_precision else []
    return shlex.join(["filch", "check", f"{place}{colon}{function}", *given, *flags])
