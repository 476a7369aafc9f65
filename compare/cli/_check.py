"""The commands that compare a model: `filch check`, `filch compare`, `filch diff` and `filch demo`."""

import json
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _options as shared
from ._command import command_line, usage_error
from ._output import check_outputs, echo_result, echo_unless, needs_statistics, write_reports

if TYPE_CHECKING:
    from filch.export import Program

    from ..results._report import Report

_NOT_REPEATED = {"-q": 0, "--quiet": 0, "--json": 0, "--all": 0, "--wide": 0, "--traceback": 0, "--view": 1, "-o": 1}
_NOT_REPEATED |= {"--output": 1, "--blame": 1, "-b": 1, "--backend": 1}


def demo_command(folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo")) -> None:
    """Record, export and compare a tiny language model."""
    from filch.export import export
    from filch.steal import steal_forward

    from .._compare import compare
    from ..common._progress import progress
    from ..models._demo import tiny_llm

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
    echo_result(report)
    echo_unless(False, "\nwritten:" + "".join(f"\n  {path}" for path in sorted(folder.iterdir())))
    raise typer.Exit(report.exit_code)


def compare_command(
    first: shared.First,
    second: shared.Second,
    inputs: shared.Inputs = None,
    seed: shared.Seed = 0,
    shape: shared.Shapes = None,
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
    mapping: Annotated[
        Path | None, typer.Option(help="The dump is of another implementation: the TOML file of `filch align`.")
    ] = None,
    output: shared.Outputs = None,
    view: shared.ViewOption = shared.TableView.summary,
    all_rows: shared.All = False,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    *,
    accepting: shared.Accepting,
) -> None:
    """Compare an ONNX program with a dump of the model, or with another ONNX program, or two dumps."""
    check_outputs(output)
    shapes, accepted = shared.parse_shapes(shape), accepting.reasons
    from .._compare_files import compare_files
    from ..common._errors import CompareError
    from ..common._progress import progress
    from ..results._report import Report

    with progress("compare", quiet=quiet or as_json):
        result = compare_files(
            first,
            second,
            inputs=inputs,
            seed=seed,
            shapes=shapes,
            backend=backend,
            options=shared.parse_options(option),
            tolerance=shared.parse_tolerance(tolerance),
            profile=profile,
            truth="float64" if every_node else None,
            repeats=repeats,
            limit=limit,
            lower_precision=lower_precision,
            statistics=needs_statistics(output, requested=statistics),
            blame_folder=blamed,
            mapping=mapping,
        )
    result = replace(result, accepted=accepted)
    if isinstance(result, Report):
        result = _with_command(result)
        options = _table_options(view, all_rows=all_rows, wide=wide)
    elif output:
        raise CompareError("two dumps make no report to write: use --json")
    else:
        options = {"all_rows": all_rows, "wide": wide}
    echo_result(result, as_json=as_json, quiet=quiet, **options)
    if isinstance(result, Report):
        write_reports([result], output, quiet=quiet or as_json)
    raise typer.Exit(result.exit_code)


def diff_command(
    reference: Annotated[str, typer.Argument(help="A dump, or the pattern of the dumps of several processes.")],
    other: Annotated[
        list[str], typer.Argument(help="The dump to compare with it; those of several processes, or their pattern.")
    ],
    tolerance: shared.Tolerance = None,
    layout: shared.Layout = None,
    save_layout: Annotated[
        Path | None, typer.Option(help="Write how the plain tensors of several processes belong together.")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="Compare two implementations: the TOML file that `filch align` has written.")
    ] = None,
    all_rows: shared.All = False,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    *,
    accepting: shared.Accepting,
) -> None:
    """Compare two dumps, or several processes with one; no model is needed."""
    from filch.steal import Layouts, NotADumpError, load_layouts, save_layouts

    from .._diff import diff
    from ..common._errors import CompareError

    layouts, accepted = load_layouts(layout) if layout else Layouts(), accepting.reasons
    try:
        result = diff(reference, other, tolerance=tolerance, layouts=layouts, mapping=mapping)
    except NotADumpError as error:
        command = shlex.join(["filch", "compare", reference, *other])
        raise CompareError(f"{error}; `{command}` compares programs, too") from None
    if save_layout is not None:
        save_layouts(replace(layouts, learned={**layouts.learned, **result.learned}), save_layout)
    result = replace(result, accepted=accepted)
    echo_result(result, as_json=as_json, quiet=quiet, all_rows=all_rows, wide=wide)
    raise typer.Exit(result.exit_code)


