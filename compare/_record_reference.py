"""Record a step of one process, with the rounding level of each value."""

import os
from collections.abc import Callable

from torch import nn

from filch.steal import Key, restore, steal_forward

from .common._errors import CompareError
from .float64._levels_file import write_levels
from .models._module_values import PutValue, accumulated_gradients, module_values, named_parameters
from .models._state import ModelState
from .runs._measured_levels import measured_levels


def record_reference(
    model: nn.Module, step: Callable[[], object], dump_file: str | os.PathLike[str], *, name: str = ""
) -> None:
    """Record a step of one process, with the rounding level of each value, which `diff` then judges by.

    The step runs twice on the same state of buffers, gradients and random numbers: once as it is, which is recorded,
    and after that with each operation computed in float64 as well, without and with noise of half a unit in the last
    place. A value whose error rounding explains is right, however large it is; one that is further off is wrong,
    however small its error.

    Args:
        model: the model; all of its submodules are recorded, with gradients and parameters.
        step: runs the model, and the backward pass if gradients are wanted. It must not change the parameters.
        dump_file: the dump to write.
        name: the name of the model in the keys.

    Raises:
        CompareError: the step changes a parameter, or an operation can't run in float64.
        DumpError: the dump can't be written.
    """
    versions = _versions(model)
    state = ModelState(model)
    with steal_forward(
        (name, model), submodules=True, gradients=True, parameters=True, dump_file=dump_file, on_error="raise"
    ):
        step()
    if _versions(model) != versions:
        raise CompareError("the step changes parameters: call the optimizer outside of it")

    def run(put: PutValue) -> None:
        with state.restored():
            with module_values(name, model, put), accumulated_gradients(name, model, put):
                step()
            for path, parameter in named_parameters(name, model):
                if parameter.grad is not None:
                    put(Key(path, 0, "GF"), "", parameter.grad.clone())

    levels, problem = measured_levels(run, restore(dump_file))
    if not levels:
        raise CompareError(f"no value was computed in float64: {problem or 'no module was called'}")
    write_levels(dump_file, levels)


def _versions(model: nn.Module) -> list[int]:
    """Return how often each parameter has been changed."""
    return [parameter._version for parameter in model.parameters()]  # noqa: SLF001  there is no public API
