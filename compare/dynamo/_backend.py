"""`torch.compile(model, backend="filch")`: another compiler, with each graph that it compiles checked."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import list_backends, lookup_backend

from filch.export.backends import BackwardRun, Compiled, CompilesTorch, backend_names, get_backend

from ..common._errors import CompareError
from ..metrics._tolerance import default_tolerance
from ..rendering._console import WIDE, as_text, print_text
from ..rendering._table import Column, Table
from ..results._report import Report
from ._graph_check import GraphCheck, backward_report
from ._graph_ir import GraphIr
from ._options import DynamoOptions
from ._through_onnx import ThroughOnnx

_numbers = itertools.count()


def filch(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph with `options["inner"]`, and check it on what it is first called with.

    Args:
        module: what Dynamo hands over; its weights are among its inputs.
        inputs: as Dynamo gives them.
        mode: torch.compile's.
        options: those of `DynamoOptions`.

    Returns:
        what the inner compiler made of the graph, undisturbed; its first call makes the report too.

    Raises:
        FilchError: an option, a compiler or a device that there is not.
    """
    chosen = DynamoOptions.of(options or {}, mode)
    if chosen.print_input_graph:
        titles = ("opcode", "name", "target", "args", "kwargs")
        columns = tuple(Column(title, "never") for title in titles)
        print_text(as_text([Table(columns, tuple(map(_told, module.graph.nodes)))], width=WIDE))
    name = f"graph {next(_numbers)}"
    drawn = None if chosen.dump_graph_ir is None else GraphIr(chosen.dump_graph_ir)
    own = _own_backend(chosen.inner, inputs)
    if own is not None:
        return _by_backend(own, module, inputs, name=name, chosen=chosen, drawn=drawn)
    _draw(drawn, module, None)
    compiler = _compiler(chosen)
    run = compiler(module, inputs)
    said = chosen.inner if isinstance(chosen.inner, str) else getattr(chosen.inner, "__name__", repr(chosen.inner))
    check = GraphCheck(name, module, run, compiler, said, tolerance=chosen.tolerance)
    return _checked(run, check.report, chosen)


def _by_backend(
    own: str,
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    name: str,
    chosen: DynamoOptions,
    drawn: GraphIr | None,
) -> Callable[..., Any]:
    """Compile a graph with a backend of Filch's, which shows what it made."""
    engine = get_backend(own, **chosen.of_compiler())
    if not isinstance(engine, CompilesTorch):
        _draw(drawn, module, None)
        through = ThroughOnnx(module, engine, name)
        return _checked(through, lambda given: through.report(given, chosen.tolerance), chosen)
    made = engine.compile_graph(module, inputs)
    _draw(drawn, module, made)
    tolerance = default_tolerance(torch.float16) if chosen.use_fp16 else None
    limit = tolerance if chosen.tolerance is None else chosen.tolerance

    def see(run: BackwardRun) -> None:
        if drawn is not None:
            drawn.backward(run)
        if chosen.correctness_report is not False:
            _collect(backward_report(run, name, own, limit), chosen)

    if chosen.correctness_report is not False or drawn is not None:
        made.handle.watch_backward(see)
    check = GraphCheck(name, module, made.handle, _compile(engine), own, engine, made, limit)
    return _checked(made.handle, check.report, chosen)


def _draw(drawn: GraphIr | None, module: fx.GraphModule, made: Compiled | None) -> None:
    if drawn is not None:
        drawn.forward(module, made)


def _checked(
    run: Callable[..., Any], make: Callable[[Sequence[Any]], Report], options: DynamoOptions
) -> Callable[..., Any]:
    """`run`, which reports at its first call; what it is given, and the random numbers to come, are not touched."""
    if options.correctness_report is False:
        return run
    pending = [make]

    def checked(*inputs: Any) -> Any:
        if pending:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                report = pending.pop()(inputs)
            _collect(report, options)
        return run(*inputs)

    return checked


def _collect(report: Report, options: DynamoOptions) -> None:
    into = options.correctness_report
    if isinstance(into, list):
        into.append(report)
    elif callable(into):
        into(report)
    else:
        print_text(report.table("dynamo", wide=True))


def _own_backend(inner: str | Callable[..., Any], inputs: Sequence[Any]) -> str | None:
    """The name of Filch's backend that `inner` means; None if it is torch's or a function."""
    on_cuda = any(isinstance(item, torch.Tensor) and item.is_cuda for item in inputs)
    name = f"onnxruntime-{'cuda' if on_cuda else 'cpu'}" if inner == "onnxruntime" else inner
    return name if isinstance(name, str) and name in backend_names() and name != "eager" else None


def _compile(engine: CompilesTorch) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    def compiled(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        handle: Callable[..., Any] = engine.compile_graph(module, inputs).handle
        return handle

    return compiled


def _compiler(options: DynamoOptions) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A compiler of torch's, or a user's function."""
    inner = options.inner
    said = inner if isinstance(inner, str) else getattr(inner, "__name__", repr(inner))
    if told := options.of_compiler():
        raise CompareError(f"inner {said!r} can't be told {', '.join(told)}: only Filch's own backends take options")
    if not isinstance(inner, str):
        return inner
    if inner not in list_backends(None) or inner == "filch":
        names = {*list_backends(), *backend_names(), "onnxruntime"} - {"filch", "reference"}
        raise CompareError(f"there is no compiler {inner!r} for inner; there are {', '.join(sorted(names))}")
    found: Any = lookup_backend(inner)
    return found  # type: ignore[no-any-return]


def _told(node: fx.Node) -> tuple[str, ...]:
    return tuple(map(str, (node.op, node.name, node.target, node.args, node.kwargs)))
