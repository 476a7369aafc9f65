"""Run the comparisons of `filch matrix`, `filch sweep` and `filch fleet`, and print the table of their outcomes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from . import _options as shared
from ._command import command_line, usage_error
from ._output import Judged

if TYPE_CHECKING:
    from ..rendering._result import Result
    from ..results._cells import Cell


@dataclass(frozen=True)
class TableOptions(Judged):
    """How a table of outcomes is printed and written; `--json` and `--markdown` are mutually exclusive."""

    as_markdown: shared.Markdown = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_json and self.as_markdown:
            raise usage_error("--json and --markdown are mutually exclusive")

    def _text(self, result: "Result", **view: Any) -> str:
        return result.to_markdown().rstrip("\n") if self.as_markdown else super()._text(result, **view)


def run_cells(
    title: str,
    run: Callable[[], "list[Cell]"],
    shown: TableOptions,
    next_command: Callable[["list[Cell]"], str],
) -> typer.Exit:
    """Run the comparisons, print the table of their outcomes, and return what to raise."""
    from ..results._cells import CellTable

    with shown.progress(title):
        cells = run()
    return shown.finish(CellTable(tuple(cells), next_command(cells)))


EXAMINED = ("different", "incomplete", "failed")
# Not repeated when one comparison is examined; its labels say which it is.
_NOT_REPEATED = {"--json": 0, "--markdown": 0, "-q": 0, "--quiet": 0, "--traceback": 0, "matrix": 0, "sweep": 0}
_NOT_REPEATED |= {"-b": 1, "--backend": 1, "--dtype": 1, "--device": 1, "--dim": 1}
_NOT_REPEATED |= {"--executor": 1, "--ledger": 1, "--timeout": 1, "--again": 1}


def next_command(cells: Iterable["Cell"], factories: list[str]) -> str:
    """Return the command line that examines the first comparison that is not close; `""` if all are."""
    cell = next((cell for cell in cells if cell.status in EXAMINED), None)
    if cell is None:
        return ""
    options = {"backend": "-b", "dtype": "--dtype", "device": "--device"}
    named = [part for name, text in cell.labels.items() if name in options for part in (options[name], text)]
    dims = {name: text for name, text in cell.labels.items() if name not in ("model", *options)}
    sized = [part for name, size in dims.items() for part in ("--dim", f"{name}={size}")]
    not_repeated = _NOT_REPEATED | dict.fromkeys(factories, 0)
    return command_line(not_repeated, cell.labels.get("model", factories[0]), *named, *sized, command="check")
