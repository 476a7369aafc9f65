"""The command that shows what became wrong over many runs: `filch history`."""

from pathlib import Path
from typing import Annotated

import typer

from ._command import command_line
from ._output import Accepting


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
    command = "" if output is not None else command_line(_NOT_REPEATED, "-o", "site")
    found = history(rows, ledgers=[*map(str, ledgers)], notes=notes, command=command)
    written = write_site(found, output) if output is not None else []
    code = shown.finish(found)
    if written:
        shown.tell(f"\nwritten: {', '.join(map(str, written))}")
    raise code


_NOT_REPEATED = {"--json": 0, "--all": 0, "--wide": 0, "-q": 0, "--quiet": 0, "--traceback": 0}
