"""The command line: `filch`."""

import json
import os
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from filch import __version__
from filch.export import Program, end_process_if_stuck, export, optimize, read_graph
from filch.export.backends import get_backend
from filch.steal import FilchError, NotADumpError, describe, phase, recover, restore, steal_forward
from filch.steal.text import for_terminal

from .._blame import blame
from .._compare import compare
from .._compare_export import compare_with_fallback
from .._diff import diff
from ..common._progress import progress
from ..models._demo import tiny_llm
from ..models._factory import make_subject
from ..rendering._console import echo
from ..results._report import Report
from . import _options as shared
from ._batch import matrix_command, precision_command, sweep_command
from ._bisect import bisect_command
from ._output import check_output, needs_statistics, write_reports
from ._passes import passes_command
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


@app.command()
def demo(folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo")) -> None:
    """Record, export and compare a tiny language model."""
    folder.mkdir(parents=True, exist_ok=True)
    dump, onnx_file = folder / "tiny_llm.dump.onnx", folder / "tiny_llm.onnx"
    model, args, shapes = tiny_llm(dynamic_shapes=True)
    with progress("demo"):
        with steal_forward(model, submodules=True, dump_file=dump):
            model(*args)
        export(model, args, dynamic_shapes=shapes).save(onnx_file)
        report = compare(dump, onnx_file, statistics=True)
        report.to_json(folder / "report.json")
        report.to_html(folder / "report.html")
    typer.echo(report.table())
    typer.echo("\nwritten:")
    for path in sorted(folder.iterdir()):
        echo(f"  {path}")
    raise typer.Exit(not report.close)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A dump, or any ONNX program.")],
    statistics: Annotated[bool, typer.Option(help="Minimum, maximum, mean, NaNs and infs of each tensor.")] = False,
    as_json: shared.Json = False,
) -> None:
    """List the records of a dump, or print a program's graph as text."""
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


@app.command()
def steal(
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
    quiet: shared.Quiet = False,
) -> None:
    """Run a model and record the inputs and outputs of all its modules."""
    subject = make_subject(factory)
    with (
        progress("recording", quiet=quiet or verbose),
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
            verbose=int(verbose and not quiet),
        ) as capture,
    ):
        subject.run()
    totals = capture.totals
    sizes = f"{decimal(totals.nbytes)} stored, {decimal(totals.shared)} of duplicates not stored again"
    _echo_unless(quiet, f"written: {output}: {totals.records} values, {sizes}")


@app.command("recover")
def recover_command(
    file: Annotated[Path, typer.Argument(help="Path of the dump that the capture should have written.")],
    to: Annotated[Path | None, typer.Option(help="File to write, in the same folder.")] = None,
    quiet: shared.Quiet = False,
) -> None:
    """Recover a dump from the files of a capture that was killed."""
    dump = recover(file, to)
    _echo_unless(quiet, f"written: {dump.source}: {len(dump)} values")


@app.command("export")
def export_command(
    factory: shared.Factory,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    optimized: shared.Optimized = False,
    quiet: shared.Quiet = False,
) -> None:
    """Export a model to ONNX, with a record of its module calls."""
    with progress("export", quiet=quiet):
        program = make_subject(factory).export()
        program = optimize(program) if optimized else program
        program.save(output)
    ports = [port for call in program.module_calls.values() for port in call.outputs]
    counts = Counter[str](port.resolution for port in ports)
    kinds = ("exact", "alias", "constant", "fused", "dead")
    resolutions = ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])
    files = ", ".join(map(str, (output, *sorted(output.parent.glob(f"{output.name}.*")))))
    _echo_unless(quiet, f"written: {files}; {len(program.module_calls)} module calls, their outputs {resolutions}")


