"""The command that finds the transformations that cause an error: `filch bisect`."""

from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._command import usage_error
from ._output import echo_result


def bisect_command(
    reference: shared.Reference,
    program: shared.Program,
    backend: shared.Backend = "onnxruntime-cpu",
    tolerance: shared.Tolerance = None,
    lower_precision: shared.LowerPrecision = False,
    option: shared.Options = None,
    node: Annotated[str | None, typer.Option(help="Judge this value of the graph instead of the outputs.")] = None,
    optimized: shared.Optimized = False,
    to: Annotated[shared.Precision | None, typer.Option(help="Lower the program to this precision first.")] = None,
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
        raise usage_error(f"a bisection report is written as .json, not as {output.name!r}")
    options = shared.parse_options(option)
    from filch.export.passes import default_passes
    from filch.steal import writing

    from ..bisection import bisect
    from ..common._errors import CompareError
    from ..common._progress import progress

    with progress("bisect", quiet=quiet or as_json):
        report = bisect(
            reference,
            program,
            backend=backend,
            options=options,
            tolerance=tolerance,
            lower_precision=lower_precision,
            value=node,
            passes=default_passes() if optimized else None,
            to=None if to is None else to.value,
            only=only,
            journal=journal,
            interpreters=python or (),
            limit=limit,
        )
    if output is not None:
        with writing(output, CompareError):
            report.to_json(output)
    echo_result(report, as_json=as_json, quiet=quiet, wide=wide)
    raise typer.Exit(not report.close)
