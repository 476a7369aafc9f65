"""The command that finds the transformations that cause an error: `filch bisect`."""

from pathlib import Path
from typing import Annotated, cast

import typer

from filch.export import Precision
from filch.export.passes import default_passes

from ..bisection import bisect
from ..common._errors import CompareError
from ..common._progress import progress
from . import _options as shared


def bisect_command(
    reference: shared.Reference,
    program: shared.Program,
    backend: shared.Backend = "onnxruntime-cpu",
    tolerance: shared.Tolerance = None,
    lower_precision: shared.LowerPrecision = False,
    option: shared.Options = None,
    node: Annotated[str | None, typer.Option(help="Judge this value of the graph instead of the outputs.")] = None,
    optimized: shared.Optimized = False,
    to: Annotated[str | None, typer.Option(help="Lower to float16, bfloat16, int8 or int4 first.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Disable only this transformation; repeatable.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Record each run in this file, and resume from it.")] = None,
    python: Annotated[list[str] | None, typer.Option(help="Python with another ONNX Runtime; repeatable.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report as JSON.")] = None,
    limit: shared.Limit = None,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Find a smallest set of transformations that has to be disabled for an error to disappear.

    Exits with 0 if there is no error, and with 1 if there is one, whether or not its cause was found.
    """
    if output is not None and output.suffix != ".json":
        raise CompareError(f"a bisection report is written as .json, not as {output.name!r}")
    with progress("bisect", quiet=quiet or as_json):
        report = bisect(
            reference,
            program,
            backend=backend,
            options=shared.parse_options(option),
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
            report.to_json(output)
        except OSError as error:
            raise CompareError(f"can't write {str(output)!r}: {error.strerror or error}") from error
    if not quiet:
        typer.echo(report.to_json() if as_json else report.table(wide=wide))
    raise typer.Exit(not report.close)
