"""The command that finds the transformations that cause an error: `filch bisect`."""

from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._options import Judging
from ._output import Writing


def bisect_command(
    reference: shared.ReferenceFile,
    program: shared.Program,
    inputs: shared.Inputs = None,
    seed: shared.Seed = 0,
    shape: shared.Shapes = None,
    backend: shared.Backend = "onnxruntime-cpu",
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

    from ..bisection._bisect import bisect

    with shown.progress("bisect"):
        report = bisect(
            reference,
            program,
            inputs=inputs,
            seed=seed,
            shapes=shapes,
            backend=backend,
            value=value,
            passes=default_passes() if optimized else None,
            to=None if to is None else to.value,
            only=only,
            journal=journal,
            interpreters=interpreter or (),
            **judging.arguments,
        )
    raise shown.finish(report)
