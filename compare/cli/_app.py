"""The command line: `filch`.

Only the commands' options are defined here and in the modules of the commands. What is slow to import, torch above all,
is imported when a command runs, so that `filch --help`, completion and the message about a typo take no second.
"""

from typing import Annotated

import typer

from filch import __version__

from ..common._streams import checked_output, show_all_characters
from ._align import align_command
from ._batch import matrix_command, precision_command, sweep_command
from ._bisect import bisect_command
from ._check import check_command, compare_command, demo_command, diff_command
from ._command import as_command
from ._decoding import decode_command, invariance_command
from ._fleet import fleet_command
from ._history import history_command
from ._passes import passes_command
from ._record import assemble_command, export_command, recover_command, show_command, steal_command
from ._repro import repro_command
from ._trace import trace_command
from ._view import view_command

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
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


_COMMANDS = {
    "Compare": (
        demo_command,
        check_command,
        compare_command,
        diff_command,
        align_command,
        decode_command,
        invariance_command,
    ),
    "Find the cause": (bisect_command, repro_command, passes_command, precision_command),
    "Compare many": (matrix_command, sweep_command, fleet_command, history_command),
    "Record and draw": (
        steal_command,
        assemble_command,
        export_command,
        show_command,
        view_command,
        trace_command,
        recover_command,
    ),
}
for _panel, _functions in _COMMANDS.items():
    for _function in _functions:
        _name = _function.__name__.removesuffix("_command")
        app.command(_name, rich_help_panel=_panel)(as_command(_function))


def main() -> None:
    """Run the command line; every error exits with code 2, so that 1 always means 'different'."""
    show_all_characters()
    with checked_output():
        app()
