"""Preserve the state of a model, its optimizer and the random number generators."""

import contextlib
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from filch.steal.private._torch import debug_has_internal_overlap, unsafe_preserve_version_counter
from filch.steal.values._tensors import is_dense


@contextlib.contextmanager
def preserve_state(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Clear the gradients inside of the block, and restore the state after it.

    The state is: the parameters and buffers, their values and version counters, the gradients, the state of the
    optimizer, and the random number generators (torch's, NumPy's global one and Python's). Other attributes of the
    model, which its `forward` may set, are not restored.
    """
    # `setattr` would call a `__setattr__` of the module.
    dicts = [names for module in model.modules() for names in (module._parameters, module._buffers)]  # noqa: SLF001
    saved_dicts: list[tuple[dict[str, Any], dict[str, Any]]] = [(names, dict(names)) for names in dicts]
    tensors = [tensor for names in dicts for tensor in names.values() if tensor is not None and _is_writable(tensor)]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in _parameters(model, optimizer)]
    # With the same version counters, a backward pass of the user still accepts the tensors.
    versions = unsafe_preserve_version_counter(tuple(tensor for tensor in tensors if not tensor.is_inference()))
    preserved_optimizer = contextlib.nullcontext() if optimizer is None else _preserve_optimizer(optimizer)
    with versions, _preserve_random_generators(), preserved_optimizer:
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for names, saved in saved_dicts:
                names.clear()
                names.update(saved)
            for tensor, value in values:
                with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                    tensor.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient


@contextlib.contextmanager
def _preserve_random_generators() -> Iterator[None]:
    """Restore the random number generators after the block."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  models draw from the global one
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002  as above


@contextlib.contextmanager
def _preserve_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore the state and the settings of an optimizer after the block."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    states = {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}
    settings = [{name: copy.deepcopy(item) for name, item in group.items() if name != "params"} for group in groups]
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(states)
        for group, setting in zip(groups, settings, strict=True):
            group.update(setting)


def _is_writable(tensor: torch.Tensor) -> bool:
    """Return whether torch can write to a tensor: not if it is sparse or nested, or elements share memory."""
    if nn.parameter.is_lazy(tensor) or not is_dense(tensor):
        return False
    return debug_has_internal_overlap(tensor) != 1  # 1 is yes, 2 unknown


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Return the parameters of both, without duplicates."""
    groups = optimizer.param_groups if optimizer is not None else []
    parameters = [*model.parameters(), *(parameter for group in groups for parameter in group["params"])]
    return list({id(parameter): parameter for parameter in parameters}.values())
