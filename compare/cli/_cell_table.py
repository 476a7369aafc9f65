"""Run the comparisons of `filch matrix`, `filch sweep` and `filch fleet`, and print the table of their outcomes."""

import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from ._command import command_line
from ._options import Accepting, OutputOptions
from ._output import echo_result, echo_unless

if TYPE_CHECKING:
    from ..results._cells import Cell


def run_cells(
    title: str,
    run: Callable[[], "list[Cell]"],
    accepting: Accepting,
    output: OutputOptions,
    next_command: Callable[["list[Cell]"], str],
) -> int:
    """Run the comparisons, print the table of their outcomes, and return the exit code."""
    from ..common._progress import progress
    from ..results._cells import CellTable

    reasons = accepting.reasons  # a file that can't be read is told before anything runs
    # Output of the user's own code must not mix with ours.
    with progress(title, quiet=output.quiet or output.as_json or output.as_markdown), redirect_stdout(sys.stderr):
        cells = run()
    table = CellTable(tuple(cells), next_command(cells), accepted=reasons)
    if output.as_markdown:
        echo_unless(output.quiet, table.to_markdown().rstrip("\n"))
    else:
        echo_result(table, as_json=output.as_json, quiet=output.quiet)
    return table.exit_code


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
