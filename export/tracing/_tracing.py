"""Trace one call or one training step of a model, as a graph or as Jittor's dictionary."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._errors import TraceError
from ..common._suggestions import hint
from ..graph._graph import Graph
from ..views._trace import trace_of
from ._dispatched import trace_dispatched
from ._loss import sum_of_squares
from ._step import Loss, TracedStep

_BACKENDS = ("eager", "inductor")


def trace(
    model: nn.Module,
    inputs: torch.Tensor | Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    train: bool = False,
    backend: str = "inductor",
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, dict[int, dict[str, Any]]]:
    """Trace a model and return Jittor's trace dictionary; see `trace_graph` for the arguments.

    Returns:
        dictionaries, lists, strings and integers:

        `node_data`, by `id`: alternating operators and variables, each with `inputs` and `outputs` (ids), `stacks` (the
        running calls, outermost first: `name`, `type`, and the call site as `file_path` and `lineno`) and `attrs`
        (strings): `is_var`, `name` and `__id`; for variables also `shape` (`[10,1,]`), `ndim`, `dtype` and `dsize`
        (bytes of one element); for parts of a derivative also `grad_op_id`, the id of the differentiated operator.

        `execute_op_info`, in the order of execution: `fused_ops` (ids of operators), `jit_key`, `file_path` of the
        generated code (C++ or Triton; for library calls, of the calling code; `""` in eager PyTorch) and `attrs`.

        Source of the format: Jittor's document "Computational graph visualization", and the output of Jittor 1.3.

    Raises:
        FilchError: see `trace_graph`.

    >>> data = trace(torch.nn.Linear(2, 3), torch.ones(1, 2), backend="eager")
    >>> [node["attrs"]["name"] for node in data["node_data"].values()]
    ['', 'weight', 'bias', 't', '', 'addmm', '']
    """
    graph = trace_graph(model, inputs, kwargs=kwargs, train=train, backend=backend, loss=loss, optimizer=optimizer)
    return trace_of(graph)


def trace_graph(
    model: nn.Module,
    inputs: torch.Tensor | Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    train: bool = False,
    backend: str = "inductor",
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Graph:
    """Run a model and record every operation, with `train` also those of the backward pass and the optimizer.

    The results are the same bits as without tracing. Afterwards, parameters, buffers, gradients, the state of the
    optimizer and the random number generators are restored; the inputs are copied.

    Args:
        model: the model in the mode in which to run it: `train=True` does not call `model.train()`.
        inputs: its positional arguments, or the only one.
        kwargs: its keyword arguments.
        train: whether to run a training step: forward, loss, backward and optimizer. Otherwise the model is called
            without gradients.
        backend: `"inductor"` compiles model and loss, and separately the optimizer, like torch.compile; `"eager"` runs
            them as they are, and supports higher derivatives.
        loss: computes a scalar from the model's result; None is the sum of squares of all floating-point tensors.
        optimizer: an optimizer of the model's parameters; None is SGD with a learning rate of 0.1.

    Returns:
        with `"eager"`, a graph with a node for each ATen call. With `"inductor"`, the graph of the executed kernels
        (`code` is the place of the generated source); its `source_graph` is the joint forward and backward graph of
        operations, which `origins` name. A part of a derivative names the differentiated node (`gradient_of`); all
        nodes have the calls in which they ran (`stack`).

    Raises:
        TraceError: the model or its loss fails on these inputs, or has no trainable parameter.
        BackendError: Inductor can't compile the model, or does not report what its kernels compute.
    """
    if not isinstance(model, nn.Module):
        raise TraceError(f"the model comes first: a torch.nn.Module, not a {type(model).__name__}")
    if backend not in _BACKENDS:
        raise TraceError(f"there is no backend {backend!r} that traces; {hint(backend, _BACKENDS)}")
    if not train and (loss is not None or optimizer is not None):
        raise TraceError("loss and optimizer belong to a training step: add train=True")
    if train:
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trainable:
            raise TraceError(
                f"{type(model).__name__} has no parameter that takes a gradient: trace it with train=False, "
                "or unfreeze what is to be trained"
            )
        loss, optimizer = loss or sum_of_squares, optimizer or torch.optim.SGD(trainable, 0.1)
    args = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    step = TracedStep(model, args, kwargs or {}, loss, optimizer)
    if backend == "eager":
        return trace_dispatched(step)
    from ._compiled_step import compiled_step  # noqa: PLC0415  seconds that the other backend need not wait

    return compiled_step(step)
