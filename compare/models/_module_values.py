"""Pass on what the modules of a model receive and return while it runs, and the gradients."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.steal import Key, tensors

PutValue = Callable[[Key, str, torch.Tensor], object]  # takes the key of a record, and path and value of its tensor


@contextmanager
def module_values(name: str, model: nn.Module, put: PutValue) -> Iterator[None]:
    """Pass on a copy of each tensor that a module receives or returns in the block, and of each one's gradient.

    The copies have a float64 counterpart in a `Float64Mode`; those of a capture, which no mode sees, do not.

    Args:
        name: the name of the model in the keys.
        model: the model.
        put: takes each copy as soon as it is known.
    """
    counts = Counter[str]()
    running: list[Key] = []
    handles: list[Any] = []

    def add(key: Key, value: Any) -> None:
        """Pass on the tensors of a record, and later their gradients, in the backward pass."""
        for path, tensor in tensors(value).items():
            put(key, path, tensor.detach().clone())
            if tensor.requires_grad:
                hook = partial(add_gradient, key._replace(kind=f"G{key.kind}"), path)
                handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def add_gradient(key: Key, path: str, gradient: torch.Tensor) -> None:
        put(key, path, gradient.clone())

    def begin(module_name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        """Pass on the inputs of a call that begins; calls in it end before it does."""
        running.append(Key(module_name, counts[module_name], "I"))
        counts[module_name] += 1
        add(running[-1], (args, kwargs))

    def end(_module: nn.Module, _args: Any, output: Any) -> None:
        add(running.pop()._replace(kind="O"), output)

    for path, module in model.named_modules():
        before = partial(begin, ".".join(filter(None, (name, path))))
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        # Also after an exception, which the module around it may catch; `output` is None then.
        handles.append(module.register_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def accumulated_gradients(name: str, model: nn.Module, put: PutValue) -> Iterator[None]:
    """Pass on a copy of a parameter's gradient after each backward pass of the block."""
    counts = Counter[str]()

    def add(path: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            put(Key(path, counts[path], "GP"), "", parameter.grad.clone())
            counts[path] += 1

    trained = [(path, parameter) for path, parameter in named_parameters(name, model) if parameter.requires_grad]
    handles = [parameter.register_post_accumulate_grad_hook(partial(add, path)) for path, parameter in trained]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def named_parameters(name: str, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter with each of its names in the model, behind the model's name in the keys."""
    for path, parameter in model.named_parameters(remove_duplicate=False):
        yield f"{name}.{path}" if name else path, parameter
