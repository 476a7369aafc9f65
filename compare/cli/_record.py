"""The commands that record, export and list: `filch steal`, `filch recover`, `filch export` and `filch show`."""

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as shared
from ._output import Telling


def show_command(
    file: Annotated[Path, typer.Argument(help="A dump, or any ONNX program.")],
    statistics: Annotated[bool, typer.Option(help="Minimum, maximum, mean, NaNs and infs of each tensor.")] = False,
    as_json: shared.Json = False,
) -> None:
    """List the records of a dump, or print a program's graph as text."""
    from rich.filesize import decimal

    from filch.export import read_graph
    from filch.steal import NotADumpError, describe, restore

    from ..rendering._console import echo

    try:
        dump = restore(file)
    except NotADumpError:
        typer.echo(read_graph(file).text(modules=True))
        return
    rows: list[dict[str, Any]] = [
        {
            "key": list(key),
            "module": dump.modules[key.name].type_name if key.name in dump.modules else None,
            "value": describe(value, statistics=statistics),
            "bytes": dump.nbytes(key),
        }
        for key, value in dump.items()
    ]
    if as_json:
        typer.echo(json.dumps({"environment": dump.environment, "records": rows}, indent=1))
        return
    for row in rows:
        echo(f"{tuple(row['key'])} -- {row['value']} -- {decimal(row['bytes'])}")
    size = decimal(sum(row["bytes"] for row in rows))
    version, time = (dump.environment.get(name, "?") for name in ("torch", "time"))
    echo(f"{len(rows)} values, {size}; torch {version}, {time}")


def steal_command(
    factory: shared.Factory,
    output: Annotated[Path, typer.Option("--output", "-o", help="The dump to write.")],
    include: Annotated[
        list[str] | None, typer.Option(help="Record only the submodules of these names (* and **).")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Skip the submodules of these names.")] = None,
    storage_limit: Annotated[int | None, typer.Option(help="Skip tensors of more bytes.")] = None,
    total_limit: Annotated[int | None, typer.Option(help="Skip tensors once this many bytes are stored.")] = None,
    statistics_only: Annotated[
        bool, typer.Option("--statistics-only", help="Store no tensors, only their statistics.")
    ] = False,
    compress: Annotated[bool, typer.Option("--compress", help="Write a smaller dump; slower.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print each call.")] = False,
    *,
    telling: Telling,
) -> None:
    """Run a model and record the inputs and outputs of all its modules."""
    from rich.filesize import decimal

    from filch.steal import steal_forward

    from ..models._factory import make_subject

    subject = make_subject(factory)
    with (
        nullcontext() if verbose else telling.progress("recording"),
        steal_forward(
            subject.model,
            submodules=True,
            include=include,
            exclude=exclude,
            storage_limit=storage_limit,
            total_limit=total_limit,
            statistics_only=statistics_only,
            compress=compress,
            dump_file=output,
            on_error="raise",
            verbose=int(verbose and not telling.quiet),
        ) as capture,
    ):
        subject.run()
    totals = capture.totals
    sizes = f"{decimal(totals.nbytes)} stored, {decimal(totals.shared)} of duplicates not stored again"
    telling.tell(f"written: {output}: {totals.records} values, {sizes}")


def recover_command(
    file: Annotated[Path, typer.Argument(help="Path of the dump that the capture should have written.")],
    to: Annotated[Path | None, typer.Option(help="File to write, in the same folder.")] = None,
    *,
    telling: Telling,
) -> None:
    """Recover a dump from the files of a capture that was killed."""
    from filch.steal import recover

    dump = recover(file, to)
    telling.tell(f"written: {dump.source}: {len(dump)} values")


def assemble_command(
    files: Annotated[list[str], typer.Argument(help="The dumps of all processes, or their pattern.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The dump to write.")],
    layout: shared.Layout = None,
    compress: Annotated[bool, typer.Option("--compress", help="Write a smaller dump; slower.")] = False,
    *,
    telling: Telling,
) -> None:
    """Put the dumps of several processes together: one dump with the global values."""
    from filch.steal import Layouts, assemble, load_layouts, missing_tensors, restore
    from filch.steal.ranks._write import write_assembled

    with telling.progress("assemble"):
        records = assemble(files, layouts=load_layouts(layout) if layout else Layouts())
        write_assembled(records, output, compress=compress)
    dump = restore(output)
    skipped = sum(len(missing_tensors(value)) for value in dump.values())
    unknown = f"; {skipped} tensors have no known layout (see --layout)" if skipped else ""
    telling.tell(f"written: {output}: {len(dump)} values of {len(records.dumps)} processes{unknown}")


def export_command(
    factory: shared.Factory,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    optimized: shared.Optimized = False,
    *,
    telling: Telling,
) -> None:
    """Export a model to ONNX, with a record of its module calls."""
    from filch.export import optimize

    from ..models._factory import make_subject

    with telling.progress("export"):
        program = make_subject(factory).export(onnx_only=True)
        program = optimize(program) if optimized else program
        program.save(output)
    ports = [port for call in program.module_calls.values() for port in call.outputs]
    counts = Counter[str](port.resolution for port in ports)
    kinds = ("exact", "alias", "constant", "fused", "dead")
    resolutions = ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])
    files = ", ".join(map(str, (output, *sorted(output.parent.glob(f"{output.name}.*")))))
    telling.tell(f"written: {files}; {len(program.module_calls)} module calls, their outputs {resolutions}")
