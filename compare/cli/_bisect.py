"""The command that says which transformation is to blame: `filch bisect`."""

from pathlib import Path
from typing import Annotated, cast

import typer

from filch.export import Precision
from filch.export.passes import default_passes

from ..bisection import bisect
from ..common._errors import CompareError
from ..common._progress import progress
from ._options import Json, LimitOption, LowerPrecision, OptionList, Quiet, ToleranceOption, Wide, told_options


def bisect_command(
    reference: Annotated[Path, typer.Argument(help="A dump of the model.")],
    program: Annotated[Path, typer.Argument(help="An ONNX file.")],
    backend: Annotated[str, typer.Option("--backend", "-b", help="What runs the program.")] = "onnxruntime-cpu",
    tolerance: ToleranceOption = None,
    lower_precision: LowerPrecision = False,
    option: OptionList = None,
    node: Annotated[str | None, typer.Option(help="Judge this value of the graph, not the outputs.")] = None,
    optimized: Annotated[bool, typer.Option("--optimize", help="With the exporter's optimisations.")] = False,
    to: Annotated[str | None, typer.Option(help="Lower it first: float16, bfloat16, int8 or int4.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Leave out nothing but this; again for more.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Keep each run here, and go on from those that are.")] = None,
    python: Annotated[list[str] | None, typer.Option(help="One with another ONNX Runtime; again for more.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report as JSON.")] = None,
    limit: LimitOption = None,
    wide: Wide = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the smallest set of transformations that has to be left out for an error to go.

    Exits with 0 if there is no error, with 1 if there is one, whether something is to blame or not.
    """
    if output is not None and output.suffix != ".json":
        raise CompareError(f"what a bisection found is written as .json, not as {output.name!r}")
    with progress("bisect", quiet=quiet or as_json):
        found = bisect(
            reference,
            program,
            backend=backend,
            options=told_options(option),
            tolerance=tolerance,
            lower_precision=lower_precision,
            value=node,
            passes=default_passes() if optimized else None,
            to=cast("Precision | None", to),
            only=only,
            journal=journal,
            interpreters=python or (),
            limit=limit,
        )
    if output is not None:
        try:
            found.to_json(output)
        except OSError as error:
            raise CompareError(f"can't write {str(output)!r}: {error.strerror or error}") from error
    if not quiet:
        typer.echo(found.to_json() if as_json else found.table(wide=wide))
    raise typer.Exit(not found.close)
