"""The commands that compare: `filch demo`, `check`, `compare`, `diff`, `align`, `decode` and `invariance`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

import filch

from ..rendering._words import command_text
from . import _options as shared
from ._command import command_line, usage_error
from ._options import Comparing
from ._output import Judged, Showing, Telling

if TYPE_CHECKING:
    from ..rendering._result import Result

_LANGUAGE_MODEL = typer.Argument(help="package.module:factory or path.py:factory of a language model.")


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
        if path.suffix == ".csv" and not isinstance(result, filch.Report):
            formats = ", ".join(Judged.formats)
            raise filch.CompareError(f"the difference of two dumps is written as {formats}, not as {path.name!r}")
        super().write_one(result, path)


@dataclass(frozen=True)
class AlignmentOptions(Judged):
    """How an alignment is printed and written."""

    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the mapping (.toml) or the result (.html, .json, .md); repeatable."),
    ] = None

    formats: ClassVar[tuple[str, ...]] = (".toml", *Judged.formats)

    def write_one(self, result: "Result", path: Path) -> None:
        """Write the mapping or the result."""
        if path.suffix == ".toml" and isinstance(result, filch.Alignment):
            filch.compare.ValueMap.of(result).save(path)
        else:
            super().write_one(result, path)


def demo_command(folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo")) -> None:
    """Record, export and compare a tiny language model."""
    folder.mkdir(parents=True, exist_ok=True)
    dump, onnx_file = folder / "tiny_llm.dump.onnx", folder / "tiny_llm.onnx"
    model, args, shapes = filch.compare.tiny_llm(dynamic_shapes=True)
    with Telling().progress("demo"):
        with filch.steal_forward(model, submodules=True, dump_file=dump):
            model(*args)
        filch.export.export(model, args, dynamic_shapes=shapes).save(onnx_file)
        report = filch.compare.compare(dump, onnx_file, statistics=True)
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
    backend: shared.Backend = shared.DEFAULT_BACKEND,
    blamed: shared.Blame = None,
    mapping: Annotated[
        Path | None, typer.Option(help="The dump is of another implementation: the TOML file of `filch align`.")
    ] = None,
    view: shared.ViewOption = "summary",
    *,
    comparing: Comparing,
    shown: ReportOptions,
) -> None:
    """Compare an ONNX program with a dump of the model, or with another ONNX program, or two dumps."""
    shapes = shared.parse_shapes(shape)
    with shown.progress("compare"):
        result = filch.compare.compare_files(
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
    if isinstance(result, filch.Report):
        raise shown.finish(_with_command(result), view=view)
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
    from ..models._factory import make_subject

    layouts = filch.load_layouts(layout) if layout else filch.Layouts()
    try:
        made = None if model is None else make_subject(model).model
        with shown.progress("diff"):
            result = filch.diff(reference, actual, tolerance=tolerance, layouts=layouts, mapping=mapping, model=made)
    except filch.steal.NotADumpError as error:
        command = command_text("compare", reference, *actual)
        raise filch.CompareError(f"{error}; `{command}` compares programs, too") from None
    if save_layout is not None:
        filch.save_layouts(replace(layouts, learned={**layouts.learned, **result.learned}), save_layout)
    raise shown.finish(replace(result, command=command_line({"--save-layout": 1})))


def check_command(
    factory: shared.Factory,
    file: Annotated[
        Path | None,
        typer.Option("--program", help="Check this ONNX file of another tool instead of exporting the model."),
    ] = None,
    backend: shared.Backends = [shared.DEFAULT_BACKEND],  # noqa: B006  typer copies it
    optimized: shared.Optimized = False,
    dtype: Annotated[str | None, typer.Option(help="Cast the model and its inputs to this dtype first.")] = None,
    device: Annotated[str | None, typer.Option(help="Run the model on this device.")] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension, as batch=7; may be repeated."),
    ] = None,
    blamed: shared.Blame = None,
    view: shared.ViewOption = "summary",
    *,
    comparing: Comparing,
    shown: ReportOptions,
) -> None:
    """Record, export and compare a model on one backend or several."""
    if file is not None and optimized:
        raise usage_error("--optimize is for the exported model, not for the file of --program")
    sizes = {name: size for name, (size, *_) in shared.parse_sizes(dim or []).items()}
    from filch.export.backends import get_backend

    from .._blame import blame, blame_call
    from ..dynamo._check_model import ModelCheck
    from ..models._variants import make_variant

    options, is_lower = comparing.arguments, comparing.lower_precision
    with shown.progress("check"):
        for name in backend:  # report a missing library or a misspelt option before the export
            get_backend(name, **options["options"])
        exported, recorded = make_variant(factory, sizes=sizes, dtype=dtype, device=device)
        notes = filch.compare.load_quantized(exported.model, file) if file is not None and is_lower else ()
        if file is None and not optimized and not is_lower:
            check = ModelCheck.of(exported, recorded)
        else:
            program, capture = exported.export(onnx_only=file is not None or optimized), recorded.steal()
            if file is not None:
                limit = comparing.limit
                program = filch.compare.map_to_export(file, program, capture, lower_precision=is_lower, limit=limit)
            check = ModelCheck(capture, filch.optimize(program) if optimized else program, None)
        statistics, reports = shown.needs_statistics(comparing), []
        with filch.steal.phase("backend", len(backend)) as backends:
            for name in backend:
                backends.next(name)
                folder = blamed / name if blamed is not None and len(backend) > 1 else blamed
                report, judged = check.on(name, statistics=statistics, **options)
                if folder is not None and judged is not None:
                    report = blame(report, check.capture, judged, folder, limit=comparing.limit)
                # What the program's outputs do not show, the call's may.
                if folder is not None and not report.culprits and (call := check.call(name, **options)) is not None:
                    report = blame_call(report, call)
                reports.append(report)
    if file is not None:
        reports = [replace(report, reference=factory, notes=(*notes, *report.notes)) for report in reports]
    raise shown.finish(*map(_with_command, reports), as_list=True, view=view)


def align_command(
    reference: Annotated[
        str,
        typer.Argument(
            help="Implementation A: package.module:factory, path.py:factory, an ONNX program or a dump (.onnx), .npz, "
            ".safetensors, .pt, .gguf, or the folder of a Hugging Face checkpoint."
        ),
    ],
    actual: Annotated[
        str,
        typer.Argument(
            help="Implementation B, likewise. Its factory returns its own arguments, or named arrays; a program gets "
            "those of A."
        ),
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(help="A TOML file that says where module outputs of A are in B; its rows are checked."),
    ] = None,
    weights_only: Annotated[
        bool | None,
        typer.Option(
            help="Compare weights alone, and run no model; by default if two files of arrays or a checkpoint are given."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="What B has of an output of A, if not all of it: 'logits=[:, -1]', '[:, -1]' of the only output, or "
            "'hidden=none'; repeatable."
        ),
    ] = None,
    *,
    shown: AlignmentOptions,
) -> None:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Exits with 0 if the outputs, named arrays or weights of B are those of A, and with 1 if not.
    """
    parts = {name: index for name, _, index in (text.rpartition("=") for text in part or ())}
    from .._align import align_sources, find_source

    with shown.progress("align"):
        sides = [find_source(name) for name in (reference, actual)]
        result = align_sources(sides[0], sides[1], (reference, actual), mapping, weights_only=weights_only, parts=parts)
    raise shown.finish(result)


