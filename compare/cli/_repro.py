"""The command that writes a difference of a report as a standalone folder: `filch repro`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._output import Telling


def repro_command(
    report: Annotated[Path, typer.Argument(help="A report as JSON, as `filch compare … -o report.json` writes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to create.")],
    node: Annotated[
        str | None, typer.Option(help="A node or value of the report; default: the first to differ.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="The dump, if it moved since the report was made.")] = None,
    program: Annotated[Path | None, typer.Option(help="The ONNX file, if it moved.")] = None,
    option: shared.Options = None,
    limit: shared.Limit = None,
    *,
    telling: Telling,
) -> None:
    """Write a smallest part of a program that shows a difference, with a script that runs without Filch."""
    overrides = shared.parse_options(option)
    from filch.steal import NotADumpError

    from ..common._errors import CompareError
    from ..repro._write import write_repro
    from ..results._load_report import load_report
    from ._report_source import needs_inputs, recorded_file, row_to_reproduce, trusted_options

    loaded = load_report(report)
    if loaded.lower_precision:
        raise CompareError(f"no repro: {str(report)!r} was made with lower_precision, which allows differences")
    row, tolerance = row_to_reproduce(loaded, node)
    dump = recorded_file(reference, loaded.reference, "reference", "--reference DUMP")
    onnx_file = recorded_file(program, loaded.program, "program", "--program FILE")
    try:
        with telling.progress("repro"):
            repro = write_repro(
                dump,
                onnx_file,
                row.node,
                output,
                backend=loaded.backend,
                options=trusted_options(loaded, overrides),
                tolerance=tolerance,
                call=row.call,
                stage=row.stage,
                limit=limit,
            )
    except NotADumpError:
        raise needs_inputs(dump, onnx_file, loaded, output) from None
    telling.tell(f"written: {repro}")
    telling.tell(f"\nNext, show the error without Filch:\n  python {shlex.quote(str(repro.script))}")
