"""The commands that find a cause: `filch bisect`, `repro`, `passes` and `precision`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

import filch

from . import _options as shared
from ._command import usage_error
from ._options import Judging
from ._output import Accepting, Telling, Writing

_PASSES_HELP = "A pass: its name, package.module:function or path.py:function; may be repeated, they run in this order."


def bisect_command(
    reference: shared.ReferenceFile,
    program: shared.Program,
    inputs: shared.Inputs = None,
    seed: shared.Seed = 0,
    shape: shared.Shapes = None,
    backend: shared.Backend = shared.DEFAULT_BACKEND,
    value: Annotated[str | None, typer.Option(help="Judge this value of the graph instead of the outputs.")] = None,
    optimized: shared.Optimized = False,
    to: Annotated[shared.Precision | None, typer.Option(help="Lower the program to this precision first.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Disable only this transformation; repeatable.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Record each run in this file, and resume from it.")] = None,
    interpreter: Annotated[list[str] | None, typer.Option(help="Python with another ONNX Runtime; repeatable.")] = None,
    *,
    judging: Judging,
    shown: Writing,
) -> None:
    """Find a smallest set of transformations that has to be disabled for an error to disappear.

    Exits with 0 if there is no error, and with 1 if there is one, whether or not its cause was found.
    """
    shapes = shared.parse_shapes(shape)
    from filch.export.passes import default_passes

    with shown.progress("bisect"):
        report = filch.bisect(
            reference,
            program,
            inputs=inputs,
            seed=seed,
            shapes=shapes,
            backend=backend,
            value=value,
            passes=default_passes() if optimized else None,
            to=to,
            only=only,
            journal=journal,
            interpreters=interpreter or (),
            **judging.arguments,
        )
    raise shown.finish(report)


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
    from ..repro._write import write_repro
    from ..results._next_command import to_run_repro
    from ..results._report import load_report
    from ._report_source import needs_inputs, recorded_file, row_to_reproduce, trusted_options

    loaded = load_report(report)
    if loaded.lower_precision:
        raise filch.CompareError(f"no repro: {str(report)!r} was made with lower_precision, which allows differences")
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
    except filch.steal.NotADumpError:
        raise needs_inputs(dump, onnx_file, loaded, output) from None
    telling.tell(f"written: {repro}")
    telling.tell("\n".join(["", *map(str, to_run_repro(str(output)).blocks())]))


def passes_command(
    factory: shared.OptionalFactory = None,
    pass_: Annotated[list[str] | None, typer.Option("--pass", "-p", help=_PASSES_HELP)] = None,
    out_dir: Annotated[Path | None, typer.Option(help="Draw the graph after each pass into this folder.")] = None,
    view: Annotated[list[str] | None, typer.Option(help="View to draw them with; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the optimized program here.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show the error after each pass.")] = False,
    backend: shared.Backend = shared.DEFAULT_BACKEND,
    listed: Annotated[bool, typer.Option("--list", help="List all passes and exit.")] = False,
    *,
    judging: Judging,
    shown: Accepting,
) -> None:
    """Optimize a model pass by pass, and show the time of each, the nodes it changes and the error after it.

    Exits with 1 if a value differs.
    """
    if listed:
        typer.echo(_pass_listing())
        return
    if factory is None:
        raise usage_error("give a model as package.module:factory or path.py:factory, or use --list")
    if view and out_dir is None:
        raise usage_error("--view needs --out-dir, the folder in which the graphs are drawn")
    if shown.as_json and not compare:
        raise usage_error("--json needs --compare: it prints the error after each pass")
    from filch.export.passes import PassContext, default_passes

    from ..models._factory import find_factory, make_subject

    passes = [find_factory(name).function if ":" in name else name for name in pass_ or default_passes()]
    with PassContext() as context:
        if not shown.is_silent:
            context.profile_pass_instrument(print_stdout=True)
        if out_dir is not None:
            context.save_graph_instrument(out_dir, **({"views": view} if view else {}))
        # Output of the user's own code must not mix with ours.
        with redirect_stdout(sys.stderr):
            subject = make_subject(factory)
            program = subject.export(onnx_only=True)
            capture = subject.steal() if compare else None
        errors: Any = None  # a `CompareInstrument`
        if capture is not None:
            # None, not False: a pass may lower the precision (see `CompareInstrument`).
            arguments = judging.arguments | {"lower_precision": judging.lower_precision or None}
            errors = context.compare_instrument(capture, backend=backend, **arguments)
        code = typer.Exit()
        try:
            optimized = filch.optimize(program, passes)
        finally:  # a pass that raises has a row too
            if errors is not None and errors.errors:
                shown.tell("")
                code = shown.finish(errors.result)
    if output is not None:
        optimized.save(output)
    raise code


def precision_command(
    factory: shared.Factory,
    to: Annotated[shared.Precision, typer.Option(help="int8 lowers weights and activations, int4 weights alone.")],
    backend: shared.Backend = shared.DEFAULT_BACKEND,
    tolerance: shared.Tolerance = None,
    snr: Annotated[float | None, typer.Option(help="Least SNR of the outputs in dB, instead.")] = None,
    limit: shared.Limit = None,
    measure: Annotated[int | None, typer.Option(help="Number of nodes to lower one by one; default 32.")] = None,
    *,
    shown: Writing,
) -> None:
    """Lower a model's precision, and find the nodes that have to stay in float32 for its outputs to be close."""
    from ..models._factory import make_subject

    with shown.progress("precision"):
        subject = make_subject(factory)
        program = filch.optimize(subject.export(onnx_only=True))
        with filch.steal_forward(subject.model) as capture:
            subject.run()
        report = filch.keep_precise(
            *(capture, program),
            to=to,
            backend=backend,
            tolerance=tolerance,
            snr=snr,
            measure=measure,
            limit=limit,
        )
    raise shown.finish(report)


def _pass_listing() -> str:
    """Return the names of all passes, those that run by default first."""
    from filch.export.passes import default_passes, pass_names

    names = "\n".join(f"  {name}" for name in default_passes())
    others = "\n".join(f"  {name}" for name in pass_names() if name not in default_passes())
    return f"by default, in this order:\n{names}\nothers:\n{others}"
