"""`torch.compile(model, backend="filch")`: compile with another compiler and check each graph."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.compiler import list_backends

from filch.export._errors import EmptyProgramError
from filch.export.backends import BackwardRun, Compiled, CompilesTorch, backend_names, get_backend
from filch.export.evaluation._devices import changed_copy
from filch.steal.private import _torch

from ..common._errors import CompareError
from ..metrics._tolerance import default_tolerance
from ..rendering._console import WIDE, as_text, print_text
from ..rendering._result import NextCommand
from ..rendering._table import Column, Table
from ..results._report import Report
from ._graph_check import Compile, GraphCheck, TorchKernels, backward_report
from ._graph_ir import GraphIr
from ._judged_calls import JudgedCalls
from ._options import DynamoOptions
from ._through_onnx import ThroughOnnx

_numbers = itertools.count()  # of the graphs, for their names
_COLLECT = NextCommand(
    'reports = []; torch.compile(…, backend="filch", options={"correctness_report": reports})',
    "collect the reports, call the model, and look at each graph with reports[0].show()",
)


def filch(
    module: fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile one graph with `options["inner"]`, and check it on the inputs of its first call.

    Args:
        module: the graph from Dynamo; its weights are among its inputs.
        inputs: the example inputs from Dynamo.
        mode: the mode of `torch.compile`.
        options: those of `DynamoOptions`.

    Returns:
        the graph as the inner compiler compiled it; its first call also makes the report.

    Raises:
        FilchError: an option or compiler is unknown, or its device is missing.
    """
    settings = DynamoOptions.of(options or {}, mode)
    if settings.print_input_graph:
        fields = ("op", "name", "target", "args", "kwargs")
        columns = tuple(Column("opcode" if field == "op" else field) for field in fields)
        rows = tuple(tuple(str(getattr(node, field)) for field in fields) for node in module.graph.nodes)
        print_text(as_text([Table(columns, rows)], width=WIDE))
    name = f"graph {next(_numbers)}"
    drawings = None if settings.dump_graph_ir is None else GraphIr(settings.dump_graph_ir)
    backend_name = _backend_name(settings.inner, inputs)
    if backend_name is not None:
        return _by_backend(backend_name, module, inputs, name=name, settings=settings, drawings=drawings)
    _draw(drawings, module, None)
    compiler = _compiler(settings)
    run = compiler(changed_copy(module), inputs)  # it may change the graph, which is the reference
    return _judged(
        GraphCheck(name, module, run, compiler, _compiler_name(settings), tolerance=settings.tolerance), settings
    )


def _by_backend(
    backend_name: str,
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    name: str,
    settings: DynamoOptions,
    drawings: GraphIr | None,
) -> Callable[..., Any]:
    """Compile a graph with a backend of Filch, whose intermediate graphs and kernels are known."""
    backend = get_backend(backend_name, **settings.of_compiler())
    if not isinstance(backend, CompilesTorch):
        _draw(drawings, module, None)
        through = ThroughOnnx(module, backend, name)
        return _checked_once(through, lambda values: through.report(values, settings.tolerance), settings)
    try:
        compiled = backend.compile_graph(module, inputs)
    except EmptyProgramError:
        _draw(drawings, module, None)
        run = changed_copy(module).forward
        return _judged(GraphCheck(name, module, run, lambda other, _: other.forward, backend_name), settings)
    _draw(drawings, module, compiled)
    tolerance = settings.tolerance
    if settings.use_fp16 and tolerance in (None, "default"):  # no tolerance is given
        tolerance = default_tolerance(torch.float16)

    def on_backward(run: BackwardRun) -> None:
        """Draw and report the first run of a backward graph."""
        if drawings is not None:
            drawings.backward(run)
        if settings.correctness_report is not False:
            _deliver(backward_report(run, name, backend_name, tolerance), settings)

    if settings.correctness_report is not False or drawings is not None:
        compiled.handle.watch_backward(on_backward)

    def compile_another(other: fx.GraphModule, example_inputs: Sequence[Any], **more: bool) -> Any:
        return backend.compile_graph(other, example_inputs, **more).handle

    check = GraphCheck(
        name, module, compiled.handle, compile_another, backend_name, TorchKernels(backend, compiled), tolerance
    )
    compile_own = partial(compile_another, own_random=True)
    return _judged(check, settings, lambda: _with_own_random(check, inputs, compile_own))


