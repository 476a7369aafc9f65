"""The commands that compare a model: `filch check`, `filch compare`, `filch diff` and `filch demo`."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from . import _options as shared
from ._command import command_line, usage_error
from ._options import Comparing
from ._output import Judged, Showing, Telling

if TYPE_CHECKING:
    from filch.export import Program

    from ..rendering._result import Result
    from ..results._report import Report

_NOT_REPEATED = {"-q": 0, "--quiet": 0, "--json": 0, "--all": 0, "--wide": 0, "--traceback": 0, "--view": 1, "-o": 1}
_NOT_REPEATED |= {"--output": 1, "--blame": 1, "-b": 1, "--backend": 1}


@dataclass(frozen=True)
class ReportOptions(Judged):
    """How a report is printed and written."""

    formats: ClassVar[tuple[str, ...]] = (".csv", *Judged.formats)
    hint: ClassVar[str] = "; see `filch view`"

    def needs_statistics(self, comparing: Comparing) -> bool:
        """Return whether statistics are wanted: pages show them, and pages are made from JSON."""
        return comparing.statistics or any(path.suffix in (".html", ".json") for path in self.output or ())

    def write_one(self, result: "Result", path: Path) -> None:
        """Write a report, or the difference of two dumps, which has no CSV."""
        from ..common._errors import CompareError
        from ..results._report import Report

        if path.suffix == ".csv" and not isinstance(result, Report):
            raise CompareError(f"the difference of two dumps is written as .html, .json, .md, not as {path.name!r}")
        super().write_one(result, path)


def demo_command(folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo")) -> None:
    """Record, export and compare a tiny language model."""
    from filch.export import export
    from filch.steal import steal_forward

    from .._compare import compare
    from ..models._demo import tiny_llm

    folder.mkdir(parents=True, exist_ok=True)
    dump, onnx_file = folder / "tiny_llm.dump.onnx", folder / "tiny_llm.onnx"
    model, args, shapes = tiny_llm(dynamic_shapes=True)
    with Telling().progress("demo"):
        with steal_forward(model, submodules=True, dump_file=dump):
            model(*args)
        export(model, args, dynamic_shapes=shapes).save(onnx_file)
        report = compare(dump, onnx_file, statistics=True)
        report.to_json(folder / "report.json")
        report.to_html(folder / "report.html")
    code = Showing().finish(report)
    Telling().tell("\nwritten:" + "".join(f"\n  {path}" for path in sorted(folder.iterdir())))
    raise code


def compare_command(
    reference: shared.ReferenceFile,
    actual: shared.ActualFile,
    inputs: shared.Inputs = None,
    seed: shared.Seed = 0,
    shape: shared.Shapes = None,
    backend: shared.Backend = "onnxruntime-cpu",
    blamed: shared.Blame = None,
    mapping: Annotated[
        Path | None, typer.Option(help="The dump is of another implementation: the TOML file of `filch align`.")
    ] = None,
    view: shared.ViewOption = shared.TableView.summary,
    *,
    comparing: Comparing,
    shown: ReportOptions,
) -> None:
    """Compare an ONNX program with a dump of the model, or with another ONNX program, or two dumps."""
    shapes = shared.parse_shapes(shape)
    from .._compare_files import compare_files
    from ..results._report import Report

    with shown.progress("compare"):
        result = compare_files(
            reference,
            actual,
            inputs=inputs,
            seed=seed,
            shapes=shapes,
            backend=backend,
            statistics=shown.needs_statistics(comparing),
            blame=blamed,
            mapping=mapping,
            **comparing.arguments,
        )
    if isinstance(result, Report):
        raise shown.finish(_with_command(result), view=str(view))
    raise shown.finish(result)


def diff_command(
    reference: Annotated[str, typer.Argument(help="A dump, or the pattern of the dumps of several processes.")],
    actual: Annotated[
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
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FACTORY",
            help="The model of the reference, as package.module:factory or path.py:factory: judge by rounding, and run "
            "modules alone.",
        ),
    ] = None,
    *,
    shown: Judged,
) -> None:
    """Compare two dumps, or several processes with one; no model is needed."""
    from filch.steal import Layouts, NotADumpError, load_layouts, save_layouts

    from .._diff import diff
    from ..common._errors import CompareError
    from ..models._factory import make_subject

    layouts = load_layouts(layout) if layout else Layouts()
    try:
        made = None if model is None else make_subject(model).model
        with shown.progress("diff"):
            result = diff(reference, actual, tolerance=tolerance, layouts=layouts, mapping=mapping, model=made)
    except NotADumpError as error:
        command = shlex.join(["filch", "compare", reference, *actual])
        raise CompareError(f"{error}; `{command}` compares programs, too") from None
    if save_layout is not None:
        save_layouts(replace(layouts, learned={**layouts.learned, **result.learned}), save_layout)
    raise shown.finish(replace(result, command=command_line({**_NOT_REPEATED, "--save-layout": 1})))


def check_command(
    factory: shared.Factory,
    file: Annotated[
        Path | None,
        typer.Option("--program", help="Check this ONNX file of another tool instead of exporting the model."),
    ] = None,
    backend: shared.Backends = ["onnxruntime-cpu"],  # noqa: B006  typer copies it
    optimized: shared.Optimized = False,
    dtype: Annotated[str | None, typer.Option(help="Cast the model and its inputs to this dtype first.")] = None,
    device: Annotated[str | None, typer.Option(help="Run the model on this device.")] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension, as batch=7; may be repeated."),
    ] = None,
    blamed: shared.Blame = None,
    view: shared.ViewOption = shared.TableView.summary,
    *,
    comparing: Comparing,
    shown: ReportOptions,
) -> None:
    """Record, export and compare a model on one backend or several."""
    if file is not None and optimized:
        raise usage_error("--optimize is for the exported model, not for the file of --program")
    sizes = {name: size for name, (size, *_) in shared.parse_sizes(dim or []).items()}
    options, limit = comparing.arguments, comparing.limit
    from filch.export import optimize
    from filch.export.backends import get_backend
    from filch.steal import phase

    from .._blame import blame
    from .._compare_export import compare_with_fallback
    from .._load_quantized import load_quantized
    from .._map_to_export import map_to_export
    from ..models._variants import make_variant

    with shown.progress("check"):
        for name in backend:  # report a missing library or a misspelt option before the export
            get_backend(name, **options["options"])
        exported, recorded = make_variant(factory, sizes=sizes, dtype=dtype, device=device)
        notes = load_quantized(exported.model, file) if file is not None and comparing.lower_precision else ()
        program = exported.export(onnx_only=file is not None or optimized)
        program = optimize(program) if optimized else program
        capture = recorded.steal()
        if file is not None:
            program = map_to_export(file, program, capture, lower_precision=comparing.lower_precision, limit=limit)
        compared: list[tuple[Report, Program]] = []
        with phase("backend", len(backend)) as backends:
            for name in backend:
                backends.next(name)
                statistics = shown.needs_statistics(comparing)
                compared.append(compare_with_fallback(capture, program, backend=name, statistics=statistics, **options))
        reports = [report for report, _ in compared]
        if blamed is not None:
            folders = [blamed / name if len(reports) > 1 else blamed for name in backend]
            reports = [
                blame(report, capture, compared_program, folder, limit=limit)
                for (report, compared_program), folder in zip(compared, folders, strict=True)
            ]
    reports = [_with_command(report) for report in reports]
    if file is not None:
        reports = [replace(report, reference=factory, notes=(*notes, *report.notes)) for report in reports]
    raise shown.finish(*reports, as_list=True, view=str(view))


def _with_command(report: "Report") -> "Report":
    """Return the report with the command line that makes it, for the next command that it suggests."""
    backend = () if report.backend == shared.DEFAULT_BACKEND else ("-b", report.backend)
    return replace(report, command=command_line(_NOT_REPEATED, *backend))
