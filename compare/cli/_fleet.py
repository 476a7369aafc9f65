"""The command `filch fleet`, and `filch matrix` and `filch sweep` with an executor."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import _options as shared
from ._cell_table import EXAMINED, TableOptions, next_command, run_cells
from ._options import ExecutorOptions, FleetExecution

if TYPE_CHECKING:
    from ..fleet._cell import CellSpec
    from ..results._cells import Cell


def fleet_command(
    spec: Annotated[Path, typer.Argument(help="A TOML file with matrices and sweeps.")],
    *,
    execution: FleetExecution,
    shown: TableOptions,
) -> None:
    """Run the matrices and sweeps of a TOML file, each comparison in a process of its own.

    What has ended is in a ledger, by default beside the TOML file: after an interruption, run the command again.
    Exits with 1 if one differs, else with 2 if one could not be compared.
    """
    from ..fleet._spec import read_fleet

    execution = replace(execution, ledger=execution.ledger or spec.with_suffix(".jsonl"))
    raise run_specs("fleet", read_fleet(spec), execution, shown, factories=[])


def run_specs(
    title: str,
    specs: "list[CellSpec]",
    execution: ExecutorOptions,
    shown: TableOptions,
    *,
    factories: list[str],
) -> typer.Exit:
    """Run comparisons on an executor, print the table of their outcomes, and return what to raise."""
    from ..fleet._driver import run_fleet
    from ..fleet._executors import check_executor, open_executor
    from ..fleet._ledger import Ledger
    from ..fleet._spec import check_cells

    check_executor(execution.executor or "")
    check_cells(specs)
    hidden = {"model"} if title == "sweep" else set[str]()
    hidden |= {"backend"} if title == "sweep" and len({spec.backend for spec in specs}) == 1 else set()

    def labels(spec: "CellSpec") -> dict[str, str]:
        shown = {name.removeprefix("dim:"): text for name, text in spec.labels.items()}
        return {name: text for name, text in shown.items() if name not in hidden}

    def run() -> "list[Cell]":
        timeout = shared.DEFAULT_TIMEOUT if execution.timeout is None else execution.timeout
        again = shared.parse_again(execution.again)
        with Ledger(execution.ledger) as ledger, open_executor(execution.executor or "") as executor:
            return run_fleet(specs, executor, ledger, timeout=timeout, again=again, labels=labels)

    def command(cells: "list[Cell]") -> str:
        if title != "fleet":
            return next_command(cells, factories)
        return next((_check(spec) for spec, cell in zip(specs, cells, strict=True) if cell.status in EXAMINED), "")

    return run_cells(title, run, shown, command)


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
