"""Leaves a model, its optimiser and the random numbers as they were."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def left_alone(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Inside of the block, the model has no gradients; afterwards all is what it was.

    That is: the numbers of parameters and buffers, which tensors these are, the gradients, the optimiser's state, and
    the random number generators'. Other attributes of the model, which its `forward` may set, are not looked after.
    """
    tensors = _tensors(model)
    numbers = [(tensor, tensor.detach().clone()) for *_, tensor in tensors if not nn.parameter.is_lazy(tensor)]
    gradients = [(parameter, parameter.grad) for parameter in _parameters(model, optimizer)]
    state = _state(optimizer) if optimizer is not None else None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            with torch.no_grad():
                for held, name, tensor in tensors:
                    held[name] = tensor
                for tensor, before in numbers:
                    tensor.copy_(before)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            if optimizer is not None and state is not None:
                _put_back(optimizer, state)


def _tensors(model: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    return [
        (held, name, tensor)
        for module in model.modules()
        for held in (module._parameters, module._buffers)  # noqa: SLF001  `setattr` would be heard by the module's own
        for name, tensor in held.items()
        if tensor is not None
    ]


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Those of both, once each."""
    groups = optimizer.param_groups if optimizer is not None else []
    found = [*model.parameters(), *(parameter for group in groups for parameter in group["params"])]
    return list({id(parameter): parameter for parameter in found}.values())


def _state(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """What an optimiser remembers and how it is set; the parameters themselves are no part of it."""
    remembered = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    settings = [
        {name: copy.deepcopy(item) for name, item in group.items() if name != "params"} for group in _groups(optimizer)
    ]
    return remembered, settings


def _put_back(optimizer: torch.optim.Optimizer, before: tuple[Any, Any]) -> None:
    remembered, settings = before
    optimizer.state.clear()
    optimizer.state.update(remembered)
    for group, setting in zip(_groups(optimizer), settings, strict=True):
        group.update(setting)


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return optimizer.param_groups