def _with_own_random(check: GraphCheck, inputs: Sequence[Any], compile_own: Compile) -> GraphCheck:
    """Return the check of a graph as a compiler compiles it whose kernels draw random numbers themselves."""
    name, run = f"{check.name}, with its own random numbers", compile_own(check.module, inputs)
    return replace(check, name=name, run=run, compile=compile_own, kernels=None)


def _draw(drawings: GraphIr | None, module: fx.GraphModule, compiled: Compiled | None) -> None:
    """Draw a graph and what it was compiled to, if `dump_graph_ir` is set; None is a compiler that does not show it."""
    if drawings is not None:
        drawings.forward(module, compiled)


def _judged(
    check: GraphCheck, options: DynamoOptions, with_own_random: Callable[[], GraphCheck] | None = None
) -> Callable[..., Any]:
    """Return the compiled graph, whose calls are judged if reports are wanted."""
    is_wanted = options.correctness_report is not False
    return JudgedCalls(check, partial(_deliver, options=options), with_own_random) if is_wanted else check.run


def _checked_once(
    run: Callable[..., Any], make_report: Callable[[Sequence[Any]], Report], options: DynamoOptions
) -> Callable[..., Any]:
    """Return `run` with a report at its first call, which changes neither its inputs nor the random number state."""
    if options.correctness_report is False:  # no report is wanted
        return run
    pending = [make_report]

    def checked(*inputs: Any) -> Any:
        if pending:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                report = pending.pop()(inputs)
            _deliver(report, options)
        return run(*inputs)

    return checked


def _deliver(report: Report, options: DynamoOptions) -> None:
    """Give a report to the list or function of the option `correctness_report`, or print it."""
    target = options.correctness_report
    if isinstance(target, list):
        target.append(report)
    elif callable(target):
        target(report)
    else:
        blocks = (*report.blocks(view="dynamo"), "", *_COLLECT.blocks())
        print_text(as_text(blocks))


def _backend_name(inner: str | Callable[..., Any], inputs: Sequence[Any]) -> str | None:
    """Return the name of Filch's backend that `inner` selects; None if it is a compiler of torch or a function."""
    on_cuda = any(isinstance(item, torch.Tensor) and item.is_cuda for item in inputs)
    name = f"onnxruntime-{'cuda' if on_cuda else 'cpu'}" if inner == "onnxruntime" else inner
    return name if isinstance(name, str) and name in backend_names() and name != "eager" else None  # `eager` is torch's


def _compiler(options: DynamoOptions) -> Compile:
    """Return a compiler of torch, or the user's function."""
    inner = options.inner
    if unsupported := options.of_compiler():
        raise CompareError(
            f"inner {_compiler_name(options)!r} takes no option {', '.join(unsupported)}: only Filch's own backends do"
        )
    if not isinstance(inner, str):
        return inner
    if inner not in list_backends(None) or inner == "filch":
        names = {*list_backends(), *backend_names(), "onnxruntime"} - {"filch", "reference"}
        raise CompareError(f"there is no compiler {inner!r} for inner; there are {', '.join(sorted(names))}")
    compiler: Any = _torch.lookup_backend(inner)
    return compiler  # type: ignore[no-any-return]


def _compiler_name(options: DynamoOptions) -> str:
    """Return the name of the compiler of torch, or of the user's function."""
    inner = options.inner
    return inner if isinstance(inner, str) else getattr(inner, "__name__", repr(inner))
