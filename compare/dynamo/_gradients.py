"""The gradients of a compiled model, held against those of the same model in eager PyTorch."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from filch.export import Graph, Node, Value
from filch.export.backends import Compiled

from ..common._errors import CompareError
from ..engine._run import Run
from ..engine._value_comparator import judge
from ..metrics._limits import Limits
from ..metrics._tolerance import Tolerance
from ..references._references import Reference
from ..results._joined import joined
from ..results._report import Report
from ._backend import filch
from ._graph_check import BACKWARD

Loss = Callable[[Any], torch.Tensor]


def compare_gradients(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    inner: str | Callable[..., Any] = "inductor",
    loss: Loss | None = None,
    tolerance: float | Tolerance | None = None,
) -> Report:
    """Run `model` forward and backward in eager PyTorch and compiled, and hold every gradient against its own.

    Args:
        model: in train mode, usually; its gradients and buffers are left as they were.
        args: its positional arguments.
        kwargs: its keyword arguments.
        inner: what compiles (see `DynamoOptions.inner`).
        loss: from what the model returns to a scalar; None weighs all its floating-point numbers with fixed numbers of
            both signs and adds them up: the plain sum of what a norm gives has no gradient but rounding.
        tolerance: see `compare`.

    Returns:
        the report: with Inductor, the rows of the forward graphs and of each backward kernel (its gradients of
        activations among them); then a row for the gradient of each parameter, in the order of the backward pass.

    Raises:
        CompareError: no gradient reaches a parameter.
        FilchError: the compiler is not there.
    """
    scalar = loss or _weighed
    reports: list[Report] = []
    options = {"correctness_report": reports, "inner": inner, "tolerance": tolerance}
    arriving: dict[str, torch.Tensor] = {}
    with _left_alone(model), _arriving(model, arriving):
        expected = _gradients(model, model, args, kwargs or {}, scalar)
    if not expected:
        raise CompareError("no gradient reaches a parameter of the model: is it frozen, or the loss detached?")
    with _left_alone(model):
        compiled = torch.compile(model, backend=partial(filch, options=options))
        actual = _gradients(model, compiled, args, kwargs or {}, scalar)
    rows, graphs = joined([*reports, _judged(expected, actual, arriving, tolerance)])
    return Report(
        backend=reports[0].backend if reports else str(inner),
        reference="eager PyTorch",
        program=f"{type(model).__name__}, forward and backward",
        rows=tuple(rows),
        observer_effect=next(
            (report.observer_effect for report in reports if report.observer_effect is not None), None
        ),
        notes=tuple(dict.fromkeys(note for report in reports for note in (*report.notes, *_backward_notes(report)))),
        calls=(len(reports), len(reports)),
        graphs=graphs,
    )


def _backward_notes(report: Report) -> tuple[str, ...]:
    return (_DECOMPOSED,) if report.program.endswith(BACKWARD) else ()


_DECOMPOSED = (
    "backward kernels are compared with the backward graph after its operations were decomposed: "
    "a wrong decomposition shows in the parameters' gradients alone"
)


def _judged(
    expected: Mapping[str, torch.Tensor],
    actual: Mapping[str, torch.Tensor],
    arriving: Mapping[str, torch.Tensor],
    tolerance: float | Tolerance | None,
) -> Report:
    """A row for each parameter; gradients flow back, so the last parameter comes first.

    A parameter's gradient is added up from what arrives at its module, and is rounded like that: a bias in front of a
    BatchNorm has a gradient of 0 and rounding. What a row belongs to is the parameter: a module has several.
    """
    owners = {name: name.rpartition(".")[0] for name in reversed([*expected])}
    nodes = [Node(name, "gradient", (path,), (f"{name}.grad",), module=name) for name, path in owners.items()]
    values = {value: Value(value) for node in nodes for value in node.outputs}
    graph = Graph("gradients", tuple(dict.fromkeys(owners.values())), (), (), tuple(nodes), values)
    found = {f"{name}.grad": tensor for name, tensor in actual.items()}
    references = {f"{name}.grad": Reference(tensor, "eager") for name, tensor in expected.items()}
    run = Run(0, "compiled", Compiled(graph, None), arriving, {})
    rows, _ = judge(run, found, references, None, Limits(graph, tolerance))
    drawn = replace(graph, inputs=(), nodes=tuple(replace(node, inputs=()) for node in nodes))  # paths are no values
    return Report("", "", "parameters", tuple(rows), graphs={"compiled": drawn})


def _gradients(
    model: nn.Module, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], loss: Loss
) -> dict[str, torch.Tensor]:
    """The gradients of the parameters that the loss depends on, in the order of the model's parameters."""
    copied, named = pytree.tree_map(_copy, (tuple(args), dict(kwargs)))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        result = loss(run(*copied, **named))
        if result.requires_grad:
            result.backward()  # type: ignore[no-untyped-call]
    held = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient.detach().clone() for name, gradient in held.items() if gradient is not None}


def _weighed(result: Any) -> torch.Tensor:
    tensors = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
    return sum((_dot(item) for item in tensors if item.is_floating_point()), start=torch.zeros(()))


def _dot(tensor: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(tensor.numel(), dtype=torch.float64).cos().to(tensor)
    return (tensor * weights.view(tensor.shape)).sum()


def _copy(item: Any) -> Any:
    return item.detach().clone().requires_grad_(item.requires_grad) if isinstance(item, torch.Tensor) else item


@contextlib.contextmanager
def _arriving(model: nn.Module, found: dict[str, torch.Tensor]) -> Iterator[None]:
    """Keep the gradient that arrives at each module's result, by the module's path."""

    def hook(path: str) -> Callable[..., None]:
        def keep(_module: nn.Module, _args: Any, result: Any) -> None:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: found.update({path: gradient.detach().clone()})
                )

        return keep

    handles = [module.register_forward_hook(hook(path)) for path, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    """The model without gradients inside of the block; afterwards its gradients and buffers are what they were."""
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    try:
        for parameter in gradients:
            parameter.grad = None
        yield
    finally:
        with torch.no_grad():
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for buffer, kept in buffers.items():
                buffer.copy_(kept)
