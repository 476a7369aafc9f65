"""The command line: `filch`.

Only the commands' options are defined here and in the modules of the commands. What is slow to import, torch above all,
is imported when a command runs, so that `filch --help`, completion and the message about a typo take no second.
"""

from types import ModuleType
from typing import Annotated

import typer

from ..common._streams import checked_output, show_all_characters
from . import _cause, _compare, _many, _record
from ._command import as_command
from ._versions import version_lines

app = typer.Typer(
    help=(
        "Record every intermediate tensor of a PyTorch model, and find the node of its exported or compiled graph that "
        "computes a different value. Exit codes: 0 if all values are close, 1 if one differs, 2 for errors."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print all versions and exit.")
    ] = False,
) -> None:
    pass


_COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "Compare": (_compare, "demo check compare diff align decode invariance"),
    "Find the cause": (_cause, "bisect repro passes precision"),
    "Compare many": (_many, "matrix sweep fleet history"),
    "Record and draw": (_record, "steal assemble export show view trace recover"),
}
for _panel, (_module, _names) in _COMMANDS.items():
    for _name in _names.split():
        app.command(_name, rich_help_panel=_panel)(as_command(getattr(_module, f"{_name}_command")))


def main() -> None:
    """Run the command line; every error exits with code 2, so that 1 always means 'different'."""
    show_all_characters()
    with checked_output():
        app()
