"""The command that runs passes and shows the effect of each: `filch passes`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as shared
from ._command import usage_error
from ._options import Judging
from ._output import Accepting

_PASSES_HELP = "A pass: its name, package.module:function or path.py:function; may be repeated, they run in this order."


def passes_command(
    factory: shared.OptionalFactory = None,
    pass_: Annotated[list[str] | None, typer.Option("--pass", "-p", help=_PASSES_HELP)] = None,
    out_dir: Annotated[Path | None, typer.Option(help="Draw the graph after each pass into this folder.")] = None,
    view: Annotated[list[str] | None, typer.Option(help="View to draw them with; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the optimized program here.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show the error after each pass.")] = False,
    backend: shared.Backend = "onnxruntime-cpu",
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
    from filch.export import optimize
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
            arguments = judging.arguments | {"lower_precision": judging.lower_precision or None}
            errors = context.compare_instrument(capture, backend=backend, **arguments)
        code = typer.Exit()
        try:
            optimized = optimize(program, passes)
        finally:  # a pass that raises has a row too
            if errors is not None and errors.errors:
                shown.tell("")
                code = shown.finish(errors.result)
    if output is not None:
        optimized.save(output)
    raise code


def _pass_listing() -> str:
    from filch.export.passes import default_passes, pass_names

    names = "\n".join(f"  {name}" for name in default_passes())
    others = "\n".join(f"  {name}" for name in pass_names() if name not in default_passes())
    return f"by default, in this order:\n{names}\nothers:\n{others}"
