"""What several commands of `filch` take."""

from pathlib import Path
from typing import Annotated

import typer

from filch.steal import FilchError

FACTORY = "package.module:factory or path.py:factory; it returns (model, args[, kwargs[, dynamic_shapes]])"
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the exit code says it.")]
Wide = Annotated[bool, typer.Option("--wide", help="All rows and columns, however wide.")]
ToleranceOption = Annotated[float | None, typer.Option(help="Harmonic error allowed; by dtype if not given.")]
LowerPrecision = Annotated[
    bool, typer.Option("--lower-precision", help="Values may be of a coarser type than the model's, or quantised.")
]
TruthOption = Annotated[
    bool,
    typer.Option("--truth", help="Judge by float64, not by a tolerance, and run each node by itself, too."),
]
Repeats = Annotated[int, typer.Option(help="How often all is run: with --truth, what is unstable is told from wrong.")]
BlameOption = Annotated[
    Path | None, typer.Option("--blame", help="If something differs, find what is to blame, and write a repro there.")
]
LimitOption = Annotated[
    float | None,
    typer.Option(
        "--limit", help="Seconds a backend may take for a run; 60, and 60 for each GB of weights, if not given."
    ),
]
OptionList = Annotated[
    list[str] | None, typer.Option("--option", help="What the backend is told, as name=value; again for more.")
]


def told_options(given: list[str] | None) -> dict[str, str]:
    """`name=value` as it is written; each backend reads the values that are text."""
    for option in given or ():
        if "=" not in option.partition(" ")[0]:
            raise FilchError(f"an option is written as name=value, not {option!r}")
    return dict(option.split("=", 1) for option in given or ())
