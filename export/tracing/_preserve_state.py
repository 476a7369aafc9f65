"""Leaves a model, its optimiser and the random numbers as they were."""

import contextlib
import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter


@contextlib.contextmanager
def left_alone(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Inside of the block, the model has no gradients; afterwards all is what it was.

    That is: which parameters and buffers there are, which tensors these are, their numbers and how often they were
    written to, the gradients, the optimiser's state, and the random number generators' (torch's, NumPy's global one and
    Python's). Other attributes of the model, which its `forward` may set, are not looked after.
    """
    held = _held(model)
    tensors = [tensor for _, names in held for tensor in names.values() if tensor is not None and _is_kept(tensor)]
    numbers = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in _parameters(model, optimizer)]
    state = _state(optimizer) if optimizer is not None else None
    with _counted_as_before(tensors), _random_numbers():
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for names, before in held:
                names.clear()
                names.update(before)
            _write_back(numbers)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            if optimizer is not None and state is not None:
                _put_back(optimizer, state)


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    """Afterwards, the random numbers go on as if none had been drawn in the block."""
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  models draw from the global one
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002  as above


def _counted_as_before(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """What is written in the block and put back is no change for a backward pass that the user has yet to run."""
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return _unsafe_preserve_version_counter(counted)


def _held(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The dictionaries that modules keep parameters and buffers in, and what is in them."""
    # `setattr` would be heard by the module's own.
    names = [names for module in model.modules() for names in (module._parameters, module._buffers)]  # noqa: SLF001
    return [(each, dict(each)) for each in names]


def _write_back(numbers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, before in numbers:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(before)


def _is_kept(tensor: torch.Tensor) -> bool:
    """Whether it has numbers that torch writes to: not where several elements are one in memory, as expanded."""
    return not nn.parameter.is_lazy(tensor) and torch._debug_has_internal_overlap(tensor) != 1  # noqa: SLF001  nothing public tells


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
