"""Run a model again from the same state."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from filch.steal.values._raw import no_modes_or_grad
from filch.steal.values._tensors import is_dense


class ModelState:
    """The buffers and gradients of a model, and the state of the random numbers, at the time at which this is made.

    Attributes:
        random: the state of the random numbers on the CPU.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = _copies(model.buffers())
        self._gradients = {parameter: _copy(parameter.grad) for parameter in model.parameters()}
        self.random = torch.random.get_rng_state()
        has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._cuda_random = torch.cuda.get_rng_state_all() if has_cuda else []

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this state for the block, and the present one after it; unseen by modes, such as `Float64Mode`."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), preserved_buffers(self._buffers):
            with no_modes_or_grad():
                gradients = {parameter: parameter.grad for parameter in self._gradients}
            try:
                with no_modes_or_grad():
                    torch.random.set_rng_state(self.random)
                    torch.cuda.set_rng_state_all(self._cuda_random)
                    _write(self._buffers)
                    for parameter, gradient in self._gradients.items():
                        parameter.grad = _copy(gradient)
                yield
            finally:
                with no_modes_or_grad():
                    for parameter, gradient in gradients.items():
                        parameter.grad = gradient


@contextmanager
def preserved_buffers(buffers: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore dense buffers after the block to what they are now; unseen by modes, such as `Float64Mode`."""
    with no_modes_or_grad():
        copies = _copies(buffers)
    try:
        yield
    finally:
        with no_modes_or_grad():
            _write(copies)


def _copies(buffers: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """Return a copy of the numbers of each buffer that is stored densely."""
    return {buffer: buffer.detach().clone() for buffer in buffers if is_dense(buffer)}


def _copy(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def _write(values: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Write numbers into tensors, in place; tensors that have them are not touched, so that autograd sees no change."""
    for tensor, value in values.items():
        if not torch.equal(tensor, value):
            tensor.copy_(value)