def check_command(
    factory: shared.Factory,
    file: Annotated[
        Path | None,
        typer.Option("--program", help="Check this ONNX file of another tool instead of exporting the model."),
    ] = None,
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    tolerance: shared.ToleranceOrDefault = None,
    lower_precision: shared.LowerPrecision = False,
    optimized: shared.Optimized = False,
    option: shared.Options = None,
    dtype: Annotated[str | None, typer.Option(help="Cast the model and its inputs to this dtype first.")] = None,
    device: Annotated[str | None, typer.Option(help="Run the model on this device.")] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension, as batch=7; may be repeated."),
    ] = None,
    profile: shared.Profile = False,
    every_node: shared.EveryNode = False,
    repeats: shared.Repeats = 1,
    blamed: shared.Blame = None,
    limit: shared.Limit = None,
    statistics: shared.Statistics = False,
    output: shared.Outputs = None,
    view: shared.ViewOption = shared.TableView.summary,
    all_rows: shared.All = False,
    wide: shared.Wide = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    *,
    accepting: shared.Accepting,
) -> None:
    """Record, export and compare a model on one backend or several."""
    check_outputs(output)
    if file is not None and optimized:
        raise usage_error("--optimize is for the exported model, not for the file of --program")
    sizes = {name: size for name, (size, *_) in shared.parse_sizes(dim or []).items()}
    accepted = accepting.reasons
    from filch.export import optimize
    from filch.export.backends import get_backend
    from filch.steal import phase

    from .._blame import blame
    from .._compare_export import compare_with_fallback
    from .._load_quantized import load_quantized
    from .._map_to_export import map_to_export
    from ..common._progress import progress
    from ..models._variants import make_variant

    # Output of the user's own code must not mix with ours.
    with progress("check", quiet=quiet or as_json), redirect_stdout(sys.stderr):
        for name in backend:
            get_backend(
                name, **shared.parse_options(option)
            )  # report a missing library or a misspelt option before the export
        exported, recorded = make_variant(factory, sizes=sizes, dtype=dtype, device=device)
        notes = load_quantized(exported.model, file) if file is not None and lower_precision else ()
        program = exported.export(onnx_only=file is not None or optimized)
        program = optimize(program) if optimized else program
        capture = recorded.steal()
        if file is not None:
            program = map_to_export(file, program, capture, lower_precision=lower_precision, limit=limit)
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
    reports = [replace(_with_command(report), accepted=accepted) for report in reports]
    if file is not None:
        reports = [replace(report, reference=factory, notes=(*notes, *report.notes)) for report in reports]
    if as_json:
        typer.echo(json.dumps([json.loads(report.to_json()) for report in reports], indent=1))
    elif not quiet:
        for number, report in enumerate(reports):
            typer.echo("\n" if number else "", nl=False)
            echo_result(report, **_table_options(view, all_rows=all_rows, wide=wide))
    write_reports(reports, output, quiet=quiet or as_json)
    raise typer.Exit(max(report.exit_code for report in reports))


def _with_command(report: "Report") -> "Report":
    """Return the report with the command line that makes it, for the next command that it suggests."""
    backend = () if report.backend == shared.DEFAULT_BACKEND else ("-b", report.backend)
    return replace(report, command=command_line(_NOT_REPEATED, *backend))


def _table_options(view: shared.TableView, *, all_rows: bool, wide: bool) -> dict[str, Any]:
    return {"view": "nodes" if all_rows and view is shared.TableView.summary else str(view), "wide": wide}
