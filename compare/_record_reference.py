"""Record a step of one process, with the rounding level of each value."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from filch.steal import Key, restore, steal_forward, tensors

from .common._errors import CompareError
from .float64 import float64_values, stored_level, write_levels

_KINDS = ("I", "O", "GI", "GO", "GF")


def record_reference(
    model: nn.Module, step: Callable[[], object], dump_file: str | os.PathLike[str], *, name: str = ""
) -> None:
    """Record a step of one process, with the rounding level of each value, which `diff` then judges by.

    The step runs three times on the same state of buffers, gradients and random numbers: once as it is, which is
    recorded, and before that with each operation computed in float64 as well, without and with noise of half a unit in
    the last place. A value whose error rounding explains is right, however large it is; one that is further off is
    wrong, however small its error.

    Args:
        model: the model; all of its submodules are recorded, with gradients and parameters.
        step: runs the model, and the backward pass if gradients are wanted. It must not change the parameters.
        dump_file: the dump to write.
        name: the name of the model in the keys.

    Raises:
        CompareError: the step changes a parameter, or an operation can't run in float64.
        DumpError: the dump can't be written.
    """
    versions = [parameter._version for parameter in model.parameters()]  # noqa: SLF001  there is no public API
    random = torch.random.get_rng_state()

    def run() -> Mapping[str, torch.Tensor]:
        torch.random.set_rng_state(random)
        with _same_state(model), _recording(name, model) as values:
            step()
            prefix = f"{name}." if name else ""
            named = model.named_parameters(remove_duplicate=False)
            gradients = ((prefix + path, parameter.grad) for path, parameter in named)
            final = {f"{path}#0.GF": grad.clone() for path, grad in gradients if grad is not None}
        return values | final

    float64 = float64_values(run)
    if [parameter._version for parameter in model.parameters()] != versions:  # noqa: SLF001  as above
        raise CompareError("the step changes parameters: call the optimizer outside of it")
    torch.random.set_rng_state(random)
    with steal_forward(
        (name, model), submodules=True, gradients=True, parameters=True, dump_file=dump_file, on_error="raise"
    ):
        step()
    dump = restore(dump_file)
    places = {
        key.label + path: tensor for key in dump if key.kind in _KINDS for path, tensor in tensors(dump[key]).items()
    }
    levels = {
        place: level
        for place, tensor in places.items()
        if (exact := float64.get(place)) is not None and (level := stored_level(tensor, exact)) is not None
    }
    if not levels:
        raise CompareError(f"no value was computed in float64: {float64.problem or 'no module was called'}")
    write_levels(dump_file, levels)


@contextmanager
def _same_state(model: nn.Module) -> Iterator[None]:
    """Restore buffers and gradients after the block."""
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    for parameter, gradient in gradients.items():
        parameter.grad = None if gradient is None else gradient.detach().clone()
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for buffer, value in buffers.items():
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def _recording(name: str, model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Clone the inputs and outputs of all modules in the block, and their gradients.

    The clones have a float64 counterpart in a `Float64Mode`; those of a capture, which no mode sees, do not.
    """
    values: dict[str, torch.Tensor] = {}
    counts = Counter[str]()
    running: list[Key] = []

    def add(key: Key, value: Any) -> None:
        for path, tensor in tensors(value).items():
            values[key.label + path] = tensor.detach().clone()
            if tensor.requires_grad:
                place = key._replace(kind=f"G{key.kind}").label + path
                tensor.register_hook(partial(add_gradient, place))  # type: ignore[no-untyped-call]

    def add_gradient(place: str, gradient: torch.Tensor) -> None:
        values[place] = gradient.clone()

    def begin(module_name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        running.append(Key(module_name, counts[module_name], "I"))
        counts[module_name] += 1
        add(running[-1], (args, kwargs))

    def end(_module: nn.Module, _args: Any, output: Any) -> None:
        add(running.pop()._replace(kind="O"), output)

    prefix = f"{name}." if name else ""
    handles: list[Any] = []
    for path, module in model.named_modules():
        before = partial(begin, prefix + path if path else name)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(end))
    try:
        yield values
    finally:
        for handle in handles:
            handle.remove()
