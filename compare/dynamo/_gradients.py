"""Compare the gradients of a compiled model with those of the same model in eager PyTorch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.export import Graph, Node, Value
from filch.export.backends import Compiled
from filch.export.common._copies import copy_tensors
from filch.steal import Capture, Key, ModuleInfo, steal_forward, tensors
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors

from ..common._errors import CompareError
from ..float64._values import Float64Values
from ..judging._run import Run
from ..metrics._limits import Limits
from ..metrics._metrics import Difference
from ..metrics._summed_sizes import SummedSizes, compare_summed
from ..metrics._tolerance import Tolerance, ToleranceOption, given_limits
from ..models._state import ModelState
from ..references._resolver import Reference
from ..results._joined import joined
from ..results._report import EAGER_PYTORCH, Report
from ..runs._mode import float64_values
from ._backend import filch
from ._compare_values import compare_values
from ._graph_check import problem_notes

Loss = Callable[[Any], torch.Tensor]
_ARGUMENT = "input "  # begins the names of arguments


def compare_gradients(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    inner: str | Callable[..., Any] = "inductor",
    loss: Loss | None = None,
    tolerance: ToleranceOption = None,
) -> Report:
    """Run `model` forward and backward in eager PyTorch and compiled, and compare the gradients.

    Args:
        model: in train mode, usually; its gradients and buffers are restored afterwards.
        args: its positional arguments; gradients of those that require one are compared, too.
        kwargs: its keyword arguments.
        inner: the compiler (see `DynamoOptions.inner`).
        loss: maps the model's result to a scalar; None is a weighted sum of all floating-point elements, with fixed
            weights of both signs, since the plain sum of a normalized result has a gradient of 0 plus rounding.
        tolerance: see `compare`.

    Returns:
        the report: with Inductor, the rows of the forward graphs and of each backward kernel, including gradients of
        activations; then a row for the gradient of each argument that requires one and of each parameter, in the order
        of the backward pass.

    Raises:
        CompareError: no gradient reaches a parameter or an argument.
        FilchError: the compiler is unknown or not available.
    """
    limits = given_limits(tolerance)
    loss = loss or _weighted_sum
    reports: list[Report] = []
    options = {"correctness_report": reports, "inner": inner, "tolerance": tolerance}
    state = ModelState(model)
    with state.restored(), steal_forward(model, submodules=True, gradients=True) as capture:
        expected = _gradients(model, model, args, kwargs or {}, loss)
    if not expected:
        raise CompareError("no gradient reaches a parameter or an argument: is it frozen, or the loss detached?")

    def gradients() -> Mapping[str, torch.Tensor]:
        with state.restored():
            return {f"{name}.grad": item for name, item in _gradients(model, model, args, kwargs or {}, loss).items()}

    float64 = float64_values(gradients) if tolerance is None else None
    with state.restored():
        compiled = torch.compile(model, backend=partial(filch, options=options))
        actual = _gradients(model, compiled, args, kwargs or {}, loss)
    notes = [*(note for report in reports for note in report.notes), *problem_notes(float64)]
    effects = (report.observer_effect for report in reports if report.observer_effect is not None)
    rows, graphs = joined([*reports, _parameter_report(actual, expected, capture, limits, float64)])
    return Report(
        backend=reports[0].backend if reports else str(inner),
        reference=EAGER_PYTORCH,
        program=f"{type(model).__name__}, forward and backward",
        rows=tuple(rows),
        observer_effect=next(effects, None),
        notes=tuple(dict.fromkeys(notes)),
        calls=(len(reports), len(reports)),
        graphs=graphs,
    )


def _parameter_report(
    actual: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    capture: Capture,
    tolerance: float | Tolerance | None,
    float64: Float64Values | None,
) -> Report:
    """Return a report with a row for each parameter, the last one first, as in the backward pass, then each argument.

    A parameter's gradient is a sum over the gradient of its module's output, which determines its rounding: a bias
    before a BatchNorm has a gradient of 0 plus rounding, of which the float64 run shows only a part, because it adds
    no noise within an operation. Each row names its parameter as module, as a module may have several.
    """
    # Kinds of keys: `GO` is the gradient of a module's output, `GF` the final one of a parameter. The path "" is
    # that of an output that is one tensor.
    # The owner of an argument is the model; the backward pass computes its gradient last.
    names = [name for last in (False, True) for name in reversed([*expected]) if _is_argument(name) is last]
    owners = {name: "" if _is_argument(name) else name.rpartition(".")[0] for name in names}
    nodes = tuple(
        Node(name, "gradient", (path,), (f"{name}.grad",), module=None if _is_argument(name) else name)
        for name, path in owners.items()
    )
    values = {f"{name}.grad": _value(f"{name}.grad", tensor) for name, tensor in expected.items()}
    summed = {
        key.name: tensors(capture[key])[""] for key in capture if key.kind == "GO" and "" in tensors(capture[key])
    }
    inputs = {path: _value(path, tensor) for path, tensor in summed.items()}
    # The gradient of the module's output is what is summed, which tells the length of the sum.
    graph = Graph("gradients", tuple(dict.fromkeys(owners.values())), (), (), nodes, {**inputs, **values})
    gradients = {f"{name}.grad": tensor for name, tensor in actual.items()}
    references = {f"{name}.grad": Reference(tensor, "eager") for name, tensor in expected.items()}
    run = Run(0, "compiled", Compiled(graph, None), summed, {})
    sizes = SummedSizes(capture)

    def of_sum(name: str, tensor: torch.Tensor) -> Difference | None:
        """Return the difference of a gradient if the rounding of what it was summed from explains it."""
        parameter = name.removesuffix(".grad")
        if _is_argument(parameter):
            return None
        size = partial(sizes.of, Key(parameter, 0, "GF"), "", expected[parameter].shape)
        difference, is_rounding = compare_summed(tensor, expected[parameter], size, tolerance=tolerance)
        return difference if is_rounding else None

    limits = Limits(graph, tolerance)
    rows, _ = compare_values(run, gradients, references, None, limits, float64=float64, summed=of_sum)
    bare_nodes = tuple(replace(node, inputs=()) for node in nodes)  # the inputs are paths, not values
    bare_graph = replace(graph, inputs=(), nodes=bare_nodes, values=values)
    return Report("", "", "parameters", tuple(rows), graphs={"compiled": bare_graph})


def _is_argument(name: str) -> bool:
    """Return whether a gradient is that of an argument, not of a parameter."""
    return name.startswith(_ARGUMENT)


def _value(name: str, tensor: torch.Tensor) -> Value:
    """Return the value of a graph that has the shape of a tensor."""
    return Value(name, shape=tuple(tensor.shape))


def _gradients(
    model: nn.Module, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], loss: Loss
) -> dict[str, torch.Tensor]:
    """Return the gradients of the parameters and arguments that the loss depends on, in their order.

    `run` is the model itself, or the model as compiled.
    """
    copied_args, copied_kwargs = copy_tensors((tuple(args), dict(kwargs)))
    model.zero_grad()
    result = loss(run(*copied_args, **copied_kwargs))
    if result.requires_grad:
        result.backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    arguments = argument_tensors(ModuleInfo.of(model).parameters, copied_args, copied_kwargs)
    gradients |= {f"{_ARGUMENT}{path}": item.grad for path, item in arguments.items() if item.requires_grad}
    return {name: gradient.detach().clone() for name, gradient in gradients.items() if gradient is not None}


def _weighted_sum(result: Any) -> torch.Tensor:
    """Return the default loss; see `compare_gradients`."""
    total = torch.zeros(())
    for item in pytree.tree_leaves(result):
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            weights = torch.arange(item.numel(), dtype=torch.float64).cos().to(item)
            total = total + (item * weights.view(item.shape)).sum()
    return total
