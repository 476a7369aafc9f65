"""`filch view`: pictures of models and of reports."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from filch.export import Graph, ViewError, graph_from_fx, load_program, optimize, trace_graph
from filch.export.pt2_files import Archive, StoredError, load_graph
from filch.export.views import draw, get_view, serve, view_names, write
from filch.steal import open_untrusted

from .._compiled_graph import compiled_graph
from ..common._errors import CompareError
from ..common._progress import progress
from ..models._factory import make_subject
from ..rendering._console import echo
from ..results._load_report import load_report
from ._options import OptionList, Quiet, told_options

_BESIDE_A_FILE = ("netron", "model-explorer")  # what these begin with tells of a file that the reader has


def view_command(
    source: Annotated[
        str, typer.Argument(help="A model (path.py:factory, an ONNX file, torch.export's .pt2) or a report's JSON.")
    ],
    view: Annotated[
        str | None, typer.Option("--as", help=f"How: {', '.join(view_names())}; by the output's suffix if not given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; text is printed if there is none.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", "-b", help="The graph that this backend makes of the model.")
    ] = None,
    option: OptionList = None,
    optimized: Annotated[bool, typer.Option("--optimize", help="With the exporter's optimisations.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="A step of training: forward, backward, optimiser; by inductor or eager.")
    ] = False,
    stage: Annotated[
        str | None, typer.Option(help="Of a report or a backend: the exported graph or the compiled one.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The ONNX file that a report is about, if it is not where it was.")
    ] = None,
    served: Annotated[
        bool, typer.Option("--serve", help="Open what was written in the netron package, until Ctrl-C.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Draw a model's graph, or what a comparison found on it."""
    name = _chosen("netron" if served and view is None else view, output)
    target = output or _default(source, name)
    if target.resolve() == Path(source).resolve():
        raise CompareError(f"{source!r} is what is drawn: give --output another name")
    get_view(name, target.suffix or None)  # before minutes of exporting
    printed = name == "text" and output is None and not served
    with progress("view", quiet=quiet or printed):
        if train:
            graph = _trained(source, backend, told_options(option), optimized=optimized)
        else:
            graph = _graph(source, backend, told_options(option), optimized=optimized, model=model)
        graph = _staged(graph, stage or ("exported" if name.startswith(_BESIDE_A_FILE) else None))
        drawing = draw(graph, name, None if printed else target.suffix or None)
        written = target if printed else write(drawing, target)
    if printed:
        typer.echo(drawing.content.decode("utf-8").rstrip("\n"))
    elif not quiet:
        echo(f"written: {written}" + (f"\nnote: {drawing.note}" if drawing.note else ""))
    if served:
        _serve(written, quiet=quiet)


def _serve(path: Path, *, quiet: bool) -> None:
    with serve(path) as running:
        if not quiet:
            echo(f"netron shows it at {running.url}; Ctrl-C ends it")
        running.wait()


def _chosen(view: str | None, output: Path | None) -> str:
    if view is not None:
        return view
    suffix = output.suffix if output is not None else ".html"
    fitting = [name for name in view_names() if suffix in get_view(name).suffixes]
    if len(fitting) == 1:
        return fitting[0]
    if suffix in get_view("html").suffixes:
        return "html"
    told = f"{' and '.join(fitting)} write" if fitting else "no view writes"
    raise ViewError(
        f"{told} {suffix or 'files without suffix'}: say which view, with --as; there are {', '.join(view_names())}"
    )


def _graph(source: str, backend: str | None, options: dict[str, str], *, optimized: bool, model: Path | None) -> Graph:
    path = Path(source)
    if path.suffix in (".json", ".pt2"):
        if backend is not None or optimized:
            raise CompareError(f"{source!r} is drawn as it is: --backend and --optimize are for a model that runs")
        return _report_graph(path, model) if path.suffix == ".json" else _torch_graph(path)
    program = load_program(path) if path.suffix == ".onnx" else make_subject(source).export()
    program = optimize(program) if optimized else program
    if backend is not None:
        return compiled_graph(program, backend=backend, options=options)
    if options:
        raise CompareError("--option is for a backend: name it with --backend")
    return replace(program.graph, name=_stem(source))


def _trained(source: str, backend: str | None, options: dict[str, str], *, optimized: bool) -> Graph:
    """A step of training as the kernels that ran, made of the operations of the forward and the backward pass."""
    if options or optimized:
        raise CompareError("--option and --optimize are for a graph that is exported; --train draws what torch runs")
    subject = make_subject(source)
    subject.model.train()
    graph = trace_graph(subject.model, subject.args, kwargs=subject.kwargs, train=True, backend=backend or "inductor")
    return replace(graph, name=_stem(source))


def _report_graph(path: Path, model: Path | None) -> Graph:
    """What a report found, on the exported graph of the ONNX file that it is about, if that is there."""
    report = load_report(path)
    file = model or Path(report.program)
    if model is None and not os.path.isfile(file):  # noqa: PTH113  `Path.is_file` raises for a name that is too long
        return report.graph
    onnx = load_program(file).model
    before = report.graph.source_graph
    return (
        replace(report.graph, onnx=onnx)
        if before is None
        else replace(report.graph, source_graph=replace(before, onnx=onnx))
    )


def _torch_graph(path: Path) -> Graph:
    try:
        with open_untrusted(path) as file:
            return graph_from_fx(load_graph(Archive(file)), path.stem)
    except (OSError, StoredError) as error:
        told = error if isinstance(error, StoredError) else error.strerror
        raise CompareError(f"{str(path)!r} is no program that torch.export saved: {told}") from error


def _staged(graph: Graph, stage: str | None) -> Graph:
    if stage not in (None, "exported", "compiled"):
        raise CompareError(f"there is no stage {stage!r}; there are exported and compiled")
    if stage == "compiled" and graph.source_graph is None:
        raise CompareError("--stage compiled is of a report that has one, or of a model with --backend")
    if stage == "exported" and graph.source_graph is not None:
        return replace(graph.source_graph, name=graph.name, remarks=graph.remarks)
    return graph


def _default(source: str, name: str) -> Path:
    """A file of this folder that says what it is of, and how it is drawn where that is not plain."""
    suffix = get_view(name).suffixes[0]
    return Path(f"{_stem(source)}{'' if suffix == '.html' else f'-{name}'}{suffix}")


def _stem(source: str) -> str:
    return source.rpartition(":")[2] if ":" in source else Path(source).stem
