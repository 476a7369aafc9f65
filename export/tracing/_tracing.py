"""What a model did in one call, or in one step of its training, as a graph and as Jittor's dictionary."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._errors import TraceError
from ..common._suggestions import hint
from ..graph._graph import Graph
from ._dispatched import dispatched
from ._step import Loss, Step

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
    """Trace a model, as the dictionary that Jittor writes: see `trace_graph`.

    Returns:
        plain Python values: dictionaries, lists, text and integers.

        `node_data`, by `id`: operators and variables, in turn, each with `inputs` and `outputs` (ids), `stacks` (the
        calls that it runs in, outermost first: `name`, `type`, and the call site as `file_path` and `lineno`) and
        `attrs` (text): `is_var`, `name`, `__id`, of variables also `shape` (`[10,1,]`), `ndim`, `dtype` and `dsize`
        (bytes of one number), and `grad_op_id` of what is part of a derivative: the id of the operator derived.

        `execute_op_info`, in the order of execution: `fused_ops` (ids of operators), `jit_key`, `file_path` of the
        generated code (C++ or Triton; of the code that calls it, if a library does the work; `""` in eager PyTorch)
        and `attrs`.

        The source is Jittor's document "Computational graph visualization", and what Jittor 1.3 writes.

    Raises:
        FilchError: see `trace_graph`.

    >>> found = trace(torch.nn.Linear(2, 3), torch.ones(1, 2), backend="eager")
    >>> [node["attrs"]["name"] for node in found["node_data"].values()]
    ['', 'weight', 'bias', 't', '', 'addmm', '']
    """
    from ..views._trace import trace_of  # noqa: PLC0415  a view reads graphs; that one is made by it is the exception

    options: dict[str, Any] = {"kwargs": kwargs, "train": train, "loss": loss, "optimizer": optimizer}
    return trace_of(trace_graph(model, inputs, backend=backend, **options))


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
    """Run a model, and record every operation: of its backward pass and of its optimiser, too, if it is trained.

    What is computed is what is computed untraced, bit for bit. Afterwards, parameters, buffers, gradients, the
    optimiser's state and the random number generators are what they were; the inputs are copied.

    Args:
        model: in the mode that it is to run in: `train=True` does not call `model.train()`.
        inputs: its positional arguments, or the only one.
        kwargs: its keyword arguments.
        train: whether to run a step of training: forward, loss, backward and optimiser; else it is called, without
            gradients.
        backend: `"inductor"` compiles model and loss, and the optimiser by itself, as torch.compile does; `"eager"`
            runs them as they are, and follows derivatives of derivatives.
        loss: from what the model returns to a scalar; None adds up the squares of all floating-point tensors.
        optimizer: of the model's parameters; None is SGD with a learning rate of 0.1.

    Returns:
        with `"eager"`, a graph with a node for each ATen call. With `"inductor"`, the graph of the kernels that ran
        (`code` says where the generated source is); its `before` is the graph of operations, forward and backward
        jointly, that `origins` name. A node that is part of a derivative says of which (`gradient_of`); all have the
        calls that they run in (`stack`).

    Raises:
        TraceError: the model or its loss fail on these inputs, or nothing can be trained.
        BackendError: Inductor can't compile the model, or does not tell what its kernels compute.
    """
    if not isinstance(model, nn.Module):
        raise TraceError(f"the model comes first: a torch.nn.Module, not a {type(model).__name__}")
    if backend not in _BACKENDS:
        raise TraceError(f"there is no backend {backend!r} that traces; {hint(backend, _BACKENDS)}")
    if not train and (loss is not None or optimizer is not None):
        raise TraceError("loss and optimizer are of a step of training: say train=True, too")
    args = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    if not train:
        step = Step(model, args, kwargs or {})
    else:
        step = Step.of_training(model, args, kwargs or {}, loss, optimizer)
    if backend == "eager":
        return dispatched(step)
    from ._compiled_step import compiled_step  # noqa: PLC0415  seconds that the other backend need not wait

    return compiled_step(step)
