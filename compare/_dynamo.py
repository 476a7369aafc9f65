"""`torch.compile(model, backend="filch")`: another compiler, with each graph that it compiles checked."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo import list_backends, lookup_backend

from filch.export import Program, export
from filch.export.backends import Backend, CompilesTorch, backend_names, get_backend
from filch.steal import steal_forward

from ._compare import compare
from ._dynamo_options import DynamoOptions
from ._errors import CompareError
from ._graph_check import GraphCheck, copies
from ._rendering import render_operations, tell
from ._report import Report

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
        tell(render_operations(map(_told, module.graph.nodes)))
    name = f"graph {next(_numbers)}"
    own = _own_backend(chosen.inner, inputs)
    if own is not None:
        engine = get_backend(own, **chosen.of_compiler())
        if not isinstance(engine, CompilesTorch):
            return _through_onnx(module, inputs, engine, name, chosen)
        made = engine.compile_graph(module, inputs)
        check = GraphCheck(name, module, made.handle, _compile(engine), own, engine, made, chosen.tolerance)
        return _checked(made.handle, check.report, chosen)
    compiler = _compiler(chosen)
    run = compiler(module, inputs)
    said = chosen.inner if isinstance(chosen.inner, str) else getattr(chosen.inner, "__name__", repr(chosen.inner))
    check = GraphCheck(name, module, run, compiler, said, tolerance=chosen.tolerance)
    return _checked(run, check.report, chosen)


def _checked(
    run: Callable[..., Any], report: Callable[[Sequence[Any]], Report], options: DynamoOptions
) -> Callable[..., Any]:
    """`run`, which reports at its first call; what it is given is not touched."""
    if options.correctness_report is False:
        return run
    pending = [report]

    def checked(*inputs: Any) -> Any:
        if pending:
            _collect(pending.pop()(inputs), options)
        return run(*inputs)

    return checked


def _collect(report: Report, options: DynamoOptions) -> None:
    into = options.correctness_report
    if isinstance(into, list):
        into.append(report)
    elif callable(into):
        into(report)
    else:
        tell(report.table("operators", wide=True))


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
    known = {*list_backends(None), *backend_names(), "onnxruntime"}
    if inner not in known or inner == "filch":
        raise CompareError(f"there is no compiler {inner!r} for inner; there are {', '.join(sorted(known - {'filch'}))}")
    return lookup_backend(inner)  # type: ignore[no-any-return]


def _through_onnx(
    module: fx.GraphModule, inputs: Sequence[Any], engine: Backend, name: str, options: DynamoOptions
) -> Callable[..., Any]:
    """The graph, exported to ONNX and run by one of Filch's other backends."""
    if not all(isinstance(item, torch.Tensor) for item in inputs):
        raise CompareError(
            f"{name} has sizes among its inputs, which {engine.name!r} can't take: use torch.compile(…, dynamic=False)"
        )
    program = export(module, copies([item.detach() for item in inputs]))
    made = engine.compile(program, optimize=True)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]

    def run(*given: Any) -> Any:
        by_path = dict(zip(names, given, strict=True))
        found = engine.run(made, {value: by_path[path].detach() for value, path in program.inputs.items()})
        return tuple(found[value].to(given[0].device) for value in program.graph.outputs)

    def report(given: Sequence[Any]) -> Report:
        return replace(_compared(module, given, program, engine, options), program=name)

    return _checked(run, report, options)


def _compared(
    module: fx.GraphModule, inputs: Sequence[Any], program: Program, engine: Backend, options: DynamoOptions
) -> Report:
    with torch.no_grad(), steal_forward(module) as capture:
        module(*copies([item.detach() for item in inputs]))
    return compare(capture, program, backend=engine, tolerance=options.tolerance)


def _told(node: fx.Node) -> tuple[str, ...]:
    return tuple(map(str, (node.op, node.name, node.target, node.args, node.kwargs)))
