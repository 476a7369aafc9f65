"""The command that runs passes and shows what each of them does: `filch passes`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from filch.export import optimize
from filch.export.passes import PassContext, default_passes, pass_names

from ..common._errors import CompareError
from ..models._factory import find_factory, make_subject
from ._options import FACTORY, Json, LimitOption, LowerPrecision, OptionList, Quiet, ToleranceOption, told_options

_STEP = "A pass by name, or package.module:function or path.py:function; again for more, in this order."


def passes_command(
    factory: Annotated[str | None, typer.Argument(help=FACTORY)] = None,
    pass_: Annotated[list[str] | None, typer.Option("--pass", "-p", help=_STEP)] = None,
    out_dir: Annotated[Path | None, typer.Option(help="Draw the graph after each pass into this folder.")] = None,
    view: Annotated[list[str] | None, typer.Option(help="How they are drawn; again for more.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the optimised program here.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show the error after each pass.")] = False,
    backend: Annotated[str, typer.Option("--backend", "-b", help="What runs the program.")] = "onnxruntime-cpu",
    tolerance: ToleranceOption = None,
    lower_precision: LowerPrecision = False,
    option: OptionList = None,
    limit: LimitOption = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list all passes there are.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Optimise a model pass by pass: how long each takes, what it makes, and which one brings an error in.

    Exits with 1 if a value differs.
    """
    if listed:
        typer.echo(_listing())
        return
    if factory is None:
        raise CompareError("which model? Name its factory, package.module:factory or path.py:factory, or say --list")
    if view and out_dir is None:
        raise CompareError("--view says how graphs are drawn; say where to, with --out-dir")
    if as_json and not compare:
        raise CompareError("--json prints the errors after each pass; say --compare, too")
    steps = [find_factory(name).function if ":" in name else name for name in pass_ or default_passes()]
    with PassContext() as context:
        if not (quiet or as_json):
            context.profile_pass_instrument(print_stdout=True)
        if out_dir is not None:
            context.save_graph_instrument(out_dir, **({"views": view} if view else {}))
        # What the user's own code prints must not stand among ours.
        with redirect_stdout(sys.stderr):
            subject = make_subject(factory)
            program = subject.export()
            capture = subject.steal() if compare else None
        judge: Any = None
        if capture is not None:
            judge = context.compare_instrument(
                capture,
                backend=backend,
                options=told_options(option),
                tolerance=tolerance,
                lower_precision=lower_precision or None,
                limit=limit,
            )
        try:
            made = optimize(program, steps)
        finally:  # a pass that raises is a row, too
            if judge is not None and judge.errors and not quiet:
                typer.echo(judge.to_json() if as_json else f"\n{judge}")
    if output is not None:
        made.save(output)
    raise typer.Exit(judge is not None and not judge.close)


def _listing() -> str:
    names = "\n".join(f"  {name}" for name in default_passes())
    others = "\n".join(f"  {name}" for name in pass_names() if name not in default_passes())
    return f"by default, in this order:\n{names}\nothers:\n{others}"
