"""Preserve the state of a model, its optimizer and the random number generators."""

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
def preserve_state(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Clear the gradients inside of the block, and restore the state after it.

    The state is: the parameters and buffers, their values and version counters, the gradients, the state of the
    optimizer, and the random number generators (torch's, NumPy's global one and Python's). Other attributes of the
    model, which its `forward` may set, are not restored.
    """
    held = _parameter_dicts(model)
    tensors = [tensor for _, names in held for tensor in names.values() if tensor is not None and _is_writable(tensor)]
    numbers = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in _parameters(model, optimizer)]
    state = _state(optimizer) if optimizer is not None else None
    with _preserved_versions(tensors), _random_numbers():
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for names, before in held:
                names.clear()
                names.update(before)
            _restore_values(numbers)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            if optimizer is not None and state is not None:
                _restore_optimizer(optimizer, state)


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    """Restore the random number generators after the block."""
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  models draw from the global one
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002  as above


def _preserved_versions(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """Restore version counters after the block, so that a backward pass of the user still accepts the tensors."""
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return _unsafe_preserve_version_counter(counted)


def _parameter_dicts(model: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the dictionaries of parameters and buffers of all modules, with copies."""
    # `setattr` would call a `__setattr__` of the module.
    names = [names for module in model.modules() for names in (module._parameters, module._buffers)]  # noqa: SLF001
    return [(each, dict(each)) for each in names]


def _restore_values(numbers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, before in numbers:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(before)


def _is_writable(tensor: torch.Tensor) -> bool:
    """Return whether torch can write to a tensor: not if elements share memory, as in an expanded one."""
    return not nn.parameter.is_lazy(tensor) and torch._debug_has_internal_overlap(tensor) != 1  # noqa: SLF001  nothing public tells


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Return the parameters of both, without duplicates."""
    groups = optimizer.param_groups if optimizer is not None else []
    found = [*model.parameters(), *(parameter for group in groups for parameter in group["params"])]
    return list({id(parameter): parameter for parameter in found}.values())


def _state(optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """Return the state and the settings of an optimizer, without the parameters."""
    remembered = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    settings = [
        {name: copy.deepcopy(item) for name, item in group.items() if name != "params"} for group in _groups(optimizer)
    ]
    return remembered, settings


def _restore_optimizer(optimizer: torch.optim.Optimizer, before: tuple[Any, Any]) -> None:
    remembered, settings = before
    optimizer.state.clear()
    optimizer.state.update(remembered)
    for group, setting in zip(_groups(optimizer), settings, strict=True):
        group.update(setting)


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return optimizer.param_groups
