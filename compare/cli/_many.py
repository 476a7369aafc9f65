"""The commands that compare many: `filch matrix`, `sweep`, `fleet` and `history`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..rendering._words import command_text, option_texts
from . import _options as shared
from ._command import command_line, usage_error
from ._options import ExecutorOptions, FleetExecution, Judging
from ._output import Accepting, Judged

if TYPE_CHECKING:
    from ..fleet._cell import CellSpec
    from ..rendering._result import Result
    from ..results._cells import Cell

_LABELS = ("dtype", "device", "backend")  # that are options
_EXAMINED = ("different", "incomplete", "failed")  # of the first cell with such a status, the next command is shown
# The options that are not repeated when one comparison is examined, as its labels say which it is, and how many values
# each takes (see `command_line`).
_NOT_REPEATED = {"matrix": 0, "sweep": 0, "-b": 1, "--backend": 1, "--dtype": 1, "--device": 1, "--dim": 1}
_NOT_REPEATED |= {"--executor": 1, "--ledger": 1, "--timeout": 1, "--again": 1}


@dataclass(frozen=True)
class TableOptions(Judged):
    """How a table of outcomes is printed and written; `--json` and `--markdown` are mutually exclusive."""

    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_json and self.as_markdown:
            raise usage_error("--json and --markdown are mutually exclusive")

    def _text(self, result: "Result", **view: Any) -> str:
        return result.to_markdown().rstrip("\n") if self.as_markdown else super()._text(result, **view)


def matrix_command(
    factories: shared.Factories,
    backend: shared.Backends = [shared.DEFAULT_BACKEND],  # noqa: B006  typer copies it
    dtype: Annotated[list[str] | None, typer.Option(help="Dtype of models and inputs; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="Device for eager PyTorch; may be repeated.")] = None,
    *,
    judging: Judging,
    execution: ExecutorOptions,
    shown: TableOptions,
) -> None:
    """Compare models in each dtype, on each device and backend; one line each.

    Exits with 1 if one differs, else with 2 if one is missing or could not be compared.
    """
    from ..fleet._cell import CellOptions, matrix_cells

    specs = matrix_cells(
        factories,
        folder=Path.cwd(),
        backends=backend,
        dtypes=dtype or (),
        devices=device or (),
        judged=CellOptions(**judging.arguments),
    )
    raise _run_specs("matrix", specs, execution, shown, factories)


def sweep_command(
    factory: shared.Factory,
    dim: Annotated[list[str], typer.Option("--dim", help="Sizes of a dynamic dimension: batch=1,2,7,64.")],
    backend: shared.Backends = [shared.DEFAULT_BACKEND],  # noqa: B006  typer copies it
    *,
    judging: Judging,
    execution: ExecutorOptions,
    shown: TableOptions,
) -> None:
    """Export a model once with dynamic shapes, and compare it at each size; one line each.

    With an executor, each comparison exports it. Exits with 1 if one differs, else with 2 if one is missing or could
    not be compared.
    """
    sizes = shared.parse_sizes(dim)
    from ..fleet._cell import CellOptions, sweep_cells

    judged = CellOptions(**judging.arguments)
    specs = sweep_cells(factory, sizes, folder=Path.cwd(), backends=backend, judged=judged)
    raise _run_specs("sweep", specs, execution, shown, [factory])


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
    raise _run_specs("fleet", read_fleet(spec), execution, shown)


def history_command(
    ledgers: Annotated[list[Path], typer.Argument(help="Ledgers, files of JSON lines that `filch fleet` writes.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a static site to this folder.")] = None,
    *,
    shown: Accepting,
) -> None:
    """Show which comparisons became wrong in many runs, since when, and what is to blame.

    Exits with 1 if one differed when it was last compared, else with 2 if one could not be compared.
    """
    from ..history._history import history
    from ..history._ledger_rows import read_ledgers
    from ..history._site import write_site

    rows, notes = read_ledgers(ledgers)
    command = "" if output is not None else command_line({}, "-o", "site")  # of the site, if it is not written yet
    found = history(rows, ledgers=[*map(str, ledgers)], notes=notes, command=command)
    written = write_site(found, output) if output is not None else []
    code = shown.finish(found)
    if written:
        shown.tell(f"\nwritten: {', '.join(map(str, written))}")
    raise code


def _run_specs(
    title: str,
    specs: "list[CellSpec]",
    execution: ExecutorOptions,
    shown: TableOptions,
    factories: Sequence[str] = (),
) -> typer.Exit:
    """Run comparisons on an executor or here, print the table of their outcomes, and return what to raise."""
    from ..fleet._driver import run_fleet
    from ..fleet._executors import check_executor, open_executor
    from ..fleet._here import run_here
    from ..fleet._ledger import Ledger
    from ..fleet._spec import check_cells
    from ..results._cells import CellTable

    hidden: tuple[str, ...] = ()
    if title == "sweep":  # of one model, and often on one backend
        hidden = ("model",) if len({spec.backend for spec in specs}) > 1 else ("model", "backend")

    def labels(spec: "CellSpec") -> dict[str, str]:
        shown = {name.removeprefix("dim:"): text for name, text in spec.labels.items()}
        return {name: text for name, text in shown.items() if name not in hidden}

    with shown.progress(title):
        if execution.executor:
            check_executor(execution.executor)
            check_cells(specs)
            timeout = shared.DEFAULT_TIMEOUT if execution.timeout is None else execution.timeout
            again = shared.parse_again(execution.again)
            with Ledger(execution.ledger) as ledger, open_executor(execution.executor) as executor:
                cells = run_fleet(specs, executor, ledger, timeout=timeout, again=again, labels=labels)
        else:
            cells = [*run_here(specs, labels)]
    pairs = ((spec, cell) for spec, cell in zip(specs, cells, strict=True) if cell.status in _EXAMINED)
    spec, cell = next(pairs, (None, None))
    command = ""
    if spec is not None and cell is not None:
        command = _check_of_spec(spec) if title == "fleet" else _check_of_cell(cell, factories)
    return shown.finish(CellTable(tuple(cells), command))


def _check_of_spec(spec: "CellSpec") -> str:
    """Return the command line that examines one comparison of a fleet, whose options are in its file."""
    place, colon, function = spec.factory.rpartition(":")
    path = Path(spec.folder, place)
    if place.endswith(".py"):  # it is relative to the folder of the cell
        place = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    judged = spec.judged
    return command_text(
        *("check", f"{place}{colon}{function}"),
        backend=spec.backend,
        dtype=spec.dtype,
        device=spec.device,
        dim=spec.sizes,
        option=judged.options,
        tolerance=judged.tolerance,
        limit=judged.limit,
        lower_precision=judged.lower_precision,
    )


def _check_of_cell(cell: "Cell", factories: Sequence[str]) -> str:
    """Return the command line that examines one comparison of this process's command, with its further options.

    Args:
        cell: the outcome of the comparison.
        factories: the factories that this process was called with; a cell of a sweep has no label that names its own.
    """
    named = {name: text for name, text in cell.labels.items() if name in _LABELS}
    sizes = {name: text for name, text in cell.labels.items() if name not in ("model", *_LABELS)}
    not_repeated = _NOT_REPEATED | dict.fromkeys(factories, 0)
    if "backend" not in cell.labels:  # all cells have the same, which the command names, or the default
        not_repeated = {name: count for name, count in not_repeated.items() if name not in ("-b", "--backend")}
    return command_line(
        not_repeated, cell.labels.get("model", factories[0]), *option_texts(**named, dim=sizes), command="check"
    )
