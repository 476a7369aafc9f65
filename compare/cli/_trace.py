"""The command that traces a call or a training step: `filch trace`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from . import _options as shared
from ._output import Printing


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
    from filch.export import save_trace, trace
    from filch.export.views import get_view

    from ..common._errors import CompareError
    from ..models._factory import make_subject

    if output.suffix not in get_view("trace").suffixes:  # before minutes of compiling
        raise CompareError(f"a trace is written to a .pkl or a .json, not to {str(output)!r}")
    with printing.progress("trace"):
        subject = make_subject(factory)
        if train:
            subject.model.train()
        traced = trace(subject.model, subject.args, kwargs=subject.kwargs, train=train, backend=backend)
        written = save_trace(traced, output)
    files, counts = [str(path) for path in written], _count_parts(traced)
    printing.tell(f"written: {', '.join(files)}: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    if printing.as_json:
        typer.echo(json.dumps({"written": files, **counts}, indent=1))


def _count_parts(traced: dict[str, dict[int, dict[str, Any]]]) -> dict[str, int]:
    """Count the nodes, executions and files of generated code in a trace (see `trace` for its format)."""
    attributes = [node["attrs"] for node in traced["node_data"].values()]
    operators = [item for item in attributes if item["is_var"] == "0"]
    executions = traced["execute_op_info"].values()
    return {
        "operators": len(operators),
        "gradients": sum("grad_op_id" in item for item in operators),
        "variables": len(attributes) - len(operators),
        "executions": len(executions),
        "generated": len({item["file_path"] for item in executions} - {""}),  # eager PyTorch generates no file: ""
    }
