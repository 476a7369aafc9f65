"""The traced step: one call of a model, or one training step."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from filch.steal import FilchError, ModuleInfo, tensors
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors
from filch.steal.values._dtypes import dtype_name

from .._errors import TraceError, reason
from ._preserve_state import preserve_state

Loss = Callable[[Any], torch.Tensor]
Function = Callable[..., Any]


@dataclass(frozen=True)
class TracedStep:
    """One call of a model, or one training step.

    Attributes:
        model: the model, in the mode in which to run it.
        args: its positional arguments.
        kwargs: its keyword arguments.
        loss: computes a scalar from the model's result; None without training.
        optimizer: the optimizer; None without training.
    """

    model: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None


@contextmanager
def trace_errors(text: str) -> Iterator[None]:
    """Convert errors inside of the block to a TraceError that begins with `text`."""
    try:
        yield
    except FilchError:
        raise
    except Exception as error:  # a model, a loss, an optimizer or a compiler may raise any error
        raise TraceError(f"{text}: {reason(error)}") from error


class Tracer:
    """Observes a step while it runs. This base class records nothing."""

    def begin(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Called when the run starts, with the parameters and buffers and the inputs by name."""

    def prepare(self, function: Function) -> Function:
        """Return the function to run in place of a part of the step."""
        return function

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass."""
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimizer."""
        self.prepare(step_optimizer)(optimizer)

    def end(self, results: Sequence[torch.Tensor]) -> None:
        """Called when the run ends, with its results: the loss, if there is one."""


def run(step: TracedStep, tracer: Tracer) -> None:
    """Run a step and restore all state afterwards.

    Raises:
        TraceError: the model, its loss or its optimizer fails on these inputs.
    """
    args, kwargs = _copied((tuple(step.args), dict(step.kwargs)))
    with preserve_state(step.model, step.optimizer), torch.set_grad_enabled(step.loss is not None):
        weights = {**dict(step.model.named_parameters()), **dict(step.model.named_buffers())}
        tracer.begin(weights, argument_tensors(ModuleInfo.of(step.model).parameters, args, kwargs))
        if step.loss is None or step.optimizer is None:  # no training step
            result = tracer.prepare(call_model)(step.model, args, kwargs)
            tracer.end(list(tensors(result).values()))
            return
        loss = tracer.prepare(compute_loss)(step.model, step.loss, args, kwargs)
        tracer.backward(_check_loss(loss))
        tracer.update(step.optimizer)
        tracer.end([loss])


def _copied(inputs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Copy the inputs, which a call may change; tensors with a history, which `deepcopy` refuses, are detached."""
    computed = [item for item in pytree.tree_leaves(inputs) if isinstance(item, torch.Tensor) and not item.is_leaf]
    return copy.deepcopy(inputs, {id(item): item.detach().clone().requires_grad_() for item in computed})


def call_model(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a model."""
    return model(*args, **kwargs)


def compute_loss(model: nn.Module, loss: Loss, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return the loss of a model."""
    return loss(model(*args, **kwargs))


def step_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Run an optimizer."""
    optimizer.step()


def _check_loss(loss: Any) -> torch.Tensor:
    """Return the loss; refuse all but a tensor with one number that requires a gradient."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        is_tensor = isinstance(loss, torch.Tensor)
        found = f"{dtype_name(loss.dtype)}{list(loss.shape)}" if is_tensor else type(loss).__name__
        raise TraceError(
            f"the loss has to be one number that depends on a parameter, not {found}: "
            "give loss, a function from what the model returns to a scalar tensor"
        )
    return loss
