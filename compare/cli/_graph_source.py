"""The graphs that `filch view` draws."""

import os
from dataclasses import replace
from pathlib import Path

from filch.export import Graph, ViewError, graph_from_fx, load_program, optimize, trace_graph
from filch.export.pt2_files._archive import Archive, StoredError
from filch.export.pt2_files._load import load_graph
from filch.export.views import get_view, view_names
from filch.steal.files._untrusted import open_untrusted

from .._compiled_graph import compiled_graph
from ..common._errors import CompareError
from ..models._factory import make_subject
from ..results._report import load_report

_ANNOTATE_A_FILE = ("netron", "model-explorer")  # prefixes of the views that annotate the exported ONNX file


def view_name(view: str | None, output: Path | None) -> str:
    """Return the view that was chosen, else the one that writes files with the suffix of the output, or of `.html`."""
    if view is not None:
        return view
    suffix = output.suffix if output is not None else ".html"
    candidates = [name for name in view_names() if suffix in get_view(name).suffixes]
    if len(candidates) == 1:
        return candidates[0]
    if suffix in get_view("html").suffixes:  # several views write it, of which this is the default
        return "html"
    writers = f"{' and '.join(candidates)} write" if candidates else "no view writes"
    raise ViewError(f"{writers} {suffix or 'files without suffix'}: choose a view with --as: {', '.join(view_names())}")


def graph_of_source(
    source: str, backend: str | None, options: dict[str, str], *, optimized: bool, model: Path | None
) -> Graph:
    """Return the graph of a report, a `.pt2` file, an ONNX file or the model of a factory.

    Args:
        source: the file or the factory.
        backend: the backend whose compiled graph is returned; None is the exported graph.
        options: options of the backend.
        optimized: whether the exporter's optimizations are applied.
        model: the ONNX file of a report; None is the one that the report names.
    """
    path = Path(source)
    if path.suffix in (".json", ".pt2"):
        if backend is not None or optimized:
            raise CompareError(f"{source!r} can't be recompiled: --backend and --optimize need a factory or ONNX file")
        return _report_graph(path, model) if path.suffix == ".json" else _torch_graph(path)
    program = load_program(path) if path.suffix == ".onnx" else make_subject(source).export()
    program = optimize(program) if optimized else program
    if backend is not None:
        return compiled_graph(program, backend=backend, options=options)
    if options:
        raise CompareError("--option needs --backend")
    return replace(program.graph, name=_graph_name(source))


def training_graph(source: str, backend: str | None, options: dict[str, str], *, optimized: bool) -> Graph:
    """Return the kernels of a training step, with the operations of the forward and the backward pass in them."""
    if options or optimized:
        raise CompareError("--option and --optimize apply to an exported graph; --train draws the graph torch runs")
    subject = make_subject(source)
    subject.model.train()
    graph = trace_graph(subject.model, subject.args, kwargs=subject.kwargs, train=True, backend=backend or "inductor")
    return replace(graph, name=_graph_name(source))


def _report_graph(path: Path, model: Path | None) -> Graph:
    """Return the graph of a report, with the ONNX model that it annotates if its file is found."""
    report = load_report(path)
    file = model or Path(report.program)
    if model is None and not os.path.isfile(file):  # noqa: PTH113  `Path.is_file` raises for a name that is too long
        return report.graph
    onnx, exported = load_program(file).model, report.graph.source_graph
    if exported is None:  # the report's graph is itself the exported one
        return replace(report.graph, onnx=onnx)
    return replace(report.graph, source_graph=replace(exported, onnx=onnx))


def _torch_graph(path: Path) -> Graph:
    """Return the graph of a file that `torch.export.save` wrote, without running code in it."""
    try:
        with open_untrusted(path) as file:
            return graph_from_fx(load_graph(Archive(file)), path.stem)
    except (OSError, StoredError) as error:
        cause = error if isinstance(error, StoredError) else error.strerror
        raise CompareError(f"{str(path)!r} is not a program saved by torch.export: {cause}") from error


def graph_of_stage(graph: Graph, stage: str | None, view: str) -> Graph:
    """Return the graph of one stage; by default the last one, or the exported one for views of the ONNX file."""
    stage = stage or ("exported" if view.startswith(_ANNOTATE_A_FILE) else None)
    if stage not in (None, "exported", "compiled"):
        raise CompareError(f"there is no stage {stage!r}; choose exported or compiled")
    if stage == "compiled" and graph.source_graph is None:
        raise CompareError("--stage compiled needs a report with a compiled graph, or --backend")
    if stage == "exported" and graph.source_graph is not None:
        return replace(graph.source_graph, name=graph.name, remarks=graph.remarks, close=graph.close)
    return graph


def default_output(source: str, name: str) -> Path:
    """Return a file name in the current folder made of the source's name and, unless it is HTML, the view's."""
    suffix = get_view(name).suffixes[0]
    return Path(f"{_graph_name(source)}{'' if suffix == '.html' else f'-{name}'}{suffix}")


def _graph_name(source: str) -> str:
    """Return a name for the graph of a factory or file."""
    return source.rpartition(":")[2] if ":" in source else Path(source).stem
