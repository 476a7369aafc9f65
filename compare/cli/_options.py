"""Options that several commands of `filch` share."""

from pathlib import Path
from typing import Annotated

import typer

from filch.steal import FilchError

from ..metrics._tolerance import ToleranceOption

_FACTORY = typer.Argument(
    help="package.module:factory or path.py:factory; it returns (model, args[, kwargs[, dynamic_shapes]])"
)
Factory = Annotated[str, _FACTORY]
OptionalFactory = Annotated[str | None, _FACTORY]
Factories = Annotated[list[str], _FACTORY]
Reference = Annotated[Path, typer.Argument(help="A dump of the model.")]
Program = Annotated[Path, typer.Argument(help="An ONNX file.")]
Backend = Annotated[str, typer.Option("--backend", "-b", help="Backend that runs the program.")]
Backends = Annotated[list[str], typer.Option("--backend", "-b", help="Backend that runs the program; may be repeated.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the backend, as name=value; may be repeated.")
]
Optimized = Annotated[bool, typer.Option("--optimize", help="Apply the exporter's optimizations.")]
Tolerance = Annotated[float | None, typer.Option(help="Largest harmonic error; by default it depends on the dtype.")]
ToleranceOrDefault = Annotated[
    str | None,
    typer.Option(
        "--tolerance",
        metavar="FLOAT|default",
        help="Judge by the largest harmonic error, or by the default of each dtype, instead of by float64.",
    ),
]
LowerPrecision = Annotated[
    bool, typer.Option("--lower-precision", help="Allow values of a coarser dtype than the model's, or quantized ones.")
]
EveryNode = Annotated[
    bool,
    typer.Option("--all", "--truth", help="Run every node in isolation, not only those with an unexplained error."),
]
Repeats = Annotated[int, typer.Option(help="Number of runs, which tell unstable values from wrong ones.")]
Blame = Annotated[
    Path | None, typer.Option("--blame", help="If a value differs, find the cause and write a repro to this folder.")
]
Limit = Annotated[
    float | None,
    typer.Option("--limit", help="Time limit of a run in seconds; by default 60, plus 60 for each GB of weights."),
]
Profile = Annotated[bool, typer.Option("--profile", help="Show the run time of each node beside its error.")]
View = Annotated[str, typer.Option(help="Table to print: nodes, operators, modules, outcomes or precision.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the report as .html, .json, .csv or .md; one file per backend."),
]
Statistics = Annotated[
    bool, typer.Option("--statistics", help="Statistics of each value and its reference; .html and .json have them.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; use the exit code.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print all rows and columns, however wide.")]


def parse_tolerance(text: str | None) -> ToleranceOption:
    """Return the tolerance that `ToleranceOrDefault` gives."""
    if text is None:
        return None
    if text == "default":
        return "default"
    try:
        return float(text)
    except ValueError:
        raise FilchError(f"--tolerance is a number or 'default', not {text!r}") from None


def parse_options(options: list[str] | None) -> dict[str, str]:
    """Split each `name=value`; the backend converts the values from text."""
    for option in options or ():
        if "=" not in option.partition(" ")[0]:
            raise FilchError(f"an option is written as name=value, not {option!r}")
    return dict(option.split("=", 1) for option in options or ())
