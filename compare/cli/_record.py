"""The commands that record and draw: `filch steal`, `assemble`, `export`, `show`, `view`, `trace` and `recover`."""

import json
import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import filch

from . import _options as shared
from ._output import Printing, Telling


def show_command(
    file: Annotated[Path, typer.Argument(help="A dump, or any ONNX program.")],
    statistics: Annotated[bool, typer.Option(help="Minimum, maximum, mean, NaNs and infs of each tensor.")] = False,
    as_json: shared.Json = False,
) -> None:
    """List the records of a dump, or print a program's graph as text."""
    from rich.filesize import decimal

    from ..rendering._console import echo

    try:
        dump = filch.restore(file)
    except filch.steal.NotADumpError:
        typer.echo(filch.read_graph(file).text(modules=True))
        return
    rows: list[dict[str, Any]] = [
        {
            "key": list(key),
            "module": dump.modules[key.name].type_name if key.name in dump.modules else None,
            "value": filch.describe(value, statistics=statistics),
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
    compress: shared.Compress = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print each call.")] = False,
    *,
    telling: Telling,
) -> None:
    """Run a model and record the inputs and outputs of all its modules."""
    from rich.filesize import decimal

    from ..models._factory import make_subject

    subject = make_subject(factory)
    with (
        nullcontext() if verbose else telling.progress("recording"),
        filch.steal_forward(
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
    dump = filch.recover(file, to)
    telling.tell(f"written: {dump.source}: {len(dump)} values")


def assemble_command(
    files: Annotated[list[str], typer.Argument(help="The dumps of all processes, or their pattern.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The dump to write.")],
    layout: shared.Layout = None,
    compress: shared.Compress = False,
    *,
    telling: Telling,
) -> None:
    """Put the dumps of several processes together: one dump with the global values."""
    from filch.steal.ranks._write import write_assembled

    with telling.progress("assemble"):
        records = filch.assemble(files, layouts=filch.load_layouts(layout) if layout else filch.Layouts())
        write_assembled(records, output, compress=compress)
    dump = filch.restore(output)
    skipped = sum(len(filch.steal.missing_tensors(value)) for value in dump.values())
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
    from ..models._factory import make_subject

    with telling.progress("export"):
        program = make_subject(factory).export(onnx_only=True)
        program = filch.optimize(program) if optimized else program
        program.save(output)
    ports = [port for call in program.module_calls.values() for port in call.outputs]
    counts = Counter[str](port.resolution for port in ports)
    kinds = ("exact", "alias", "constant", "fused", "dead")  # see `Port.resolution`
    resolutions = ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])
    files = ", ".join(map(str, (output, *sorted(output.parent.glob(f"{output.name}.*")))))  # with large weights
    telling.tell(f"written: {files}; {len(program.module_calls)} module calls, their outputs {resolutions}")


def view_command(
    source: Annotated[
        str, typer.Argument(help="A model (path.py:factory, an ONNX file, torch.export's .pt2) or a report's JSON.")
    ],
    view: Annotated[
        str | None,
        typer.Option("--as", help=f"The view: {', '.join(shared.VIEWS)}; by default chosen by --output's suffix."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; the text view is printed if not given.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", "-b", metavar="NAME", help="Draw the graph that this backend compiles."),
    ] = None,
    option: shared.Options = None,
    optimized: shared.Optimized = False,
    train: Annotated[bool, typer.Option("--train", help="Draw a training step, as inductor or eager runs it.")] = False,
    stage: Annotated[
        str | None, typer.Option(help="The graph of a report or backend to draw: exported or compiled.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The ONNX file of a report, if it moved.")] = None,
    served: Annotated[
        bool, typer.Option("--serve", help="Serve the file with the netron package until Ctrl-C.")
    ] = False,
    *,
    telling: Telling,
) -> None:
    """Draw a model's graph, or a report on it."""
    options = shared.parse_options(option)
    from filch.export.views import draw, get_view, serve, write

    from ._graph_source import default_output, graph_of_source, graph_of_stage, training_graph, view_name

    name = view_name("netron" if served and view is None else view, output)
    target = output or default_output(source, name)
    if os.path.realpath(target) == os.path.realpath(source):
        raise filch.CompareError(f"--output would overwrite the input {source!r}: give another name")
    get_view(name, target.suffix or None)  # before minutes of exporting
    printed = name == "text" and output is None and not served
    with replace(telling, quiet=telling.quiet or printed).progress("view"):
        if train:
            graph = training_graph(source, backend, options, optimized=optimized)
        else:
            graph = graph_of_source(source, backend, options, optimized=optimized, model=model)
        graph = graph_of_stage(graph, stage, name)
        drawing = draw(graph, name, None if printed else target.suffix or None)
        written = target if printed else write(drawing, target)
    if printed:
        typer.echo(drawing.content.decode("utf-8").rstrip("\n"))
    else:
        telling.tell(f"written: {written}" + (f"\nnote: {drawing.note}" if drawing.note else ""))
    if served:
        with serve(written) as server:
            telling.tell(f"netron serves it at {server.url}; press Ctrl-C to stop")
            server.wait()


def trace_command(
    factory: shared.Factory,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .pkl to write, with a .json beside it, or a .json.")
    ],
    train: Annotated[
        bool, typer.Option("--train", help="Trace a training step: loss is the sum of squares, optimizer SGD(0.1).")
    ] = False,
    backend: Annotated[
        str, typer.Option("--backend", "-b", help="Backend that runs the model: inductor or eager.")
    ] = "inductor",
    *,
    printing: Printing,
) -> None:
    """Trace every operation of a call or training step, and the generated code that ran it."""
    from filch.export.views import get_view

    from ..models._factory import make_subject

    if output.suffix not in get_view("trace").suffixes:  # before minutes of compiling
        raise filch.CompareError(f"a trace is written to a .pkl or a .json, not to {str(output)!r}")
    with printing.progress("trace"):
        subject = make_subject(factory)
        if train:
            subject.model.train()
        traced = filch.trace(subject.model, subject.args, kwargs=subject.kwargs, train=train, backend=backend)
        written = filch.save_trace(traced, output)
    files, counts = [str(path) for path in written], _count_parts(traced)
    printing.tell(f"written: {', '.join(files)}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    if printing.as_json:
        typer.echo(json.dumps({"written": files, **counts}, indent=1))


def _count_parts(traced: dict[str, dict[int, dict[str, Any]]]) -> dict[str, int]:
    """Count the nodes, executions and files of generated code in a trace (see `trace` for its format)."""
    attributes = [node["attrs"] for node in traced["node_data"].values()]
    operators = [item for item in attributes if item["is_var"] == "0"]  # the other nodes are variables
    executions = traced["execute_op_info"].values()
    return {
        "operators": len(operators),
        "gradients": sum("grad_op_id" in item for item in operators),
        "variables": len(attributes) - len(operators),
        "executions": len(executions),
        "generated": len({item["file_path"] for item in executions} - {""}),  # eager PyTorch generates no file: ""
    }
