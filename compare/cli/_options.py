"""Options that several commands of `filch` share."""

from pathlib import Path
from typing import Annotated

import typer

from filch.steal import FilchError

FACTORY = "package.module:factory or path.py:factory; it returns (model, args[, kwargs[, dynamic_shapes]])"
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; use the exit code.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print all rows and columns, however wide.")]
ToleranceOption = Annotated[
    float | None, typer.Option(help="Largest harmonic error; by default it depends on the dtype.")
]
LowerPrecision = Annotated[
    bool, typer.Option("--lower-precision", help="Allow values of a coarser dtype than the model's, or quantised ones.")
]
TruthOption = Annotated[
    bool,
    typer.Option("--truth", help="Judge by float64 instead of a tolerance, and run each node in isolation too."),
]
Repeats = Annotated[int, typer.Option(help="Number of runs; with --truth, they tell unstable values from wrong ones.")]
BlameOption = Annotated[
    Path | None, typer.Option("--blame", help="If a value differs, find the cause and write a repro to this folder.")
]
LimitOption = Annotated[
    float | None,
    typer.Option("--limit", help="Time limit of a run in seconds; by default 60, plus 60 for each GB of weights."),
]
OptionList = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the backend, as name=value; may be repeated.")
]


def parse_options(options: list[str] | None) -> dict[str, str]:
    """Split each `name=value`; the backend converts the values from text."""
    for option in options or ():
        if "=" not in option.partition(" ")[0]:
            raise FilchError(f"an option is written as name=value, not {option!r}")
    return dict(option.split("=", 1) for option in options or ())