def invariance_command(
    factory: Annotated[str, _LANGUAGE_MODEL],
    only: Annotated[
        list[str] | None,
        typer.Option(help="A relation to check, such as decode or 'padding on the left'; repeatable. Default: all."),
    ] = None,
    attention: Annotated[
        list[str] | None, typer.Option(help="Attention implementation to compare with eager; repeatable.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend that decodes the model's program; repeatable.")
    ] = None,
    quantized: Annotated[
        list[str] | None, typer.Option(help="Quantizer of a cache to check: fp8, hqq or quanto; repeatable.")
    ] = None,
    bitwise: Annotated[
        bool, typer.Option("--bitwise", help="Require equal bits in the model's own dtypes, too.")
    ] = False,
    *,
    shown: Judged,
) -> None:
    """Check that a language model computes the same with a cache, in batches, and with padding.

    Exits with 0 if each way to call it that it supports gives the same numbers, and with 1 if not.
    """
    from ..models._factory import make_subject

    with shown.progress("invariance"):
        subject = make_subject(factory)
        result = filch.compare.check_invariance(
            subject.model,
            subject.args,
            subject.kwargs,
            only=only or None,
            attentions=attention or ("sdpa",),
            backends=backend or (),
            quantized=quantized or (),
            bitwise=bitwise,
        )
    raise shown.finish(result)


def decode_command(
    factory: Annotated[str, _LANGUAGE_MODEL],
    program: Annotated[
        Path | None, typer.Option(help="A file of export(..., cache=...) to judge; by default, the model is exported.")
    ] = None,
    backend: shared.Backend = shared.DEFAULT_BACKEND,
    option: shared.Options = None,
    tokens: Annotated[int, typer.Option(help="The number of tokens of each sequence, at least 6.")] = 32,
    prefill: Annotated[
        int | None,
        typer.Option(help="How many of them are in the first call, from 2 to all but 3. Default: a quarter."),
    ] = None,
    cache: Annotated[
        Literal["dynamic", "static", "window", "static-window"], typer.Option(help="The cache to export with.")
    ] = "dynamic",
    to: Annotated[
        Literal["float16", "bfloat16"] | None, typer.Option(help="Lower the program to this precision.")
    ] = None,
    *,
    shown: Judged,
) -> None:
    """Run a language model's program step by step, and name the position and the node where it goes wrong.

    Exits with 0 if all values are right at all positions, and with 1 if not.
    """
    from ..models._factory import make_subject

    with shown.progress("decode"):
        subject = make_subject(factory)
        result = filch.compare.compare_decode(
            subject.model,
            subject.args,
            subject.kwargs,
            program=None if program is None else filch.load_program(program),
            backend=backend,
            options=shared.parse_options(option),
            tokens=tokens,
            prefill=prefill,
            cache=cache,
            to=to,
        )
    raise shown.finish(result)


def _with_command(report: "filch.Report") -> "filch.Report":
    """Return the report with the command line that makes it, for the next command that it suggests."""
    backend = () if report.backend == shared.DEFAULT_BACKEND else ("-b", report.backend)
    return replace(report, command=command_line({"--blame": 1, "-b": 1, "--backend": 1}, *backend))