@app.command("compare")
def compare_command(
    reference: shared.Reference,
    program: shared.Program,
    backend: shared.Backend = "onnxruntime-cpu",
    tolerance: shared.ToleranceOrDefault = None,
    lower_precision: shared.LowerPrecision = False,
    option: shared.Options = None,
    profile: shared.Profile = False,
    every_node: shared.EveryNode = False,
    repeats: shared.Repeats = 1,
    blamed: shared.Blame = None,
    limit: shared.Limit = None,
    statistics: shared.Statistics = False,
    output: shared.Output = None,
    view: shared.View = "nodes",
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Compare the values that an ONNX file computes with a dump of the model."""
    _check_view(view)
    check_output(output)
    with progress("compare", quiet=quiet or as_json):
        report = compare(
            reference,
            program,
            backend=backend,
            options=shared.parse_options(option),
            tolerance=shared.parse_tolerance(tolerance),
            profile=profile,
            truth="float64" if every_node else None,
            repeats=repeats,
            limit=limit,
            lower_precision=lower_precision,
            statistics=needs_statistics(output, requested=statistics),
        )
        report = report if blamed is None else blame(report, reference, program, blamed, limit=limit)
    if not quiet:
        typer.echo(report.to_json() if as_json else report.table(view, wide=wide))
    _write([report], output, quiet=quiet or as_json)
    raise typer.Exit(not report.close)


@app.command("diff")
def diff_command(
    expected: Annotated[Path, typer.Argument(help="A dump.")],
    actual: Annotated[Path, typer.Argument(help="The dump to compare with it.")],
    tolerance: shared.Tolerance = None,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Compare two dumps; no model is needed."""
    result = diff(expected, actual, tolerance=tolerance)
    if not quiet:
        typer.echo(result.to_json() if as_json else result.table(wide=wide))
    raise typer.Exit(not result.close)


@app.command()
def check(
    factory: shared.Factory,
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    tolerance: shared.ToleranceOrDefault = None,
    lower_precision: shared.LowerPrecision = False,
    optimized: shared.Optimized = False,
    option: shared.Options = None,
    profile: shared.Profile = False,
    every_node: shared.EveryNode = False,
    repeats: shared.Repeats = 1,
    blamed: shared.Blame = None,
    limit: shared.Limit = None,
    statistics: shared.Statistics = False,
    output: shared.Output = None,
    view: shared.View = "nodes",
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Record, export and compare a model on one backend or several."""
    _check_view(view)
    check_output(output)
    reports: list[Report] = []
    # Output of the user's own code must not mix with ours.
    with progress("check", quiet=quiet or as_json), redirect_stdout(sys.stderr):
        for name in backend:
            get_backend(name, **shared.parse_options(option))  # report a misspelt name before the export
        subject = make_subject(factory)
        program = subject.export()
        program = optimize(program) if optimized else program
        capture = subject.steal()
        compared: list[tuple[Report, Program]] = []
        with phase("backend", len(backend)) as backends:
            for name in backend:
                backends.next(name)
                compared.append(
                    compare_with_fallback(
                        capture,
                        program,
                        backend=name,
                        options=shared.parse_options(option),
                        tolerance=shared.parse_tolerance(tolerance),
                        lower_precision=lower_precision,
                        profile=profile,
                        truth="float64" if every_node else None,
                        repeats=repeats,
                        limit=limit,
                        statistics=needs_statistics(output, requested=statistics),
                    )
                )
        reports = [report for report, _ in compared]
        if blamed is not None:
            folders = [blamed / name if len(reports) > 1 else blamed for name in backend]
            reports = [
                blame(report, capture, compared_program, folder, limit=limit)
                for (report, compared_program), folder in zip(compared, folders, strict=True)
            ]
    if as_json and not quiet:
        typer.echo(json.dumps([json.loads(report.to_json()) for report in reports], indent=1))
    elif not quiet:
        typer.echo("\n\n".join(report.table(view, wide=wide) for report in reports))
        for report in reports if len(reports) > 1 else ():
            echo("\n" + textwrap.fill(f"{report.backend}: {report.headline()}; {' '.join(report.verdict())}", 80))
    _write(reports, output, quiet=quiet or as_json)
    raise typer.Exit(not all(report.close for report in reports))


app.command("bisect")(bisect_command)
app.command("matrix")(matrix_command)
app.command("sweep")(sweep_command)
app.command("precision")(precision_command)
app.command("passes")(passes_command)
app.command("repro")(repro_command)
app.command("view")(view_command)
app.command("trace")(trace_command)


def _check_view(view: str) -> None:
    if view not in ("nodes", "operators", "modules", "outcomes", "precision"):
        raise FilchError(f"there is no view {view!r}; choose nodes, operators, modules, outcomes or precision")


def _write(reports: Sequence[Report], output: Path | None, *, quiet: bool) -> None:
    if output is not None:
        written = write_reports(reports, output)
        _echo_unless(quiet, f"\nwritten: {', '.join(map(str, written))}")


def _echo_unless(quiet: bool, text: str) -> None:
    if not quiet:
        echo(text)


def main() -> None:
    """Run the command line; every error exits with code 2, so that 1 always means 'different'."""
    try:
        with end_process_if_stuck():
            app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (FilchError, OSError) as error:
        sys.stderr.write(for_terminal(f"filch: {error}\n"))
    except Exception:  # noqa: BLE001  Python would exit with 1, which means a difference here
        sys.stderr.write(for_terminal(traceback.format_exc()))
    sys.exit(2)
