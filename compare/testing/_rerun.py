"""Run a model again on the inputs of a run: in its own dtypes, and in float64."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from filch.steal import Dump, Foreign, Key, steal_forward, tensors

from ..common._errors import CompareError
from ..float64 import Fingerprint, Float64Values, float64_values


class Rerun:
    """Repeats a run of a model, from the same state of random numbers and buffers.

    Args:
        name: the name of the model in the keys.
        model: the model.

    Attributes:
        draws_random: the state of the random numbers at the beginning, as a fingerprint, if the run has changed it.
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        self._name, self._model = name, model
        self._random = torch.random.get_rng_state()
        self._buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
        self._run: Callable[[], None] | None = None
        self.draws_random = ""

    def finish(self, run: Callable[[], None]) -> None:
        """End the first run; `run` repeats it."""
        self._run = run
        if not torch.equal(self._random, torch.random.get_rng_state()):
            self.draws_random = Fingerprint.of(self._random).digest

    def into(self, sink: Callable[[Key, Any], object], **options: Any) -> None:
        """Run the model, and pass each record to a function (see `steal_forward`)."""
        with self._same_state(), steal_forward((self._name, self._model), sink=sink, strict=True, **options):
            self._repeat()

    def float64(self) -> Float64Values:
        """Run the model in float64; the values are named by the label of their key and the path in the record."""

        def run() -> Mapping[str, torch.Tensor]:
            with self._same_state(), _recording(self._name, self._model) as values:
                self._repeat()
            return values

        return float64_values(run)

    def weights(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of the parameters and buffers by name."""
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        prefix = f"{self._name}." if self._name else ""
        return {prefix + name: Fingerprint.of(tensor) for name, tensor in named if tensor.layout is torch.strided}

    def _repeat(self) -> None:
        if self._run is None:
            raise CompareError("the run has not ended")
        self._run()

    @contextmanager
    def _same_state(self) -> Iterator[None]:
        """Restore the initial state for the block, and the present one afterwards."""
        present = {buffer: buffer.detach().clone() for buffer in self._buffers}
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.random.set_rng_state(self._random)
            try:
                _restore(self._buffers)
                yield
            finally:
                _restore(present)


def repeat_calls(name: str, model: nn.Module, dump: Dump) -> None:
    """Call a model on the inputs of its calls in a dump, without gradients.

    Raises:
        CompareError: an input was not stored as what it was.
    """
    for call in dump.calls():
        keys = [key for key in call.keys if key.kind == "I" and key.name == call.name == name]
        if not keys:
            raise CompareError("the inputs of a call were not stored")
        args, kwargs = dump[keys[0]]
        if foreign := next((item for item in (*args, *kwargs.values()) if isinstance(item, Foreign)), None):
            raise CompareError(f"an input of class {foreign!r:.80} can't be read from the dump")
        with torch.no_grad():
            model(*args, **kwargs)


def _restore(values: Mapping[torch.Tensor, torch.Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in values.items():
            if not torch.equal(buffer, value):
                buffer.copy_(value)


@contextmanager
def _recording(name: str, model: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Clone the inputs and outputs of all modules in the block; the clones have a float64 counterpart in a mode."""
    values: dict[str, torch.Tensor] = {}
    counts = Counter[str]()
    running: list[Key] = []

    def add(key: Key, value: Any) -> None:
        values.update({key.label + path: tensor.clone() for path, tensor in tensors(value).items()})

    def begin(module_name: str, args: Any, kwargs: Any) -> None:
        running.append(Key(module_name, counts[module_name], "I"))
        counts[module_name] += 1
        add(running[-1], (args, kwargs))

    def end(output: Any) -> None:
        add(running.pop()._replace(kind="O"), output)

    handles = []
    for path, module in model.named_modules():
        full = ".".join(part for part in (name, path) if part)
        handles += [
            module.register_forward_pre_hook(
                lambda _, args, kwargs, full=full: begin(full, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(lambda _module, _args, output: end(output)),
        ]
    try:
        yield values
    finally:
        for handle in handles:
            handle.remove()
