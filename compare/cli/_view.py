"""The command that draws models and reports: `filch view`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from . import _options as shared
from ._output import Telling


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

    from ..common._errors import CompareError
    from ._graph_source import default_output, graph_of_source, graph_of_stage, training_graph, view_name

    name = view_name("netron" if served and view is None else view, output)
    target = output or default_output(source, name)
    if os.path.realpath(target) == os.path.realpath(source):
        raise CompareError(f"--output would overwrite the input {source!r}: give another name")
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
